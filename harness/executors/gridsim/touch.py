"""What one line of a kernel does to one allocation, lane by lane, for those who watch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.ir import Line


@dataclass(frozen=True)
class Touch:
    """Lanes that a mask lets through and that lie in the storage: one entry each in every array.

    `index` counts elements of `itemsize` bytes from the start of the storage, `programs` are numbers in the grid,
    `held` are the bits that lie there before the access, and `bits` those that a write puts there (None: a read).
    """

    index: Array
    programs: Array
    held: Array
    bits: Array | None
    itemsize: int
    line: Line
    orders: frozenset[str] = frozenset()  # what an atomic does: "acquire", "release"


def coordinates(number: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Give a program's place in the grid, x fastest."""
    x, y, _ = grid
    return number % x, number // x % y, number // (x * y)


#: Keep a kind of access at the lanes that are true, with more to say about the first.
Record = Callable[[str, Touch, Array, str], None]


class Watch(Protocol):
    """Somebody who wants to see every access to an allocation."""

    def read(self, touch: Touch, record: Record) -> None:
        """See a load."""

    def write(self, touch: Touch, record: Record) -> None:
        """See a store, before it is done."""

    def update(self, touch: Touch, record: Record) -> None:
        """See an atomic, before it is done."""
