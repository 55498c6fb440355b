"""The compile gate: what does not compile or fit for a target is named, what a change made worse is told."""

import faulthandler
import importlib
import json
import os
import re
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness import compiling
from harness.builds import TARGETS, Build, chosen_targets, compare, overflow, tell_worse
from harness.case import Case, Hints, Seq
from harness.compiles import Compiled, compile_subject, distinct
from harness.compiles_table import table
from harness.fixed import fixed_cases
from harness.pool import Worker
from harness.strategies import constants_of
from harness.subjects import Declaration, WrongUse

COMPILES = importlib.import_module("harness.compiles")
NVIDIA, AMD = "sm_90", "gfx942"
CASE = Case(seqs=(Seq(kv_len=3),))

HEAD = """
import torch, triton, triton.language as tl
from harness import subject
"""
#: A kernel whose product wants TF32x3, which AMD's backend lacks, in a function that it calls.
PRECISE = """
@triton.jit
def product(a):
    return tl.dot(a, a, input_precision="tf32x3")

@triton.jit
def kernel(out_ptr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out_ptr + at, product(tl.load(out_ptr + at)))

@subject(op="decode")
def decode(inputs):
    kernel[(1,)](torch.zeros(256, device=inputs.q.device))
    return torch.zeros_like(inputs.q)
"""
#: A kernel whose tile must pass through shared memory: 64 x SIZE halves.
WIDE = """
SIZE = 1024

@triton.jit
def kernel(out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(out_ptr + at)
    to = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(out_ptr + to, tl.dot(x, tl.trans(x)).to(tl.float16))

@subject(op="decode")
def decode(inputs):
    kernel[(1,)](torch.zeros(64 * SIZE, device=inputs.q.device, dtype=torch.float16), SIZE=SIZE)
    return torch.zeros_like(inputs.q)
"""
#: A kernel that keeps WIDTH numbers a thread alive over a loop.
HUNGRY = """
WIDTH = 64

@triton.jit
def kernel(out_ptr, n, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    x = tl.load(out_ptr + at)
    y = tl.load(out_ptr + WIDTH + at)
    for i in range(n):
        x, y = x * y + i, y * x - tl.load(out_ptr + i)
    tl.store(out_ptr + at, x + y)

@subject(op="decode")
def decode(inputs):
    kernel[(1,)](torch.zeros(2 * WIDTH, device=inputs.q.device), 3, WIDTH=WIDTH, num_warps=1)
    return torch.zeros_like(inputs.q)
"""
#: An autotuned kernel; its second config is one that no GPU can launch.
TUNED = """
@triton.autotune([triton.Config({}, num_warps=4), triton.Config({}, num_warps=32)], key=[])
@triton.jit
def kernel(out_ptr):
    tl.store(out_ptr + tl.arange(0, 16), 0.0)

@subject(op="decode")
def decode(inputs):
    kernel[(1,)](torch.zeros(16, device=inputs.q.device))
    return torch.zeros_like(inputs.q)
"""
#: A kernel with an instruction that ptxas does not know.
BOGUS = """
@triton.jit
def kernel(out_ptr):
    x = tl.load(out_ptr)
    y = tl.inline_asm_elementwise("bogus.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr, y)

@subject(op="decode")
def decode(inputs):
    kernel[(1,)](torch.zeros(1, device=inputs.q.device))
    return torch.zeros_like(inputs.q)
"""
DIES = """
import os

@subject(op="decode")
def decode(inputs):
    os.abort()
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))  # nothing is there from another day
    with Worker("gridsim") as there:
        yield there
    del os.environ["TRITON_CACHE_DIR"]


def written(folder: Path, source: str, name: str = "subject.py") -> str:
    (folder / name).write_text(HEAD + source)
    return f"{folder / name}:decode"


def compiled(worker: Worker, subject: str, targets=(NVIDIA,), cases=None, **options):
    declared = worker.describe(subject, "decode")
    return compile_subject(worker, subject, declared, cases or {0: CASE}, targets, lambda _: None, options)


# --- one run -------------------------------------------------------------------------------------------------------


def test_our_kernels_compile_and_fit_on_every_target(worker):
    for name in ("ours.decode", "ours.merge"):
        case = msgspec.structs.replace(CASE, op=name.removeprefix("ours."), dtype="float16")
        found = compiled(worker, name, tuple(TARGETS), {0: case})
        assert {build.target for build in found.builds} == set(TARGETS)
        assert {build.outcome for build in found.builds} == {"compiles"}, found.builds
        assert all(build.registers > 0 and build.threads >= 128 for build in found.builds)
        assert not found.raised


def test_float32_heads_of_256_fit_the_shared_memory_of_gfx942(worker):
    case = msgspec.structs.replace(CASE, op="extend", head_dim=256)
    [build] = compiled(worker, "ours.extend", (AMD,), {0: case}).builds
    assert build.outcome == "compiles", build.says
    assert "TILE_KV=16" in build.what


@pytest.mark.parametrize("subject", ["ours.extend", "ours.split_decode"])
def test_one_split_spills_nothing_on_a_hopper_and_several_fit_it(worker, subject):
    op = worker.describe(subject, "decode").op
    shape = {"op": op, "dtype": "bfloat16", "head_dim": 128, "num_q_heads": 4}
    cases = {n: msgspec.structs.replace(CASE, **shape, hints=Hints(num_splits=n)) for n in (1, 3)}
    one, several = sorted(compiled(worker, subject, (NVIDIA,), cases).builds, key=lambda build: build.launches)
    assert (one.outcome, one.spills, several.outcome) == ("compiles", 0, "compiles")
    assert one.launches == ("case 1 launch 1",)
    assert several.launches == ("case 3 launch 1",)


def test_a_kernel_that_does_not_compile_for_one_target_is_named_with_its_line(worker, tmp_path):
    found = compiled(worker, written(tmp_path, PRECISE), (NVIDIA, AMD))
    right, wrong = sorted(found.builds, key=lambda build: build.outcome)
    assert (right.target, right.outcome) == (NVIDIA, "compiles")
    assert (wrong.target, wrong.outcome, wrong.kernel) == (AMD, "fails", "kernel")
    assert "tf32x3" in wrong.says
    line = (HEAD + PRECISE).splitlines().index('    return tl.dot(a, a, input_precision="tf32x3")') + 1
    assert f"subject.py:{line}" in wrong.says
    assert found.failures == (wrong,)


def test_shared_memory_beyond_the_target_is_named_and_what_fits_is_not(worker, tmp_path):
    found = compiled(worker, written(tmp_path, WIDE), (NVIDIA, AMD))
    outcomes = {build.target: build for build in found.builds}
    assert outcomes[AMD].outcome == "does not fit"
    assert re.search(r"\d+ bytes of shared memory, but a block may have 65536", outcomes[AMD].says)
    assert outcomes[NVIDIA].outcome == "compiles"
    assert outcomes[NVIDIA].shared > TARGETS[AMD].shared


def test_a_type_that_the_target_lacks_is_declined_and_is_no_failure(worker):
    case = msgspec.structs.replace(CASE, dtype="float16", kv_dtype="e4m3")
    found = compiled(worker, "ours.decode", ("sm_80", NVIDIA), {0: case})
    outcomes = {build.target: build for build in found.builds}
    assert outcomes["sm_80"].outcome == "declined"
    assert outcomes["sm_80"].says.startswith("type fp8e4nv not supported in this architecture.")
    assert outcomes[NVIDIA].outcome == "compiles"
    assert not found.failures


def test_every_config_of_an_autotuned_kernel_is_compiled(worker, tmp_path):
    found = compiled(worker, written(tmp_path, TUNED), (NVIDIA, AMD))
    assert len(found.builds) == 4
    [wrong] = found.failures
    assert wrong.says == "2048 threads, but a block may have 1024"
    assert "num_warps=32" in wrong.what
    assert "config 1" in wrong.launches[0]


def test_a_compilation_that_takes_too_long_is_ended_and_named(worker, tmp_path):
    found = compiled(worker, written(tmp_path, HUNGRY.replace("WIDTH = 64", "WIDTH = 16384")), seconds=1)
    [wrong] = found.failures
    assert wrong.says == "the compiler took more than 1 s of processor time"
    assert 0.9 < wrong.seconds < 3


def test_cases_that_kill_the_worker_are_told(worker, tmp_path):
    found = compiled(worker, written(tmp_path, DIES))
    assert "SIGABRT" in found.died
    assert not found.builds


def test_a_case_that_raises_is_told_and_what_it_launched_is_compiled(worker, tmp_path):
    source = PRECISE.replace("    return torch.zeros_like(inputs.q)", '    raise ValueError("no")')
    found = compiled(worker, written(tmp_path, source))
    assert found.raised == ("case 0 raised ValueError: no",)
    assert len(found.builds) == 1


def test_what_ptxas_refuses_is_told_in_its_words_although_gridsim_cannot_run_it(worker, tmp_path):
    found = compiled(worker, written(tmp_path, BOGUS))
    [wrong] = found.failures
    assert wrong.says.startswith("ptxas: ")
    assert "bogus" in wrong.says
    assert len(found.raised) == 1


@pytest.fixture
def one(monkeypatch):
    """Compile by a function of the test's, in a process of its own."""

    class Noted:
        build = staticmethod(lambda: BASE)

    monkeypatch.setattr(compiling, "_collected", [Noted()])
    monkeypatch.setattr(compiling, "PATIENCE", 0.1)

    def run(compile_one, seconds=20):
        monkeypatch.setattr(compiling, "compile_one", lambda found: compile_one())
        return msgspec.convert(compiling.compiled([0], 1, seconds)[0], Build)

    return run


