"""What several adapters translate: our inputs in the conventions of the projects."""

import math
from collections.abc import Iterator
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


def lengths(starts: Any) -> Any:
    """How many rows each sequence has, [seqs], of its starts [seqs + 1]."""
    return starts[1:] - starts[:-1]


def starts_of(lens: Any) -> Any:
    """Lengths [seqs] as starts [seqs + 1], int32."""
    import torch

    return torch.nn.functional.pad(lens.cumsum(0), (1, 0)).to(torch.int32)


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
    gone = ((inputs.kv_lens - lengths(inputs.query_starts) - inputs.window[0]) // block_size).clamp(
        0, tables.shape[1] - 1
    )[:, None]
    columns = gone.new_ones(tables.shape[1]).cumsum(0) - 1
    return tables.where(columns >= gone, tables.gather(1, gone.long()))


def starts_without_padding(inputs: Any) -> Any:
    """query_starts [seqs + 1] where a graph's padding rows have no query: their tokens come after all others."""
    return starts_of(lengths(inputs.query_starts) * (inputs.kv_lens > 0))


@contextmanager
def generation(tensor: Any, capability: tuple[int, int]) -> Iterator[None]:
    """Where there is no GPU, what torch says of one when a wrapper asks it how to launch."""
    if tensor.is_cuda:
        yield
        return
    with patch("torch.cuda.get_device_capability", lambda *_: capability):
        yield


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


def token_slots(block_tables: Any, block_size: int, end: Any, first: Any = 0) -> tuple[Any, Any]:
    """A slot of the whole cache for each token from `first` to `end` [seqs]: starts [seqs + 1] int32, slots int64."""
    first = end.new_zeros(len(end)) + first
    starts = starts_of(end - first)
    owners, places = token_places(starts)
    positions = first.long()[owners] + places
    return starts, block_tables[owners, positions // block_size].long() * block_size + positions % block_size


def dense(cache: Any, slots: Any) -> Any:
    """The rows [tokens, heads, dim] of some slots of a cache [blocks, block_size, heads, dim]."""
    return cache[slots // cache.shape[1], slots % cache.shape[1]]
