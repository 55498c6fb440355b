"""Makes each operation without control flow a step: a closure that reads slots and writes slots."""
# ruff: noqa: ARG001 - every maker of a table has one signature

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from harness.executors.gridsim import access, wide
from harness.executors.gridsim.arith import ELEMENTWISE, refuse
from harness.executors.gridsim.casts import CASTS
from harness.executors.gridsim.codecs import CODECS, Array
from harness.executors.gridsim.descriptors import DESCRIPTORS
from harness.executors.gridsim.frames import Frame, Step, Value, lead
from harness.executors.gridsim.ir import Op, Type
from harness.executors.gridsim.memory import Allocation, Pointer, common
from harness.executors.gridsim.operations import REFUSED
from harness.executors.gridsim.shapes import MOVES, SHAPES, Combine, constant, reduce, scan, select
from harness.executors.gridsim.spans import Spans

Slots = tuple[int, ...]
Kinds = tuple[Type, ...]
Apply = Callable[..., Value | tuple[Value, ...]]  # of values
Effect = Callable[..., Value | None]  # of a frame and values
IDLE = {
    "tt.print",
    "gpu.barrier",
    "ttg.barrier",
    "llvm.intr.assume",
    "tt.grid_dependency_wait",
    "tt.grid_dependency_launch_dependents",
}


@dataclass(frozen=True)
class Made:
    """What an operation does: `apply` where it needs values alone, else `effect`; pure: it may run before its place."""

    apply: Apply | None = None
    effect: Effect | None = None
    pure: bool = False

    def step(self, given: Slots, results: Slots) -> Step:
        """Bind it to slots."""
        if self.effect is not None:
            return _effect(self.effect, given, results)
        if self.apply is None:
            return _idle
        if len(results) == 1 and len(given) == 1:
            return _unary(self.apply, given[0], results[0])
        if len(results) == 1 and len(given) == 2:
            return _binary(self.apply, given[0], given[1], results[0])
        return _apply(self.apply, given, results)


def leading(made: Made) -> Made:
    """Compute with the first lane along the last axis alone."""
    apply = made.apply
    return made if apply is None else replace(made, apply=lambda *given: apply(*(lead(value) for value in given)))


def _idle(_frame: Frame) -> None:
    pass


def _effect(effect: Effect, given: Slots, results: Slots) -> Step:
    def step(frame: Frame) -> None:
        values = frame.values
        found = effect(frame, *[values[slot] for slot in given])
        if found is not None:
            values[results[0]] = found

    return step


def _apply(apply: Apply, given: Slots, results: Slots) -> Step:
    def step(frame: Frame) -> None:
        values = frame.values
        found = apply(*[values[slot] for slot in given])
        for slot, value in zip(results, found if isinstance(found, tuple) else (found,), strict=True):
            values[slot] = value

    return step


def _unary(apply: Apply, a: int, to: int) -> Step:
    def step(frame: Frame) -> None:
        values = frame.values
        values[to] = apply(values[a])  # type: ignore[assignment]  # one result, no tuple

    return step


def _binary(apply: Apply, a: int, b: int, to: int) -> Step:
    def step(frame: Frame) -> None:
        values = frame.values
        values[to] = apply(values[a], values[b])  # type: ignore[assignment]  # one result, no tuple

    return step


def build(op: Op, kinds: Kinds, combine: Combine | None, spans: Spans) -> Made:
    """Find an operation in the tables; spans tell which pointers of a load are known to run on along the last axis."""
    if op.name == "arith.constant":
        return Made(lambda: constant(op))
    if combine is not None:
        return Made((reduce if op.name == "tt.reduce" else scan)(op, kinds, combine))
    if op.name in IDLE:
        return Made()
    if op.name == "tt.load":
        rows, led = (op.operands[0] in names for names in (spans.counting, spans.led))
        return Made(effect=access.site(op, kinds[0], rows=rows, led=led).read)
    if op.name in EFFECTS:
        return Made(effect=EFFECTS[op.name](op, kinds), pure=op.name in PURE)
    if any(kind.kind == "pointer" for kind in (*kinds, *op.result_types)):
        return Made(_on_pointers(op, kinds))
    for table in (ELEMENTWISE, CASTS, SHAPES):
        if op.name in table:
            return Made(table[op.name](op, kinds))
    raise refuse(op, REFUSED.get(op.name, ""))


def _on_pointers(op: Op, kinds: Kinds) -> Apply:
    """Make an operation on pointers: their shapes change as those of numbers do."""
    if op.name in MOVES:
        move = SHAPES[op.name](op, kinds)
        return lambda pointer: pointer.map(move)
    if op.name not in POINTERS:
        raise refuse(op, "on pointers")
    return POINTERS[op.name](op, kinds)


def _add(op: Op, kinds: Kinds) -> Apply:
    return lambda pointer, by: Pointer(pointer.owners, wide.add(pointer.offset, by), pointer.which)


