"""Triton's own interpreter bears witness: where it is right, it and gridsim judge our kernels alike."""

from collections.abc import Iterator

import msgspec
import pytest

from harness.case import Case, Seq, Tile
from harness.pool import Worker

TWO = (Seq(kv_len=20), Seq(kv_len=3, tag=1))
CASES = {
    "ours.decode": Case(seqs=TWO, num_q_heads=2, placement="shuffled", want_lse=True, sinks=True, window=(5, -1)),
    "ours.extend": Case(op="extend", seqs=(Seq(kv_len=20, query_len=3),), num_q_heads=2, softcap=5.0),
    "ours.cache_write": Case(op="cache_write", seqs=(Seq(kv_len=20, query_len=3),), v_layout="hnd"),
    "ours.gather": Case(op="gather", seqs=TWO, tile=Tile(start=5, end=20)),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("interpreter") as there:
        yield there


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("subject", CASES)
def test_the_interpreter_finds_our_kernels_right_as_well(worker: Worker, subject: str, dtype: str) -> None:

    result = worker.run(msgspec.structs.replace(CASES[subject], dtype=dtype), subject, 120.0)
    assert not result.declined
    assert not result.harness_fault
    assert not result.findings, result.findings
    assert result.executor == "interpreter"


def test_the_interpreter_declines_bfloat16_which_it_gets_wrong(worker: Worker) -> None:
    assert "bfloat16" in worker.run(Case(dtype="bfloat16"), "ours.decode", 120.0).declined
