"""One tile of keys, for kernels made for speed: loading it from the cache, and taking it into an online softmax.

Scores are in base 2, as the hardware's exponential is: a logit times log2(e).
"""

import triton
import triton.language as tl
from decode import tanh

LOG2E = tl.constexpr(1.4426950408889634)
#: `tl.dot` takes no dimension below this.
SMALLEST_TILE = 16
#: Shared memory that tiles of keys and values on their way may take.
SHARED_BYTES = 160 * 1024


def padded(size):
    return max(triton.next_power_of_2(size), SMALLEST_TILE)


def tile_of(name, wanted, most):
    """The wanted number of rows or keys, or as many as there is room for."""
    if wanted < SMALLEST_TILE or wanted & (wanted - 1):
        raise ValueError(f"{name} is {wanted}, but expected a power of two from {SMALLEST_TILE}")
    return max(min(wanted, 1 << (most.bit_length() - 1)), SMALLEST_TILE)


def check_scale(scale):
    if scale is not None and not 0.0 < scale < float("inf"):
        raise ValueError(f"scale is {scale}, but expected a positive number, or None for 1 / sqrt(head_dim)")


def stages_for(wanted, tile_bytes):
    """How many tiles are on their way: as wanted or usual, but no more than a Hopper has room for."""
    fitting = SHARED_BYTES // tile_bytes + 1
    return {"num_stages": min(wanted or 3, fitting)} if wanted or fitting < 3 else {}


