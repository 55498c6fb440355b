"""The textbook paged decode: one program per sequence and query head walks the block table with an online softmax."""

import math

import torch
import triton
import triton.language as tl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
INDEX_DTYPES = (torch.int32, torch.int64)

# --- the kernel --------------------------------------------------------------------------------------------------


@triton.jit
def tanh(x):
    """Accurate to a few ulp everywhere: 1 - exp(-2|x|) would cancel near 0, exp(2|x|) would overflow far out."""
    square = x * x
    # Minimax polynomial of the Cephes library (tanhf) for |x| < 0.625.
    series = -5.70498872745e-3 * square + 2.06390887954e-2
    series = series * square - 5.37397155531e-2
    series = series * square + 1.33314422036e-1
    series = series * square - 3.33332819422e-1
    near = x + x * square * series
    decay = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - decay) / (1.0 + decay)
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0, -far, far))


@triton.jit
def attention_scores(q, k, distance, scale, softcap, slope):
    """The logits of one tile: scale, then softcap, then ALiBi."""
    scores = tl.sum(q[None, :] * k, axis=1) * scale  # [TILE_KV]
    if softcap is not None:
        scores = softcap * tanh(scores / softcap)
    if slope is not None:
        scores -= slope * tl.abs(distance).to(tl.float32)
    return scores


@triton.jit
def softmax_step(scores, v, m, l, acc):
    """Add one tile to the running maximum `m`, the sum `l` and the weighted values `acc`."""
    m_new = tl.maximum(m, tl.max(scores, axis=0))
    # At least one key of the tile is visible, so m_new is finite and nothing here is -inf minus -inf.
    rescale = tl.exp(m - m_new)
    p = tl.exp(scores - m_new)  # [TILE_KV]
    l = l * rescale + tl.sum(p, axis=0)
    acc = acc * rescale + tl.sum(p[:, None] * v, axis=0)  # [TILE_DV]
    return m_new, l, acc


