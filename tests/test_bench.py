"""The bench as a command: what it says of right, wrong, slow and broken subjects; its record; its messages."""

import importlib
import json
import sys
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from clocks import Here
from invoked import Lent, one_line
from rich.console import Console

from harness import speed_figure, speed_table
from harness.case import InvalidCase
from harness.pool import Died, HarnessFault, Worker
from harness.results import Finding
from harness.speeds import SCHEMA, Bench, Ceiling, Size, Speed, read, save
from harness.subjects import WrongUse
from harness.workloads import WORKLOADS

BENCH = importlib.import_module("harness.bench")

FILE = """
from harness import ours, subject

@subject(op="decode")
def right(inputs):
    return ours.decode(inputs)

@subject(op="decode")
def wrong(inputs):
    return ours.decode(inputs) * 1.5

@subject(op="decode")
def raises(inputs):
    raise RuntimeError("does not compile")

@subject(op="merge")
def merges(inputs):
    return ours.merge(inputs)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(FILE)
    return path


def run(*arguments: object):
    return CliRunner().invoke(BENCH.main, [str(argument) for argument in arguments])


@pytest.fixture
def timed(monkeypatch):
    """The command where there is a GPU, with a worker that is none."""
    monkeypatch.setattr("harness.commands.has_gpu", lambda: True)
    monkeypatch.setattr(BENCH, "Worker", Here)
    return run


# --- timed, by a told clock ----------------------------------------------------------------------------------------


def test_a_wrong_subject_is_marked_and_keeps_its_time_and_the_code_is_1(timed, file, tmp_path):
    subjects = [x for name in ("right", "wrong", "raises") for x in ("--subject", f"{file}:{name}")]
    done = timed(*subjects, "--workload", "decode-8x8k-16", "--json", tmp_path / "b.json")
    assert done.exit_code == 1, done.output
    bench = read(tmp_path / "b.json")
    states = {speed.subject.rpartition(":")[2]: (speed.state, speed.repeats) for speed in bench.speeds}
    five = (0.5, 0.4, 0.6, 0.5, 0.4)
    assert states == {"right": ("right", five), "wrong": ("wrong", five), "raises": ("failed", ())}
    assert "WRONG" in done.stdout
    assert f"WRONG: {file}:wrong on decode-8x8k-16: out[" in done.stdout
    assert f"failed: {file}:raises on decode-8x8k-16: RuntimeError at kernels.py:14: does not compile" in done.stdout
    assert "ceilings of this run: copy 4000 GB/s, bf16 matmul 700 TFLOP/s, empty graph 4.0 us" in done.stdout


def test_right_subjects_of_every_operation_leave_0(timed):
    names = ("ours.decode", "ours.extend", "ours.cache_write")
    workloads = ("decode-1x8k-16", "extend-prefill-8k-64", "cache_write-8k-16")
    done = timed(
        *(x for name in names for x in ("--subject", name)),
        *(x for name in workloads for x in ("--workload", name)),
        "--quick",
    )
    assert done.exit_code == 0, done.output
    assert done.stderr.count(": right, 0.5000 ms") == 4, "extend takes the decode as well"


@pytest.mark.parametrize(
    ("options", "pace"),
    [((), (50.0, 5)), (("--quick",), (10.0, 3)), (("--turn", 7), (7.0, 5)), (("--turn", 7, "--quick"), (7.0, 3))],
)
def test_what_is_timed_and_the_ceilings_have_one_turn(timed, monkeypatch, options, pace):
    paces = []

    class Noting(Here):
        def call(self, target, *arguments, limit_seconds=0.0):
            if target.endswith(":measure"):
                paces.append(arguments[-2:])
            return super().call(target, *arguments, limit_seconds=limit_seconds)

    monkeypatch.setattr(BENCH, "Worker", Noting)
    timed("--subject", "ours.split_decode", "--workload", "decode-1x8k-16", *options)
    assert paces == [pace, pace]


def test_a_subject_that_is_not_there_stops_nobody(timed, file):
    done = timed("--subject", "absent.py:f", "--subject", f"{file}:right", "--workload", "decode-1x8k-16")
    assert done.exit_code == 0, done.output
    assert "not loaded: absent.py:f: subject 'absent.py:f': there is no file absent.py" in done.stdout


class Ends(Here):
    """A worker that dies, or whose harness fails, on the first subject of each workload."""

    ending: Exception = HarnessFault("Traceback\nRuntimeError: no kernel image")

    def call(self, target, *arguments, limit_seconds=0.0):
        if "measuring:measure" in target and arguments[0].endswith(":wrong"):
            raise self.ending
        return super().call(target, *arguments, limit_seconds=limit_seconds)


@pytest.mark.parametrize(
    ("ending", "says", "retired"),
    [
        (Ends.ending, "RuntimeError: no kernel image", 1),
        (Died(Finding(kind="hang", message="no answer after 120 s")), "no answer after 120 s", 0),
    ],
)
def test_what_kills_the_worker_is_told_in_its_row_and_the_next_one_has_a_fresh_one(
    timed, monkeypatch, file, ending, says, retired
):
    worker = Ends("gpu")
    monkeypatch.setattr(Ends, "ending", ending)
    monkeypatch.setattr(BENCH, "Worker", lambda *_: worker)
    done = timed("--subject", f"{file}:wrong", "--subject", f"{file}:right", "--workload", "decode-1x8k-16")
    assert done.exit_code == 0, done.output
    assert f"failed: {file}:wrong on decode-1x8k-16: {says}" in done.stdout
    assert f"{file}:right: right" in done.stderr
    assert worker.retired == retired, "one that died has a successor already"


def test_ceilings_that_cannot_be_measured_are_a_fault_and_the_rows_stay(timed, monkeypatch, file):
    class Low(Here):
        def call(self, target, *arguments, limit_seconds=0.0):
            if "ceilings" in target:
                raise HarnessFault("out of memory")
            return super().call(target, *arguments, limit_seconds=limit_seconds)

    monkeypatch.setattr(BENCH, "Worker", Low)
    done = timed("--subject", f"{file}:right", "--workload", "decode-1x8k-16")
    assert done.exit_code == 3
    assert "the ceilings could not be measured: out of memory" in done.stdout
    assert f"{file}:right: right" in done.stderr


def test_every_row_is_kept_as_it_comes(timed, monkeypatch, file, tmp_path):
    class Interrupted(Here):
        def call(self, target, *arguments, limit_seconds=0.0):
            if "measuring:measure" in target and arguments[0].endswith(":wrong"):
                raise KeyboardInterrupt
            return super().call(target, *arguments, limit_seconds=limit_seconds)

    monkeypatch.setattr(BENCH, "Worker", Interrupted)
    subjects = ("--subject", f"{file}:right", "--subject", f"{file}:wrong")
    timed(*subjects, "--workload", "decode-1x8k-16", "--json", tmp_path / "b.json")
    assert [speed.state for speed in read(tmp_path / "b.json").speeds] == ["right"]


def test_by_default_all_that_is_installed_is_timed_and_the_files_of_the_settings(timed, monkeypatch, file, tmp_path):
    (tmp_path / "kvetch.toml").write_text(f'subjects = ["ours.merge", "{file}:right"]')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.benching.adapted", lambda: iter([]))
    timed("--workload", "decode-1x8k-16", "--json", "b.json")
    seen = [speed.subject for speed in read(Path("b.json")).speeds]
    assert seen == ["ours.decode", "ours.split_decode", "ours.extend", f"{file}:right"]


# --- checked, on a CPU ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker():
    with Worker("gridsim") as found:
        yield found


@pytest.fixture
def checked(worker, monkeypatch):
    monkeypatch.setattr("harness.commands.has_gpu", lambda: False)
    monkeypatch.setattr(BENCH, "Worker", lambda *_: Lent(worker))
    return lambda *arguments: run("--check", *arguments)


def test_a_planted_wrong_kernel_is_wrong_without_a_gpu(checked, file):
    done = checked("--subject", f"{file}:wrong", "--subject", f"{file}:right", "--workload", "decode-8x8k-16")
    assert done.exit_code == 1, done.output
    assert f"WRONG: {file}:wrong on decode-8x8k-16: accuracy: out[" in done.stdout
    assert "right here, not timed" in done.stdout
    assert f"{file}:right: right" in done.stderr


def test_our_own_kernels_are_right_on_smaller_workloads(checked):
    names = ("decode-tutorial-16", "decode-qwen-32x1k-16", "extend-4x512-after-7k-64", "cache_write-8k-16")
    ours = ("ours.decode", "ours.split_decode", "ours.extend", "ours.cache_write")
    done = checked(*(x for n in names for x in ("--workload", n)), *(x for n in ours for x in ("--subject", n)))
    assert done.exit_code == 0, done.output
    assert done.stderr.count(": right") == 8, done.stderr
    assert "right or wrong here, not timed" in done.stdout


# --- messages ------------------------------------------------------------------------------------------------------


def test_without_a_gpu_one_line_says_what_is_missing_and_what_helps(monkeypatch):
    monkeypatch.setattr("harness.commands.has_gpu", lambda: False)
    said = one_line(run())
    assert "this machine has none" in said
    assert "--check" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--workload", "decode-9"), "workload is 'decode-9', but expected one of decode-1x8k-16, "),
        (("--subject", "ours.attend"), "subject is 'ours.attend', but expected FILE.py:FUNCTION or one of ours.decode"),
        (("--subject", "vllm.attend"), "subject is 'vllm.attend', but expected FILE.py:FUNCTION or one of vllm."),
        (("--scale", "1"), "--scale"),
        (("--show", "nowhere.json"), "nowhere.json"),
        (("--json", f"{__file__}/b.json"), f"--json is {__file__!r}, but {__file__} is no folder"),
        (("--check", "--subject", "ours.merge"), "no subject takes one of these workloads"),
    ],
)
def test_wrong_use_is_one_line_with_the_value(checked, arguments, says):
    assert says in one_line(run(*arguments))


def test_list_names_workloads_and_subjects_and_runs_nothing():
    done = run("--list")
    assert done.exit_code == 0
    for name in (*WORKLOADS, "ours.decode (decode)", "vllm.unified_attention (extend): "):
        assert name in done.stdout


# --- the record, the table and the figure --------------------------------------------------------------------------


def made(**changes: object) -> Bench:
    """A decode of 1 GB at a copy of 4000 GB/s: 0.25 ms would be all of it."""
    size = Size(name="decode-32x8k-16", op="decode", bytes_moved=10**9, flops=1, words="")
    extend = Size(name="extend-prefill-8k-16", op="extend", bytes_moved=1, flops=10**12, words="")
    speeds = (
        Speed(
            workload=size.name, subject="ours.decode", state="right", repeats=(0.5, 0.49, 0.51), how="as a CUDA graph"
        ),
        Speed(workload=size.name, subject="vllm.unified_attention", state="right", repeats=(1.0,), core="a.b:c"),
        Speed(workload=size.name, subject="flashinfer.decode", state="wrong", says="NaN", repeats=(0.25,)),
        Speed(workload=size.name, subject="torch.varlen_attn", state="declined", says="block_sizes"),
        Speed(workload=extend.name, subject="ours.extend", state="right", repeats=(10.0,), how="launched one by one"),
    )
    ceilings = (
        Ceiling(name="copy", amount=4e9, repeats=(1.0,)),
        Ceiling(name="matmul", amount=8e11, repeats=(1.0,)),
        Ceiling(name="empty graph", amount=0, repeats=(0.004,)),
    )
    fields = {"schema": SCHEMA, "date": "2026-11-30", "command": "python -m harness.bench", "executor": "gpu"}
    fields |= {"ceilings": ceilings, "sizes": (size, extend), "speeds": speeds}
    return Bench(**fields | changes)


def shown(bench: Bench) -> dict[str, list[str]]:
    """The cells of each subject's row."""
    console = Console(width=200, record=True, file=StringIO())
    speed_table.show(bench, console)
    lines = [line.split("│") for line in console.export_text().splitlines() if "│" in line]
    return {cells[2].strip(): [cell.strip() for cell in cells[3:-1]] for cells in lines}


