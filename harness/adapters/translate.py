"""What several adapters translate: our inputs in the conventions of the projects."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


def output(inputs: Any) -> Any:
    """The output to write to, [tokens, num_q_heads, head_dim_v]: the given one or a new one."""
    if inputs.out is not None:
        return inputs.out
    return inputs.q.new_empty(*inputs.q.shape[:2], inputs.v_cache.shape[3])


def flat(cache: Any) -> Any:
    """A cache [num_blocks, block_size, ...] by slots, [num_blocks * block_size, ...]; raises where that is no view."""
    return cache.view(-1, *cache.shape[2:])


def slots_between(inputs: Any, first: Sequence[int], end: Sequence[int]) -> tuple[Any, Any]:
    """CSR of the slots of each sequence's tokens from `first` to `end`: indptr [seqs + 1] int32, indices int64."""
    import torch

    slots = list(_slots(inputs, first, end))
    return indptr([len(part) for part in slots], inputs.q.device), torch.cat(slots)


def indptr(lens: Sequence[int], device: Any) -> Any:
    """Where each of the parts begins, and where the last ends: [parts + 1] int32."""
    import torch

    return torch.tensor([0, *lens], device=device).cumsum(0).to(torch.int32)


def _slots(inputs: Any, first: Sequence[int], end: Sequence[int]) -> Iterator[Any]:
    import torch

    size = inputs.k_cache.shape[1]
    for table, start, stop in zip(inputs.block_tables, first, end, strict=True):
        positions = torch.arange(start, stop, device=table.device)
        yield table[positions // size].long() * size + positions % size


def aligned_table(tables: Any, block_size: int, tokens: int) -> Any:
    """The block table [seqs, columns] with columns for a multiple of so many tokens; the new ones name block 0."""
    columns = tables.shape[1]
    missing = -columns % (tokens // math.gcd(tokens, block_size))
    if not missing:
        return tables
    wider = tables.new_zeros(tables.shape[0], columns + missing)
    wider[:, :columns] = tables
    return wider


def freed_blocks(tables: Any, block_size: int, inputs: Any) -> Any:
    """The block table [seqs, columns] with a block that is there for those that lie before the window of all queries.

    A cache manager frees these blocks and names a null block instead; here it is the first that is still in use.
    """
    if inputs.window[0] < 0:
        return tables
    query_lens = inputs.query_starts[1:] - inputs.query_starts[:-1]
    gone = ((inputs.kv_lens - query_lens - inputs.window[0]) // block_size).clamp(0, tables.shape[1] - 1)[:, None]
    columns = gone.new_ones(tables.shape[1]).cumsum(0) - 1
    return tables.where(columns >= gone, tables.gather(1, gone.long()))


def starts_without_padding(inputs: Any) -> Any:
    """query_starts [seqs + 1] where a graph's padding rows have no query: their tokens come after all others."""
    lens = (inputs.query_starts[1:] - inputs.query_starts[:-1]) * (inputs.kv_lens > 0)
    starts = inputs.query_starts.new_zeros(len(inputs.query_starts))
    starts[1:] = lens.cumsum(0)
    return starts


@contextmanager
def generation(tensor: Any, capability: tuple[int, int]) -> Iterator[None]:
    """Where there is no GPU, what torch says of one when a wrapper asks it how to launch."""
    if tensor.is_cuda:
        yield
        return
    with patch("torch.cuda.get_device_capability", lambda *_: capability):
        yield


def lengths(starts: Any) -> Any:
    """How many rows each sequence has, [seqs], of its starts [seqs + 1]."""
    return starts[1:] - starts[:-1]


def starts_of(lens: Any) -> Any:
    """Lengths [seqs] as starts [seqs + 1], int32."""
    import torch

    return torch.nn.functional.pad(lens.cumsum(0), (1, 0)).to(torch.int32)


def token_places(starts: Any) -> tuple[Any, Any]:
    """Of each packed row: its sequence and its place in it, both int64 [tokens]."""
    import torch

    counts = lengths(starts).long()
    owners = torch.repeat_interleave(torch.arange(len(counts), device=starts.device), counts)
    return owners, torch.arange(len(owners), device=starts.device) - starts.long()[owners]


def spread(rows: Any, starts: Any, longest: int) -> Any:
    """Packed rows [tokens, heads, dim] as [seqs, longest, heads, dim], 0 where a sequence has fewer."""
    wide = rows.new_zeros(len(starts) - 1, longest, *rows.shape[1:])
    wide[token_places(starts)] = rows
    return wide


def page_lists(block_tables: Any, lens: Any, block_size: int) -> tuple[Any, Any, Any]:
    """Pages as FlashInfer takes them: starts [seqs + 1], pages [in use] and tokens in each last page [seqs], int32."""
    import torch

    counts = (lens + block_size - 1) // block_size
    starts = starts_of(counts)
    owners, places = token_places(starts)
    pages = block_tables[owners, places].to(torch.int32)
    return starts, pages, (lens - (counts - 1) * block_size).to(torch.int32)


def token_slots(block_tables: Any, lens: Any, block_size: int) -> tuple[Any, Any]:
    """A slot of the whole cache for each token: starts [seqs + 1] int32, slots [tokens] int64."""
    starts = starts_of(lens)
    owners, places = token_places(starts)
    return starts, block_tables[owners, places // block_size].long() * block_size + places % block_size


def dense(cache: Any, slots: Any) -> Any:
    """The rows [tokens, heads, dim] of some slots of a cache [blocks, block_size, heads, dim]."""
    return cache[slots // cache.shape[1], slots % cache.shape[1]]
