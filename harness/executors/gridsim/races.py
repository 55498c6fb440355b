"""Watches what the programs of one launch do to memory that the launch writes, and finds what has no order.

Two programs that write different bits to one place, or one that reads what another writes, race unless an atomic that
releases, after the first access, is followed by one that acquires, before the second: directly, or by way of others.
"""

from __future__ import annotations

import mmap

import numpy as np

from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.touch import Record, Touch, coordinates

NOBODY = -1
#: What marks are of; READ_AGAIN: by another program than the one that READ names.
WROTE, CHANGED, READ, READ_AGAIN = "wrote", "changed", "read", "also read"
LARGE = 1 << 28  # bytes from which on a map of the memory is reserved and not filled
MOST = 1 << 22  # pairs of programs, or of programs and atomics, beyond which no order is followed: all is in order


class Races:
    """One launch's memory of who touched what, and of who knows what of whom."""

    def __init__(self, grid: tuple[int, int, int]) -> None:
        self.grid, self.now = grid, 0
        self.atomics: list[tuple[int, int, Touch]] = []  # storage, time, what was done
        self.order: Order | None = None

    def tick(self, lanes: int = 1) -> int:
        """Give an access its time: an atomic's lanes come one after the other."""
        self.now += lanes
        return self.now - lanes

    def unordered(self, earlier: Array, when: Array, later: Array) -> Array:
        """Tell where what programs did earlier, at a time, is not known to those that touch the same place later."""
        if not self.atomics:
            return np.ones(len(earlier), np.bool_)
        programs = self.grid[0] * self.grid[1] * self.grid[2]
        if programs * max(programs, sum(len(done.index) for _, _, done in self.atomics)) > MOST:
            return np.zeros(len(earlier), np.bool_)
        self.order = self.order or Order(programs)
        return ~self.order.after(self.atomics).known(earlier, when, later)

    def name(self, program: int) -> str:
        """Name a program."""
        return f"program {list(coordinates(program, self.grid))}"


class Order:
    """Who knows, by way of atomics, up to which time what others did: a vector clock for each program and place."""

    def __init__(self, programs: int) -> None:
        self.clocks = np.full((programs, programs), -1)
        self.places: dict[tuple[int, int], Array] = {}
        self.seen = 0

    def after(self, atomics: list[tuple[int, int, Touch]]) -> Order:
        """Take in what has been done since."""
        for address, time, touch in atomics[self.seen :]:
            for lane, (index, program) in enumerate(zip(touch.index.tolist(), touch.programs.tolist(), strict=True)):
                self.step((address, index * touch.itemsize), program, time + lane, touch.orders)
        self.seen = len(atomics)
        return self

    def step(self, place: tuple[int, int], program: int, time: int, orders: frozenset[str]) -> None:
        """Let one atomic hand on what its place knows, and leave there what its program knows."""
        mine = self.clocks[program]
        if "acquire" in orders and place in self.places:
            np.maximum(mine, self.places[place], out=mine)
        if "release" in orders:
            left = self.places.setdefault(place, np.full(len(mine), -1))
            np.maximum(left, mine, out=left)
            left[program] = time

    def known(self, earlier: Array, when: Array, later: Array) -> Array:
        """Tell where what was done at a time is known."""
        found: Array = self.clocks[later, earlier] > when
        return found


class Marks:
    """For each element who touched it last, and when."""

    def __init__(self, count: int) -> None:
        self.who, self.when = _lazy(count, np.int32), _lazy(count, np.int64)

    def put(self, index: Array, programs: Array, time: Array | int) -> None:
        """Mark elements; of several lanes that mark one the last stays. Zero is nobody: who counts from 1."""
        self.who[index], self.when[index] = programs + 1, time

    def at(self, index: Array) -> Array:
        """Say who touched elements: -1 is nobody."""
        return self.who.take(index) - 1