def test_the_table_has_rates_shares_and_ratios_to_the_best_right_peer():
    rows = shown(made())
    assert rows["ours.decode"] == ["0.5000", "4.0%", "2000", "50%", "2.00", ""]
    assert rows["vllm.unified_attention"] == ["1.0000", "0.0%", "1000", "25%", "1.00", "c alone"]
    assert rows["flashinfer.decode"] == ["0.2500", "0.0%", "4000", "100%", "", "WRONG"]
    assert rows["torch.varlen_attn"] == ["", "", "", "", "", "declined: block_sizes"]
    assert rows["ours.extend"] == ["10.0000", "0.0%", "100", "12%", "", "launched one by one"]


def test_a_record_comes_back_from_json_as_it_was_and_is_shown_without_a_gpu(tmp_path):
    save(made(), tmp_path / "b.json")
    assert read(tmp_path / "b.json") == made()
    plain = json.loads((tmp_path / "b.json").read_text())
    assert (plain["schema"], plain["speeds"][0]["repeats"]) == (SCHEMA, [0.5, 0.49, 0.51])
    done = run("--show", tmp_path / "b.json")
    assert done.exit_code == 1, "a subject of it is wrong"
    assert "0.5000" in done.stdout


@pytest.mark.parametrize(("text", "says"), [("{}", "b.json: "), ('{"schema": 1, "speed": 1}', "speed")])
def test_what_is_no_record_is_told_with_its_file(tmp_path, text, says):
    (tmp_path / "b.json").write_text(text)
    assert says in one_line(run("--show", tmp_path / "b.json"))


