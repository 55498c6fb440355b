"""Claims that only a GPU can prove: `pytest -m gpu`."""

import pytest
from hunting import MUTANTS

from harness.campaign import Campaign, Plan
from harness.case import Case, Hints, Seq, replace
from harness.mutants import plant
from harness.pool import Worker
from harness.results import Result

pytestmark = pytest.mark.gpu

CASE = Case(seqs=(Seq(kv_len=33), Seq(kv_len=20, tag=1)), num_q_heads=4, num_kv_heads=2, placement="shuffled")

OUT_OF_THE_WORLD = """
import torch, triton, triton.language as tl
from harness import subject

@triton.jit
def kernel(out_ptr):
    tl.store(out_ptr + (1 << 45), 1.0)

@subject(op="decode")
def decode(inputs):
    out = torch.zeros_like(inputs.q)
    if inputs.q.shape[0] > 1:
        kernel[(1,)](out)
    return out
"""

FOR_EVER = """
import torch, triton, triton.language as tl
from harness import subject

@triton.jit
def kernel(flag_ptr):
    while tl.load(flag_ptr, volatile=True) == 0.0:
        pass

@subject(op="decode")
def decode(inputs):
    kernel[(1,)](torch.zeros(1, device=inputs.q.device))
    return torch.zeros_like(inputs.q)
"""


@pytest.fixture(scope="module")
def worker():
    with Worker("gpu") as there:
        yield there


def run(worker: Worker, case: Case, subject: str = "ours.decode", limit: float = 120.0) -> Result:
    return worker.run(case, subject, limit, thorough=True)


def hunt(worker: Worker, subject: str, seconds: float, **options):
    plan = Plan({subject: worker.describe(subject, "decode")}, "gpu", seconds, seed=1, **options)
    return Campaign(plan, worker).run()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_our_kernel_is_right_on_the_gpu(worker, dtype):
    result = run(worker, replace(CASE, dtype=dtype, want_lse=True, softcap=30.0, sinks=True, alibi=True))
    assert not result.findings, result.findings
    assert not result.harness_fault
    assert 0 < result.margin <= 1
    assert "q*k summed in float32" in result.arithmetic


def test_our_kernel_reads_far_blocks_on_the_gpu(worker):
    result = run(worker, replace(CASE, placement="far", dtype="float16"))
    assert not result.declined
    assert not result.findings, result.findings


def test_a_minute_of_drawing_finds_nothing_in_our_kernel(worker):
    summary = hunt(worker, "ours.decode", 60)
    assert summary.cases > 20
    assert not summary.findings, summary.findings
    assert not summary.harness_faults


@pytest.mark.parametrize("name", ["last-token-dropped", "stale-v-times-zero", "scale-off-by-one-per-cent"])
def test_a_planted_fault_is_found_on_the_gpu(worker, name, tmp_path):
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    summary = hunt(worker, plant(mutant, tmp_path), 120, stop_at_first=True)
    assert [mutant.means(found.finding) for found in summary.findings] == [True]
    assert summary.findings[0].again == "3 of 3"


def test_an_illegal_access_is_a_crash_and_the_next_case_runs(worker, tmp_path):
    file = tmp_path / "illegal.py"
    file.write_text(OUT_OF_THE_WORLD)
    result = run(worker, CASE, f"{file}:decode")
    assert [finding.kind for finding in result.findings] == ["crash"]
    assert not run(worker, CASE).findings


def test_a_kernel_that_never_ends_is_a_hang_and_the_next_case_runs(worker, tmp_path):
    file = tmp_path / "endless.py"
    file.write_text(FOR_EVER)
    result = run(worker, CASE, f"{file}:decode", limit=20)
    assert [finding.kind for finding in result.findings] == ["hang"]
    assert not run(worker, CASE).findings


def test_a_named_config_and_named_warps_are_what_runs():
    from test_configs import add, subject, torch

    from harness.executors.tuning import tuned
    from harness.pipeline import run_case

    compiled = []
    for warps in (1, 8):
        with tuned(Hints(num_warps=warps, config=1), configs=2):
            compiled.append(add[(1,)](torch.zeros(1, device="cuda")))
    assert [kernel.metadata.num_warps for kernel in compiled] == [1, 8]
    cases = [Case(hints=Hints(config=number)) for number in (0, 1)]
    assert [bool(run_case(case, subject(2), "gpu").findings) for case in cases] == [False, True]
