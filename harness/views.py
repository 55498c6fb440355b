"""Our inputs as other projects' kernels take them: caches in one tensor or flat, tables as lists, lengths as starts."""

from typing import Any

import torch


def stacked(inputs: Any) -> torch.Tensor:
    """Both caches, [2, blocks, block_size, kv_heads, head_dim]; of cases whose layout is `kv_stacked`."""
    k, apart = inputs.k_cache, _apart(inputs)
    return torch.as_strided(k, (2, *k.shape), (apart, *k.stride()), k.storage_offset())


def interleaved(inputs: Any) -> torch.Tensor:
    """Both caches, [blocks, 2, block_size, kv_heads, head_dim]; of cases whose layout is `kv_interleaved`."""
    k, apart = inputs.k_cache, _apart(inputs)
    shape, strides = (len(k), 2, *k.shape[1:]), (k.stride(0), apart, *k.stride()[1:])
    return torch.as_strided(k, shape, strides, k.storage_offset())


def _apart(inputs: Any) -> int:
    """Elements from the first of K to the first of V."""
    return int(inputs.v_cache.storage_offset() - inputs.k_cache.storage_offset())


def slots(cache: torch.Tensor) -> torch.Tensor:
    """A dense cache by slot = block * block_size + offset, [slots, kv_heads, head_dim]; raises where it has gaps."""
    return cache.view(-1, *cache.shape[2:])


def starts(lens: torch.Tensor) -> torch.Tensor:
    """Lengths [n] as the places where each begins, and where all end, [n + 1] int32."""
    return torch.nn.functional.pad(lens.cumsum(0), (1, 0)).to(torch.int32)


def query_lens(inputs: Any) -> torch.Tensor:
    """New tokens of each sequence, [seqs]."""
    found: torch.Tensor = inputs.query_starts.diff()
    return found


def prefix_lens(inputs: Any) -> torch.Tensor:
    """Tokens of each sequence before its new ones, [seqs]."""
    found: torch.Tensor = inputs.kv_lens - query_lens(inputs)
    return found


def block_counts(inputs: Any) -> torch.Tensor:
    """Blocks in use of each sequence, [seqs]."""
    size = inputs.k_cache.shape[1]
    found: torch.Tensor = (inputs.kv_lens + size - 1) // size
    return found


def block_starts(inputs: Any) -> torch.Tensor:
    """Where each sequence's blocks begin in `block_ids`, [seqs + 1] int32."""
    return starts(block_counts(inputs))


def block_ids(inputs: Any) -> torch.Tensor:
    """The blocks in use of all sequences, one after the other, of the table's type."""
    return _packed(inputs.block_tables, block_counts(inputs))


def last_block_lens(inputs: Any) -> torch.Tensor:
    """Tokens in the last block of each sequence, 1 to block_size, 0 where it has none, [seqs] int32."""
    size = inputs.k_cache.shape[1]
    found: torch.Tensor = torch.where(inputs.kv_lens > 0, (inputs.kv_lens - 1) % size + 1, 0).to(torch.int32)
    return found


def slot_tables(inputs: Any) -> torch.Tensor:
    """The slot of each token, [seqs, columns * block_size], of the table's type."""
    size, table = inputs.k_cache.shape[1], inputs.block_tables
    offsets = torch.arange(size, dtype=table.dtype, device=table.device)
    found: torch.Tensor = (table[:, :, None] * size + offsets).flatten(1)
    return found


def slot_starts(inputs: Any) -> torch.Tensor:
    """Where each sequence's tokens begin in `slot_ids`, [seqs + 1] int32."""
    return starts(inputs.kv_lens)


def slot_ids(inputs: Any) -> torch.Tensor:
    """The slots of all tokens of all sequences, one after the other, of the table's type."""
    return _packed(slot_tables(inputs), inputs.kv_lens)


def _packed(rows: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """The first entries of each row, as many as its length, one row after the other."""
    return torch.cat([row[:length] for row, length in zip(rows, lens.tolist(), strict=True)])
