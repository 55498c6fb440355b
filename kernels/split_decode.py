"""Paged decode with the keys of a sequence split over programs: each makes a partial state, a second kernel merges."""

import math

import torch
import triton
import triton.language as tl
from decode import (
    attention_scores,
    check_devices,
    check_dtypes,
    check_numbers,
    check_optional,
    check_shapes,
    per_head,
    softmax_step,
    strides,
    validate,  # noqa: F401 (a split decode is called with the same tensors)
)
from merge import launch_merge

# --- the kernel --------------------------------------------------------------------------------------------------

# These numbers are used once per program: not worth a compilation each time one of them is 1 or a multiple of 16.
UNSPECIALISED = (
    "window_left", "block_size", "head_dim", "head_dim_v", "group",
    "stride_out_split", "stride_out_seq", "stride_out_head", "stride_lse_split", "stride_lse_seq", "stride_lse_head",
    "stride_q_seq", "stride_q_head",
    "stride_table_seq", "stride_table_column", "stride_lens_seq", "stride_slopes_head", "stride_sinks_head",
    "stride_k_scale_head", "stride_v_scale_head",
)  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def paged_split_decode_kernel(
    # Outputs: a partial state per split
    out_ptr,           # [num_splits, num_seqs, num_q_heads, head_dim_v] float32
    lse_ptr,           # [num_splits, num_seqs, num_q_heads] float32
    # Inputs
    q_ptr,             # [num_seqs, num_q_heads, head_dim]
    k_cache_ptr,       # [num_blocks, block_size, num_kv_heads, head_dim]
    v_cache_ptr,       # [num_blocks, block_size, num_kv_heads, head_dim_v]; may lie in k_cache
    block_tables_ptr,  # [num_seqs, columns]
    kv_lens_ptr,       # [num_seqs]
    alibi_slopes_ptr,  # [num_q_heads]; None: no ALiBi
    sinks_ptr,         # [num_q_heads]; None: no sinks
    k_scale_ptr,       # [num_kv_heads]; None: K is stored as it is
    v_scale_ptr,       # [num_kv_heads]; None: V is stored as it is
    # Numbers
    scale,
    softcap,           # None: no softcap
    window_left,       # None: unlimited
    block_size,
    head_dim,
    head_dim_v,
    group,             # query heads per KV head
    # Strides, in elements
    stride_out_split, stride_out_seq, stride_out_head, stride_out_dim,
    stride_lse_split, stride_lse_seq, stride_lse_head,
    stride_q_seq, stride_q_head, stride_q_dim,
    stride_k_block, stride_k_slot, stride_k_head, stride_k_dim,
    stride_v_block, stride_v_slot, stride_v_head, stride_v_dim,
    stride_table_seq, stride_table_column,
    stride_lens_seq, stride_slopes_head, stride_sinks_head,
    stride_k_scale_head, stride_v_scale_head,
    # Tiles: one block of keys, and one head of K and of V, each rounded up to a power of two
    TILE_KV: tl.constexpr,
    TILE_D: tl.constexpr,
    TILE_DV: tl.constexpr,
):  # fmt: skip
    # Every index that meets a stride is 64 bits wide: a pool holds more than 2^31 elements.
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2).to(tl.int64)
    kv_head = head // group
    slot = tl.arange(0, TILE_KV).to(tl.int64)  # [TILE_KV]
    dim = tl.arange(0, TILE_D).to(tl.int64)  # [TILE_D]
    dim_v = tl.arange(0, TILE_DV).to(tl.int64)  # [TILE_DV]
    in_head = dim < head_dim  # [TILE_D]
    in_head_v = dim_v < head_dim_v  # [TILE_DV]

    # [TILE_D]
    q_offset = seq * stride_q_seq + head * stride_q_head + dim * stride_q_dim
    q = tl.load(q_ptr + q_offset, mask=in_head, other=0.0).to(tl.float32)

    # The query is the last of the kv_len tokens, so a window ends there and begins window_left keys before.
    kv_len = tl.load(kv_lens_ptr + seq * stride_lens_seq).to(tl.int64)
    query_position = kv_len - 1
    first_key = tl.zeros_like(kv_len)
    if window_left is not None:
        first_key = tl.maximum(query_position - window_left, 0)

    # A split takes a run of whole blocks, whether the window reaches them or not.
    blocks = tl.cdiv(kv_len, block_size)
    blocks_per_split = tl.cdiv(blocks, tl.num_programs(2))
    first_block = tl.maximum(split * blocks_per_split, first_key // block_size)
    end_block = tl.minimum((split + 1) * blocks_per_split, blocks)

    # An FP8 cache stores K / k_scale, and what is common to all keys of a head is multiplied in once.
    if k_scale_ptr is not None:
        scale *= tl.load(k_scale_ptr + kv_head * stride_k_scale_head)

    slope = None
    if alibi_slopes_ptr is not None:
        slope = tl.load(alibi_slopes_ptr + head * stride_slopes_head).to(tl.float32)

    # A sink is a logit without a value that must count once: it is there before the first key of the first split.
    m = -float("inf")
    l = 0.0
    if sinks_ptr is not None:
        m = tl.load(sinks_ptr + head * stride_sinks_head, mask=split == 0, other=-float("inf")).to(tl.float32)
        l = (split == 0).to(tl.float32)
    acc = tl.zeros([TILE_DV], tl.float32)

    for block in range(first_block, end_block):
        block_id = tl.load(block_tables_ptr + seq * stride_table_seq + block * stride_table_column).to(tl.int64)
        position = block * block_size + slot  # [TILE_KV]
        visible = (slot < block_size) & (position >= first_key) & (position < kv_len)  # [TILE_KV]

        # [TILE_KV, TILE_D]
        in_tile = visible[:, None] & in_head[None, :]
        k_offset = block_id * stride_k_block + slot[:, None] * stride_k_slot
        k_offset += kv_head * stride_k_head + dim[None, :] * stride_k_dim
        k = tl.load(k_cache_ptr + k_offset, mask=in_tile, other=0.0).to(tl.float32)

        # [TILE_KV, TILE_DV]; masked like K, because a weight of 0 times a stale NaN is NaN
        in_tile = visible[:, None] & in_head_v[None, :]
        v_offset = block_id * stride_v_block + slot[:, None] * stride_v_slot
        v_offset += kv_head * stride_v_head + dim_v[None, :] * stride_v_dim
        v = tl.load(v_cache_ptr + v_offset, mask=in_tile, other=0.0).to(tl.float32)

        scores = attention_scores(q, k, query_position - position, scale, softcap, slope)  # [TILE_KV]
        scores = tl.where(visible, scores, -float("inf"))
        m, l, acc = softmax_step(scores, v, m, l, acc)

    # A split that saw nothing has l = 0: its lse is -inf, and nobody reads its output, which is left as it was.
    out = acc / l  # [TILE_DV]
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr + kv_head * stride_v_scale_head)
    out_offset = split * stride_out_split + seq * stride_out_seq + head * stride_out_head + dim_v * stride_out_dim
    tl.store(out_ptr + out_offset, out, mask=in_head_v & (l > 0.0))
    tl.store(lse_ptr + split * stride_lse_split + seq * stride_lse_seq + head * stride_lse_head, m + tl.log(l))


