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

# --- the kernel --------------------------------------------------------------------------------------------------


@triton.jit
def write_head(cache_ptr, x_ptr, scale_ptr, head_dim, stride_cache_dim, stride_x_dim, TILE: tl.constexpr):
    """One head of one token: divided by the scale if there is one, and rounded to the type of the cache."""
    dim = tl.arange(0, TILE).to(tl.int64)  # [TILE]
    in_head = dim < head_dim  # [TILE]
    x = tl.load(x_ptr + dim * stride_x_dim, mask=in_head, other=0.0).to(tl.float32)  # [TILE]
    if scale_ptr is not None:
        # Correctly rounded, unlike `/`: what is stored is then the same on every machine.
        x = tl.div_rn(x, tl.load(scale_ptr))
    tl.store(cache_ptr + dim * stride_cache_dim, x.to(cache_ptr.dtype.element_ty), mask=in_head)


# These numbers are used once per program: not worth a compilation each time one of them is 1 or a multiple of 16.
UNSPECIALISED = (
    "block_size", "head_dim", "head_dim_v",
    "stride_k_cache_block", "stride_k_cache_slot", "stride_k_cache_head",
    "stride_v_cache_block", "stride_v_cache_slot", "stride_v_cache_head",
    "stride_k_token", "stride_k_head", "stride_v_token", "stride_v_head",
    "stride_mapping_token", "stride_k_scale_head", "stride_v_scale_head",
)  # fmt: skip


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
    block_size,
    head_dim,
    head_dim_v,
    # Strides, in elements
    stride_k_cache_block, stride_k_cache_slot, stride_k_cache_head, stride_k_cache_dim,
    stride_v_cache_block, stride_v_cache_slot, stride_v_cache_head, stride_v_cache_dim,
    stride_k_token, stride_k_head, stride_k_dim,
    stride_v_token, stride_v_head, stride_v_dim,
    stride_mapping_token, stride_k_scale_head, stride_v_scale_head,
    # One head of K and of V, each rounded up to a power of two
    TILE_D: tl.constexpr,
    TILE_DV: tl.constexpr,
):  # fmt: skip
    # Every index that meets a stride is 64 bits wide: a pool holds more than 2^31 elements.
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token * stride_mapping_token).to(tl.int64)
    # A negative slot marks a token that is padding.
    if slot >= 0:
        block = slot // block_size
        offset = slot % block_size

        k_cache_ptr += block * stride_k_cache_block + offset * stride_k_cache_slot + head * stride_k_cache_head
        k_ptr += token * stride_k_token + head * stride_k_head
        if k_scale_ptr is not None:
            k_scale_ptr += head * stride_k_scale_head
        write_head(k_cache_ptr, k_ptr, k_scale_ptr, head_dim, stride_k_cache_dim, stride_k_dim, TILE_D)

        if v_cache_ptr is not None:
            v_cache_ptr += block * stride_v_cache_block + offset * stride_v_cache_slot + head * stride_v_cache_head
            v_ptr += token * stride_v_token + head * stride_v_head
            if v_scale_ptr is not None:
                v_scale_ptr += head * stride_v_scale_head
            write_head(v_cache_ptr, v_ptr, v_scale_ptr, head_dim_v, stride_v_cache_dim, stride_v_dim, TILE_DV)


# --- the wrapper -------------------------------------------------------------------------------------------------


def paged_cache_write(k, v, k_cache, v_cache, slot_mapping, *, k_scale=None, v_scale=None):
    """Write K / k_scale and V / v_scale into slot = block * block_size + offset of each token; negative: skip it.

    The caches are written in place, in their own type; FP8 saturates. Without v and v_cache only K is written.
    """
    check(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    tokens, num_kv_heads, head_dim = k.shape
    head_dim_v = 1 if v is None else v.shape[2]
    paged_cache_write_kernel[(tokens, num_kv_heads)](
        k_cache_ptr=k_cache,
        v_cache_ptr=v_cache,
        k_ptr=k,
        v_ptr=v,
        slot_mapping_ptr=slot_mapping,
        k_scale_ptr=k_scale,
        v_scale_ptr=v_scale,
        block_size=k_cache.shape[1],
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        **strides("k_cache", k_cache, "block slot head dim"),
        **strides("v_cache", v_cache, "block slot head dim"),
        **strides("k", k, "token head dim"),
        **strides("v", v, "token head dim"),
        **strides("mapping", slot_mapping, "token"),
        **strides("k_scale", per_head(k_scale, num_kv_heads), "head"),
        **strides("v_scale", per_head(v_scale, num_kv_heads), "head"),
        TILE_D=triton.next_power_of_2(head_dim),
        TILE_DV=triton.next_power_of_2(head_dim_v),
    )


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
