"""New tokens on their way into the cache: their dense K and V, their slots, and what a right write leaves behind."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness import values
from harness.case import Case, Seq
from harness.geometry import Geometry
from harness.tensors import Array
from harness.values import Floats

CACHES = ("k_cache", "v_cache")


@dataclass(frozen=True)
class Stored:
    """The cells that change, and their values in the cache's own type."""

    blocks: NDArray[np.int64]  # [cells]
    offsets: NDArray[np.int64]  # [cells]
    k: Array  # [cells, num_kv_heads, head_dim]
    v: Array  # [cells, num_kv_heads, head_dim_v]


@dataclass(frozen=True)
class NewTokens:
    """A batch of new tokens in launch order; a row whose slot is -1 is skipped, so its K and V are poison."""

    k: Floats  # [rows, num_kv_heads, head_dim], NaN where skipped
    v: Floats
    slots: NDArray[np.int64]  # [rows]
    stored: Stored


def new_tokens(case: Case, geometry: Geometry) -> NewTokens:
    """The new tokens of every sequence, some of them holes, then the padding rows and the padding of the batch."""
    slots = _with_holes(case, _slots(case, geometry))
    order = _order(case, len(slots))
    places, slots = _places(case.seqs)[order], slots[order]
    skipped = slots < 0
    k, v = _rows(case, np.where(skipped, -1, places))
    return _padded(case, k, v, slots, _stored(case, k[~skipped], v[~skipped], slots[~skipped]))


def dense_tokens(case: Case) -> tuple[Floats, Floats]:
    """K and V of the new tokens of the whole batch, packed as q is; NaN in a row that has no position."""
    return _rows(case, _places(case.batch))


def _rows(case: Case, places: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """K and V of the tokens in these places among all of the case, NaN where a place is -1."""
    keys, vals = values.keys(case, *case.seqs), values.values(case, *case.seqs)
    return _taken(keys, places), _taken(vals, places)


def _taken(data: Floats, places: NDArray[np.int64]) -> Floats:
    found = np.full((len(places), *data.shape[1:]), np.nan)
    found[places >= 0] = data[places[places >= 0]]
    return found


def _positions(seq: Seq) -> NDArray[np.int64]:
    """Of each new token its position, negative where it has none."""
    return np.arange(seq.kv_len - seq.query_len, seq.kv_len)


def _places(seqs: tuple[Seq, ...]) -> NDArray[np.int64]:
    """Of each new token its place among all tokens of the sequences, -1 where it has no position."""
    firsts = np.cumsum([0] + [seq.kv_len for seq in seqs]).tolist()
    found = [_positions(seq) for seq in seqs]
    return np.concatenate([np.where(at >= 0, first + at, -1) for first, at in zip(firsts, found, strict=False)])


def _slots(case: Case, geometry: Geometry) -> NDArray[np.int64]:
    """The slot of each new token of each sequence, -1 before the first position."""
    found = []
    for seq, table in zip(case.seqs, geometry.tables, strict=False):
        positions = _positions(seq)
        real = positions[positions >= 0]
        slots = table[real // case.block_size] * case.block_size + real % case.block_size
        found.append(np.concatenate([np.full(len(positions) - len(real), -1), slots]))
    return np.concatenate(found)


def _with_holes(case: Case, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(values.hashed(case.geometry_seed, values.HOT, np.arange(len(slots))), kind="stable")
    slots = slots.copy()
    slots[order[: case.slots.holes]] = -1
    return slots


def _order(case: Case, rows: int) -> NDArray[np.int64]:
    if case.slots.order == "in_order":
        return np.arange(rows)
    return np.argsort(values.hashed(case.geometry_seed, values.ORDER, np.arange(rows)), kind="stable")


def _stored(case: Case, k: Floats, v: Floats, slots: NDArray[np.int64]) -> Stored:
    k_scales, v_scales = values.scales(case)
    dense_k, dense_v = (values.cast(x, case.dtype).astype(np.float64) for x in (k, v))
    blocks, offsets = slots // case.block_size, slots % case.block_size
    return Stored(
        blocks,
        offsets,
        values.encode(dense_k, k_scales, case.cache_dtype),
        values.encode(dense_v, v_scales, case.cache_dtype),
    )


def _padded(case: Case, k: Floats, v: Floats, slots: NDArray[np.int64], stored: Stored) -> NewTokens:
    tail = case.padding_rows + case.slots.tail_padding
    k, v = (np.concatenate([x, np.full((tail, *x.shape[1:]), np.nan)]) for x in (k, v))
    return NewTokens(k, v, np.concatenate([slots, np.full(tail, -1)]), stored)


def apply(stored: Stored, name: str, cache: Array, rows: dict[int, int] | None = None) -> Array:
    """A copy of the cache with the cells in it; `rows` maps block ids to rows where only some blocks were copied."""
    after = cache.copy()
    blocks = stored.blocks if rows is None else np.array([rows[int(b)] for b in stored.blocks], dtype=np.int64)
    after[blocks, stored.offsets] = stored.k if name == "k_cache" else stored.v
    return after