def test_a_record_of_another_schema_is_refused(tmp_path):
    save(made(schema=2), tmp_path / "b.json")
    with pytest.raises(InvalidCase, match="schema is 2, but this version reads 1"):
        read(tmp_path / "b.json")


def test_exit_codes():
    right, *_ = made().speeds
    assert made(speeds=(right,)).exit_code == 0
    assert made(speeds=()).exit_code == 5
    assert made(speeds=(right,), faults=("x",)).exit_code == 3
    assert made().exit_code == 1


def test_the_figure_is_drawn_from_a_record(tmp_path):
    pytest.importorskip("matplotlib")
    save(made(), tmp_path / "b.json")
    assert run("--show", tmp_path / "b.json", "--plot", tmp_path / "b.svg").exit_code == 1
    drawn = (tmp_path / "b.svg").read_text()
    assert drawn.count("<svg") == 1
    assert "b.xyz" in one_line(run("--show", tmp_path / "b.json", "--plot", tmp_path / "b.xyz"))


def test_nothing_to_draw_is_told():
    pytest.importorskip("matplotlib")
    with pytest.raises(WrongUse, match="nothing to draw"):
        speed_figure.draw(made(ceilings=()), Path("b.svg"))


def test_without_matplotlib_one_line_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    save(made(), tmp_path / "b.json")
    said = one_line(run("--show", tmp_path / "b.json", "--plot", tmp_path / "b.svg"))
    assert "--plot needs matplotlib, which is not installed here: pip install 'kvetch[plot]'" in said


def test_the_command_is_a_verb():
    from harness.__main__ import main

    assert isinstance(main.get_command(click.Context(main), "bench"), click.Command)


@pytest.mark.gpu
def test_the_command_on_the_gpu(file, tmp_path):
    subjects = [x for name in ("right", "wrong", "raises") for x in ("--subject", f"{file}:{name}")]
    workloads = ("--workload", "decode-32x1k-16", "--workload", "decode-8x8k-16")
    done = run("--quick", *subjects, "--subject", "ours.extend", *workloads, "--json", tmp_path / "b.json")
    assert done.exit_code == 1, done.output
    bench = read(tmp_path / "b.json")
    assert [ceiling.name for ceiling in bench.ceilings] == ["copy", "read", "matmul", "empty graph"]
    states = {(speed.subject.rpartition(":")[2], speed.state) for speed in bench.speeds}
    assert states == {("right", "right"), ("wrong", "wrong"), ("raises", "failed"), ("ours.extend", "right")}
    assert {speed.how for speed in bench.speeds if speed.repeats} == {"as a CUDA graph"}
    for size in bench.sizes:
        assert all(0 < speed_table.of_ceiling(bench, size, s) < 1.2 for s in bench.of(size.name) if s.repeats)