# --- the wrapper -------------------------------------------------------------------------------------------------


def paged_split_decode(
    q,
    k_cache,
    v_cache,
    block_tables,
    kv_lens,
    *,
    scale=None,
    window=(-1, -1),
    causal=True,  # noqa: ARG001 (one query at the end of its sequence: causal or not, it sees the same keys)
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
    k_scale=None,
    v_scale=None,
    num_splits=4,
    out=None,
    return_lse=False,
):
    """What `paged_decode` computes, for few sequences with many keys each: num_splits programs share a sequence."""
    check_shapes(q, k_cache, v_cache, block_tables, kv_lens)
    check_dtypes(q, k_cache, v_cache, block_tables, kv_lens)
    check_optional(q, v_cache, alibi_slopes, sinks, k_scale, v_scale, out)
    check_devices(q, k_cache, v_cache, block_tables, kv_lens, alibi_slopes, sinks, k_scale, v_scale, out)
    check_numbers(window, softcap)
    check_splits(num_splits)

    num_seqs, num_q_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    head_dim_v = v_cache.shape[3]
    out = q.new_empty((num_seqs, num_q_heads, head_dim_v)) if out is None else out
    lse = q.new_empty((num_seqs, num_q_heads), dtype=torch.float32) if return_lse else None
    split_outs = q.new_empty((num_splits, num_seqs, num_q_heads, head_dim_v), dtype=torch.float32)
    split_lses = q.new_empty((num_splits, num_seqs, num_q_heads), dtype=torch.float32)
    paged_split_decode_kernel[(num_seqs, num_q_heads, num_splits)](
        out_ptr=split_outs,
        lse_ptr=split_lses,
        q_ptr=q,
        k_cache_ptr=k_cache,
        v_cache_ptr=v_cache,
        block_tables_ptr=block_tables,
        kv_lens_ptr=kv_lens,
        alibi_slopes_ptr=alibi_slopes,
        sinks_ptr=sinks,
        k_scale_ptr=k_scale,
        v_scale_ptr=v_scale,
        scale=1.0 / math.sqrt(head_dim) if scale is None else float(scale),
        softcap=float(softcap) if softcap > 0 else None,
        window_left=window[0] if window[0] >= 0 else None,
        block_size=block_size,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        group=num_q_heads // num_kv_heads,
        **strides("out", split_outs, "split seq head dim"),
        **strides("lse", split_lses, "split seq head"),
        **strides("q", q, "seq head dim"),
        **strides("k", k_cache, "block slot head dim"),
        **strides("v", v_cache, "block slot head dim"),
        **strides("table", block_tables, "seq column"),
        **strides("lens", kv_lens, "seq"),
        **strides("slopes", alibi_slopes, "head"),
        **strides("sinks", sinks, "head"),
        **strides("k_scale", per_head(k_scale, num_kv_heads), "head"),
        **strides("v_scale", per_head(v_scale, num_kv_heads), "head"),
        TILE_KV=triton.next_power_of_2(block_size),
        TILE_D=triton.next_power_of_2(head_dim),
        TILE_DV=triton.next_power_of_2(head_dim_v),
    )
    launch_merge(split_outs, split_lses, out, lse)
    return (out, lse) if return_lse else out


def check_splits(num_splits):
    if not (isinstance(num_splits, int) and num_splits >= 1):
        raise ValueError(f"num_splits is {num_splits}, but expected a whole number from 1")
