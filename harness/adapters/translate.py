"""What several adapters translate alike: packed rows, pages and slots in the forms that other kernels take."""

from typing import Any


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
