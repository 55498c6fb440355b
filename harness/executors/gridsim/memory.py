"""Allocations with provenance: what a pointer may touch, and a record of every access that it should not make.

A read out of bounds gives poison and a write out of bounds is dropped. A read or a write that leaves the view's reach
but not its storage is performed, so that canaries and neighbours show it as they would on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.ir import Line
from harness.executors.gridsim.parties import Ownership, Visit
from harness.executors.gridsim.scratch import Unwritten
from harness.executors.gridsim.touch import Touch, Watch, coordinates
from harness.executors.gridsim.wide import each

OUT_OF_REACH, DEAD, LIVE, OUT_OF_BOUNDS = 0, 1, 2, 3
KINDS = {OUT_OF_BOUNDS: "out of bounds", OUT_OF_REACH: "out of reach", DEAD: "dead"}


@dataclass(frozen=True)
class Access:
    """One line's accesses of one kind to one tensor: the first of them, and how many elements there were."""

    kind: str
    tensor: str
    index: tuple[int, ...] | int
    program: tuple[int, int, int]
    line: str
    count: int
    path: str
    story: str = ""  # what more there is to say of the first
    rows: frozenset[tuple[int, ...]] = frozenset()  # all of them, less the last index of each: where these are kept


@dataclass(frozen=True)
class Declaration:
    """A tensor that the caller named, with the state of each element of its storage (None: from shape and strides)."""

    name: str
    storage: int
    state: Array | None
    dead: str
    tensor: torch.Tensor  # keeps the storage, and so its address, from being used again


