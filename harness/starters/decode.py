"""A naive paged-attention kernel to replace: decode, one new token per sequence."""

import torch
import triton
import triton.language as tl

from harness import subject


@triton.jit
def decode_kernel(
    out_ptr,     # [seqs, q_heads, head_dim], contiguous
    q_ptr,       # [seqs, q_heads, head_dim]
    k_ptr,       # [blocks, block_size, kv_heads, head_dim]
    v_ptr,       # [blocks, block_size, kv_heads, head_dim]
    table_ptr,   # [seqs, columns], contiguous: the block of each column
    kv_len_ptr,  # [seqs]: tokens of each sequence, the new one included
    scale,
    group,       # query heads per KV head
    columns,
    stride_q_seq, stride_q_head,
    stride_k_block, stride_k_slot, stride_k_head,
    stride_v_block, stride_v_slot, stride_v_head,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """One program per sequence and query head; one tile is one block."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    kv_head = head // group
    slot = tl.arange(0, BLOCK_SIZE)[:, None]  # [BLOCK_SIZE, 1]
    dim = tl.arange(0, HEAD_DIM)[None, :]  # [1, HEAD_DIM]

    q = tl.load(q_ptr + seq * stride_q_seq + head * stride_q_head + dim).to(tl.float32)  # [1, HEAD_DIM]
    kv_len = tl.load(kv_len_ptr + seq)

    m = -float("inf")  # the largest score so far
    l = 0.0  # the sum of exp(score - m)
    acc = tl.zeros([1, HEAD_DIM], tl.float32)  # the sum of exp(score - m) * v
    for column in range(tl.cdiv(kv_len, BLOCK_SIZE)):
        block = tl.load(table_ptr + seq * columns + column).to(tl.int64)
        live = column * BLOCK_SIZE + slot < kv_len  # [BLOCK_SIZE, 1]
        k_offset = block * stride_k_block + slot * stride_k_slot + kv_head * stride_k_head + dim
        v_offset = block * stride_v_block + slot * stride_v_slot + kv_head * stride_v_head + dim
        k = tl.load(k_ptr + k_offset, mask=live, other=0.0).to(tl.float32)  # [BLOCK_SIZE, HEAD_DIM]
        v = tl.load(v_ptr + v_offset, mask=live, other=0.0).to(tl.float32)  # [BLOCK_SIZE, HEAD_DIM]

        scores = tl.sum(q * k, axis=1, keep_dims=True) * scale  # [BLOCK_SIZE, 1]
        scores = tl.where(live, scores, -float("inf"))
        m_new = tl.maximum(m, tl.max(scores))
        rescale = tl.exp(m - m_new)
        p = tl.exp(scores - m_new)  # [BLOCK_SIZE, 1]
        l = l * rescale + tl.sum(p)
        acc = acc * rescale + tl.sum(p * v, axis=0, keep_dims=True)  # [1, HEAD_DIM]
        m = m_new

    acc = acc / tl.where(l > 0, l, 1.0)  # a sequence without tokens: 0
    tl.store(out_ptr + (seq * tl.num_programs(1) + head) * HEAD_DIM + dim, acc)


@subject(
    op="decode",
    # What the kernel was written for. Without a line, the rest is drawn as well.
    head_dims=(16, 32, 64, 128, 256),  # without it: also 40, 72, 80, 96, 192
    block_sizes=(1, 8, 16, 32, 64, 128, 256),  # without it: also 24, 48
    # Lines that rule out what is drawn now.
    # dtypes=("float16", "bfloat16"),  # no float32
    # groups=(1, 4, 8),  # these numbers of query heads per KV head only
    # empty_rows=False,  # no sequence without tokens
    # layouts=("nhd",), q_layouts=("contiguous",), kv_strides_apart=False,  # nothing but dense tensors
    # Lines that open a feature, which is not drawn without them.
    # window=True,  # inputs.window: (left, right), both counted without the query itself
    # softcap=True,  # inputs.softcap: softcap * tanh(score / softcap), unless it is 0
    # alibi=True,  # inputs.alibi_slopes [q_heads]: slope * distance is taken from the score
    # sinks=True,  # inputs.sinks [q_heads]: a logit per head that joins the sum and has no value
    # lse=True,  # inputs.want_lse: return (out, lse), natural logarithm, [seqs, q_heads] in float32
    # out=True,  # inputs.out: write there, and return it
    # kv_dtypes=("same", "e4m3", "e5m2"),  # an FP8 cache; inputs.k_scale and inputs.v_scale: [1] or [kv_heads]
    # head_dim_v=True,  # V has a head dim of its own
    # padding_rows=True,  # a CUDA graph's: kv_len 0, q poison
)
def decode(inputs):
    """Attention of inputs.q [seqs, q_heads, head_dim]; raise NotImplementedError while there is no kernel."""
    q, k, v, table = inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decode_kernel[q.shape[:2]](
        out, q, k, v, table, inputs.kv_lens, inputs.scale, q.shape[1] // k.shape[2], table.shape[1],
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], BLOCK_SIZE=k.shape[1], HEAD_DIM=q.shape[2],
    )  # fmt: skip
    return out
