"""Paged attention of any number of new tokens per sequence: prefill, chunked prefill, prefix-cache hit and verify."""

import math

import torch
import triton
import triton.language as tl
from decode import check_devices, check_numbers, check_optional, per_head, strides
from extend_call import check_new, check_paged, validate  # noqa: F401 (validate: for those who call paged_extend)
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
    check_scale,
    cut_tile_blocks,
    load_rows,
    load_tile,
    padded,
    softmax_step,
    softmax_step_of_some,
    stages_for,
    tile_of,
    tile_scores,
    whole_tile_blocks,
)
from triton.tools.tensor_descriptor import TensorDescriptor

#: Bytes that a tile of queries may have for each warp, and a tile of keys and values.
Q_BYTES, KV_BYTES = 4 * 1024, 32 * 1024
#: Programs for each multiprocessor that splitting aims at.
PROGRAMS_EACH = 2
#: Arguments of `paged_extend` that are worth timing; the first are its own choice.
CONFIGS = (
    {},
    {"tile_q": 128, "num_warps": 8, "tma": True},
    {"tile_q": 16, "tile_kv": 32, "tma": True},
    {"tile_kv": 16, "tma": True},
)

# --- the kernel --------------------------------------------------------------------------------------------------


@triton.jit
def keys_of_split(first_key, end_key, split, num_splits, TILE_KV: tl.constexpr):
    """The keys [first, end) of one split: an equal share of the tiles that are seen."""
    first_tile = first_key // TILE_KV
    share = tl.cdiv(tl.cdiv(end_key, TILE_KV) - first_tile, num_splits)
    begin = first_tile + split * share
    return tl.maximum(begin * TILE_KV, first_key), tl.minimum((begin + share) * TILE_KV, end_key)


@triton.jit
def add_tile(
    q,                 # [TILE_Q, TILE_D]
    k,                 # [TILE_KV, TILE_D]
    v,                 # [TILE_KV, TILE_DV]
    position,          # [TILE_Q]
    key,               # [TILE_KV]
    there,             # [TILE_KV]
    window_left, window_right,
    scale, softcap,
    slope,             # [TILE_Q]
    m, l, acc,
):  # fmt: skip
    """Add the keys of one tile that are `there`, each to the rows that see it."""
    distance = position[:, None] - key[None, :]  # [TILE_Q, TILE_KV]
    visible = there[None, :]
    if window_left is not None:
        visible = visible & (distance <= window_left)
    if window_right is not None:
        visible = visible & (distance >= -window_right)
    scores, unit = tile_scores(q, k, distance, scale, softcap, slope)  # [TILE_Q, TILE_KV]
    return softmax_step_of_some(tl.where(visible, scores, -float("inf")), unit, v, m, l, acc)


