"""What a real block table says: which blocks sequences share, in which order they lie, what fills its padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.case import Placement, TablePad

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Shared:
    """The sequence whose first blocks another one reads, and how many of them."""

    owner: int
    blocks: int


def shared_prefixes(tables: Sequence[Ids], most: Sequence[int]) -> tuple[Shared | None, ...]:
    """For each sequence the earlier one with which it has the most first blocks in common.

    `most` says how many whole blocks each has in the cache: no more can be shared.
    """
    by_first: dict[int, list[int]] = {}
    found: list[Shared | None] = []
    for row, table in enumerate(tables):
        earlier = by_first.setdefault(int(table[0]), []) if len(table) else []
        found.append(_longest(tables, most, row, earlier))
        earlier.append(row)
    return tuple(found)


def _longest(tables: Sequence[Ids], most: Sequence[int], row: int, earlier: list[int]) -> Shared | None:
    found = Shared(row, 0)
    for other in earlier:
        common = _in_common(tables[row], tables[other], min(most[row], most[other]))
        found = Shared(other, common) if common > found.blocks else found
    return found if found.blocks else None


def _in_common(left: Ids, right: Ids, most: int) -> int:
    differs = np.flatnonzero(left[:most] != right[:most])
    return int(differs[0]) if differs.size else most


def owned(tables: Sequence[Ids], shared: Sequence[Shared | None]) -> Ids:
    """A row (id, sequence, logical block) for every block that is not another sequence's, in the order of a Case."""
    parts = [_of(row, table, other) for row, (table, other) in enumerate(zip(tables, shared, strict=True))]
    return np.concatenate([np.empty((0, 3), np.int64), *parts])


def _of(row: int, table: Ids, other: Shared | None) -> Ids:
    places = np.arange(other.blocks if other else 0, len(table))
    return np.stack([table[places], np.full(len(places), row), places], axis=1)


def placement(blocks: Ids) -> Placement:
    """In which order the owned blocks lie in the pool, gaps aside."""
    steps = np.diff(blocks[:, 0])
    if (steps > 0).all():
        return "in_order"
    if (steps < 0).all():
        return "reversed"
    by_place = np.lexsort((blocks[:, 1], blocks[:, 2]))
    return "interleaved" if (np.diff(blocks[by_place, 0]) > 0).all() else "shuffled"


def twice(ids: Ids) -> list[int]:
    """Of ascending ids, each that comes more than once."""
    return sorted(set(ids[1:][np.diff(ids) == 0].tolist()))


def padding(table: Ids, used: Sequence[int], num_blocks: int) -> TablePad | None:
    """What fills the entries behind those in use; None where there are none, or nothing that was read."""
    behind = [table[row, count:] for row, count in enumerate(used)]
    entries = np.concatenate(behind) if behind else np.empty(0, np.int64)
    if not entries.size:
        return None
    if (entries == -1).all():
        return "minus_one"
    if (entries == 0).all():
        return "zero"
    return "huge" if (entries >= num_blocks).all() else "other"