@triton.jit
def tile_columns(tile, BLOCK_SIZE: tl.constexpr, TILE_KV: tl.constexpr):
    """Where the block table names a tile's blocks: [TILE_KV], or one for all where the tile lies in one block."""
    if BLOCK_SIZE % TILE_KV == 0:
        column = tile // (BLOCK_SIZE // TILE_KV)
    elif TILE_KV % BLOCK_SIZE == 0:
        column = tile * (TILE_KV // BLOCK_SIZE) + tl.arange(0, TILE_KV) // BLOCK_SIZE  # [TILE_KV]
    else:
        column = (tile * TILE_KV + tl.arange(0, TILE_KV)) // BLOCK_SIZE  # [TILE_KV]
    return column.to(tl.int64)


@triton.jit
def tile_slots(tile, BLOCK_SIZE: tl.constexpr, TILE_KV: tl.constexpr):
    """Where in its block each token of a tile lies, [TILE_KV]."""
    if BLOCK_SIZE % TILE_KV == 0:
        slot = tile % (BLOCK_SIZE // TILE_KV) * TILE_KV + tl.arange(0, TILE_KV)
    elif TILE_KV % BLOCK_SIZE == 0:
        slot = tl.arange(0, TILE_KV) % BLOCK_SIZE
    else:
        slot = (tile * TILE_KV + tl.arange(0, TILE_KV)) % BLOCK_SIZE
    return slot.to(tl.int64)


@triton.jit
def whole_tile_blocks(
    table_ptr,         # [columns]: one row of the block table
    tile,
    end_tile,          # nothing is looked up for a tile from here on
    stride_column,
    BLOCK_SIZE: tl.constexpr,
    TILE_KV: tl.constexpr,
):  # fmt: skip
    """The blocks of a tile whose tokens are all there: [TILE_KV], or one for all."""
    column = tile_columns(tile, BLOCK_SIZE, TILE_KV)
    there = tl.zeros_like(column) + tile < end_tile  # [TILE_KV], or one for all
    return tl.load(table_ptr + column * stride_column, mask=there, other=0).to(tl.int64)


@triton.jit
def cut_tile_blocks(
    table_ptr,         # [columns]: one row of the block table
    tile,
    there,             # [TILE_KV] which of its tokens are there, one at least
    stride_column,
    BLOCK_SIZE: tl.constexpr,
    TILE_KV: tl.constexpr,
):  # fmt: skip
    """The blocks of a tile whose tokens are not all there: [TILE_KV], or one for all."""
    column = tile_columns(tile, BLOCK_SIZE, TILE_KV)
    if BLOCK_SIZE % TILE_KV == 0:
        block = tl.load(table_ptr + column * stride_column)
    else:
        block = tl.load(table_ptr + column * stride_column, mask=there, other=0)  # [TILE_KV]
    return block.to(tl.int64)


@triton.jit
def load_tile(
    head_ptr,          # one head of the cache
    block,             # [TILE_KV] or one for all
    tile,
    there,             # [TILE_KV] which of its tokens are to be read; None: all
    stride_block, stride_slot, stride_dim,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_KV: tl.constexpr,
    TILE_D: tl.constexpr,
):  # fmt: skip
    """[TILE_KV, TILE_D]; 0 for what is not there, because a weight of 0 times a stale NaN is NaN."""
    dim = tl.arange(0, TILE_D)  # [TILE_D]
    offset = block * stride_block + tile_slots(tile, BLOCK_SIZE, TILE_KV) * stride_slot  # [TILE_KV]
    tile_ptr = head_ptr + offset[:, None] + dim[None, :] * stride_dim  # [TILE_KV, TILE_D]
    in_head = (dim < HEAD_DIM)[None, :]  # [1, TILE_D]
    if there is not None:
        loaded = tl.load(tile_ptr, mask=there[:, None] & in_head, other=0.0)
    elif HEAD_DIM != TILE_D:
        loaded = tl.load(tile_ptr, mask=in_head, other=0.0)
    else:
        loaded = tl.load(tile_ptr)
    return loaded


@triton.jit
def load_rows(
    rows,              # descriptor of [num_blocks * block_size, num_kv_heads * head_dim] in tiles of [TILE_KV, TILE_D]
    block,
    tile,
    kv_head,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_KV: tl.constexpr,
):  # fmt: skip
    """[TILE_KV, TILE_D] of a tile that lies in one block, its tokens all there."""
    first_row = block * BLOCK_SIZE + tile % (BLOCK_SIZE // TILE_KV) * TILE_KV
    return rows.load([first_row.to(tl.int32), (kv_head * HEAD_DIM).to(tl.int32)])


@triton.jit
def tile_scores(
    q,                 # [rows, TILE_D]
    k,                 # [TILE_KV, TILE_D]
    distance,          # [TILE_KV] or [rows, TILE_KV]: how many tokens a key lies before the query
    scale,
    softcap,           # None: no softcap
    slope,             # [rows]; None: no ALiBi
):  # fmt: skip
    """The scores of one tile, [rows, TILE_KV], and their unit, a positive number: logits in base 2 are scores * unit.

    Scale, then softcap, then ALiBi. Multiplying waits for the maximum to be subtracted, which is then one instruction.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    unit = scale * LOG2E
    if softcap is not None:
        scores = tanh(scores * (scale / softcap))
        unit = softcap * LOG2E
    if slope is not None:
        scores = scores * unit - (slope * LOG2E)[:, None] * tl.abs(distance).to(tl.float32)
        unit = 1.0
    return scores, unit


@triton.jit
def softmax_step(scores, unit, v, m, l, acc):
    """Add a tile to each row's running maximum `m`, sum `l` and weighted values `acc`; each row sees a key of it.

    scores are [rows, TILE_KV], v is [TILE_KV, TILE_DV]; m and l are [rows], acc is [rows, TILE_DV].
    """
    m_new = tl.maximum(m, tl.max(scores, axis=1) * unit)  # [rows]
    rescale = tl.exp2(m - m_new)  # [rows]
    p = tl.exp2(scores * unit - m_new[:, None])  # [rows, TILE_KV]
    l = l * rescale + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")  # [rows, TILE_DV]
    return m_new, l, acc


@triton.jit
def softmax_step_of_some(scores, unit, v, m, l, acc):
    """The same where a row may have seen no key yet, its maximum -inf: a shift of 0 keeps it from -inf minus -inf."""
    m_new = tl.maximum(m, tl.max(scores, axis=1) * unit)  # [rows]
    shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # [rows]
    rescale = tl.exp2(m - shift)  # [rows]
    p = tl.exp2(scores * unit - shift[:, None])  # [rows, TILE_KV]
    l = l * rescale + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")  # [rows, TILE_DV]
    return m_new, l, acc
