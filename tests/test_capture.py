"""A CUDA graph captured at one set of lengths is right at another: `pytest -m gpu`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.folders import load

pytestmark = pytest.mark.gpu

split_decode = load("kernels", "split_decode")
extend = load("kernels", "extend")
paged_cache_write = load("kernels", "cache_write").paged_cache_write

BLOCK_SIZE, COLUMNS, SEQS = 16, 64, 3
#: Lengths of the capture and of the replays: longer, shorter, none, a whole table row.
LENGTHS = ((40, 1, 300), (1024, 17, 0), (0, 0, 0), (16, 1024, 64))
#: New tokens of each sequence, beside those lengths.
CHUNKS = ((4, 1, 3), (1, 4, 0), (0, 0, 0), (3, 2, 3))


def integers(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def cache() -> dict[str, Any]:
    """Every sequence has blocks of its own for a whole table row."""
    torch.manual_seed(0)
    blocks = torch.randperm(SEQS * COLUMNS, device="cuda").to(torch.int32)
    shape = (SEQS * COLUMNS, BLOCK_SIZE, 2, 64)
    return {"k_cache": numbers(*shape), "v_cache": numbers(*shape), "block_tables": blocks.view(SEQS, COLUMNS)}


def captured(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """The call as a graph, compiled beforehand and on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


@pytest.mark.parametrize("splits", [{"num_splits": 1}, {"num_splits": 5}, {"tiles_per_split": 2}, {}], ids=str)
def test_a_decode_captured_at_one_set_of_lengths_is_right_at_another(splits: dict[str, Any]) -> None:
    given = cache() | {"q": numbers(SEQS, 8, 64), "kv_lens": integers(LENGTHS[0])}
    out, tile_kv = torch.empty_like(given["q"]), 32
    number = split_decode.splits_for(
        given["q"], given["k_cache"], given["block_tables"], tile_kv,
        splits.get("num_splits"), splits.get("tiles_per_split"),
    )  # fmt: skip
    workspace = split_decode.split_workspace(given["q"], given["v_cache"], number)
    call = {**given, **splits, "tile_kv": tile_kv}
    graph = captured(lambda: split_decode.paged_split_decode(**call, out=out, workspace=workspace))
    for lengths in (*LENGTHS, *LENGTHS):
        given["kv_lens"].copy_(integers(lengths))
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, split_decode.paged_split_decode(**call)), lengths
        assert (workspace.arrived == 0).all()


@pytest.mark.parametrize("num_splits", [1, 4])
def test_an_extend_captured_at_one_set_of_lengths_is_right_at_another(num_splits: int) -> None:
    longest = max(map(max, CHUNKS))
    given = cache() | {"q": numbers(SEQS * longest, 8, 64)}
    given |= {"query_starts": integers([0, 0, 0, 0]), "kv_lens": integers(LENGTHS[0])}
    out = torch.empty_like(given["q"])
    workspace = extend.split_workspace(given["q"], given["v_cache"], num_splits)
    call = {**given, "max_query_len": longest, "num_splits": num_splits}
    graph = captured(lambda: extend.paged_extend(**call, out=out, workspace=workspace))
    for lengths, chunks in zip(LENGTHS * 2, CHUNKS * 2, strict=True):
        given["kv_lens"].copy_(integers([max(pair) for pair in zip(lengths, chunks, strict=True)]))
        given["query_starts"][1:] = integers(chunks).cumsum(0)
        out.fill_(torch.nan)
        graph.replay()
        eager = extend.paged_extend(**call, out=torch.full_like(out, torch.nan))
        assert torch.equal(out.isnan(), eager.isnan())
        assert out[: sum(chunks)].isfinite().all()
        assert torch.equal(out[: sum(chunks)], eager[: sum(chunks)]), chunks
        assert (workspace.arrived == 0).all()


def test_a_cache_write_captured_with_some_slots_is_right_with_others() -> None:
    tensors = cache()
    k, v, slots = numbers(SEQS, 2, 64), numbers(SEQS, 2, 64), integers([5, 17, 900])
    k_cache, v_cache = tensors["k_cache"], tensors["v_cache"]
    graph = captured(lambda: paged_cache_write(k, v, k_cache, v_cache, slots))
    for mapping in ([7, -1, 33], [-1, -1, -1], [0, 1, 2]):
        slots.copy_(integers(mapping))
        wanted = [copied.clone() for copied in (k_cache, v_cache)]
        for slot, token in ((slot, token) for token, slot in enumerate(mapping) if slot >= 0):
            for copied, new in zip(wanted, (k, v), strict=True):
                copied.view(-1, 2, 64)[slot] = new[token]
        graph.replay()
        assert torch.equal(k_cache, wanted[0])
        assert torch.equal(v_cache, wanted[1])