def test_a_compiler_that_dies_is_a_failure_with_how_it_died_and_where(one):
    def dies():
        faulthandler.disable()  # pytest's would print
        os.write(2, b"/a/b.py:12:3: error: no such layout\n")
        os.abort()

    assert one(dies).says == "no such layout (b.py:12; the compiler ended with SIGABRT)"
    assert one(dies).outcome == "fails"


def test_a_compiler_that_waits_for_ever_is_killed(one):
    assert one(lambda: time.sleep(60), seconds=10).says == "the compiler did not end in 1.0 s"


def test_a_compiler_that_answers_is_believed_and_its_processor_time_kept(one):
    found = one(lambda: sum(range(10**7)) and BASE)
    assert msgspec.structs.replace(found, seconds=0.0) == BASE
    assert found.seconds > 0.05


# --- base and change -----------------------------------------------------------------------------------------------


def test_a_kernel_that_spills_is_told_against_a_base_that_does_not(worker, tmp_path):
    sources = [HUNGRY, HUNGRY.replace("WIDTH = 64", "WIDTH = 4096")]
    base, change = (compiled(worker, written(tmp_path, s, f"s{i}.py")).builds for i, s in enumerate(sources))
    [worse] = compare(base, change)
    assert worse.kind == "spills"
    assert not worse.fails
    assert re.search(r"\d+ words a thread spilled, base 0", worse.message)
    assert list(compare(base, base)) == []
    assert list(compare(change, base)) == []