# These numbers are used once per program: not worth a compilation each time one of them is 1 or a multiple of 16.
UNSPECIALISED = (
    "window_left", "block_size", "head_dim", "head_dim_v", "group",
    "stride_out_seq", "stride_out_head", "stride_q_seq", "stride_q_head",
    "stride_table_seq", "stride_table_column", "stride_lens_seq", "stride_slopes_head", "stride_sinks_head",
    "stride_k_scale_head", "stride_v_scale_head",
)  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def paged_decode_kernel(
    # Outputs
    out_ptr,           # [num_seqs, num_q_heads, head_dim_v]
    lse_ptr,           # [num_seqs, num_q_heads] float32, contiguous; None: not wanted
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
    stride_out_seq, stride_out_head, stride_out_dim,
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

    # An FP8 cache stores K / k_scale, and what is common to all keys of a head is multiplied in once.
    if k_scale_ptr is not None:
        scale *= tl.load(k_scale_ptr + kv_head * stride_k_scale_head)

    slope = None
    if alibi_slopes_ptr is not None:
        slope = tl.load(alibi_slopes_ptr + head * stride_slopes_head).to(tl.float32)

    # A sink is a logit without a value: it is there before the first key, with weight exp(sink - m) = 1.
    m = -float("inf")
    l = 0.0
    if sinks_ptr is not None:
        m = tl.load(sinks_ptr + head * stride_sinks_head).to(tl.float32)
        l = 1.0
    acc = tl.zeros([TILE_DV], tl.float32)

    for block in range(first_key // block_size, tl.cdiv(kv_len, block_size)):
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

    # A row that saw nothing has l = 0 and acc = 0: its output is 0, its lse m = -inf.
    l = tl.where(l == 0.0, 1.0, l)
    out = acc / l  # [TILE_DV]
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr + kv_head * stride_v_scale_head)
    out_offset = seq * stride_out_seq + head * stride_out_head + dim_v * stride_out_dim
    tl.store(out_ptr + out_offset, out.to(out_ptr.dtype.element_ty), mask=in_head_v)
    if lse_ptr is not None:
        tl.store(lse_ptr + seq * tl.num_programs(1) + head, m + tl.log(l))


# --- the wrapper -------------------------------------------------------------------------------------------------


def paged_decode(
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
    out=None,
    return_lse=False,
):
    """Attention of one query token per sequence over its paged keys: out, or (out, lse) with the natural log.

    v_cache may have a head_dim of its own, and may be a view of the first dims of k_cache (MLA). The caches hold K /
    k_scale and V / v_scale, in q's type or in FP8; a scale has one number for all KV heads or one for each.
    """
    check_shapes(q, k_cache, v_cache, block_tables, kv_lens)
    check_dtypes(q, k_cache, v_cache, block_tables, kv_lens)
    check_optional(q, v_cache, alibi_slopes, sinks, k_scale, v_scale, out)
    check_devices(q, k_cache, v_cache, block_tables, kv_lens, alibi_slopes, sinks, k_scale, v_scale, out)
    check_numbers(window, softcap)

    num_seqs, num_q_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    head_dim_v = v_cache.shape[3]
    out = q.new_empty((num_seqs, num_q_heads, head_dim_v)) if out is None else out
    lse = q.new_empty((num_seqs, num_q_heads), dtype=torch.float32) if return_lse else None
    paged_decode_kernel[(num_seqs, num_q_heads)](
        out_ptr=out,
        lse_ptr=lse,
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
        **strides("out", out, "seq head dim"), **strides("q", q, "seq head dim"),
        **strides("k", k_cache, "block slot head dim"), **strides("v", v_cache, "block slot head dim"),
        **strides("table", block_tables, "seq column"),
        **strides("lens", kv_lens, "seq"), **strides("slopes", alibi_slopes, "head"), **strides("sinks", sinks, "head"),
        **strides("k_scale", per_head(k_scale, num_kv_heads), "head"),
        **strides("v_scale", per_head(v_scale, num_kv_heads), "head"),
        TILE_KV=triton.next_power_of_2(block_size),
        TILE_D=triton.next_power_of_2(head_dim), TILE_DV=triton.next_power_of_2(head_dim_v),
    )  # fmt: skip
    return (out, lse) if return_lse else out


def strides(name, tensor, dims):
    """The strides of a tensor under the names that the kernel gives them; None for a tensor that is not there."""
    dims = dims.split()
    values = [None] * len(dims) if tensor is None else tensor.stride()
    return {f"stride_{name}_{dim}": value for dim, value in zip(dims, values, strict=True)}


def per_head(scale, num_kv_heads):
    """One number for all heads has the stride 0."""
    return None if scale is None else scale.expand(num_kv_heads)


# --- what the wrapper refuses ------------------------------------------------------------------------------------


def check_shapes(q, k_cache, v_cache, block_tables, kv_lens):
    check_rank("q", q, "[num_seqs, num_q_heads, head_dim]")
    check_rank("k_cache", k_cache, "[num_blocks, block_size, num_kv_heads, head_dim]")
    check_rank("v_cache", v_cache, "[num_blocks, block_size, num_kv_heads, head_dim_v]")
    check_rank("block_tables", block_tables, "[num_seqs, columns]")
    num_seqs, num_q_heads, head_dim = q.shape
    check_shape("k_cache", k_cache, (*k_cache.shape[:3], head_dim), "to have q's head_dim")
    check_shape("v_cache", v_cache, (*k_cache.shape[:3], v_cache.shape[3]), "to be like k_cache in all but head_dim")
    check_shape("block_tables", block_tables, (num_seqs, block_tables.shape[1]), "to have a row per query")
    check_shape("kv_lens", kv_lens, (num_seqs,), "to have a length per query")
    check_heads(num_q_heads, k_cache, v_cache)


def check_heads(num_q_heads, k_cache, v_cache):
    num_kv_heads = k_cache.shape[2]
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if min(cache.shape[1:]) < 1:
            raise ValueError(f"{name} has shape {list(cache.shape)}, but expected at least 1 in all but num_blocks")
    if num_q_heads % num_kv_heads:
        raise ValueError(f"q has {num_q_heads} heads, but expected a multiple of k_cache's {num_kv_heads}")


def check_rank(name, tensor, dims):
    if tensor.dim() != dims.count(",") + 1:
        raise ValueError(f"{name} has shape {list(tensor.shape)}, but expected {dims}")


def check_shape(name, tensor, expected, why):
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name} has shape {list(tensor.shape)}, but expected {list(expected)}, {why}")


