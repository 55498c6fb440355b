"""`show --script`: a reproduction that stands alone, and that really reproduces."""

import subprocess
import sys
from unittest.mock import patch

import pytest
from invoked import ROOT, one_line

from harness.arithmetic import Arithmetic
from harness.case import Case, Hints, Seq, Slots, States, Tile, replace
from harness.corpus import Corpus, Entry
from harness.executors.gridsim.launch import active
from harness.inputs import materialise
from harness.judge import judge
from harness.platforms import platform
from harness.results import Finding

RICH = Case(
    seqs=(Seq(kv_len=21), Seq(kv_len=3, tag=1), Seq(kv_len=0, tag=2)),
    num_q_heads=4,
    num_kv_heads=2,
    placement="shuffled",
    table_pad="huge",
    extra_columns=1,
    layout="hnd",
    q_layout="fused_qkv",
)
WRONG = Finding(kind="accuracy", message="out is 1, but should be 0")


@pytest.fixture
def written(commands, tmp_path):
    """Write the script for a subject, for the CPU instead of a GPU, into a folder of its own."""

    def write(name: str, case: Case = RICH):
        path = Corpus(tmp_path / "corpus").add(Entry(why="by hand", case=case, subject=name, finding=WRONG))
        result = commands("show", path, "--script")
        assert result.exit_code == 0, result.stderr
        compile(result.stdout, "script.py", "exec")
        assert 'DEVICE = "cuda"' in result.stdout
        (tmp_path / "empty").mkdir()
        script = tmp_path / "empty" / "script.py"
        script.write_text(result.stdout.replace('DEVICE = "cuda"', 'DEVICE = "cpu"'))
        return script

    return write


def run(script):
    """Isolated: neither this checkout nor the user's site-packages can be imported from."""
    command = [sys.executable, "-I", script.name]
    return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)


def test_it_fails_for_a_wrong_subject_and_names_the_elements(commands, written):
    ran = run(written(commands.subject("mended")))
    assert ran.returncode == 1, ran.stderr
    first, second, *_ = ran.stdout.splitlines()
    assert first == "out: 192 of 192 elements are outside the bound"
    assert second.startswith("  out[0, 0, 0] is ")
    assert ran.stderr == ""


def test_it_passes_for_a_right_subject(commands, written):
    ran = run(written(commands.subject("right")))
    assert (ran.returncode, ran.stdout) == (0, "out: 0 of 192 elements are outside the bound\n"), ran.stderr


def test_it_passes_for_a_right_subject_in_16_bits_with_far_blocks(commands, written):
    ran = run(written(commands.subject("right"), Case(seqs=(Seq(kv_len=20),), placement="far", dtype="bfloat16")))
    assert (ran.returncode, ran.stdout) == (0, "out: 0 of 16 elements are outside the bound\n"), ran.stderr


def test_it_judges_a_given_out_and_the_lse(commands, written):
    source = """
import torch


def writes(inputs):
    inputs.out.fill_(float("nan"))
    return inputs.out, torch.zeros(inputs.q.shape[:2])
"""
    (commands.folder / "writes.py").write_text(source)
    case = replace(RICH, out_layout="padded", want_lse=True)
    ran = run(written(f"{commands.folder}/writes.py:writes", case))
    assert ran.returncode == 1, ran.stderr
    assert "out: 192 of 192 elements are outside the bound" in ran.stdout
    assert "lse: 12 of 12 elements are outside the bound" in ran.stdout


def test_a_subject_that_raises_shows_its_own_traceback(commands, written):
    ran = run(written(commands.subject("raises")))
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == "KeyError: 'no such block'"


def test_the_bound_is_the_one_of_the_kernels_own_arithmetic(commands, written):
    """The widest default would allow a float32 kernel TF32, hundreds of times as much."""
    scope = {"__name__": "script"}
    with pytest.raises(RuntimeError, match="active drivers"):  # a kernel needs a GPU
        exec(written(f"{ROOT}/examples/my_decode.py:my_decode", Case()).read_text(), scope)
    materials, where = materialise(Case()), platform("sm90")
    own, widest = (judge(materials, a, where) for a in (Arithmetic(tile_kv=16), Arithmetic.widest("float32")))
    assert float(scope["EXPECTED"]["out"][1].max()) == own.out.max()
    assert own.out.max() < widest.out.max() / 100


def test_the_script_says_what_it_is(commands, written):
    text = written(commands.subject("right")).read_text()
    assert text.startswith('"""by hand\n\ndecode, 3 sequences of kv_len 21, 3, 0; 4 query and 2 KV heads')
    assert "Needs torch and triton only. Runs on a GPU." in text
    assert "import harness" not in text


