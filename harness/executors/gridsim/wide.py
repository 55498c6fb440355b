"""Integers that wrapped on their way to an address, with what they should be.

Where no lane wraps, values are plain arrays and a step costs one comparison more. Where one does, the value becomes
`Wide`: it computes as before, and beside it go the true values, in 64 bits, and for each lane the step that wrapped.
An access through a pointer that is not where it should be is then recorded. A sum that wraps twice and is right in the
end is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.ir import Line, Op, Type
from harness.executors.gridsim.shapes import MOVES

NARROW = {"i8": 8, "i16": 16, "i32": 32}
NONE = np.full(1, None)  # NumPy's types know no bare None
WRAPPING: dict[str, tuple[str, np.ufunc]] = {
    "arith.addi": ("+", np.add),
    "arith.subi": ("-", np.subtract),
    "arith.muli": ("*", np.multiply),
    "arith.shli": ("<<", np.left_shift),
}


@dataclass(frozen=True)
class Wrap:
    """One lane of one step whose result did not fit."""

    line: Line
    sign: str
    left: int
    right: int
    true: int
    bits: int

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right} = {self.true} does not fit in {self.bits} bits"


class Wide(np.ndarray[Any, Any]):
    """An array with its true values, and for each lane that is not true the step that wrapped (None: it is true)."""

    true: Array | None = None
    source: Array | None = None

    @classmethod
    def make(cls, values: Array, true: Array, source: Array) -> Array:
        """Put the three together; where every lane is true again, the plain array will do."""
        values = plain(values)
        if not (values != true).any():
            return values
        made = values.view(cls)
        made.true, made.source = true, np.where(values != true, source, NONE)
        return made

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *given: Any, **how: Any) -> Any:
        """Compute like a plain array: what comes of it is followed by `Follow` alone."""
        return getattr(ufunc, method)(*(plain(one) for one in given), **how)


def plain(x: Any) -> Any:
    """Drop what goes beside an array."""
    return x.view(np.ndarray) if isinstance(x, Wide) else x


def each(change: Callable[[Array], Array], x: Array) -> Array:
    """Reshape or choose; true values and sources go along."""
    if type(x) is not Wide or x.true is None or x.source is None:
        return change(x)
    return Wide.make(change(plain(x)), change(x.true), change(x.source))


def parts(x: Array) -> tuple[Array, Array, Array]:
    """Give the values, the true values and the sources."""
    if type(x) is Wide and x.true is not None and x.source is not None:
        return plain(x), x.true, x.source
    return plain(x), plain(x).astype(np.int64), NONE.reshape((1,) * x.ndim)


def joined(change: Callable[..., Array], *given: Array) -> Array:
    """Put together what several arrays hold, value by value: `change` picks or scatters."""
    if not any(type(x) is Wide for x in given):
        return change(*given)
    return Wide.make(*(change(*some) for some in zip(*(parts(x) for x in given), strict=True)))


def either(apply: np.ufunc, a: Array, b: Array) -> Array:
    """Compute with two arrays one of which is wide."""
    (x, true_x, from_x), (y, true_y, from_y) = parts(a), parts(b)
    values = apply(x, y)
    source = np.broadcast_to(np.where(from_x.astype(bool), from_x, from_y), values.shape)
    return Wide.make(values, apply(true_x, true_y), source)


def add(a: Array, b: Array) -> Array:
    """Move offsets."""
    return either(np.add, a, b) if type(a) is Wide or type(b) is Wide else a + b


def follow(op: Op, kinds: tuple[Type, ...], apply: Callable[..., Any]) -> Callable[..., Any]:
    """Let an operation on integers that can reach an address notice what wraps, and hand on what has wrapped."""
    if any(kind.kind != "value" for kind in op.result_types):
        return apply
    if op.name in WRAPPING:
        return _arithmetic(op, kinds, apply)
    if op.name == "arith.select":
        return lambda which, a, b: joined(lambda x, y: apply(which, x, y), a, b)
    if op.name == "arith.extsi" and kinds[0].element != "i1":
        return lambda x: _extended(apply, x)
    return (lambda x: each(apply, x)) if op.name in MOVES else apply


def _extended(apply: Callable[[Array], Array], x: Array) -> Array:
    if type(x) is not Wide:
        return apply(x)
    values, true, source = parts(x)
    return Wide.make(apply(values), true, source)


def _arithmetic(op: Op, kinds: tuple[Type, ...], apply: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    sign, exact = WRAPPING[op.name]
    bits = NARROW.get(kinds[0].element, 0)
    if not bits:
        return lambda a, b: either(exact, a, b) if type(a) is Wide or type(b) is Wide else apply(a, b)

    def run(a: Array, b: Array) -> Array:
        found = apply(a, b)
        true = exact(parts(a)[1], parts(b)[1]) if type(a) is Wide or type(b) is Wide else exact(a, b, dtype=np.int64)
        if (found == true).all():
            return found
        return Wide.make(found, true, _sources(op.line, sign, bits, a, b, found, true))

    return run


def _sources(line: Line, sign: str, bits: int, a: Array, b: Array, found: Array, true: Array) -> Array:
    """Name the step for each lane that it made wrong; lanes that were wrong before keep what made them so."""
    (_, left, from_a), (_, right, from_b) = parts(a), parts(b)
    left, right, from_a, from_b = (np.broadcast_to(x, found.shape) for x in (left, right, from_a, from_b))
    source = np.where(from_a.astype(bool), from_a, from_b)
    for at in zip(*np.nonzero((found != true) & ~source.astype(bool)), strict=True):
        source[at] = Wrap(line, sign, int(left[at]), int(right[at]), int(true[at]), bits)
    return source