class Allocation:
    """The storage that a tensor lies in, and the elements of it that a pointer made from that tensor may touch."""

    def __init__(
        self, name: str, tensor: torch.Tensor, states: tuple[tuple[Array, int], ...] = (), dead: str = ""
    ) -> None:
        storage = tensor.untyped_storage()
        self.name, self.address, self.nbytes = name, storage.data_ptr(), int(storage.nbytes())
        self.size, self.strides = tuple(tensor.shape), tensor.stride()
        self.itemsize = tensor.element_size()
        self.start = int(tensor.storage_offset())
        span = sum((n - 1) * s for n, s in zip(self.size, self.strides, strict=True)) + 1
        self.stop = self.start + (int(span) if tensor.numel() else 0)
        self.dense = tensor.is_contiguous()
        self.states, self.dead = states, dead
        self.watches: tuple[Watch, ...] = ()
        self.tensor = tensor
        self.flats: dict[np.dtype[Any], Array] = {}

    @classmethod
    def null(cls) -> Allocation:
        """Make the allocation of addresses that point nowhere."""
        return cls("null", torch.empty(0, dtype=torch.uint8))

    def flat(self, kind: np.dtype[Any]) -> Array:
        """Show the storage as elements of a type, whatever the tensor's own."""
        found = self.flats.get(kind)
        if found is None:
            found = self.flats[kind] = np.asarray(_Window(self.address, self.nbytes // kind.itemsize, kind.str))
        return found

    def rows(self, kind: np.dtype[Any], count: int) -> Array:
        """Show the storage as every row of so many elements that it holds."""
        flat = self.flat(kind)
        shape = (max(len(flat) - count + 1, 0), count)
        return as_strided(flat, shape, (kind.itemsize, kind.itemsize))

    def tidy(self, first: Array, count: int, itemsize: int) -> bool:
        """Tell that rows are as they should be, without a look at each element where that is enough."""
        low, high = (0, self.nbytes // itemsize) if self.states else (self.start, self.stop)
        if itemsize != self.itemsize or not first.size or first.min() < low or first.max() > high - count:
            return False
        if len(self.states) != 1 or self.states[0][1] != itemsize:
            return self.dense and not self.states
        windows = as_strided(self.states[0][0], (high - count + 1, count), (1, 1))
        return int(windows[first].min()) >= LIVE

    def clean(self, index: Array, itemsize: int) -> bool:
        """Tell, at the cost of a pass or two, that every access is as it should be; `verdict` tells what is wrong."""
        if not self.states and not (self.dense and itemsize == self.itemsize):
            return bool((self.verdict(index, itemsize) == LIVE).all())
        low, high = (0, self.nbytes // itemsize) if self.states else (self.start, self.stop)
        if not index.size or index.min() < low or index.max() >= high:
            return not index.size
        return not self.states or int(self.state(index, itemsize).min()) >= LIVE

    def verdict(self, index: Array, itemsize: int) -> Array:
        """Classify each access."""
        inside = (index >= 0) & (index < self.nbytes // itemsize)
        safe = np.where(inside, index, 0)
        found = self.state(safe, itemsize) if self.nbytes >= itemsize else np.zeros(index.shape, np.uint8)
        return np.where(inside, found, np.uint8(OUT_OF_BOUNDS))

    def state(self, index: Array, itemsize: int) -> Array:
        """Look up the state of elements inside the storage."""
        if not self.states:
            own = index if itemsize == self.itemsize else index * itemsize // self.itemsize
            return np.where(self.position(own)[1], np.uint8(LIVE), np.uint8(OUT_OF_REACH))
        looks = [state.take(index if itemsize == size else index * itemsize // size) for state, size in self.states]
        return np.maximum.reduce(looks) if len(looks) > 1 else looks[0]

    def position(self, index: Array) -> tuple[list[Array], Array]:
        """Find the view's multi-index of a storage element, and whether it has one."""
        rest = index - self.start
        found: dict[int, Array] = {}
        for axis in sorted(range(len(self.size)), key=lambda axis: -self.strides[axis]):
            stride = max(self.strides[axis], 1)
            step = np.clip(rest // stride, 0, self.size[axis] - 1) if self.strides[axis] else np.zeros_like(rest)
            found[axis], rest = step, rest - step * self.strides[axis]
        return [found[axis] for axis in range(len(self.size))], (rest == 0) & (self.start < self.stop)

    def place(self, index: int, itemsize: int) -> tuple[int, ...] | int:
        """Name one element: its multi-index in the view, or its offset from the view's first element."""
        axes, reached = self.position(np.array(index * itemsize // self.itemsize))
        return tuple(int(axis) for axis in axes) if reached else index - self.start * self.itemsize // itemsize

    def rows_of(self, index: Array, itemsize: int, most: int) -> frozenset[tuple[int, ...]]:
        """Name the rows of the view that elements lie in, so many at most: indices without the last."""
        axes, inside = self.position(index * itemsize // self.itemsize)
        rows = np.stack([axis[inside] for axis in axes[:-1]], axis=-1) if len(axes) > 1 else np.empty((0, 0), int)
        return frozenset(tuple(row) for row in np.unique(rows, axis=0)[:most].tolist())

    def story(self, code: int, place: tuple[int, ...] | int) -> str:
        """Say more of a place where nobody should be."""
        if code == DEAD:
            return self.dead.format(*place) if isinstance(place, tuple) else ""
        if not isinstance(place, int):
            return ""
        return "before its start" if place < 0 else "past its end" if place >= self.stop - self.start else "in a gap"


@dataclass(frozen=True)
class Found:
    """Accesses of one line to one allocation, judged; verdict and index have the programs as their first axis."""

    verdict: Array
    index: Array
    itemsize: int
    write: bool
    line: Line


class _Window:
    """A flat array over memory that something else keeps alive."""

    def __init__(self, address: int, count: int, kind: str) -> None:
        shape = (count,) if address else (0,)
        self.__array_interface__ = {"data": (address or 1, False), "shape": shape, "typestr": kind, "version": 3}


class Memory:
    """What the caller knows of the tensors that kernels get, and every access that broke it."""

    def __init__(self) -> None:
        self.declarations: dict[tuple[int, tuple[int, ...], tuple[int, ...], int], Declaration] = {}
        self.found: dict[tuple[str, str, str], Access] = {}
        self.scratch = Unwritten()
        self.undefined: dict[str, str] = {}  # line of a masked load without `other` that shut lanes out: what it loads
        self.lanes = 0  # the byte that such lanes are filled with
        self.parties: dict[tuple[int, tuple[int, ...], tuple[int, ...], int], Ownership] = {}
        self.most_rows = 0  # how many rows of each record are kept by name

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Every access that should not have been, one record for each kind, tensor and line."""
        return tuple(self.found.values())

    def declare(self, tensor: torch.Tensor, name: str, state: Array | None = None, dead: str = "") -> None:
        """Name a tensor; `state` has one byte for each element of its storage: 0 out of reach, 1 dead, 2 live.

        `dead` says in words what a dead element is, "past the end of row {0}" say, with its index to fill in.
        """
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        if state is not None and (state.dtype != np.uint8 or state.shape != (count,)):
            raise ValueError(
                f"the state of {name}: expected uint8 of shape ({count},), got {state.dtype} {state.shape}"
            )
        key = _key(tensor)
        plain = None if state is None else np.asarray(state)  # a memory map's own class is slow
        self.declarations[key] = Declaration(name, tensor.untyped_storage().data_ptr(), plain, dead, tensor)

    def bind(self, tensor: torch.Tensor, parameter: str) -> Allocation:
        """Give a kernel's argument its allocation: as declared, as its storage was declared, or by its own view."""
        declared = self.declarations.get(_key(tensor))
        storage = tensor.untyped_storage().data_ptr()
        owners = [declared] if declared else [d for d in self.declarations.values() if storage and d.storage == storage]
        name = owners[0].name if len(owners) == 1 else " or ".join(owner.name for owner in owners) or parameter
        states = tuple((d.state, d.tensor.element_size()) for d in owners if d.state is not None)
        view = owners[0].tensor if len(owners) == 1 and owners[0].tensor.dtype == tensor.dtype else tensor
        found = Allocation(name, view, states, owners[0].dead if len(owners) == 1 else "")
        scratch = self.scratch.at(found.address)
        found.watches = (scratch,) if scratch else ()
        return found

    def record(self, owner: Allocation, found: Found, program: Callable[[int], tuple[int, int, int]]) -> None:
        """Keep what a line did to one tensor."""
        for code, how in KINDS.items():
            lanes = found.verdict == code
            if count := int(np.count_nonzero(lanes)):
                kind = f"{how} {'write' if found.write else 'read'}"
                first = np.unravel_index(int(lanes.argmax()), lanes.shape)
                place = owner.place(int(found.index[first]), found.itemsize)
                lane, line, story = int(first[0]), found.line, owner.story(code, place)
                rows = self._rows(owner, found.index[lanes], found.itemsize)
                self.add(Access(kind, owner.name, place, program(lane), str(line), count, line.path, story, rows))

    def note(
        self, owner: Allocation, grid: tuple[int, int, int], kind: str, touch: Touch, lanes: Array, story: str
    ) -> None:
        """Keep what somebody who watches an allocation has seen of a line."""
        if count := int(np.count_nonzero(lanes)):
            first = int(lanes.argmax())
            place, program = owner.place(int(touch.index[first]), touch.itemsize), int(touch.programs[first])
            where, line = coordinates(program, grid), touch.line
            rows = self._rows(owner, touch.index[lanes], touch.itemsize)
            self.add(Access(kind, owner.name, place, where, str(line), count, line.path, story, rows))

    def _rows(self, owner: Allocation, index: Array, itemsize: int) -> frozenset[tuple[int, ...]]:
        return owner.rows_of(index, itemsize, self.most_rows) if self.most_rows else frozenset()

    def unwritten(self, tensor: torch.Tensor) -> None:
        """Say that nobody has written a tensor's storage yet: reading it is recorded until somebody has."""
        self.scratch.add(tensor)

    def own(self, tensor: torch.Tensor, rows: Array, *, asks: bool = False) -> None:
        """Say who owns each row of a declared tensor: bool [size of its first axis, parties]; see `parties`."""
        self.parties[_key(tensor)] = Ownership(rows, asks)

    def watch_parties(self, owners: Iterable[Allocation], programs: int) -> None:
        """Watch what the programs of a launch read of tensors that have owners."""
        known = [(owner, self.parties[_key(owner.tensor)]) for owner in owners if _key(owner.tensor) in self.parties]
        if known:
            served = np.zeros((programs, known[0][1].rows.shape[1]), np.bool_)
            for owner, ownership in known:
                owner.watches = (*owner.watches, Visit(ownership, owner.position, owner.itemsize, served))

    def add(self, new: Access) -> None:
        """Count an access in with those of its kind, tensor and line."""
        old = self.found.get((new.kind, new.tensor, f"{new.path}:{new.line}"))
        kept = replace(old, count=old.count + new.count, rows=old.rows | new.rows) if old else new
        self.found[new.kind, new.tensor, f"{new.path}:{new.line}"] = kept


def _key(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.element_size()


class Pointer:
    """Pointers of one shape: element offsets from the start of the allocation that each was made from.

    Where pointers of several allocations meet (in a branch, say), `which` gives each its place in `owners`.
    """

    __slots__ = ("offset", "owners", "which")

    def __init__(self, owners: tuple[Allocation, ...], offset: Array, which: Array | None = None) -> None:
        self.owners, self.offset, self.which = owners, offset, which

    def map(self, change: Callable[[Array], Array]) -> Pointer:
        """Reshape or choose."""
        return Pointer(self.owners, each(change, self.offset), None if self.which is None else change(self.which))

    def moved(self, offset: Array) -> Pointer:
        """Point elsewhere in the same allocations."""
        return Pointer(self.owners, offset, self.which)


def common(pointers: Iterable[Pointer]) -> list[Pointer]:
    """Say pointers in terms of one list of owners."""
    pointers = list(pointers)
    owners = tuple(dict.fromkeys(owner for pointer in pointers for owner in pointer.owners))
    if len(owners) == 1:
        return pointers
    renamed = []
    for pointer in pointers:
        numbers = np.array([owners.index(owner) for owner in pointer.owners], np.int8)
        which = np.zeros((1,) * pointer.offset.ndim, np.int8) if pointer.which is None else pointer.which
        renamed.append(Pointer(owners, pointer.offset, numbers[which]))
    return renamed