def _choose(op: Op, kinds: Kinds) -> Apply:
    pick = select(op, kinds)

    def run(which: Array, a: Pointer, b: Pointer) -> Pointer:
        a, b = common((a, b))
        owner = None if a.which is None or b.which is None else pick(which, a.which, b.which)
        return Pointer(a.owners, wide.joined(lambda x, y: pick(which, x, y), a.offset, b.offset), owner)

    return run


def _size(element: str) -> int:
    return CODECS[element].storage.itemsize if element in CODECS else 8


def _recast(op: Op, kinds: Kinds) -> Apply:
    old, new = _size(kinds[0].element), _size(op.result_types[0].element)

    def run(pointer: Pointer) -> Pointer:
        at = pointer.offset * old
        if (at % new).any():
            raise refuse(op, f"a pointer to {kinds[0].element} that is not aligned for {op.result_types[0].element}")
        return pointer.moved(at // new)

    return run if old != new else lambda pointer: pointer


def _address(op: Op, kinds: Kinds) -> Apply:
    size = _size(kinds[0].element)

    def run(pointer: Pointer) -> Array:
        starts = np.array([owner.address for owner in pointer.owners], np.int64)
        return pointer.offset * size + (starts[:1] if pointer.which is None else starts[pointer.which])

    return run


def _program(op: Op, kinds: Kinds) -> Effect:
    axis = "xyz".index(op.words[0])
    return lambda frame: frame.programs.axis(axis)


def _programs(op: Op, kinds: Kinds) -> Effect:
    axis = "xyz".index(op.words[0])
    return lambda frame: np.full(1, frame.programs.grid[axis], np.int32)


def _resolve(op: Op, kinds: Kinds) -> Effect:
    """Find the allocation that an address lies in; null where there is none."""
    size = _size(op.result_types[0].element)

    def run(frame: Frame, address: Array) -> Pointer:
        known = list({owner.address: owner for owner in frame.world.owners}.values())
        which = np.full(address.shape, len(known), np.int16)
        for number, owner in enumerate(known):
            which[(address >= owner.address) & (address < owner.address + owner.nbytes)] = number
        starts = np.array([owner.address for owner in known] + [0], np.int64)
        return Pointer((*known, Allocation.null()), (address - starts[which]) // size, which)

    return run


def _store(op: Op, kinds: Kinds) -> Effect:
    return access.site(op, kinds[0]).write


def _update(op: Op, kinds: Kinds) -> Effect:
    site, change = access.site(op, kinds[0]), access.change(op, kinds[0].element)

    def run(frame: Frame, pointer: Pointer, value: Array, mask: Array | None = None) -> Array:
        return site.atomic(frame, pointer, mask, change, value)

    return run


def _exchange(op: Op, kinds: Kinds) -> Effect:
    site = access.site(op, kinds[0])

    def run(frame: Frame, pointer: Pointer, expected: Array, new: Array) -> Array:
        return site.atomic(frame, pointer, None, access.exchange, expected, new)

    return run


def _hold(op: Op, kinds: Kinds) -> Effect:
    """Stop at an assertion that some element fails, as a GPU's trap does."""

    def run(frame: Frame, condition: Array) -> None:
        if not condition.all():
            place = frame.programs.place(int(np.argwhere(~condition)[0, 0]))
            where = f"{op.line.path}:{op.line.number}"
            raise AssertionError(f"device assertion {op.attributes['message']!r} fails in program {place} ({where})")

    return run


def _look(op: Op, kinds: Kinds) -> Effect:
    site = access.site(op, kinds[0])
    return lambda frame, pointer, mask: site.atomic(frame, pointer, mask, lambda old: old)


def _put(op: Op, kinds: Kinds) -> Effect:
    site = access.site(op, kinds[0])

    def run(frame: Frame, pointer: Pointer, value: Array, mask: Array) -> None:
        site.atomic(frame, pointer, mask, lambda _, new: new, value)

    return run


POINTERS: dict[str, Callable[[Op, Kinds], Apply]] = {
    "tt.addptr": _add,
    "arith.select": _choose,
    "tt.bitcast": _recast,
    "tt.ptr_to_int": _address,
}
EFFECTS: dict[str, Callable[[Op, Kinds], Effect]] = {
    "tt.get_program_id": _program,
    "tt.get_num_programs": _programs,
    "tt.int_to_ptr": _resolve,
    "tt.store": _store,
    "tt.atomic_rmw": _update,
    "tt.atomic_cas": _exchange,
    "tt.assert": _hold,
    "tt.atomic_load": _look,
    "tt.atomic_store": _put,
    **DESCRIPTORS,
}
PURE = {"tt.get_program_id", "tt.get_num_programs", "tt.int_to_ptr", "tt.make_tensor_descriptor"}
