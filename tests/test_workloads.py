"""Workloads: their inputs are those of a right call, and our subjects take them."""

import pytest
import torch

from harness.executors import gridsim
from harness.subjects import WrongUse, load
from harness.timing import inputs_of, with_dense_rows
from harness.workloads import WORKLOADS, Workload, chosen, named

SMALL = {"block_size": 4, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 16}
DECODE = Workload("small", "decode", ((1, 9), (1, 4), (1, 1)), **SMALL)
EXTEND = Workload("small", "extend", ((3, 9), (4, 4)), **SMALL)
WRITE = Workload("small", "cache_write", ((3, 9), (4, 4)), **SMALL)


def run(workload: Workload, name: str):
    inputs = inputs_of(workload, 7, "cpu")
    with gridsim.active():
        return inputs, load(name).run(inputs)


def cached(inputs, row: int, cache: torch.Tensor) -> torch.Tensor:
    """The tokens of a sequence [kv_len, kv heads, head_dim]."""
    position = torch.arange(int(inputs.kv_lens[row]))
    return cache[inputs.block_tables[row].long()[position // cache.shape[1]], position % cache.shape[1]]


def attended(inputs) -> torch.Tensor:
    outs = []
    for row, (first, end) in enumerate(zip(inputs.query_starts[:-1], inputs.query_starts[1:], strict=True)):
        q = inputs.q[first:end].double()
        k, v = (cached(inputs, row, c).double().repeat_interleave(2, 1) for c in (inputs.k_cache, inputs.v_cache))
        scores = torch.einsum("qhd,khd->hqk", q, k) * inputs.scale
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        outs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v))
    return torch.cat(outs)


@pytest.mark.parametrize(("workload", "name"), [(DECODE, "ours.decode"), (EXTEND, "ours.extend")])
def test_the_inputs_are_those_of_a_right_call(workload, name):
    inputs, out = run(workload, name)
    assert torch.allclose(out.double(), attended(inputs), atol=2e-2)
    assert out.double().std() > 0.1


def test_new_tokens_are_written_where_they_belong():
    inputs, _ = run(WRITE, "ours.cache_write")
    for row, (first, end) in enumerate(((0, 3), (3, 7))):
        assert torch.equal(cached(inputs, row, inputs.k_cache)[first - end :], inputs.k_new[first:end])
        assert torch.equal(cached(inputs, row, inputs.v_cache)[first - end :], inputs.v_new[first:end])


def test_the_same_seed_gives_the_same_inputs_and_blocks_are_shuffled():
    first, again, other = (inputs_of(DECODE, seed, "cpu") for seed in (1, 1, 2))
    assert all(torch.equal(tensor, again.tensors()[name]) for name, tensor in first.tensors().items())
    assert not torch.equal(first.q, other.q)
    used = torch.cat([row[: -(-int(n) // 4)] for row, n in zip(first.block_tables, first.kv_lens, strict=True)])
    assert sorted(used.tolist()) == list(range(5))
    assert used.tolist() != list(range(5))


@pytest.mark.parametrize("name", WORKLOADS)
def test_our_subjects_take_every_workload(name):
    workload = WORKLOADS[name]
    assert load(f"ours.{workload.op}").declines(workload.case()) is None
    assert name == workload.name
    assert all(0 < new <= kv_len for new, kv_len in workload.seqs)


def test_bytes_and_operations_are_those_of_a_hand():
    write = WORKLOADS["cache_write-8k-16"]
    assert DECODE.bytes_moved == 2 * (9 + 4 + 1) * 2 * 16 * 2 + 2 * 3 * 4 * 16 * 2  # K and V, then q and out
    assert DECODE.flops == 4 * 16 * 4 * (9 + 4 + 1)
    # 3 new of 9 see 7, 8 and 9 keys; 4 new of 4 see 1, 2, 3 and 4
    assert EXTEND.flops == 4 * 16 * 4 * (7 + 8 + 9 + 1 + 2 + 3 + 4)
    assert EXTEND.bytes_moved == 2 * (9 + 4) * 2 * 16 * 2 + 2 * 7 * 4 * 16 * 2
    assert (write.bytes_moved, write.flops) == (8192 * 8 * 128 * 2 * 4, 0)
    assert WORKLOADS["decode-1x8k-16"].bytes_moved == 33_554_432 + 16_384
    assert WORKLOADS["extend-prefill-8k-16"].flops == 4 * 128 * 32 * 8192 * 8193 // 2


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("scale", [2, 64, 100_000])
def test_a_smaller_workload_is_a_case_of_the_same_kind(name, scale):
    workload, small = WORKLOADS[name], WORKLOADS[name].case(scale=scale, poison="nan")
    assert len(small.seqs) == min(len(workload.seqs), max(2, len(workload.seqs) // scale))
    for seq, (new, kv_len) in zip(small.seqs, workload.seqs, strict=False):
        assert seq.query_len == max(new // scale, 1)
        assert seq.kv_len == max(kv_len // scale, seq.query_len)
    assert (small.num_q_heads, small.num_kv_heads, small.block_size) == (
        workload.num_q_heads, workload.num_kv_heads, workload.block_size,
    )  # fmt: skip


def test_the_tutorial_has_contexts_of_100_to_1000_and_every_head_its_own_kv():
    tutorial = WORKLOADS["decode-tutorial-16"]
    lens = sorted(kv_len for _, kv_len in tutorial.seqs)
    assert (len(lens), lens[0], lens[-1]) == (32, 100, 1000)
    assert tutorial.num_q_heads == tutorial.num_kv_heads == 32


def test_dense_rows_are_those_of_the_cache():
    inputs = inputs_of(EXTEND, 1, "cpu")
    dense = with_dense_rows(inputs, EXTEND)
    for row, (first, end) in enumerate(((0, 3), (3, 7))):
        for new, cache in ((dense.k_new, inputs.k_cache), (dense.v_new, inputs.v_cache)):
            assert torch.equal(cached(inputs, row, cache)[first - end :], new[first:end])


def test_workloads_are_chosen_by_name_or_by_operation():
    assert [w.name for w in chosen(("decode-8x8k-16",), "extend")] == ["decode-8x8k-16"]
    assert {w.op for w in chosen((), "extend")} == {"extend"}
    assert len(named(())) == len(WORKLOADS)
    assert not any("qwen" in w.name or "tutorial" in w.name for w in chosen((), "decode")), "they cost a gate minutes"
    with pytest.raises(WrongUse, match=r"workload is 'decode-9', but expected one of decode-1x8k-16"):
        chosen(("decode-9",), "decode")
