"""What several projects' conventions have in common: token slots as CSR, caches without blocks, an output."""

from collections.abc import Iterator, Sequence
from typing import Any


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