@triton.jit
def load_dense_tile(
    x_ptr,             # [tokens, head_dim]: one head of dense K or V
    row,               # [TILE_KV]
    there,             # [TILE_KV] which of them are to be read
    # Strides, in elements
    stride_token, stride_dim,
    HEAD_DIM: tl.constexpr,
    TILE_D: tl.constexpr,
):  # fmt: skip
    """[TILE_KV, TILE_D]; 0 for what is not there."""
    dim = tl.arange(0, TILE_D)  # [TILE_D]
    # [TILE_KV, TILE_D]
    offset = row[:, None] * stride_token + dim[None, :] * stride_dim
    return tl.load(x_ptr + offset, mask=there[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)


# These numbers are used once per program: not worth a compilation each time one of them is 1 or a multiple of 16.
UNSPECIALISED = (
    "window_left", "window_right", "num_splits",
    "stride_out_token", "stride_out_head", "stride_q_token", "stride_q_head",
    "stride_k_new_token", "stride_k_new_head", "stride_v_new_token", "stride_v_new_head",
    "stride_table_seq", "stride_table_column", "stride_starts_seq", "stride_lens_seq",
    "stride_slopes_head", "stride_sinks_head", "stride_k_scale_head", "stride_v_scale_head",
)  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def paged_extend_kernel(
    # Outputs
    out_ptr,           # [tokens, num_q_heads, head_dim_v]
    lse_ptr,           # [tokens, num_q_heads] float32, contiguous; None: not wanted
    # Workspace, contiguous; None with one split
    outs_ptr,          # [tokens, num_q_heads, num_splits, head_dim_v] float32
    lses_ptr,          # [tokens, num_q_heads, num_splits] float32, in base 2
    arrived_ptr,       # [tokens, num_q_heads] int32, 0 before and after a launch; each tile of queries has one
    # Inputs
    q_ptr,             # [tokens, num_q_heads, head_dim]: the new tokens of all sequences, one after the other
    k_cache_ptr,       # [num_blocks, block_size, num_kv_heads, head_dim]
    v_cache_ptr,       # [num_blocks, block_size, num_kv_heads, head_dim_v]; may lie in k_cache
    k_new_ptr,         # [tokens, num_kv_heads, head_dim]; None: the new tokens are in the cache
    v_new_ptr,         # [tokens, num_kv_heads, head_dim_v]; None: the new tokens are in the cache
    block_tables_ptr,  # [num_seqs, columns]
    query_starts_ptr,  # [num_seqs + 1]
    kv_lens_ptr,       # [num_seqs]
    alibi_slopes_ptr,  # [num_q_heads]; None: no ALiBi
    sinks_ptr,         # [num_q_heads]; None: no sinks
    k_scale_ptr,       # [num_kv_heads]; None: K is stored as it is
    v_scale_ptr,       # [num_kv_heads]; None: V is stored as it is
    k_rows, v_rows,    # descriptors of [num_blocks * block_size, num_kv_heads * dim]; None: tiles come by pointers
    # Numbers
    scale,
    softcap,           # None: no softcap
    window_left,       # keys seen before the query's own; None: unlimited
    window_right,      # keys seen after it, 0 where causal; None: unlimited
    num_splits,        # None with one split
    # Strides, in elements
    stride_out_token, stride_out_head, stride_out_dim,
    stride_q_token, stride_q_head, stride_q_dim,
    stride_k_block, stride_k_slot, stride_k_head, stride_k_dim,
    stride_v_block, stride_v_slot, stride_v_head, stride_v_dim,
    stride_k_new_token, stride_k_new_head, stride_k_new_dim,
    stride_v_new_token, stride_v_new_head, stride_v_new_dim,
    stride_table_seq, stride_table_column,
    stride_starts_seq, stride_lens_seq, stride_slopes_head, stride_sinks_head,
    stride_k_scale_head, stride_v_scale_head,
    # Shapes
    GROUP: tl.constexpr,  # query heads per KV head
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_V: tl.constexpr,
    # Tiles, each a power of two
    TILE_Q: tl.constexpr,
    TILE_KV: tl.constexpr,
    TILE_D: tl.constexpr,
    TILE_DV: tl.constexpr,
):  # fmt: skip
    # Every index that meets a stride is 64 bits wide: a pool holds more than 2^31 elements, no sequence so many keys.
    row_tiles, row_tile = tl.num_programs(0), tl.program_id(0)
    if num_splits is not None:
        row_tiles //= num_splits
        split = row_tile // row_tiles
        row_tile %= row_tiles
    first_row = (row_tiles - 1 - row_tile) * TILE_Q  # the longest rows begin first
    kv_head = tl.program_id(1).to(tl.int64)
    seq = tl.program_id(2).to(tl.int64)
    query_start = tl.load(query_starts_ptr + seq * stride_starts_seq).to(tl.int64)
    query_len = (tl.load(query_starts_ptr + (seq + 1) * stride_starts_seq) - query_start).to(tl.int32)
    # The grid is as long as the longest sequence, or longer.
    if first_row >= query_len * GROUP:
        return
    # A row is a new token and one of the query heads that share this KV head.
    row = first_row + tl.arange(0, TILE_Q)  # [TILE_Q]
    new = row // GROUP  # [TILE_Q]
    token = query_start + new  # [TILE_Q]
    head = kv_head * GROUP + row % GROUP  # [TILE_Q]
    dim = tl.arange(0, TILE_D)  # [TILE_D]
    dim_v = tl.arange(0, TILE_DV)  # [TILE_DV]
    in_seq = new < query_len  # [TILE_Q]

    # [TILE_Q, TILE_D]
    q_offset = token[:, None] * stride_q_token + head[:, None] * stride_q_head + dim[None, :] * stride_q_dim
    q = tl.load(q_ptr + q_offset, mask=in_seq[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)

    # The queries are the last of the kv_len tokens. Some row of the tile sees the keys from first_key to end_key, and
    # all of them see those from first_common to end_common.
    kv_len = tl.load(kv_lens_ptr + seq * stride_lens_seq).to(tl.int32)
    cached_len = kv_len - query_len
    position = cached_len + new  # [TILE_Q]
    first_position = cached_len + first_row // GROUP
    last_position = cached_len + tl.minimum((first_row + TILE_Q - 1) // GROUP, query_len - 1)
    first_key, first_common = tl.zeros_like(kv_len), tl.zeros_like(kv_len)
    end_key, end_common = kv_len, kv_len
    if window_left is not None:
        first_key = tl.maximum(first_position - window_left, 0)
        first_common = tl.maximum(last_position - window_left, 0)
    if window_right is not None:
        end_key = tl.minimum(last_position + window_right + 1, kv_len)
        end_common = tl.minimum(first_position + window_right + 1, kv_len)

    # Keys from first_paged to end_paged are in the cache, those from there to end_new, if any, in rows of their own.
    first_paged, end_paged, end_new = first_key, end_key, end_key
    if k_new_ptr is not None:
        end_paged = tl.minimum(cached_len, end_key)
    if num_splits is not None:
        first_paged, end_paged = keys_of_split(first_key, end_paged, split, num_splits, TILE_KV)
        first_common = tl.maximum(first_common, first_paged)
        end_new = tl.where(split == num_splits - 1, end_key, cached_len)

    # An FP8 cache stores K / k_scale, and what is common to all its keys of a head is multiplied in once.
    paged_scale = scale
    if k_scale_ptr is not None:
        paged_scale = scale * tl.load(k_scale_ptr + kv_head * stride_k_scale_head)

    slope = None
    if alibi_slopes_ptr is not None:
        slope = tl.load(alibi_slopes_ptr + head * stride_slopes_head).to(tl.float32)  # [TILE_Q]

    # A sink is a logit without a value: it is there before the first key of all, with weight exp2(sink - m) = 1.
    m = tl.full([TILE_Q], -float("inf"), tl.float32)
    l = tl.zeros([TILE_Q], tl.float32)
    if sinks_ptr is not None:
        m = tl.load(sinks_ptr + head * stride_sinks_head).to(tl.float32) * LOG2E
        l = tl.full([TILE_Q], 1.0, tl.float32)
        if num_splits is not None:
            m = tl.where(split == 0, m, -float("inf"))
    acc = tl.zeros([TILE_Q, TILE_DV], tl.float32)

    # Tiles are taken in order of their positions, which are multiples of TILE_KV: a row's sum depends on no other row.
    table_ptr = block_tables_ptr + seq * stride_table_seq
    k_head_ptr = k_cache_ptr + kv_head * stride_k_head
    v_head_ptr = v_cache_ptr + kv_head * stride_v_head
    first_tile, end_tile = first_paged // TILE_KV, tl.cdiv(end_paged, TILE_KV)
    first_whole = tl.minimum(tl.cdiv(first_common, TILE_KV), end_tile)
    end_whole = tl.maximum(tl.minimum(end_common, end_paged) // TILE_KV, first_whole)
    if window_left is not None:
        for tile in tl.range(first_tile, first_whole, num_stages=1):
            key = tile * TILE_KV + tl.arange(0, TILE_KV)  # [TILE_KV]
            there = (key >= first_paged) & (key < end_paged)  # [TILE_KV]
            block = cut_tile_blocks(table_ptr, tile, there, stride_table_column, BLOCK_SIZE, TILE_KV)
            k = load_tile(
                k_head_ptr, block, tile, there, stride_k_block, stride_k_slot, stride_k_dim,
                BLOCK_SIZE, HEAD_DIM, TILE_KV, TILE_D,
            )  # [TILE_KV, TILE_D]  # fmt: skip
            v = load_tile(
                v_head_ptr, block, tile, there, stride_v_block, stride_v_slot, stride_v_dim,
                BLOCK_SIZE, HEAD_DIM_V, TILE_KV, TILE_DV,
            )  # [TILE_KV, TILE_DV]  # fmt: skip
            m, l, acc = add_tile(
                q, k.to(q.dtype), v.to(q.dtype), position, key, there, window_left, window_right,
                paged_scale, softcap, slope, m, l, acc,
            )  # fmt: skip

    # The next tile's blocks are looked up one tile ahead: K and V on their way never wait for the table.
    block = whole_tile_blocks(table_ptr, first_whole, end_whole, stride_table_column, BLOCK_SIZE, TILE_KV)
    for tile in range(first_whole, end_whole):
        next_block = whole_tile_blocks(table_ptr, tile + 1, end_whole, stride_table_column, BLOCK_SIZE, TILE_KV)
        if k_rows is not None:
            k = load_rows(k_rows, block, tile, kv_head, BLOCK_SIZE, HEAD_DIM, TILE_KV)  # [TILE_KV, TILE_D]
            v = load_rows(v_rows, block, tile, kv_head, BLOCK_SIZE, HEAD_DIM_V, TILE_KV)  # [TILE_KV, TILE_DV]
        else:
            k = load_tile(
                k_head_ptr, block, tile, None, stride_k_block, stride_k_slot, stride_k_dim,
                BLOCK_SIZE, HEAD_DIM, TILE_KV, TILE_D,
            )  # [TILE_KV, TILE_D]  # fmt: skip
            v = load_tile(
                v_head_ptr, block, tile, None, stride_v_block, stride_v_slot, stride_v_dim,
                BLOCK_SIZE, HEAD_DIM_V, TILE_KV, TILE_DV,
            )  # [TILE_KV, TILE_DV]  # fmt: skip
        key = tile * TILE_KV + tl.arange(0, TILE_KV)  # [TILE_KV]
        distance = position[:, None] - key[None, :]  # [TILE_Q, TILE_KV]
        scores, unit = tile_scores(q, k.to(q.dtype), distance, paged_scale, softcap, slope)  # [TILE_Q, TILE_KV]
        m, l, acc = softmax_step(scores, unit, v.to(q.dtype), m, l, acc)
        block = next_block

    for tile in tl.range(end_whole, end_tile, num_stages=1):
        key = tile * TILE_KV + tl.arange(0, TILE_KV)  # [TILE_KV]
        there = (key >= first_paged) & (key < end_paged)  # [TILE_KV]
        block = cut_tile_blocks(table_ptr, tile, there, stride_table_column, BLOCK_SIZE, TILE_KV)
        k = load_tile(
            k_head_ptr, block, tile, there, stride_k_block, stride_k_slot, stride_k_dim,
            BLOCK_SIZE, HEAD_DIM, TILE_KV, TILE_D,
        )  # [TILE_KV, TILE_D]  # fmt: skip
        v = load_tile(
            v_head_ptr, block, tile, there, stride_v_block, stride_v_slot, stride_v_dim,
            BLOCK_SIZE, HEAD_DIM_V, TILE_KV, TILE_DV,
        )  # [TILE_KV, TILE_DV]  # fmt: skip
        m, l, acc = add_tile(
            q, k.to(q.dtype), v.to(q.dtype), position, key, there, window_left, window_right,
            paged_scale, softcap, slope, m, l, acc,
        )  # fmt: skip

    # What was summed so far is V / v_scale; the new tokens are not scaled.
    if v_scale_ptr is not None:
        acc *= tl.load(v_scale_ptr + kv_head * stride_v_scale_head)

    if k_new_ptr is not None:
        # The first new token is the key at cached_len, and lies in row query_start.
        for start in tl.range(tl.maximum(first_key, cached_len), end_new, TILE_KV, num_stages=1):
            key = start + tl.arange(0, TILE_KV)  # [TILE_KV]
            there = key < end_new  # [TILE_KV]
            new_row = query_start + key - cached_len  # [TILE_KV]
            k = load_dense_tile(
                k_new_ptr + kv_head * stride_k_new_head, new_row, there, stride_k_new_token, stride_k_new_dim,
                HEAD_DIM, TILE_D,
            )  # [TILE_KV, TILE_D]  # fmt: skip
            v = load_dense_tile(
                v_new_ptr + kv_head * stride_v_new_head, new_row, there, stride_v_new_token, stride_v_new_dim,
                HEAD_DIM_V, TILE_DV,
            )  # [TILE_KV, TILE_DV]  # fmt: skip
            m, l, acc = add_tile(
                q, k, v, position, key, there, window_left, window_right, scale, softcap, slope, m, l, acc
            )

    in_out = in_seq[:, None] & (dim_v < HEAD_DIM_V)[None, :]  # [TILE_Q, TILE_DV]
    if num_splits is not None:
        heads = tl.num_programs(1) * GROUP
        first_state = (token * heads + head) * num_splits  # [TILE_Q]
        row_outs_ptr = outs_ptr + first_state[:, None] * HEAD_DIM_V + dim_v[None, :]  # [TILE_Q, TILE_DV]
        row_lses_ptr = lses_ptr + first_state  # [TILE_Q]
        leave_split(row_outs_ptr, row_lses_ptr, split, in_seq, in_out, m, l, acc, HEAD_DIM_V)
        arrived_ptr += (query_start * GROUP + first_row // TILE_Q) * tl.num_programs(1) + kv_head
        if not arrives_last(arrived_ptr, num_splits):
            return
        m, l, acc = merge_splits(row_outs_ptr, row_lses_ptr, in_seq, num_splits, HEAD_DIM_V, TILE_Q, TILE_DV)

    # A row that saw nothing has l = 0 and acc = 0: its output is 0, its lse m = -inf.
    out = acc / tl.where(l == 0.0, 1.0, l)[:, None]  # [TILE_Q, TILE_DV]
    # [TILE_Q, TILE_DV]
    out_offset = token[:, None] * stride_out_token + head[:, None] * stride_out_head + dim_v[None, :] * stride_out_dim
    tl.store(out_ptr + out_offset, out.to(out_ptr.dtype.element_ty), mask=in_out)
    if lse_ptr is not None:
        heads = tl.num_programs(1) * GROUP
        tl.store(lse_ptr + token * heads + head, (m + tl.log2(l)) / LOG2E, mask=in_seq)


# --- the wrapper -------------------------------------------------------------------------------------------------


def paged_extend(
    q,
    k_cache,
    v_cache,
    block_tables,
    query_starts,
    kv_lens,
    *,
    k_new=None,
    v_new=None,
    scale=None,
    causal=True,
    window=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
    k_scale=None,
    v_scale=None,
    out=None,
    return_lse=False,
    max_query_len=None,
    num_splits=None,
    tile_q=None,
    tile_kv=None,
    num_warps=None,
    num_stages=None,
    tma=None,
    workspace=None,
):
    """Attention of the packed new tokens over all paged keys: out, or (out, lse) with the natural log.

    The new tokens are counted in kv_lens. They are in the cache already, or come as k_new and v_new [tokens,
    num_kv_heads, dim], packed as q is, in q's type and not scaled; then cache and block_tables hold only the tokens
    before them. A key that nobody in a tile of queries sees is not read. Without `max_query_len`, which may be larger
    than needed, query_starts are read: a GPU has to be waited for.
    A tile has tile_q rows (a new token and a query head each) and tile_kv keys, or as many as there is room for.
    num_splits programs share the keys of a tile of queries, by default as many as fill the GPU; a `workspace` for them
    (`split_workspace`) makes a call one that allocates nothing.
    With tma whole tiles come by the tensor memory accelerator, where they are whole rows of a cache; by default where
    the GPU has one.
    v_cache may have a head_dim of its own, and may be a view of the first dims of k_cache (MLA). The caches hold K /
    k_scale and V / v_scale, in q's type or in FP8; a scale has one number for all KV heads or one for each.
    """
    check_paged(q, k_cache, v_cache, block_tables, query_starts, kv_lens)
    check_optional(q, v_cache, alibi_slopes, sinks, k_scale, v_scale, out)
    check_new(q, v_cache, k_new, v_new)
    check_devices(q, k_cache, v_cache, k_new, v_new, block_tables, query_starts, kv_lens)
    check_devices(q, alibi_slopes, sinks, k_scale, v_scale, out)
    check_numbers(window, softcap)
    check_scale(scale)
    tokens, num_q_heads, head_dim = q.shape
    num_kv_heads, head_dim_v = v_cache.shape[2:]
    max_query_len = longest(query_starts) if max_query_len is None else max_query_len
    launch = launch_for(q, k_cache, v_cache, tile_q, tile_kv, num_warps, num_stages)
    k_rows, v_rows = rows_of(k_cache, v_cache, launch) if (has_tma(q) if tma is None else tma) else (None, None)
    out = q.new_empty((tokens, num_q_heads, head_dim_v)) if out is None else out
    lse = q.new_empty((tokens, num_q_heads), dtype=torch.float32) if return_lse else None
    row_tiles = triton.cdiv(max_query_len * launch["GROUP"], launch["TILE_Q"])
    keys = most_keys(k_cache, block_tables, window[0], keys_ahead(causal, window[1]), max_query_len)
    programs = row_tiles * num_kv_heads * len(kv_lens)
    num_splits = splits_for(q, programs, triton.cdiv(keys, launch["TILE_KV"]), num_splits)
    paged_extend_kernel[(row_tiles * num_splits, num_kv_heads, len(kv_lens))](
        out, lse, *used_workspace(q, v_cache, num_splits, workspace),
        q, k_cache, v_cache, k_new, v_new, block_tables, query_starts, kv_lens, alibi_slopes, sinks, k_scale, v_scale,
        k_rows, v_rows,
        scale=1.0 / math.sqrt(head_dim) if scale is None else float(scale),
        softcap=float(softcap) if softcap > 0 else None,
        window_left=window[0] if window[0] >= 0 else None,
        window_right=keys_ahead(causal, window[1]),
        num_splits=num_splits if num_splits > 1 else None,
        **strides("out", out, "token head dim"), **strides("q", q, "token head dim"),
        **strides("k", k_cache, "block slot head dim"), **strides("v", v_cache, "block slot head dim"),
        **strides("k_new", k_new, "token head dim"), **strides("v_new", v_new, "token head dim"),
        **strides("table", block_tables, "seq column"), **strides("starts", query_starts, "seq"),
        **strides("lens", kv_lens, "seq"), **strides("slopes", alibi_slopes, "head"), **strides("sinks", sinks, "head"),
        **strides("k_scale", per_head(k_scale, num_kv_heads), "head"),
        **strides("v_scale", per_head(v_scale, num_kv_heads), "head"),
        **launch,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def longest(query_starts):
    """The most new tokens of any sequence."""
    return int(query_starts.diff().max()) if len(query_starts) > 1 else 0


def keys_ahead(causal, right):
    """How many keys after its own a query sees, None for all: a causal mask is a window that ends at the query."""
    if causal:
        return 0
    return right if right >= 0 else None


def launch_for(q, k_cache, v_cache, tile_q=None, tile_kv=None, num_warps=None, num_stages=None):
    """Shapes, tiles and how many of them are on their way at once: what fits the shared memory of a Hopper."""
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    tile_d, tile_dv = padded(head_dim), padded(v_cache.shape[3])
    bytes_per_key = (tile_d + tile_dv) * q.element_size()
    num_warps = num_warps or (4 if bytes_per_key <= 1024 else 8)
    tile_q = tile_of("tile_q", tile_q or 64, num_warps * Q_BYTES // (tile_d * q.element_size()))
    tile_kv = tile_of("tile_kv", tile_kv or 64, KV_BYTES // bytes_per_key)
    return {
        "GROUP": q.shape[1] // num_kv_heads, "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim, "HEAD_DIM_V": v_cache.shape[3],
        "TILE_Q": tile_q, "TILE_KV": tile_kv, "TILE_D": tile_d, "TILE_DV": tile_dv,
        "num_warps": num_warps, **stages_for(num_stages, tile_kv * bytes_per_key),
    }  # fmt: skip


def most_keys(k_cache, block_tables, left, right, max_query_len):
    """How many keys of a cache the queries of a sequence may see, whatever its length."""
    keys = block_tables.shape[1] * k_cache.shape[1]
    return keys if left < 0 or right is None else min(keys, left + max_query_len + right)


def splits_for(q, programs, most_tiles, num_splits):
    """How many programs share a tile of queries; known without a look at the lengths, so that a graph fits all of them.

    What a split leaves is about as many bytes as a tile of keys and values: more splits than the root of the tiles
    take the last of them longer to merge than they save.
    """
    if num_splits is not None:
        check_count("num_splits", num_splits)
        return num_splits
    return max(min(PROGRAMS_EACH * multiprocessors(q) // max(programs, 1), math.isqrt(most_tiles)), 1)


def has_tma(q):
    return q.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(q.device) >= (9, 0)


def rows_of(k_cache, v_cache, launch):
    """Both caches as rows of slots, for loads of whole tiles; None where a tile is not a part of some whole rows."""
    dims = ((k_cache, launch["TILE_D"]), (v_cache, launch["TILE_DV"]))
    if launch["BLOCK_SIZE"] % launch["TILE_KV"] or not all(is_of_rows(cache, tile) for cache, tile in dims):
        return None, None
    return tuple(
        TensorDescriptor(
            cache, [cache.shape[0] * cache.shape[1], cache.stride(1)], [cache.stride(1), 1], [launch["TILE_KV"], tile]
        )
        for cache, tile in dims
    )


def is_of_rows(cache, tile):
    """Whether one token's heads lie one after the other, a head as wide as its tile, and each token after the other."""
    aligned = cache.data_ptr() % 16 == 0 and tile * cache.element_size() % 16 == 0
    return cache.is_contiguous() and cache.shape[3] == tile and len(cache) > 0 and aligned
