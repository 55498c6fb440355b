"""A decode kernel as tutorials write it: right for one layout and one head count, and silent about both."""

import torch
import triton
import triton.language as tl

from harness import subject


@triton.jit
def tutorial_kernel(
    out_ptr,  # [seqs, heads, head_dim]
    q_ptr,  # [seqs, heads, head_dim]
    k_cache_ptr,  # [blocks, block_size, heads, head_dim]
    v_cache_ptr,  # [blocks, block_size, heads, head_dim]
    block_tables_ptr,  # [seqs, columns]
    kv_lens_ptr,  # [seqs]
    scale,
    columns,
    block_size,
    head_dim,
    stride_block,
    stride_slot,
    stride_head,
    TILE_KV: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """One program per sequence and head; one tile is one block."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.arange(0, TILE_KV)  # [TILE_KV]
    dim = tl.arange(0, TILE_D)  # [TILE_D]
    in_head = dim < head_dim  # [TILE_D]
    row = (seq * tl.num_programs(1) + head) * head_dim + dim  # [TILE_D]
    q = tl.load(q_ptr + row, mask=in_head, other=0.0)  # [TILE_D]
    kv_len = tl.load(kv_lens_ptr + seq)

    m = -float("inf")
    l = 0.0
    acc = tl.zeros([TILE_D], tl.float32)
    for block in range(tl.cdiv(kv_len, block_size)):
        block_id = tl.load(block_tables_ptr + seq * columns + block).to(tl.int64)
        live = (slot < block_size) & (block * block_size + slot < kv_len)  # [TILE_KV]
        place = block_id * stride_block + slot[:, None] * stride_slot + head * stride_head + dim[None, :]
        in_tile = live[:, None] & in_head[None, :]  # [TILE_KV, TILE_D]
        k = tl.load(k_cache_ptr + place, mask=in_tile, other=0.0)  # [TILE_KV, TILE_D]
        v = tl.load(v_cache_ptr + place, mask=in_tile, other=0.0)  # [TILE_KV, TILE_D]

        scores = tl.sum(q[None, :] * k, axis=1).to(tl.float32) * scale  # [TILE_KV]
        scores = tl.where(live, scores, -float("inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=0))
        alpha = tl.exp(m - m_new)
        p = tl.exp(scores - m_new)  # [TILE_KV]
        l = l * alpha + tl.sum(p, axis=0)
        acc = acc * alpha + tl.sum(p[:, None] * v.to(tl.float32), axis=0)  # [TILE_D]
        m = m_new

    tl.store(out_ptr + row, acc / l, mask=in_head)


@subject(op="decode")
def tutorial_decode(inputs):
    """Declares no limit; the run has to find them."""
    q, k_cache, v_cache = inputs.q, inputs.k_cache, inputs.v_cache
    num_seqs, num_heads, head_dim = q.shape
    block_size = k_cache.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tutorial_kernel[(num_seqs, num_heads)](
        out,
        q,
        k_cache,
        v_cache,
        inputs.block_tables,
        inputs.kv_lens,
        inputs.scale,
        inputs.block_tables.shape[1],
        block_size,
        head_dim,
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        TILE_KV=triton.next_power_of_2(block_size),
        TILE_D=triton.next_power_of_2(head_dim),
    )
    return out
