"""Whose part of memory a program reads: it serves those whose rows it has asked for, and a part has its owners.

Only to explain what is wrong already: a kernel may read what is not its business, as long as it does not use it. A
program that has asked for nobody's row is let alone, and one that has asked for several may read what any of them owns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.touch import Record, Touch

#: Of elements: their index in a view, axis by axis, and whether they lie in it.
Position = Callable[[Array], tuple[list[Array], Array]]


@dataclass(frozen=True)
class Ownership:
    """Who owns each row of a tensor: bool [size of its first axis, parties]; asks: who reads one serves its owners."""

    rows: Array
    asks: bool


class Visit:
    """One tensor in one launch; served: bool [programs, parties], for whom each works as far as it has asked."""

    def __init__(self, ownership: Ownership, position: Position, itemsize: int, served: Array) -> None:
        self.ownership, self.position, self.itemsize, self.served = ownership, position, itemsize, served

    def read(self, touch: Touch, record: Record) -> None:
        """Learn whom a program serves, or record that it reads what others own."""
        axes, inside = self.position(touch.index * touch.itemsize // self.itemsize)
        owners = self.ownership.rows[axes[0]] & inside[:, None]
        if self.ownership.asks:
            np.logical_or.at(self.served, touch.programs, owners)
            return
        served: Array = self.served[touch.programs]
        asked, owned, own = (np.logical_or.reduce(x, axis=1) for x in (served, owners, served & owners))
        foreign = asked & owned & ~own
        if foreign.any():
            first = int(foreign.argmax())
            story = f"that of {_names(owners[first])}, but the program has asked for {_names(served[first])}"
            record("foreign read", touch, foreign, story)

    def write(self, touch: Touch, record: Record) -> None:
        """See a store: of no interest."""

    def update(self, touch: Touch, record: Record) -> None:
        """See an atomic: of no interest."""


def _names(parties: Array) -> str:
    return "sequence " + " or ".join(str(number) for number in np.flatnonzero(parties))
