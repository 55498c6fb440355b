"""Paged decode at speed: the query heads of a KV head share its keys, and programs share the keys of a sequence."""

import math

import torch
import triton
import triton.language as tl
from decode import (
    check_devices,
    check_dtypes,
    check_numbers,
    check_optional,
    check_shapes,
    per_head,
    strides,
    validate,  # noqa: F401 (a split decode is called with the same tensors)
)
from splits import (
    arrives_last,
    check_count,
    leave_split,
    merge_splits,
    multiprocessors,
    split_workspace,  # noqa: F401 (for those who keep one)
    used_workspace,
)
from tile import (
    LOG2E,
    SHARED_BYTES,
    check_scale,
    cut_tile_blocks,
    load_tile,
    padded,
    softmax_step,
    stages_for,
    tile_of,
    tile_scores,
    whole_tile_blocks,
)

#: Outputs that a program may sum at once.
SUMS = 64 * 128
#: Programs that a multiprocessor runs at once, and the fewest tiles that are worth a program.
PROGRAMS_EACH, FEWEST_TILES = 2, 2
#: Where there are more sequences than that: how many times as many programs even out their lengths, and their tiles.
ROUNDS, EVEN_TILES = 10, 32
#: Arguments of `paged_split_decode` that are worth timing; the first are its own choice.
CONFIGS = ({}, {"tile_kv": 128, "num_warps": 8}, {"tile_kv": 16})

# --- the kernel --------------------------------------------------------------------------------------------------


@triton.jit
def tiles_of_split(first_key, kv_len, split, num_splits, tiles_per_split, TILE_KV: tl.constexpr):
    """The tiles [begin, end) of one split: an equal share of those that are seen, or always the same positions."""
    first_tile = first_key // TILE_KV
    end_tile = tl.cdiv(kv_len, TILE_KV)
    if tiles_per_split is None:
        share = tl.cdiv(end_tile - first_tile, num_splits)
        begin = first_tile + split * share
        end = tl.minimum(begin + share, end_tile)
    else:
        begin = tl.maximum(split * tiles_per_split, first_tile)
        end = tl.minimum((split + 1) * tiles_per_split, end_tile)
    return begin, tl.maximum(begin, end)


