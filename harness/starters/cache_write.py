"""A naive kernel to replace: cache_write, the K and V of new tokens to their slots in the cache."""

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


@subject(
    op="cache_write",
    # All head dims, block sizes, strides and types are drawn. Lines that rule some out:
    # head_dims=(16, 32, 64, 128, 256),  # powers of two
    # block_sizes=(16, 32, 64, 128, 256),  # powers of two from 16
    # dtypes=("float16", "bfloat16"),  # no float32
    # layouts=("nhd",), q_layouts=("contiguous",), kv_strides_apart=False,  # nothing but dense tensors
    # Lines that open a feature, which is not drawn without them.
    # kv_dtypes=("same", "e4m3", "e5m2"),  # an FP8 cache: x / scale is stored; inputs.k_scale and inputs.v_scale
    # head_dim_v=True,  # V has a head dim of its own
    # padding_rows=True,  # a CUDA graph's: their slot is -1
)
def cache_write(inputs):
    """Writes inputs.k_new and v_new in place; raise NotImplementedError while there is no kernel."""
    k_cache, v_cache, k, v = inputs.k_cache, inputs.v_cache, inputs.k_new, inputs.v_new
    cache_write_kernel[k.shape[:2]](
        k_cache, v_cache, k, v, inputs.slot_mapping, k_cache.shape[1], k.shape[2],
        *k_cache.stride()[:3], *v_cache.stride()[:3], *k.stride()[:2], *v.stride()[:2],
        TILE_D=triton.next_power_of_2(k.shape[2]),
    )  # fmt: skip
