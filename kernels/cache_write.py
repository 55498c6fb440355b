"""Writing new tokens into a paged KV cache: each goes to the slot that the slot mapping gives it."""

import triton
import triton.language as tl
from decode import (
    DTYPES,
    FP8_DTYPES,
    INDEX_DTYPES,
    check_devices,
    check_dtype,
    check_rank,
    check_scale,
    check_shape,
    per_head,
    strides,
)

#: Numbers of one cache that a program stores, and fewest of them for each of its warps.
NUMBERS, NUMBERS_PER_WARP = 4096, 512

# --- the kernel --------------------------------------------------------------------------------------------------


@triton.jit
def write_rows(
    cache_ptr,         # [num_blocks, block_size, num_kv_heads, head_dim]
    x_ptr,             # [tokens, num_kv_heads, head_dim]
    scale_ptr,         # [num_kv_heads]; None: stored as it is
    token, block, offset, written,  # [TOKENS] each
    # Strides, in elements
    stride_cache_block, stride_cache_slot, stride_cache_head, stride_cache_dim,
    stride_token, stride_head, stride_dim, stride_scale_head,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """All heads of some tokens: divided by their scale if there is one, and rounded to the type of the cache."""
    column = tl.arange(0, TILE)  # [TILE]: the dims of one head after those of another
    in_row = column < NUM_HEADS * HEAD_DIM  # [TILE]
    head = (column // HEAD_DIM).to(tl.int64)  # [TILE]
    dim = (column % HEAD_DIM).to(tl.int64)  # [TILE]
    live = written[:, None] & in_row[None, :]  # [TOKENS, TILE]
    # [TOKENS, TILE]
    x_offset = (token * stride_token)[:, None] + (head * stride_head + dim * stride_dim)[None, :]
    x = tl.load(x_ptr + x_offset, mask=live, other=0.0).to(tl.float32)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + head * stride_scale_head, mask=in_row, other=1.0)  # [TILE]
        # Correctly rounded, unlike `/`: what is stored is then the same on every machine.
        x = tl.div_rn(x, tl.zeros_like(x) + scale[None, :])
    row = block * stride_cache_block + offset * stride_cache_slot  # [TOKENS]
    # [TOKENS, TILE]
    cache_offset = row[:, None] + (head * stride_cache_head + dim * stride_cache_dim)[None, :]
    tl.store(cache_ptr + cache_offset, x.to(cache_ptr.dtype.element_ty), mask=live)


# These numbers are used once per program: not worth a compilation each time one of them is 1 or a multiple of 16.
UNSPECIALISED = ("tokens", "block_size", "stride_mapping_token", "stride_k_scale_head", "stride_v_scale_head")


@triton.jit(do_not_specialize=UNSPECIALISED)
def paged_cache_write_kernel(
    # Outputs
    k_cache_ptr,       # [num_blocks, block_size, num_kv_heads, head_dim]
    v_cache_ptr,       # [num_blocks, block_size, num_kv_heads, head_dim_v]; None: V is a part of K
    # Inputs
    k_ptr,             # [tokens, num_kv_heads, head_dim]
    v_ptr,             # [tokens, num_kv_heads, head_dim_v]
    slot_mapping_ptr,  # [tokens]
    k_scale_ptr,       # [num_kv_heads]; None: K is stored as it is
    v_scale_ptr,       # [num_kv_heads]; None: V is stored as it is
    # Numbers
    tokens,
    block_size,
    # Strides, in elements
    stride_k_cache_block, stride_k_cache_slot, stride_k_cache_head, stride_k_cache_dim,
    stride_v_cache_block, stride_v_cache_slot, stride_v_cache_head, stride_v_cache_dim,
    stride_k_token, stride_k_head, stride_k_dim,
    stride_v_token, stride_v_head, stride_v_dim,
    stride_mapping_token, stride_k_scale_head, stride_v_scale_head,
    # Shapes
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_V: tl.constexpr,
    # Tiles: some tokens, and all heads of K and of V, each rounded up to a power of two
    TOKENS: tl.constexpr,
    TILE_K: tl.constexpr,
    TILE_V: tl.constexpr,
):  # fmt: skip
    # Every index that meets a stride is 64 bits wide: a pool holds more than 2^31 elements.
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)  # [TOKENS]
    slot_ptr = slot_mapping_ptr + token * stride_mapping_token  # [TOKENS]
    slot = tl.load(slot_ptr, mask=token < tokens, other=-1).to(tl.int64)  # [TOKENS]
    # A negative slot marks a token that is padding.
    written = slot >= 0  # [TOKENS]
    block = slot // block_size  # [TOKENS]
    offset = slot % block_size  # [TOKENS]
    write_rows(
        k_cache_ptr, k_ptr, k_scale_ptr, token, block, offset, written,
        stride_k_cache_block, stride_k_cache_slot, stride_k_cache_head, stride_k_cache_dim,
        stride_k_token, stride_k_head, stride_k_dim, stride_k_scale_head,
        NUM_HEADS, HEAD_DIM, TILE_K,
    )  # fmt: skip
    if v_cache_ptr is not None:
        write_rows(
            v_cache_ptr, v_ptr, v_scale_ptr, token, block, offset, written,
            stride_v_cache_block, stride_v_cache_slot, stride_v_cache_head, stride_v_cache_dim,
            stride_v_token, stride_v_head, stride_v_dim, stride_v_scale_head,
            NUM_HEADS, HEAD_DIM_V, TILE_V,
        )  # fmt: skip


