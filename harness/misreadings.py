"""K or V read through other strides than its own, as kernels mistake them; and blocks looked up in a wrong place."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from harness.case import FP8, Case
from harness.landmarks import at
from harness.rows import Row
from harness.tensors import Array, Tensor, contiguous

NOT_ASKED = "the number of a column is taken for its block: the block table is not asked"
#: Beside its bound, how far a weight may be from one that is supposed.
ROUNDING = 1e-6


def misreadings(case: Case, cache: Tensor, other: Tensor, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Strides that a kernel may take for the cache's own, in words; `name` is that of the other cache."""
    block, slot, head, dim = cache.strides
    found = {
        name: other.strides,
        "blocks that lie block_size tokens apart": (case.block_size * slot, slot, head, dim),
        "blocks that lie block_size elements apart": (case.block_size, slot, head, dim),
        "heads that lie head_dim apart": (block, slot, case.head_dim, dim),
        "slots that lie head_dim apart": (block, case.head_dim, head, dim),
        "slots and heads that are taken for each other": (block, head, slot, dim),
        "a cache without gaps": contiguous(cache.shape),
    }
    yield from ((words, strides) for words, strides in found.items() if strides != cache.strides)


def of_v(row: Row) -> str:
    """All the weight lies where V would be if it were laid out otherwise, or if the query's head were its KV head."""
    k, v = row.materials.inputs.k_cache, row.materials.inputs.v_cache
    for words, strides in misreadings(row.case, v, k, "K"):
        if row.moved(strides, 0):
            named = f"the strides of {words}, {strides}"
            return f"V is read with {named}, but has its own, {v.strides}{at('V')}"
    further = row.head - row.kv_head
    if further and row.moved(v.strides, further * v.strides[2]):
        where = f"where head {row.head} would lie, that of the query, and not its KV head {row.kv_head}"
        return f"V is read {where}{at('V')}"
    return ""


# --- the block table ---------------------------------------------------------------------------------------------


def lookup(row: Row) -> str:
    """The weights are those of other entries of the block table, K and V alike."""
    if not _is_plain(row.case) or not row.visible.any():
        return ""
    tokens = np.sort(row.mine[row.visible])
    columns, offsets = tokens // row.case.block_size, tokens % row.case.block_size
    fitting = [words for words, blocks in _lookups(row, columns) if _fits(row, _weights(row, blocks, offsets))]
    marks = at("K") if fitting == [NOT_ASKED] else at("table")
    return f"{', or '.join(fitting)}{marks}" if fitting else ""


def _fits(row: Row, supposed: Array) -> bool:
    """Whether the weights are those that are supposed, and these are neither the right ones nor all 0."""
    allowed = 4 * row.within.max() + ROUNDING
    differs = np.abs(supposed - row.true).max() > allowed
    return bool((np.abs(row.got - supposed) <= allowed).all() and differs and supposed.any())


def _is_plain(case: Case) -> bool:
    """Whether a score is scale * q * k of what the cache holds, and nothing else."""
    bare = not (case.softcap or case.alibi or case.sinks) and case.new_kv == "in_cache"
    return bare and case.cache_dtype not in FP8 and case.op in ("decode", "extend")


def _lookups(row: Row, columns: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """What a kernel may take for the blocks of these columns, in words; what is no block of the pool is left out."""
    tables = row.materials.inputs.block_tables.view.astype(np.int64)
    entries = row.sequence * tables.shape[1] + columns
    found = {
        "column 0 of the block table is read for every column": tables[row.sequence, np.zeros_like(columns)],
        "the column behind the right one is read of the block table": _entries(tables, entries + 1),
        "the column before the right one is read of the block table": _entries(tables, entries - 1),
        NOT_ASKED: columns,
    }
    for other in range(len(tables)):
        if other != row.sequence:
            words = f"row {other} of the block table is read in place of row {row.sequence}"
            found[words] = tables[other][columns]
    pool = row.materials.geometry.num_blocks
    yield from ((words, blocks) for words, blocks in found.items() if ((blocks >= 0) & (blocks < pool)).all())


def _entries(tables: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Entries by their places in a table whose rows lie one after the other, -1 outside."""
    inside = (places >= 0) & (places < tables.size)
    return np.where(inside, tables.reshape(-1)[np.where(inside, places, 0)], -1)


def _weights(row: Row, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> Array:
    """Softmax weights of the row's query over these slots of its KV head, as weights of cells; one may come twice."""
    inputs, cells = row.materials.inputs, row.weights.cells
    q = inputs.q.view[row.token, row.head].astype(np.float64)
    keys = inputs.k_cache.view[blocks, offsets, row.kv_head].astype(np.float64)
    scores = row.case.softmax_scale * (keys @ q)
    p = np.exp(scores - scores.max())
    found = np.zeros(len(cells))
    for block, offset, weight in zip(blocks, offsets, p / p.sum(), strict=True):
        found[(cells.blocks == block) & (cells.offsets == offset) & (cells.heads == row.kv_head)] += weight
    return found