def check_dtypes(q, k_cache, v_cache, block_tables, kv_lens):
    check_dtype("q", q, DTYPES)
    check_dtype("k_cache", k_cache, (q.dtype, *FP8_DTYPES))
    check_dtype("v_cache", v_cache, (k_cache.dtype,))
    check_dtype("block_tables", block_tables, INDEX_DTYPES)
    check_dtype("kv_lens", kv_lens, INDEX_DTYPES)


def check_dtype(name, tensor, allowed):
    if tensor.dtype not in allowed:
        raise ValueError(f"{name} has dtype {tensor.dtype}, but expected {' or '.join(map(str, allowed))}")


def check_optional(q, v_cache, alibi_slopes, sinks, k_scale, v_scale, out):
    for name, per_head in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if per_head is not None:
            check_shape(name, per_head, q.shape[1:2], "to have a number per query head")
            check_dtype(name, per_head, DTYPES)
    check_scale("k_scale", k_scale, v_cache.shape[2])
    check_scale("v_scale", v_scale, v_cache.shape[2])
    if out is not None:
        check_shape("out", out, (*q.shape[:2], v_cache.shape[3]), "to be like q with v_cache's head_dim")
        check_dtype("out", out, (q.dtype,))


def check_scale(name, scale, num_kv_heads):
    if scale is None:
        return
    if scale.dim() > 1 or scale.numel() not in (1, num_kv_heads):
        expected = f"one number or one for each of {num_kv_heads} KV heads"
        raise ValueError(f"{name} has shape {list(scale.shape)}, but expected {expected}")
    check_dtype(name, scale, (torch.float32,))


def check_devices(q, *others):
    for other in others:
        if other is not None and other.device != q.device:
            raise ValueError(f"a tensor of shape {list(other.shape)} is on {other.device}, but expected q's {q.device}")


def check_numbers(window, softcap):
    if len(window) != 2 or min(window) < -1:
        raise ValueError(f"window is {window}, but expected (left, right), each -1 (unlimited) or a count from 0")
    if not 0.0 <= softcap < math.inf:
        raise ValueError(f"softcap is {softcap}, but expected 0 (off) or a positive number")


# --- what only the values tell -----------------------------------------------------------------------------------


def validate(inputs):
    """Refuse lengths and block ids that point outside; reads the values, so a GPU has to be waited for."""
    num_blocks, block_size = inputs.k_cache.shape[:2]
    check_lens(inputs.kv_lens, inputs.block_tables.shape[1] * block_size)
    first_keys = window_start(inputs.kv_lens - 1, inputs.window)
    check_block_ids(inputs.block_tables, inputs.kv_lens, block_size, num_blocks, first_keys)


def window_start(positions, window):
    """The first key that the queries at these positions see: the block table may hold anything before it."""
    return torch.zeros_like(positions) if window[0] < 0 else positions - window[0]


def check_lens(kv_lens, capacity):
    for seq, kv_len in enumerate(kv_lens.tolist()):
        if not 0 <= kv_len <= capacity:
            raise ValueError(f"kv_lens[{seq}] is {kv_len}, but expected 0 to the {capacity} slots of a table row")


def check_block_ids(block_tables, kv_lens, block_size, num_blocks, first_keys):
    column = torch.arange(block_tables.shape[1], device=block_tables.device)
    used = (column * block_size < kv_lens[:, None]) & ((column + 1) * block_size > first_keys[:, None])
    outside = used & ((block_tables < 0) | (block_tables >= num_blocks))
    for seq, place in outside.nonzero().tolist():
        block_id = int(block_tables[seq, place])
        raise ValueError(f"block_tables[{seq}, {place}] is {block_id}, but expected a block from 0 to {num_blocks - 1}")
