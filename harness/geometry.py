"""Where the logical blocks of a case lie in the pool."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.case import FAR, Case, Seq
from harness.values import ORDER, by_tag, hashed


@dataclass(frozen=True)
class Geometry:
    """Physical block ids of each sequence in logical order, and the size of the pool."""

    tables: tuple[NDArray[np.int64], ...]  # one per sequence of the batch, [blocks_of(seq)]
    num_blocks: int

    @cached_property
    def used(self) -> NDArray[np.int64]:
        """The ids in use, ascending."""
        return np.unique(np.concatenate(self.tables)) if self.tables else np.empty(0, np.int64)

    @cached_property
    def spare(self) -> NDArray[np.int64]:
        """The ids that no sequence has, ascending; only of a pool that is not far."""
        free = np.ones(self.num_blocks, dtype=np.bool_)
        free[self.used] = False
        return np.flatnonzero(free)


def lay_out(case: Case, block_stride: int) -> Geometry:
    """Place the blocks; `block_stride` in elements tells how far apart `far` has to be."""
    owned = [(seq.tag, i) for seq in case.seqs for i in range(seq.shared_blocks, case.blocks_of(seq))]
    ids, num_blocks = _place(case, owned, block_stride)
    home = dict(zip(owned, ids.tolist(), strict=True))
    tables = tuple(_table(case, seq, home) for seq in case.batch)
    return Geometry(tables, num_blocks)


def _table(case: Case, seq: Seq, home: dict[tuple[int, int], int]) -> NDArray[np.int64]:
    return np.array([home[_owner(case, seq, i)] for i in range(case.blocks_of(seq))], dtype=np.int64)


def _owner(case: Case, seq: Seq, i: int) -> tuple[int, int]:
    while i < seq.shared_blocks and seq.shares_prefix_with is not None:
        seq = by_tag(case, seq.shares_prefix_with)
    return seq.tag, i


def _place(case: Case, owned: list[tuple[int, int]], block_stride: int) -> tuple[NDArray[np.int64], int]:
    count = len(owned)
    pool = max(count + case.spare_blocks, 1)
    in_order = np.arange(count)
    if case.placement == "reversed":
        return pool - 1 - in_order, pool
    if case.placement == "shuffled":
        return _permutation(case.geometry_seed, pool)[:count], pool
    if case.placement == "interleaved":
        return _interleaved(owned), pool
    if case.placement in FAR:
        return _far(case, count, block_stride)
    return in_order, pool


def _permutation(seed: int, size: int) -> NDArray[np.int64]:
    return np.argsort(hashed(seed, ORDER, np.arange(size)), kind="stable")


def _interleaved(owned: list[tuple[int, int]]) -> NDArray[np.int64]:
    order = sorted(range(len(owned)), key=lambda j: (owned[j][1], j))
    ids = np.empty(len(owned), dtype=np.int64)
    ids[order] = np.arange(len(owned))
    return ids


def _far(case: Case, count: int, block_stride: int) -> tuple[NDArray[np.int64], int]:
    """Ids from the first whose offset is beyond 2**31 elements upwards, or 2**32, in shuffled order.

    One at 2**31 exactly is mostly a multiple of 2**16: in 16 bits it would be 0, as an id that is clamped is.
    """
    first = (2**31 if case.placement == "far" else 2**32) // block_stride + 1
    ids = first + _permutation(case.geometry_seed, max(count, 1))[:count]
    return ids, first + max(count, 1) + case.spare_blocks