class Shadow:
    """Who wrote and who read each element of one storage; accesses of other widths than the first are not followed."""

    def __init__(self, races: Races, address: int, nbytes: int) -> None:
        self.races, self.address, self.nbytes = races, address, nbytes
        self.itemsize = 0
        self.marks: dict[str, Marks] = {}
        self.settled: Array = np.zeros(0, np.bool_)  # what was written was there already: a reader sees it in any order
        self.lane: Array = np.zeros(0, np.int64)

    def follows(self, touch: Touch) -> bool:
        """Tell whether this access can be compared with the others; the first one says how wide elements are."""
        if not self.itemsize:
            self.itemsize = touch.itemsize
            self.settled = _lazy(self.nbytes // touch.itemsize, np.bool_)
            self.lane = _lazy(self.nbytes // touch.itemsize, np.int64)
        return self.itemsize == touch.itemsize

    def of(self, did: str) -> Marks:
        """Give the marks of one kind of access."""
        if did not in self.marks:
            self.marks[did] = Marks(self.nbytes // self.itemsize)
        return self.marks[did]

    def read(self, touch: Touch, record: Record) -> None:
        """See a load: others may have written."""
        if not self.follows(touch):
            return
        self.against((WROTE, CHANGED), touch, record)
        time, first = self.races.tick(), self.of(READ)
        new = first.at(touch.index) == NOBODY
        first.put(touch.index[new], touch.programs[new], time)
        mine = first.at(touch.index) == touch.programs
        first.put(touch.index[mine], touch.programs[mine], time)
        if not mine.all():
            self.of(READ_AGAIN).put(touch.index[~mine], touch.programs[~mine], time)

    def write(self, touch: Touch, record: Record) -> None:
        """See a store: others may have read or written, and another lane of this one may write the same element."""
        if self.follows(touch):
            self.against((WROTE, CHANGED, READ, READ_AGAIN), touch, record)
            self.settled[touch.index] = touch.bits == touch.held
            self.together(touch, record)
            self.of(WROTE).put(touch.index, touch.programs, self.races.tick())

    def update(self, touch: Touch, record: Record) -> None:
        """See an atomic: others may have written plainly; atomics among themselves are in order."""
        lanes = len(touch.index)
        time = self.races.tick(lanes)
        self.races.atomics.append((self.address, time, touch))
        if self.follows(touch):
            self.against((WROTE,), touch, record)
            self.of(CHANGED).put(touch.index, touch.programs, time + np.arange(lanes))

    def against(self, kinds: tuple[str, ...], touch: Touch, record: Record) -> None:
        """Record where another program's earlier access and this one have no order, and the bits are not the same."""
        for did in kinds:
            if did in self.marks and (foreign := self.foreign(did, touch)).any():
                earlier = f"{self.races.name(int(self.of(did).at(touch.index)[foreign.argmax()]))} {did} it too"
                record("race", touch, foreign, earlier)

    def foreign(self, did: str, touch: Touch) -> Array:
        """Find the lanes that meet another program's earlier access without an order."""
        marks = self.of(did)
        who = marks.at(touch.index)
        found: Array = (who != NOBODY) & (who != touch.programs)
        if touch.bits is not None:
            found &= touch.bits != touch.held
        elif did == WROTE:
            found &= ~self.settled.take(touch.index)
        if found.any():
            when = marks.when.take(touch.index[found])
            found[found] = self.races.unordered(who[found], when, touch.programs[found])
        return found

    def together(self, touch: Touch, record: Record) -> None:
        """Record where two programs write different bits by one step."""
        self.lane[touch.index] = np.arange(len(touch.index))
        last = self.lane.take(touch.index)
        programs, bits = touch.programs, touch.bits
        both = programs[last] != programs
        if bits is not None and both.any():
            self.settled[touch.index[both]] = True
            differ = both & (bits[last] != bits)
            record("race", touch, differ, f"{self.races.name(int(programs[last[differ.argmax()]]))} wrote it too")


def _lazy(count: int, kind: type[np.generic]) -> Array:
    """Zeros that take memory only where they are written."""
    size = count * np.dtype(kind).itemsize
    if size < LARGE:
        return np.zeros(count, kind)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), kind)