# These numbers are used once per program: not worth a compilation each time one of them is 1 or a multiple of 16.
UNSPECIALISED = (
    "window_left", "num_q_heads", "num_splits", "tiles_per_split",
    "stride_out_seq", "stride_out_head", "stride_q_seq", "stride_q_head",
    "stride_table_seq", "stride_table_column", "stride_lens_seq", "stride_slopes_head", "stride_sinks_head",
    "stride_k_scale_head", "stride_v_scale_head",
)  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def paged_split_decode_kernel(
    # Outputs
    out_ptr,           # [num_seqs, num_q_heads, head_dim_v]
    lse_ptr,           # [num_seqs, num_q_heads] float32, contiguous; None: not wanted
    # Workspace, contiguous; None with one split
    outs_ptr,          # [num_seqs, num_q_heads, num_splits, head_dim_v] float32
    lses_ptr,          # [num_seqs, num_q_heads, num_splits] float32, in base 2
    arrived_ptr,       # [num_seqs, num_q_heads] int32, 0 before and after a launch
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
    num_q_heads,
    num_splits,
    tiles_per_split,   # None: an equal share
    # Strides, in elements
    stride_out_seq, stride_out_head, stride_out_dim,
    stride_q_seq, stride_q_head, stride_q_dim,
    stride_k_block, stride_k_slot, stride_k_head, stride_k_dim,
    stride_v_block, stride_v_slot, stride_v_head, stride_v_dim,
    stride_table_seq, stride_table_column,
    stride_lens_seq, stride_slopes_head, stride_sinks_head,
    stride_k_scale_head, stride_v_scale_head,
    # Shapes
    GROUP: tl.constexpr,  # query heads per KV head
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_V: tl.constexpr,
    # Tiles, each a power of two
    ROWS: tl.constexpr,
    TILE_KV: tl.constexpr,
    TILE_D: tl.constexpr,
    TILE_DV: tl.constexpr,
):  # fmt: skip
    # Every index that meets a stride is 64 bits wide: a pool holds more than 2^31 elements, no sequence so many keys.
    head_tile = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    seq = tl.program_id(2).to(tl.int64)
    # The query heads of a KV head share its keys, those of one tile at least.
    tiles_per_group: tl.constexpr = (GROUP + ROWS - 1) // ROWS
    kv_head = head_tile // tiles_per_group
    row = head_tile % tiles_per_group * ROWS + tl.arange(0, ROWS)  # [ROWS]
    head = kv_head * GROUP + row  # [ROWS]
    in_group = row < GROUP  # [ROWS]
    dim = tl.arange(0, TILE_D)  # [TILE_D]
    dim_v = tl.arange(0, TILE_DV)  # [TILE_DV]

    # [ROWS, TILE_D]
    q_offset = seq * stride_q_seq + head[:, None] * stride_q_head + dim[None, :] * stride_q_dim
    q = tl.load(q_ptr + q_offset, mask=in_group[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)

    # The query is the last of the kv_len tokens, so a window ends there and begins window_left keys before.
    kv_len = tl.load(kv_lens_ptr + seq * stride_lens_seq).to(tl.int32)
    first_key = tl.zeros_like(kv_len)
    if window_left is not None:
        first_key = tl.maximum(kv_len - 1 - window_left, 0)

    # An FP8 cache stores K / k_scale, and what is common to all keys of a head is multiplied in once.
    if k_scale_ptr is not None:
        scale *= tl.load(k_scale_ptr + kv_head * stride_k_scale_head)

    slope = None
    if alibi_slopes_ptr is not None:
        slope = tl.load(alibi_slopes_ptr + head * stride_slopes_head, mask=in_group, other=0.0).to(tl.float32)

    # A sink is a logit without a value that must count once: it is there before the first key of the first split.
    m = tl.full([ROWS], -float("inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    if sinks_ptr is not None:
        is_first = in_group & (split == 0)
        sinks = tl.load(sinks_ptr + head * stride_sinks_head, mask=is_first, other=-float("inf"))  # [ROWS]
        m = sinks.to(tl.float32) * LOG2E
        l = is_first.to(tl.float32)
    acc = tl.zeros([ROWS, TILE_DV], tl.float32)

    begin, end = tiles_of_split(first_key, kv_len, split, num_splits, tiles_per_split, TILE_KV)
    first_whole = begin
    if window_left is not None:
        first_whole = tl.minimum(tl.maximum(begin, tl.cdiv(first_key, TILE_KV)), end)
    end_whole = tl.maximum(tl.minimum(end, kv_len // TILE_KV), first_whole)
    table_ptr = block_tables_ptr + seq * stride_table_seq
    k_head_ptr = k_cache_ptr + kv_head * stride_k_head
    v_head_ptr = v_cache_ptr + kv_head * stride_v_head

    # The next tile's blocks are looked up one tile ahead: K and V on their way never wait for the table.
    block = whole_tile_blocks(table_ptr, first_whole, end_whole, stride_table_column, BLOCK_SIZE, TILE_KV)
    for tile in range(first_whole, end_whole):
        next_block = whole_tile_blocks(table_ptr, tile + 1, end_whole, stride_table_column, BLOCK_SIZE, TILE_KV)
        k = load_tile(
            k_head_ptr, block, tile, None, stride_k_block, stride_k_slot, stride_k_dim,
            BLOCK_SIZE, HEAD_DIM, TILE_KV, TILE_D,
        )  # [TILE_KV, TILE_D]  # fmt: skip
        v = load_tile(
            v_head_ptr, block, tile, None, stride_v_block, stride_v_slot, stride_v_dim,
            BLOCK_SIZE, HEAD_DIM_V, TILE_KV, TILE_DV,
        )  # [TILE_KV, TILE_DV]  # fmt: skip
        distance = kv_len - 1 - tile * TILE_KV - tl.arange(0, TILE_KV)  # [TILE_KV]
        scores, unit = tile_scores(q, k.to(q.dtype), distance, scale, softcap, slope)  # [ROWS, TILE_KV]
        m, l, acc = softmax_step(scores, unit, v.to(q.dtype), m, l, acc)
        block = next_block

    # A window cuts the tile before the whole ones, the end of the sequence the one after them.
    cut_before = first_whole - begin
    for i in tl.range(cut_before + end - end_whole, num_stages=1):
        tile = tl.where(i < cut_before, begin + i, end_whole + i - cut_before)
        key = tile * TILE_KV + tl.arange(0, TILE_KV)  # [TILE_KV]
        there = (key >= first_key) & (key < kv_len)  # [TILE_KV]
        block = cut_tile_blocks(table_ptr, tile, there, stride_table_column, BLOCK_SIZE, TILE_KV)
        k = load_tile(
            k_head_ptr, block, tile, there, stride_k_block, stride_k_slot, stride_k_dim,
            BLOCK_SIZE, HEAD_DIM, TILE_KV, TILE_D,
        )  # [TILE_KV, TILE_D]  # fmt: skip
        v = load_tile(
            v_head_ptr, block, tile, there, stride_v_block, stride_v_slot, stride_v_dim,
            BLOCK_SIZE, HEAD_DIM_V, TILE_KV, TILE_DV,
        )  # [TILE_KV, TILE_DV]  # fmt: skip
        scores, unit = tile_scores(q, k.to(q.dtype), kv_len - 1 - key, scale, softcap, slope)  # [ROWS, TILE_KV]
        scores = tl.where(there[None, :], scores, -float("inf"))
        m, l, acc = softmax_step(scores, unit, v.to(q.dtype), m, l, acc)

    live = in_group[:, None] & (dim_v < HEAD_DIM_V)[None, :]  # [ROWS, TILE_DV]
    if outs_ptr is not None:
        first_state = (seq * num_q_heads + head) * num_splits  # [ROWS]
        row_outs_ptr = outs_ptr + first_state[:, None] * HEAD_DIM_V + dim_v[None, :]  # [ROWS, TILE_DV]
        row_lses_ptr = lses_ptr + first_state  # [ROWS]
        leave_split(row_outs_ptr, row_lses_ptr, split, in_group, live, m, l, acc, HEAD_DIM_V)
        arrived_ptr += seq * num_q_heads + head_tile
        if not arrives_last(arrived_ptr, num_splits):
            return
        m, l, acc = merge_splits(row_outs_ptr, row_lses_ptr, in_group, num_splits, HEAD_DIM_V, ROWS, TILE_DV)

    # A row that saw nothing has l = 0 and acc = 0: its output is 0, its lse m = -inf.
    out = acc / tl.where(l == 0.0, 1.0, l)[:, None]  # [ROWS, TILE_DV]
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr + kv_head * stride_v_scale_head)
    out_offset = seq * stride_out_seq + head[:, None] * stride_out_head + dim_v[None, :] * stride_out_dim
    tl.store(out_ptr + out_offset, out.to(out_ptr.dtype.element_ty), mask=live)
    if lse_ptr is not None:
        tl.store(lse_ptr + seq * num_q_heads + head, (m + tl.log2(l)) / LOG2E, mask=in_group)


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
    num_splits=None,
    tiles_per_split=None,
    tile_kv=None,
    num_warps=None,
    num_stages=None,
    workspace=None,
    out=None,
    return_lse=False,
):
    """What `paged_decode` computes, at speed: num_splits programs share a sequence, as many as fill the GPU by default.

    With tiles_per_split a split is always the same positions of a sequence, and nothing depends on its neighbours.
    A tile has tile_kv keys, or as many as there is room for.
    """
    check_shapes(q, k_cache, v_cache, block_tables, kv_lens)
    check_dtypes(q, k_cache, v_cache, block_tables, kv_lens)
    check_optional(q, v_cache, alibi_slopes, sinks, k_scale, v_scale, out)
    check_devices(q, k_cache, v_cache, block_tables, kv_lens, alibi_slopes, sinks, k_scale, v_scale, out)
    check_numbers(window, softcap)
    check_scale(scale)
    num_seqs, num_q_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[2]
    launch = launch_for(q, k_cache, v_cache, tile_kv, num_warps, num_stages)
    num_splits = splits_for(q, k_cache, block_tables, launch["TILE_KV"], num_splits, tiles_per_split)
    workspace = used_workspace(q, v_cache, num_splits, workspace)
    out = q.new_empty((num_seqs, num_q_heads, v_cache.shape[3])) if out is None else out
    lse = q.new_empty((num_seqs, num_q_heads), dtype=torch.float32) if return_lse else None
    head_tiles = num_kv_heads * triton.cdiv(launch["GROUP"], launch["ROWS"])
    paged_split_decode_kernel[(head_tiles, num_splits, num_seqs)](
        out, lse, *workspace,
        q, k_cache, v_cache, block_tables, kv_lens, alibi_slopes, sinks, k_scale, v_scale,
        scale=1.0 / math.sqrt(head_dim) if scale is None else float(scale),
        softcap=float(softcap) if softcap > 0 else None,
        window_left=window[0] if window[0] >= 0 else None,
        num_q_heads=num_q_heads, num_splits=num_splits, tiles_per_split=tiles_per_split,
        **strides("out", out, "seq head dim"), **strides("q", q, "seq head dim"),
        **strides("k", k_cache, "block slot head dim"), **strides("v", v_cache, "block slot head dim"),
        **strides("table", block_tables, "seq column"), **strides("lens", kv_lens, "seq"),
        **strides("slopes", alibi_slopes, "head"), **strides("sinks", sinks, "head"),
        **strides("k_scale", per_head(k_scale, num_kv_heads), "head"),
        **strides("v_scale", per_head(v_scale, num_kv_heads), "head"),
        **launch,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def launch_for(q, k_cache, v_cache, tile_kv=None, num_warps=None, num_stages=None):
    """Shapes, tiles and how many of them are on their way at once: what fits the shared memory of a Hopper."""
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    group, head_dim_v = q.shape[1] // num_kv_heads, v_cache.shape[3]
    tile_d, tile_dv = padded(head_dim), padded(head_dim_v)
    bytes_per_key = (tile_d + tile_dv) * k_cache.element_size()
    tile_kv = tile_of("tile_kv", tile_kv or 64, SHARED_BYTES // 3 // bytes_per_key)
    return {
        "GROUP": group, "BLOCK_SIZE": block_size, "HEAD_DIM": head_dim, "HEAD_DIM_V": head_dim_v,
        "ROWS": tile_of("rows", padded(group), SUMS // tile_dv), "TILE_KV": tile_kv,
        "TILE_D": tile_d, "TILE_DV": tile_dv,
        "num_warps": num_warps or (4 if bytes_per_key < 1024 else 8), **stages_for(num_stages, tile_kv * bytes_per_key),
    }  # fmt: skip


def splits_for(q, k_cache, block_tables, tile_kv, num_splits, tiles_per_split):
    """How many programs share a sequence; known without a look at the lengths, so that a graph fits all of them."""
    most_tiles = triton.cdiv(block_tables.shape[1] * k_cache.shape[1], tile_kv)
    if tiles_per_split is not None:
        check_count("tiles_per_split", tiles_per_split)
        return max(triton.cdiv(most_tiles, tiles_per_split), 1)
    if num_splits is not None:
        check_count("num_splits", num_splits)
        return num_splits
    programs, at_once = len(q) * k_cache.shape[2], PROGRAMS_EACH * multiprocessors(q)
    if programs > at_once:
        return max(min(triton.cdiv(ROUNDS * at_once, programs), most_tiles // EVEN_TILES), 1)
    return max(min(at_once // max(programs, 1), most_tiles // FEWEST_TILES), 1)
