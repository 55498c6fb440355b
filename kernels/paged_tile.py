"""The loader of a paged cache: a tile of consecutive tokens from any position on, whatever the size of a block."""

import triton
import triton.language as tl


@triton.jit
def load_paged_tile(
    cache_ptr,         # [num_blocks, block_size, head_dim]: one head of the cache
    block_table_ptr,   # [columns]: one row of the table
    start,             # position of the tile's first token, in any block and anywhere in it
    end,               # position at which the tokens end: nothing at or beyond it is read, no table entry either
    block_size,
    head_dim,
    # Strides, in elements
    stride_block, stride_slot, stride_dim,
    stride_column,
    # Tiles: any number of tokens, and one head, each a power of two
    TILE_KV: tl.constexpr,
    TILE_D: tl.constexpr,
):  # fmt: skip
    """Tokens start to start + TILE_KV, [TILE_KV, TILE_D]; 0 where a token is at or beyond `end`, or past the head."""
    position = start + tl.arange(0, TILE_KV).to(tl.int64)  # [TILE_KV]
    dim = tl.arange(0, TILE_D).to(tl.int64)  # [TILE_D]
    there = position < end  # [TILE_KV]

    # Each token looks up its own block: a tile may begin inside one and end inside another.
    column = position // block_size  # [TILE_KV]
    block = tl.load(block_table_ptr + column * stride_column, mask=there, other=0).to(tl.int64)  # [TILE_KV]
    slot = position % block_size  # [TILE_KV]

    # [TILE_KV, TILE_D]
    offset = (block * stride_block + slot * stride_slot)[:, None] + (dim * stride_dim)[None, :]
    return tl.load(cache_ptr + offset, mask=there[:, None] & (dim < head_dim)[None, :], other=0.0)