BASE = Build("kernel", "a.py:1", NVIDIA, "SIZE=16", ("case 0 launch 1",), shared=1024, registers=64)


def changed(**fields) -> Build:
    return msgspec.structs.replace(BASE, what="SIZE=32, another argument", **fields)


@pytest.mark.parametrize(
    ("change", "kind", "fails"),
    [
        (changed(outcome="fails", says="no"), "no longer compiles", True),
        (changed(outcome="declined", says="no such type"), "no longer compiles", True),
        (changed(outcome="does not fit", says="too much"), "no longer fits", True),
        (changed(spills=4), "spills", False),
        (changed(registers=65), "more registers", False),
        (changed(outcome="fails", says="no", kernel="new_kernel"), "does not compile", True),
        (changed(outcome="does not fit", says="too much", launches=("case 1 launch 1",)), "does not fit", True),
    ],
)
def test_what_a_change_made_worse_is_told_although_the_signature_changed(change, kind, fails):
    [worse] = compare([BASE], [change])
    assert (worse.kind, worse.fails) == (kind, fails)
    assert f"{change.kernel} (a.py:1) on sm_90, {kind}" in tell_worse(worse)


@pytest.mark.parametrize(
    "change",
    [
        changed(),
        changed(registers=60, shared=0),
        changed(registers=200, launches=("case 1 launch 1",)),  # base launched nothing there
        changed(outcome="declined", target=AMD),
    ],
)
def test_what_is_no_worse_or_has_no_base_is_not_told(change):
    assert list(compare([BASE], [change])) == []


