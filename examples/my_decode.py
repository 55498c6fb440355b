"""A decode kernel to copy: short, right, and declared with the shapes it was written for."""

import torch
import triton
import triton.language as tl

from harness import subject


@triton.jit
def decode_kernel(
    out_ptr,  # [seqs, q_heads, head_dim], contiguous
    q_ptr,  # [seqs, q_heads, head_dim]
    k_ptr,  # [blocks, block_size, kv_heads, head_dim]
    v_ptr,  # [blocks, block_size, kv_heads, head_dim]
    table_ptr,  # [seqs, columns], contiguous
    lens_ptr,  # [seqs]
    scale, group, columns, q_seq, q_head, k_block, k_slot, k_head, v_block, v_slot, v_head,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """One program per sequence and query head; one tile is one block."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]  # [BLOCK_SIZE, 1]
    dim = tl.arange(0, HEAD_DIM)  # [HEAD_DIM]
    q = tl.load(q_ptr + seq * q_seq + head * q_head + dim).to(tl.float32)  # [HEAD_DIM]
    kv_len = tl.load(lens_ptr + seq)

    m = -float("inf")
    l = 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for block in range(tl.cdiv(kv_len, BLOCK_SIZE)):
        block_id = tl.load(table_ptr + seq * columns + block).to(tl.int64)
        live = block * BLOCK_SIZE + slot < kv_len  # [BLOCK_SIZE, 1]
        k_place = block_id * k_block + slot * k_slot + (head // group) * k_head + dim
        v_place = block_id * v_block + slot * v_slot + (head // group) * v_head + dim
        k = tl.load(k_ptr + k_place, mask=live, other=0.0).to(tl.float32)  # [BLOCK_SIZE, HEAD_DIM]
        v = tl.load(v_ptr + v_place, mask=live, other=0.0).to(tl.float32)  # [BLOCK_SIZE, HEAD_DIM]

        scores = tl.sum(q * k, axis=1, keep_dims=True) * scale  # [BLOCK_SIZE, 1]
        scores = tl.where(live, scores, -float("inf"))
        m_new = tl.maximum(m, tl.max(scores))
        p = tl.exp(scores - m_new)  # [BLOCK_SIZE, 1]
        l = l * tl.exp(m - m_new) + tl.sum(p)
        acc = acc * tl.exp(m - m_new) + tl.sum(p * v, axis=0)
        m = m_new

    acc = acc / tl.where(l > 0, l, 1.0)  # an empty sequence: 0
    tl.store(out_ptr + (seq * tl.num_programs(1) + head) * HEAD_DIM + dim, acc)


@subject(op="decode", head_dims=(16, 32, 64, 128, 256), block_sizes=(1, 8, 16, 32, 64, 128))
def my_decode(inputs):
    """Powers of two only; every layout whose last dimension is dense."""
    q, k, v, table = inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decode_kernel[q.shape[:2]](
        out, q, k, v, table, inputs.kv_lens, inputs.scale, q.shape[1] // k.shape[2], table.shape[1],
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], BLOCK_SIZE=k.shape[1], HEAD_DIM=q.shape[2],
    )  # fmt: skip
    return out
