"""One tile of keys, for kernels made for speed: loading it from the cache, and taking it into an online softmax.

Scores are in base 2, as the hardware's exponential is: a logit times log2(e).
"""

import triton
import triton.language as tl
from decode import tanh

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_blocks(
    block_table_ptr,   # [columns]: one row of the table
    key,               # [TILE_KV] positions, the first of them a multiple of TILE_KV
    there,             # [TILE_KV] which of them are to be looked up, one at least; None: all
    stride_column,
    BLOCK_SIZE: tl.constexpr,
    TILE_KV: tl.constexpr,
):  # fmt: skip
    """The block that each token of a tile lies in, [TILE_KV] or one for all."""
    if BLOCK_SIZE % TILE_KV == 0:
        # The tile lies in one block: one look at the table, and the tile is a run of slots.
        column = tl.min(key, axis=0) // BLOCK_SIZE
        block = tl.load(block_table_ptr + column * stride_column)
    elif there is None:
        block = tl.load(block_table_ptr + key // BLOCK_SIZE * stride_column)  # [TILE_KV]
    else:
        block = tl.load(block_table_ptr + key // BLOCK_SIZE * stride_column, mask=there, other=0)  # [TILE_KV]
    return block.to(tl.int64)


@triton.jit
def load_tile(
    head_ptr,          # one head of the cache
    block,             # [TILE_KV] or one for all
    key,               # [TILE_KV]
    there,             # [TILE_KV] which of them are to be read; None: all
    stride_block, stride_slot, stride_dim,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_D: tl.constexpr,
):  # fmt: skip
    """[TILE_KV, TILE_D]; 0 for what is not there, because a weight of 0 times a stale NaN is NaN."""
    dim = tl.arange(0, TILE_D)  # [TILE_D]
    offset = block * stride_block + key % BLOCK_SIZE * stride_slot  # [TILE_KV]
    tile_ptr = head_ptr + offset[:, None] + dim[None, :] * stride_dim  # [TILE_KV, TILE_D]
    in_head = (dim < HEAD_DIM)[None, :]  # [1, TILE_D]
    if there is not None:
        tile = tl.load(tile_ptr, mask=there[:, None] & in_head, other=0.0)
    elif HEAD_DIM != TILE_D:
        tile = tl.load(tile_ptr, mask=in_head, other=0.0)
    else:
        tile = tl.load(tile_ptr)
    return tile


@triton.jit
def tile_scores(q, k, distance, scale, softcap, slope):
    """The logits of one tile in base 2, [rows, TILE_KV]: scale, then softcap, then ALiBi."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if softcap is not None:
        scores = tanh(scores * (scale / softcap)) * (softcap * LOG2E)
    else:
        scores *= scale * LOG2E
    if slope is not None:
        scores -= (slope * LOG2E)[:, None] * tl.abs(distance).to(tl.float32)
    return scores


@triton.jit
def softmax_step(scores, v, m, l, acc):
    """Add a tile to each row's running maximum `m`, sum `l` and weighted values `acc`; each row sees a key of it."""
    m_new = tl.maximum(m, tl.max(scores, axis=1))  # [rows]
    rescale = tl.exp2(m - m_new)
    p = tl.exp2(scores - m_new[:, None])  # [rows, TILE_KV]
    l = l * rescale + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")  # [rows, TILE_DV]
    return m_new, l, acc


@triton.jit
def softmax_step_of_some(scores, v, m, l, acc):
    """The same where a row may have seen no key yet, its maximum -inf: a shift of 0 keeps it from -inf minus -inf."""
    m_new = tl.maximum(m, tl.max(scores, axis=1))  # [rows]
    shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # [rows]
    rescale = tl.exp2(m - shift)
    p = tl.exp2(scores - shift[:, None])  # [rows, TILE_KV]
    l = l * rescale + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")  # [rows, TILE_DV]
    return m_new, l, acc