def test_what_base_did_not_do_either_is_no_loss():
    broken = changed(outcome="fails", says="no")
    assert list(compare([broken], [broken])) == []
    assert list(compare([broken], [BASE])) == []


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def command(worker, monkeypatch):
    class Shared:
        def __enter__(self):
            return worker

        def __exit__(self, *exception):
            pass

    monkeypatch.setattr(COMPILES, "Worker", lambda executor: Shared())
    return lambda *arguments: CliRunner().invoke(COMPILES.main, [str(argument) for argument in arguments])


def test_the_command_names_what_fails_and_what_reproduces_it(command, tmp_path):
    subject = written(tmp_path, PRECISE)
    done = command("--subject", subject, "--targets", f"{NVIDIA},{AMD}", "--cases", 2)
    assert done.exit_code == 1, done.output
    assert f"kernel (subject.py:10) on {AMD} does not compile" in done.output
    again = f"--subject {subject} --seed 0 --case 0 --targets {AMD}"
    assert f"python -m harness.compiles {again}" in done.output
    assert command(*again.split()).exit_code == 1
    assert command("--subject", subject, "--case", 10**6).exit_code == 2


def test_the_command_writes_json_and_a_table(command, tmp_path):
    file = tmp_path / "table.md"
    done = command("--subject", "ours.gather", "--targets", NVIDIA, "--cases", 1, "--table", file, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["exit_code"] == 0
    [compiled] = msgspec.convert(found["subjects"], list[Compiled])
    assert compiled.builds[0].outcome == "compiles"
    assert "| `paged_gather_kernel" in file.read_text()


def test_nothing_launched_is_exit_5(command, tmp_path):
    subject = written(tmp_path, "@subject(op='decode')\ndef decode(inputs):\n    return torch.zeros_like(inputs.q)\n")
    assert command("--subject", subject, "--cases", 1).exit_code == 5


def test_an_unknown_target_is_wrong_use(command):
    done = command("--targets", "sm_80,sm_7", "--cases", 1)
    assert done.exit_code == 2
    assert "--targets is 'sm_80,sm_7', but expected some of sm_80,sm_90,sm_100,gfx942" in done.output
    with pytest.raises(WrongUse):
        chosen_targets(" , ")


# --- parts ---------------------------------------------------------------------------------------------------------


def test_cases_differ_in_what_the_compiler_sees_and_keep_their_numbers():
    drawn = fixed_cases(Declaration(), 3, 150)
    found = distinct(drawn, 8)
    assert len({constants_of(case) for case in found.values()}) == len(found) == 8
    assert all(drawn[number] == case for number, case in found.items())
    assert distinct(drawn, 4) == dict(list(found.items())[:4])
    assert distinct(fixed_cases(Declaration(), 3, 150), 8) == found


def test_a_target_has_room_for_what_it_has_room_for():
    target = TARGETS[NVIDIA]
    assert overflow(target, target.shared, 1024, 512) == ""
    assert "shared memory" in overflow(target, target.shared + 1, 1024, 512)
    assert overflow(target, 0, 1056, 0) == "1056 threads, but a block may have 1024"
    assert "tensor memory" in overflow(target, 0, 32, 513)


def test_a_kernel_of_two_subjects_has_one_row_for_each_target():
    class Found:
        builds = (BASE, changed(outcome="declined", says="no such type (a.py:3)"))

    text = table([Found(), Found()], [NVIDIA], {"triton": "3.9"}, "command")
    [row] = [line for line in text.splitlines() if line.startswith("| `kernel")]
    assert row.startswith("| `kernel (a.py:1)` | sm_90 | 1 | 1 | 0 | 1,024, 1,024 | 232,448 | 64, 64 |")
    assert "* sm_90: no such type" in text
