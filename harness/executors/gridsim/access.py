"""Loads, stores and atomics: masks resolved, each access checked, bytes unpacked and packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from harness.executors.gridsim import wide
from harness.executors.gridsim.arith import refuse
from harness.executors.gridsim.codecs import CODECS, Array, Codec
from harness.executors.gridsim.frames import Descriptor, Frame
from harness.executors.gridsim.ir import Line, Op, Type
from harness.executors.gridsim.memory import LIVE, OUT_OF_BOUNDS, Access, Allocation, Found, Pointer
from harness.executors.gridsim.touch import Touch

Change = Callable[..., Array]


@dataclass(frozen=True)
class Site:
    """One place in the kernel that touches memory.

    rows: its pointers count along the last axis, wrapping apart; led: of these only the first lane is given.
    """

    line: Line
    name: str
    element: str
    shape: tuple[int, ...]
    rows: bool
    led: bool
    codec: Codec
    orders: frozenset[str] = frozenset()

    def lanes(self, frame: Frame, x: Array) -> Array:
        """Stretch to every element of every program."""
        return np.broadcast_to(x, (frame.count, *self.shape))

    def settle(self, frame: Frame, mask: Array | None) -> Array | None:
        """Note what the mask did; None where it lets everything through."""
        if mask is None:
            return None
        if (through := np.count_nonzero(mask)) in (0, mask.size):
            frame.world.saw(self.line, "mask", "all" if through else "none")
            return None if through else mask
        open_ = set(np.count_nonzero(mask.reshape(mask.shape[0], -1), axis=1).tolist())
        every, none = mask[0].size in open_, 0 in open_
        frame.world.saw(self.line, "mask", *["all"] * every, *["none"] * none, *["mixed"] * (len(open_) > every + none))
        return mask

    def read(self, frame: Frame, pointer: Pointer, mask: Array | None = None, other: Array | None = None) -> Array:
        """Load. Lanes that the mask shuts out get `other`; where the kernel leaves them undefined, `undefined` says."""
        mask = self.settle(frame, mask)
        found = self.undefined(frame, pointer, shut_out=mask is not None) if other is None else other
        if mask is not None and not mask.any():
            return found
        if (whole := self.in_rows(pointer, mask, found)) is not None:
            return whole
        pointer = self.narrowed("read", frame, self.spread(pointer), mask)
        for owner, own in owners(pointer, mask):
            values = self.fetch(frame, owner, pointer.offset, own)
            found = values if own is None else np.where(own, values, found)
        return found

    def undefined(self, frame: Frame, pointer: Pointer, *, shut_out: bool) -> Array:
        """Give what lanes hold that a load without `other` shuts out: 0, or the memory's byte; note that there are."""
        memory = frame.world.memory
        if shut_out:
            memory.undefined.setdefault(str(self.line), pointer.owners[0].name)
        held = np.full(self.codec.storage.itemsize, memory.lanes, np.uint8).view(self.codec.storage)
        return np.asarray(self.codec.unpack(held)).reshape((1,) * pointer.offset.ndim)

    def spread(self, pointer: Pointer) -> Pointer:
        """Give every lane its own offset where the first stood for all."""
        return pointer.moved(wide.add(pointer.offset, np.arange(self.shape[-1]))) if self.led else pointer

    def in_rows(self, pointer: Pointer, mask: Array | None, other: Array) -> Array | None:
        """Fetch whole rows, and only those that the mask lets through, where nothing is wrong with any of them."""
        owner, index, count = pointer.owners[0], pointer.offset, self.shape[-1] if self.rows else 1
        if count == 1 or pointer.which is not None or owner.watches or type(index) is wide.Wide:
            return None
        first = index[..., 0]
        if not self.led and (index.shape[-1] == 1 or (index[..., -1] - first != count - 1).any()):
            return None
        if mask is None:
            return self.rows_at(owner, first, count)
        lines, reach = mask[..., 0], extent(mask, count)
        if not reach:
            return None
        lines, first, _ = np.broadcast_arrays(lines, first, other[..., 0])
        values = self.rows_at(owner, first[lines], reach)
        if values is None:
            return None
        found = np.empty((*lines.shape, count), values.dtype)
        found[...] = other
        found[lines, :reach] = values
        return found

    def rows_at(self, owner: Allocation, first: Array, count: int) -> Array | None:
        """Fetch the rows that begin at these elements, unless something is wrong with one."""
        storage = self.codec.storage
        tidy = owner.tidy(first, count, storage.itemsize)
        return self.codec.unpack(owner.rows(storage, count)[first]) if tidy else None

    def fetch(self, frame: Frame, owner: Allocation, index: Array, mask: Array | None) -> Array:
        """Read from one allocation; what lies out of bounds is poison."""
        codec = self.codec
        if owner.watches:
            self.watched("read", frame, owner, index, mask)
        if mask is not None:
            index = shut(index, mask)
        if owner.clean(index, codec.storage.itemsize):
            return codec.unpack(owner.flat(codec.storage).take(index, mode="clip"))
        bad = self.report(frame, owner, index, mask, write=False) == OUT_OF_BOUNDS
        flat = owner.flat(codec.storage)
        if not flat.size:
            return np.broadcast_to(codec.poison, index.shape).copy()
        return np.where(bad, codec.poison, codec.unpack(flat.take(np.where(bad, 0, index))))

    def report(self, frame: Frame, owner: Allocation, index: Array, mask: Array | None, *, write: bool) -> Array:
        """Record what is wrong with these accesses, and classify them."""
        width = self.codec.storage.itemsize
        verdict = owner.verdict(index, width)
        judged = verdict if mask is None else np.where(mask, verdict, np.uint8(LIVE))
        found = Found(self.lanes(frame, judged), self.lanes(frame, index), width, write=write, line=self.line)
        frame.world.memory.record(owner, found, frame.programs.place)
        return verdict

    def write(self, frame: Frame, pointer: Pointer, values: Array, mask: Array | None = None) -> None:
        """Store. Of lanes that write one element the last wins."""
        mask = self.settle(frame, mask)
        pointer = self.narrowed("write", frame, pointer, mask)
        for owner, own in owners(pointer, mask):
            shape = np.broadcast_shapes(pointer.offset.shape, values.shape, () if own is None else own.shape)
            index, raw = np.broadcast_to(pointer.offset, shape), np.broadcast_to(self.codec.pack(values), shape)
            if own is not None:
                own = np.broadcast_to(own, shape)
                if not own.any():
                    continue
            index, own = self.allowed(frame, owner, index, own)
            if owner.watches:
                self.watched("write", frame, owner, index, own, raw)
            flat = owner.flat(self.codec.storage)
            if own is None:
                flat[index] = raw
            else:
                flat[index[own]] = raw[own]

    def watched(self, how: str, frame: Frame, owner: Allocation, index: Array, mask: Array | None,
                raw: Array | None = None) -> None:  # fmt: skip
        """Show an access to those who watch the allocation, a store with what it writes; what is dropped is none."""
        width, index = self.codec.storage.itemsize, self.lanes(frame, index)
        lanes = np.arange(index.size) if mask is None else np.flatnonzero(self.lanes(frame, mask))
        at, bits = index.reshape(-1)[lanes], np.dtype(f"u{width}")
        inside = (at >= 0) & (at < owner.nbytes // width)
        lanes, at = lanes[inside], at[inside]
        new = None if raw is None else self.lanes(frame, raw).reshape(-1)[lanes].view(bits)
        programs = frame.programs.numbers[lanes // (index.size // frame.count)]
        touch = Touch(at, programs, owner.flat(bits).take(at), new, width, self.line, self.orders)
        record = partial(frame.world.memory.note, owner, frame.programs.grid)
        for watch in owner.watches:
            getattr(watch, how)(touch, record)

    def narrowed(self, how: str, frame: Frame, pointer: Pointer, mask: Array | None) -> Pointer:
        """Record lanes whose address has wrapped in 32 bits, and go on with the address as it is."""
        if type(pointer.offset) is not wide.Wide:
            return pointer
        index, true, source = wide.parts(pointer.offset)
        for owner, own in owners(pointer, mask):
            lanes = self.lanes(frame, index != true if own is None else (index != true) & own)
            if lanes.any():
                self.wrapped(how, frame, owner, lanes, index, source)
        return pointer.moved(index)

    def wrapped(self, how: str, frame: Frame, owner: Allocation, lanes: Array, index: Array, source: Array) -> None:
        """Record that lanes go where a wrapped number sends them, by the line where it wrapped."""
        first = np.unravel_index(int(lanes.argmax()), lanes.shape)
        wrap = self.lanes(frame, source)[first]
        place = owner.place(int(self.lanes(frame, index)[first]), self.codec.storage.itemsize)
        count, story = int(np.count_nonzero(lanes)), f"{wrap}, and is the address at {self.line}"
        program = frame.programs.place(int(first[0]))
        frame.world.memory.add(
            Access(f"overflow {how}", owner.name, place, program, str(wrap.line), count, wrap.line.path, story)
        )

    def allowed(self, frame: Frame, owner: Allocation, index: Array, mask: Array | None) -> tuple[Array, Array | None]:
        """Check writes; those out of bounds are dropped."""
        if owner.clean(index if mask is None else index[mask], self.codec.storage.itemsize):
            return index, mask
        checked = index if mask is None else shut(index, mask)
        inside = self.report(frame, owner, checked, mask, write=True) != OUT_OF_BOUNDS
        return index, inside if mask is None else inside & mask

    def atomic(self, frame: Frame, pointer: Pointer, mask: Array | None, change: Change, *values: Array) -> Array:
        """Read, change and write, one lane after the other in the order of the programs; give what was read."""
        mask = self.settle(frame, mask)
        pointer = self.narrowed("write", frame, pointer, mask)
        found = np.zeros((frame.count, *self.shape), self.codec.carrier)
        given = [self.lanes(frame, value) for value in values]
        for owner, own in owners(pointer, mask):
            index = self.lanes(frame, pointer.offset)
            own = None if own is None else self.lanes(frame, own)
            if own is not None and not own.any():
                continue
            index, own = self.allowed(frame, owner, index, own)
            if owner.watches:
                self.watched("update", frame, owner, index, own)
            chosen = np.ones(index.shape, bool) if own is None else own
            found[chosen] = self.rounds(owner, index[chosen], change, *(value[chosen] for value in given))
        return found

    def rounds(self, owner: Allocation, index: Array, change: Change, *values: Array) -> Array:
        """Do the updates in rounds of distinct elements: each element's updates keep their order."""
        flat, found = owner.flat(self.codec.storage), np.empty(index.shape, self.codec.carrier)
        order = np.argsort(index, kind="stable")
        ordered = index[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if index.size else np.zeros(0, np.int64)
        sizes = np.diff(np.r_[starts, index.size])
        for turn in range(int(sizes.max(initial=0))):
            lanes = order[starts[sizes > turn] + turn]
            old = self.codec.unpack(flat[index[lanes]])
            found[lanes] = old
            flat[index[lanes]] = self.codec.pack(change(old, *(value[lanes] for value in values)))
        return found


def owners(pointer: Pointer, mask: Array | None) -> Iterator[tuple[Allocation, Array | None]]:
    """Take a pointer's allocations one by one, with the lanes that each has."""
    if pointer.which is None:
        yield pointer.owners[0], mask
        return
    for number, owner in enumerate(pointer.owners):
        own = pointer.which == number if mask is None else (pointer.which == number) & mask
        if own.any():
            yield owner, own


def shut(index: Array, mask: Array) -> Array:
    """Let lanes that the mask shuts out repeat one that it lets through, so that checks need no mask."""
    whole = np.broadcast_to(index, np.broadcast_shapes(index.shape, mask.shape))
    open_ = np.broadcast_to(mask, whole.shape)
    if not open_.any():
        return np.zeros_like(whole)
    return np.where(mask, index, whole[np.unravel_index(int(open_.argmax()), whole.shape)])


def extent(mask: Array, count: int) -> int:
    """Tell how far from their beginning a mask lets all rows through that it does not shut out; 0 where they differ."""
    if mask.shape[-1] == 1:
        return count
    reach = int(mask.any(axis=tuple(range(mask.ndim - 1))).sum())
    alike = (mask[..., :reach] == mask[..., :1]).all() and not mask[..., reach:].any()
    return reach if alike else 0


def tile(descriptor: Descriptor, corner: Sequence[Array], shape: tuple[int, ...]) -> tuple[Pointer, Array]:
    """Find a descriptor's block: its elements, and which of them lie in the tensor."""
    pointer, rank = descriptor.pointer, len(shape)
    offset = pointer.offset.reshape(-1, *(1,) * rank)
    inside = np.ones((1,) * (rank + 1), bool)
    start = rank - len(corner)
    for i, first in enumerate(corner):
        lane = np.arange(shape[start + i]).reshape(-1, *(1,) * (rank - start - i - 1))
        at, size, stride = (
            x.astype(np.int64).reshape(-1, *(1,) * rank) for x in (first, descriptor.shape[i], descriptor.strides[i])
        )
        at = at + lane
        offset, inside = offset + at * stride, inside & (at >= 0) & (at < size)
    return pointer.moved(offset), inside


def site(op: Op, kind: Type, *, rows: bool = False, led: bool = False) -> Site:
    """Describe the access that an operation makes through a pointer of this type; pointers lie as 64-bit addresses."""
    codec = CODECS.get(kind.element, CODECS["i64"])
    return Site(op.line, str(op.line), kind.element, kind.shape, rows, led, codec, orders(op))


def orders(op: Op) -> frozenset[str]:
    """Say how an atomic orders what other programs do; one that is for its own program alone does not."""
    if "cta" in op.words:
        return frozenset()
    return frozenset().union(*(ORDERS[word] for word in op.words if word in ORDERS))


ORDERS = {"acquire": {"acquire"}, "release": {"release"}, "acq_rel": {"acquire", "release"}}


def _swap(_old: Array, new: Array) -> Array:
    return new


def _unsigned(apply: Change) -> Change:
    def run(old: Array, new: Array) -> Array:
        wide = f"u{old.dtype.itemsize}"
        return apply(old.view(wide), new.view(wide)).view(old.dtype)

    return run


CHANGES: dict[str, Change] = {
    "fadd": np.add,
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
    "umax": _unsigned(np.maximum),
    "umin": _unsigned(np.minimum),
    "exch": _swap,
}


def change(op: Op, element: str) -> Change:
    """Find what an atomic does to the old value."""
    words = [word for word in op.words if word in CHANGES]
    if len(words) != 1:
        raise refuse(op)
    bring = CODECS[element].round
    apply = CHANGES[f"u{words[0]}" if element.startswith("ui") and words[0] in ("max", "min") else words[0]]
    return lambda old, new: bring(apply(old, new))


def exchange(old: Array, expected: Array, new: Array) -> Array:
    """Compare and swap."""
    return np.where(old == expected, new, old)
