"""The state of a run: values in slots, and the programs that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.ir import Line
from harness.executors.gridsim.memory import Allocation, Memory, Pointer, common
from harness.executors.gridsim.touch import coordinates
from harness.executors.gridsim.wide import Wide, each, joined


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor: where the tensor begins, its shape and its strides (in elements), one array per axis."""

    pointer: Pointer
    shape: tuple[Array, ...]
    strides: tuple[Array, ...]
    fill: float = 0.0


Behaviour = tuple[Line, str, str]  # a line; "line", "mask", "branch" or "loop"; what came of it
Value = Array | Pointer | Descriptor
Step = Callable[["Frame"], None]


@dataclass(frozen=True)
class Programs:
    """The programs that run together: their numbers in the grid, x fastest."""

    numbers: Array
    grid: tuple[int, int, int]

    def axis(self, axis: int) -> Array:
        """Give `tl.program_id(axis)`."""
        x, y, _ = self.grid
        found = (self.numbers % x, self.numbers // x % y, self.numbers // (x * y))[axis]
        return found.astype(np.int32)

    def place(self, lane: int) -> tuple[int, int, int]:
        """Name one of them by its coordinates."""
        return coordinates(int(self.numbers[lane]), self.grid)


@dataclass(frozen=True)
class World:
    """What a launch shares: the memory's record, the allocations in sight, and what lines, masks and branches did."""

    memory: Memory
    owners: Sequence[Allocation]
    seen: set[Behaviour] = field(default_factory=set)

    def saw(self, line: Line, what: str, *outcomes: str) -> None:
        """Note outcomes of a mask, a branch or a loop."""
        for outcome in outcomes:
            self.seen.add((line, what, outcome))


UNSET: Array = np.zeros(1, np.bool_)  # stands in the slots of values that are yet to be computed
NOBODY, NOWHERE = Programs(np.zeros(0, np.int64), (0, 0, 0)), World(Memory(), ())


class Frame:
    """The values of one set of programs."""

    __slots__ = ("programs", "values", "world")

    def __init__(self, values: list[Value], programs: Programs, world: World) -> None:
        self.values, self.programs, self.world = values, programs, world

    def array(self, slot: int) -> Array:
        """Give a value that is neither a pointer nor a descriptor."""
        value = self.values[slot]
        if not isinstance(value, np.ndarray):
            raise TypeError(f"expected an array, got {type(value).__name__}")
        return value

    @property
    def count(self) -> int:
        """Count the programs."""
        return len(self.programs.numbers)

    def subset(self, lanes: Array, slots: Iterable[int]) -> Frame:
        """Go on with some of the programs: the slots named keep their rows, others keep what depends on no program."""
        values = self.values.copy()
        for slot in slots:
            values[slot] = choose(values[slot], lanes)
        return Frame(values, Programs(self.programs.numbers[lanes], self.programs.grid), self.world)


def choose(value: Value, lanes: Array) -> Value:
    """Keep some programs' rows."""
    if isinstance(value, Pointer):
        return value.map(lambda x: rows(x, lanes))
    if isinstance(value, Descriptor):
        shape, strides = (tuple(rows(x, lanes) for x in part) for part in (value.shape, value.strides))
        return Descriptor(value.pointer.map(lambda x: rows(x, lanes)), shape, strides, value.fill)
    return rows(value, lanes)


def lead(value: Value) -> Value:
    """Keep the first lane along the last axis."""
    if isinstance(value, Descriptor):
        return value
    return value.map(_first) if isinstance(value, Pointer) else each(_first, value)


def _first(x: Array) -> Array:
    return x[..., :1]


def rows(x: Array, lanes: Array) -> Array:
    """Keep some programs' rows of an array; one that depends on no program has one row for all."""
    if x.shape[0] == 1:
        return x
    return each(lambda values: values[lanes], x) if type(x) is Wide else x[lanes]


def merge(parts: Sequence[tuple[Array, Value]], count: int) -> Value:
    """Put values of disjoint sets of programs together."""
    lanes, values = [lanes for lanes, _ in parts], [value for _, value in parts]
    if len(lanes) == 1 and len(lanes[0]) == count:
        return values[0]
    pointers = [value for value in values if isinstance(value, Pointer)]
    if pointers:
        return _merge_pointers(lanes, pointers, count)
    descriptors = [value for value in values if isinstance(value, Descriptor)]
    if descriptors:
        return _merge_descriptors(lanes, descriptors, count)
    return _scatter(lanes, [value for value in values if isinstance(value, np.ndarray)], count)


def _merge_pointers(lanes: list[Array], pointers: list[Pointer], count: int) -> Pointer:
    pointers = common(pointers)
    which = [pointer.which for pointer in pointers if pointer.which is not None]
    offset = _scatter(lanes, [pointer.offset for pointer in pointers], count)
    return Pointer(pointers[0].owners, offset, _scatter(lanes, which, count) if which else None)


def _merge_descriptors(lanes: list[Array], found: list[Descriptor], count: int) -> Descriptor:
    pointer = _merge_pointers(lanes, [one.pointer for one in found], count)
    shape = tuple(_scatter(lanes, list(sizes), count) for sizes in zip(*(one.shape for one in found), strict=True))
    strides = tuple(_scatter(lanes, list(sizes), count) for sizes in zip(*(one.strides for one in found), strict=True))
    return Descriptor(pointer, shape, strides, found[0].fill)


def _scatter(lanes: list[Array], values: list[Array], count: int) -> Array:
    return joined(lambda *given: _put(lanes, given, count), *values)


def _put(lanes: list[Array], values: Sequence[Array], count: int) -> Array:
    shape = np.broadcast_shapes(*(value.shape[1:] for value in values))
    found = np.empty((count, *shape), values[0].dtype)
    for rows_, value in zip(lanes, values, strict=True):
        found[rows_] = value
    return found