#: A case of every operation that ours can be shown with, one that uses what only this operation has.
OURS = {
    "ours.decode": Case(seqs=(Seq(kv_len=20),), kv_dtype="e4m3", k_scale=2.0, v_scale=0.5),
    "ours.split_decode": Case(seqs=(Seq(kv_len=20),), hints=Hints(num_splits=3)),
    "ours.extend": Case(op="extend", seqs=(Seq(query_len=3, kv_len=20), Seq(query_len=2, kv_len=2, tag=1))),
    "ours.step": Case(op="step", seqs=(Seq(query_len=3, kv_len=20),), slots=Slots(tail_padding=1)),
    "ours.gather": Case(op="gather", seqs=(Seq(kv_len=20),), tile=Tile(start=5, end=24)),
    "ours.merge": Case(op="merge", states=States(partition=(1, 2, 3), empty=(1,)), want_lse=True),
}


DENSE = replace(OURS["ours.extend"], new_kv="dense", padding_rows=1, kv_dtype="e5m2", k_scale=2.0, v_layout="padded")
SPLIT = replace(DENSE, hints=Hints(num_splits=3))
PADDED = [("ours.extend", DENSE), ("ours.extend", SPLIT), ("ours.step", replace(OURS["ours.step"], padding_rows=1))]


@pytest.mark.parametrize(("name", "case"), [*OURS.items(), *PADDED])
def test_a_script_of_our_kernel_of_any_operation_calls_it_and_passes(written, name, case, capsys):
    text = written(name, case).read_text()
    assert "import harness" not in text
    with patch.dict(sys.modules), patch.object(sys, "path", [*sys.path]), active(), pytest.raises(SystemExit) as ended:
        exec(compile(text, "script.py", "exec"), {"__name__": "script"})
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["out:", "0"], *([["lse:", "0"]] if case.want_lse else [])]


def test_a_script_of_a_write_or_of_another_operation_is_refused_in_one_line(commands, tmp_path):
    write, extend = Case(op="cache_write"), Case(op="extend")
    path = Corpus(tmp_path).add(Entry(why="by hand", case=write, subject="ours.cache_write"))
    line = one_line(commands("show", path, "--script"))
    told = "a script judges an output, but cache_write has none: use python -m harness.replay"
    assert line == f"kvetch: {told}\n"
    path = Corpus(tmp_path).add(Entry(why="by hand", case=Case(before=Case()), subject="ours.decode"))
    told = "a script makes one call, but this case has one before it: use python -m harness.replay"
    assert one_line(commands("show", path, "--script")) == f"kvetch: {told}\n"
    path = Corpus(tmp_path).add(Entry(why="by hand", case=extend, subject="ours.decode"))
    line = one_line(commands("show", path, "--script"))
    assert line == "kvetch: subject is 'ours.decode', but the case is for extend: give --subject\n"


PAGED = Case(
    op="extend",
    seqs=(Seq(query_len=2, kv_len=20), Seq(kv_len=3, tag=1)),
    num_q_heads=2,
    k_poison="zero",
    v_poison="zero",
    window=(3, -1),
    alibi=True,
    want_lse=True,
)


@pytest.mark.parametrize(("poison", "code"), [("zero", 0), ("nan", 1)])
def test_a_script_of_an_adapter_runs_on_a_cpu_where_its_kernel_does(poison, code, written):
    """NaN in slots that are nobody's is what PyTorch's eager mode does not bear."""
    script = written("torch.paged_attention", replace(PAGED, v_poison=poison))
    text = script.read_text()
    assert "harness" not in text
    assert "Needs torch, triton and torch>=" in text
    assert 'if torch.cuda.is_available() else "cpu"' in text
    ran = run(script)
    assert ran.returncode == code, ran.stderr
    wrong = 96 * code
    assert ran.stdout.splitlines()[0] == f"out: {wrong} of 96 elements are outside the bound"


def test_a_script_of_an_adapter_for_another_operation_is_refused(commands, tmp_path):
    path = Corpus(tmp_path).add(Entry(why="by hand", case=Case(), subject="torch.paged_attention"))
    line = one_line(commands("show", path, "--script"))
    assert line == "kvetch: subject is 'torch.paged_attention', but the case is for decode: give --subject\n"


@pytest.mark.thirdparty
def test_a_script_of_an_adapter_gets_as_far_as_the_gpu_that_its_kernel_needs(written):
    """Its package is loaded lightly, as it was when the case was found."""
    case = Case(op="extend", seqs=(Seq(query_len=2, kv_len=20),), dtype="float16")
    script = written("vllm.unified_attention", case)
    assert "if torch.cuda" not in script.read_text(), "a Triton kernel runs on no CPU"
    ran = subprocess.run([sys.executable, script.name], cwd=script.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "active drivers" in ran.stderr.splitlines()[-1]