# --- the wrapper -------------------------------------------------------------------------------------------------


def paged_cache_write(k, v, k_cache, v_cache, slot_mapping, *, k_scale=None, v_scale=None):
    """Write K / k_scale and V / v_scale into slot = block * block_size + offset of each token; negative: skip it.

    The caches are written in place, in their own type; FP8 saturates. Without v and v_cache only K is written.
    """
    check(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    tokens, num_kv_heads, head_dim = k.shape
    head_dim_v = 1 if v is None else v.shape[2]
    launch = launch_for(num_kv_heads * head_dim, num_kv_heads * head_dim_v)
    paged_cache_write_kernel[(triton.cdiv(tokens, launch["TOKENS"]),)](
        k_cache_ptr=k_cache,
        v_cache_ptr=v_cache,
        k_ptr=k,
        v_ptr=v,
        slot_mapping_ptr=slot_mapping,
        k_scale_ptr=k_scale,
        v_scale_ptr=v_scale,
        tokens=tokens,
        block_size=k_cache.shape[1],
        **strides("k_cache", k_cache, "block slot head dim"),
        **strides("v_cache", v_cache, "block slot head dim"),
        **strides("k", k, "token head dim"),
        **strides("v", v, "token head dim"),
        **strides("mapping", slot_mapping, "token"),
        **strides("k_scale", per_head(k_scale, num_kv_heads), "head"),
        **strides("v_scale", per_head(v_scale, num_kv_heads), "head"),
        NUM_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        HEAD_DIM_V=head_dim_v,
        **launch,
    )


def launch_for(k_numbers, v_numbers):
    """Whole rows, and as many of them as a program takes at once."""
    tile_k, tile_v = triton.next_power_of_2(k_numbers), triton.next_power_of_2(v_numbers)
    tokens = max(min(NUMBERS // max(tile_k, tile_v), 16), 1)
    num_warps = min(max(tokens * tile_k // NUMBERS_PER_WARP, 1), 16)
    return {"TOKENS": tokens, "TILE_K": tile_k, "TILE_V": tile_v, "num_warps": num_warps}


# --- what the wrapper refuses ------------------------------------------------------------------------------------


def check(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale):
    check_pair("k", k, k_cache, k_scale)
    if (v is None) != (v_cache is None):
        there, absent = ("v_cache", "v") if v is None else ("v", "v_cache")
        raise ValueError(f"{absent} is None, but expected a tensor as {there} is one")
    if v is not None:
        check_pair("v", v, v_cache, v_scale)
        check_shape("v", v, (*k.shape[:2], v.shape[2]), "to have k's tokens and heads")
        check_shape("v_cache", v_cache, (*k_cache.shape[:3], v_cache.shape[3]), "to be like k_cache but in head_dim")
    check_shape("slot_mapping", slot_mapping, k.shape[:1], "to have a slot per token")
    check_dtype("slot_mapping", slot_mapping, INDEX_DTYPES)
    check_devices(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)


def check_pair(name, new, cache, scale):
    """The new tokens of K or V, and the cache for them."""
    check_rank(name, new, "[tokens, num_kv_heads, head_dim]")
    check_rank(f"{name}_cache", cache, "[num_blocks, block_size, num_kv_heads, head_dim]")
    check_shape(f"{name}_cache", cache, (*cache.shape[:2], *new.shape[1:]), f"to have {name}'s heads and head_dim")
    check_dtype(name, new, DTYPES)
    check_dtype(f"{name}_cache", cache, (*DTYPES, *FP8_DTYPES))
    check_scale(f"{name}_scale", scale, new.shape[1])
    if min(cache.shape[1:]) < 1:
        raise ValueError(f"{name}_cache has shape {list(cache.shape)}, but expected at least 1 in all but num_blocks")


# --- what only the values tell -----------------------------------------------------------------------------------


def validate(inputs):
    """Refuse slots that point outside or are written twice; reads the values, so a GPU has to be waited for."""
    num_slots = inputs.k_cache.shape[0] * inputs.k_cache.shape[1]
    written = {}
    for token, slot in enumerate(inputs.slot_mapping.tolist()):
        if slot >= num_slots:
            raise ValueError(f"slot_mapping[{token}] is {slot}, but expected a slot below {num_slots}, or a negative")
        if slot in written and slot >= 0:
            raise ValueError(f"slot_mapping[{token}] is {slot}, but token {written[slot]} is written there already")
        written[slot] = token
