"""Naive kernels to replace: step, the new tokens written into the cache, then attention through the same slots."""

import torch
import triton
import triton.language as tl

from harness import subject


@triton.jit
def cache_write_kernel(
    k_cache_ptr,  # [blocks, block_size, kv_heads, head_dim]
    v_cache_ptr,  # [blocks, block_size, kv_heads, head_dim]
    k_ptr,        # [tokens, kv_heads, head_dim]
    v_ptr,        # [tokens, kv_heads, head_dim]
    slot_ptr,     # [tokens], contiguous: block * block_size + offset of each token; negative: skip it
    block_size,
    head_dim,
    stride_k_cache_block, stride_k_cache_slot, stride_k_cache_head,
    stride_v_cache_block, stride_v_cache_slot, stride_v_cache_head,
    stride_k_token, stride_k_head,
    stride_v_token, stride_v_head,
    TILE_D: tl.constexpr,
):  # fmt: skip
    """One program per new token and KV head."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    dim = tl.arange(0, TILE_D)  # [TILE_D]
    in_head = dim < head_dim  # [TILE_D]
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if slot < 0:
        return
    block = slot // block_size
    offset = slot % block_size

    k = tl.load(k_ptr + token * stride_k_token + head * stride_k_head + dim, mask=in_head, other=0.0)  # [TILE_D]
    v = tl.load(v_ptr + token * stride_v_token + head * stride_v_head + dim, mask=in_head, other=0.0)  # [TILE_D]
    k_place = block * stride_k_cache_block + offset * stride_k_cache_slot + head * stride_k_cache_head + dim
    v_place = block * stride_v_cache_block + offset * stride_v_cache_slot + head * stride_v_cache_head + dim
    tl.store(k_cache_ptr + k_place, k, mask=in_head)
    tl.store(v_cache_ptr + v_place, v, mask=in_head)


@triton.jit
def extend_kernel(
    out_ptr,     # [tokens, q_heads, head_dim], contiguous
    q_ptr,       # [tokens, q_heads, head_dim]: the new tokens of all sequences, one after the other
    k_ptr,       # [blocks, block_size, kv_heads, head_dim]
    v_ptr,       # [blocks, block_size, kv_heads, head_dim]
    table_ptr,   # [seqs, columns], contiguous: the block of each column
    start_ptr,   # [seqs + 1]: the first row of each sequence in q
    kv_len_ptr,  # [seqs]: tokens of each sequence, the new ones included
    scale,
    group,       # query heads per KV head
    columns,
    stride_q_token, stride_q_head,
    stride_k_block, stride_k_slot, stride_k_head,
    stride_v_block, stride_v_slot, stride_v_head,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """One program per new token and query head; one tile is one block."""
    head = tl.program_id(0).to(tl.int64)
    new = tl.program_id(1)
    seq = tl.program_id(2).to(tl.int64)
    start = tl.load(start_ptr + seq)
    query_len = tl.load(start_ptr + seq + 1) - start
    if new >= query_len:
        return
    kv_head = head // group
    token = (start + new).to(tl.int64)
    position = tl.load(kv_len_ptr + seq) - query_len + new  # the causal limit: keys up to this one are seen
    slot = tl.arange(0, BLOCK_SIZE)[:, None]  # [BLOCK_SIZE, 1]
    dim = tl.arange(0, HEAD_DIM)[None, :]  # [1, HEAD_DIM]

    q = tl.load(q_ptr + token * stride_q_token + head * stride_q_head + dim).to(tl.float32)  # [1, HEAD_DIM]

    m = -float("inf")  # the largest score so far
    l = 0.0  # the sum of exp(score - m)
    acc = tl.zeros([1, HEAD_DIM], tl.float32)  # the sum of exp(score - m) * v
    for column in range(tl.cdiv(position + 1, BLOCK_SIZE)):
        block = tl.load(table_ptr + seq * columns + column).to(tl.int64)
        seen = column * BLOCK_SIZE + slot <= position  # [BLOCK_SIZE, 1]
        k_offset = block * stride_k_block + slot * stride_k_slot + kv_head * stride_k_head + dim
        v_offset = block * stride_v_block + slot * stride_v_slot + kv_head * stride_v_head + dim
        k = tl.load(k_ptr + k_offset, mask=seen, other=0.0).to(tl.float32)  # [BLOCK_SIZE, HEAD_DIM]
        v = tl.load(v_ptr + v_offset, mask=seen, other=0.0).to(tl.float32)  # [BLOCK_SIZE, HEAD_DIM]

        scores = tl.sum(q * k, axis=1, keep_dims=True) * scale  # [BLOCK_SIZE, 1]
        scores = tl.where(seen, scores, -float("inf"))
        m_new = tl.maximum(m, tl.max(scores))
        rescale = tl.exp(m - m_new)
        p = tl.exp(scores - m_new)  # [BLOCK_SIZE, 1]
        l = l * rescale + tl.sum(p)
        acc = acc * rescale + tl.sum(p * v, axis=0, keep_dims=True)  # [1, HEAD_DIM]
        m = m_new

    acc = acc / tl.where(l > 0, l, 1.0)  # a query that sees no key: 0
    tl.store(out_ptr + (token * tl.num_programs(0) + head) * HEAD_DIM + dim, acc)


@subject(
    op="step",
    # What the kernel was written for. Without a line, the rest is drawn as well.
    head_dims=(16, 32, 64, 128, 256),  # without it: also 40, 72, 80, 96, 192
    block_sizes=(1, 8, 16, 32, 64, 128, 256),  # without it: also 24, 48
    # Lines that rule out what is drawn now.
    # dtypes=("float16", "bfloat16"),  # no float32
    # groups=(1, 4, 8),  # these numbers of query heads per KV head only
    # empty_rows=False,  # no sequence without tokens, no query that sees no key
    # layouts=("nhd",), q_layouts=("contiguous",), kv_strides_apart=False,  # nothing but dense tensors
    # Lines that open a feature, which is not drawn without them.
    # window=True,  # inputs.window: (left, right), both counted without the query itself
    # softcap=True,  # inputs.softcap: softcap * tanh(score / softcap), unless it is 0
    # alibi=True,  # inputs.alibi_slopes [q_heads]: slope * distance is taken from the score
    # sinks=True,  # inputs.sinks [q_heads]: a logit per head that joins the sum and has no value
    # lse=True,  # inputs.want_lse: return (out, lse), natural logarithm, [tokens, q_heads] in float32
    # out=True,  # inputs.out: write there, and return it
    # non_causal=True,  # inputs.causal is False: every query sees every key
    # kv_dtypes=("same", "e4m3", "e5m2"),  # an FP8 cache; inputs.k_scale and inputs.v_scale: [1] or [kv_heads]
    # head_dim_v=True,  # V has a head dim of its own
    # padding_rows=True,  # a CUDA graph's: one query, kv_len 0, q poison
)
def step(inputs):
    """Writes, then attends for inputs.q [tokens, q_heads, head_dim]; raise NotImplementedError while there is none."""
    k_cache, v_cache, k, v = inputs.k_cache, inputs.v_cache, inputs.k_new, inputs.v_new
    cache_write_kernel[k.shape[:2]](
        k_cache, v_cache, k, v, inputs.slot_mapping, k_cache.shape[1], k.shape[2],
        *k_cache.stride()[:3], *v_cache.stride()[:3], *k.stride()[:2], *v.stride()[:2],
        TILE_D=triton.next_power_of_2(k.shape[2]),
    )  # fmt: skip
    q, table = inputs.q, inputs.block_tables
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    extend_kernel[(q.shape[1], inputs.max_query_len, len(inputs.kv_lens))](
        out, q, k_cache, v_cache, table, inputs.query_starts, inputs.kv_lens, inputs.scale,
        q.shape[1] // k_cache.shape[2], table.shape[1], *q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3],
        BLOCK_SIZE=k_cache.shape[1], HEAD_DIM=q.shape[2],
    )  # fmt: skip
    return out
