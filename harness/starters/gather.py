"""A naive kernel to replace: gather, the K of some tokens of each sequence out of the paged cache."""

import torch
import triton
import triton.language as tl

from harness import subject


@triton.jit
def gather_kernel(
    out_ptr,     # [seqs, rows, kv_heads, head_dim], contiguous: row 0 is token `first`
    k_ptr,       # [blocks, block_size, kv_heads, head_dim]
    table_ptr,   # [seqs, columns], contiguous: the block of each column
    kv_len_ptr,  # [seqs]: tokens of each sequence
    first,
    rows,
    block_size,
    head_dim,
    columns,
    stride_k_block, stride_k_slot, stride_k_head,
    TILE_D: tl.constexpr,
):  # fmt: skip
    """One program per row, KV head and sequence; a row behind the last token is 0."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    seq = tl.program_id(2).to(tl.int64)
    dim = tl.arange(0, TILE_D)  # [TILE_D]
    in_head = dim < head_dim  # [TILE_D]

    token = first + row
    live = token < tl.load(kv_len_ptr + seq)
    block = tl.load(table_ptr + seq * columns + token // block_size, mask=live, other=0).to(tl.int64)
    k_offset = block * stride_k_block + token % block_size * stride_k_slot + head * stride_k_head + dim
    k = tl.load(k_ptr + k_offset, mask=in_head & live, other=0.0)  # [TILE_D]
    out_offset = ((seq * rows + row) * tl.num_programs(1) + head) * head_dim + dim
    tl.store(out_ptr + out_offset, k, mask=in_head)


@subject(
    op="gather",
    # All head dims, block sizes, strides and types are drawn. Lines that rule some out:
    # head_dims=(16, 32, 64, 128, 256),  # powers of two
    # block_sizes=(16, 32, 64, 128, 256),  # powers of two from 16
    # dtypes=("float16", "bfloat16"),  # no float32
    # layouts=("nhd",),  # nothing but a dense cache
    # A line that opens a feature, which is not drawn without it.
    # kv_dtypes=("same", "e4m3", "e5m2"),  # an FP8 cache, copied as it is
)
def gather(inputs):
    """Tokens [tile_start, tile_end) of each sequence; raise NotImplementedError while there is no kernel."""
    k, table, rows = inputs.k_cache, inputs.block_tables, inputs.tile_end - inputs.tile_start
    _, block_size, kv_heads, head_dim = k.shape
    out = torch.empty((len(table), rows, kv_heads, head_dim), dtype=k.dtype, device=k.device)
    gather_kernel[(rows, kv_heads, len(table))](
        out, k, table, inputs.kv_lens, inputs.tile_start, rows, block_size, head_dim, table.shape[1],
        *k.stride()[:3], TILE_D=triton.next_power_of_2(head_dim),
    )  # fmt: skip
    return out
