"""Operations that build, reshape, reduce and multiply tensors.

A value's first axis is the programs; a size-1 axis stands for an axis along which all is the same, so that constants,
`tt.splat` and `tt.broadcast` cost nothing. Operations that need every element ask for `full`.
"""
# ruff: noqa: ARG001 - every maker of a table has one signature

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

import numpy as np

from harness.executors.gridsim.arith import Function, refuse
from harness.executors.gridsim.codecs import CODECS, Array, tf32
from harness.executors.gridsim.ir import Op, Type
from harness.executors.gridsim.scaled import dot_scaled

Combine = Callable[[list[Array]], list[Array]]
Fold = Callable[..., Array | tuple[Array, ...]]


def full(x: Array, shape: tuple[int, ...]) -> Array:
    """Stretch every axis but the programs' to its size."""
    return x if x.shape[1:] == shape else np.broadcast_to(x, x.shape[:1] + shape)


def constant(op: Op) -> Array:
    """Read the literal of an `arith.constant`."""
    kind = op.result_types[0]
    text = str(op.attributes["value"])
    if text.startswith("dense<") and kind.shape:
        text = text[len("dense<") : -1]
    if text.startswith("["):
        words = re.sub(r"[^\s,\[\]]+", lambda m: f'"{m[0]}"', text)
        flat = np.array(json.loads(words)).ravel()
        values = np.concatenate([_scalar(str(word), kind.element) for word in flat])
        return values.reshape((1, *kind.shape))
    return _scalar(text, kind.element).reshape((1,) * (1 + len(kind.shape)))


def _scalar(text: str, element: str) -> Array:
    codec = CODECS[element]
    if text in ("true", "false"):
        return np.full(1, text == "true").astype(codec.carrier)
    if text.startswith("0x") and codec.carrier.kind == "f":
        bits = np.array([int(text, 16)], f"u{codec.storage.itemsize}")
        return codec.unpack(bits.view(codec.storage))
    return np.array([float(text) if codec.carrier.kind == "f" else int(text, 0)]).astype(codec.carrier)


def _poison(op: Op, kinds: tuple[Type, ...]) -> Function:
    """Make a value that no right kernel looks at."""
    kind = op.result_types[0]
    value = CODECS[kind.element].poison.reshape((1,) * (1 + len(kind.shape)))
    return lambda: value


def _range(op: Op, kinds: tuple[Type, ...]) -> Function:
    values = np.arange(op.number("start"), op.number("end"), dtype=np.int32)[None]
    return lambda: values


def _splat(op: Op, kinds: tuple[Type, ...]) -> Function:
    ones = (1,) * len(op.result_types[0].shape)
    return lambda x: x.reshape(x.shape[:1] + ones)


def _unsplat(op: Op, kinds: tuple[Type, ...]) -> Function:
    return lambda x: x.reshape(x.shape[0])


def _same(op: Op, kinds: tuple[Type, ...]) -> Function:
    return lambda x: x


def _expand(op: Op, kinds: tuple[Type, ...]) -> Function:
    where = (slice(None),) * (op.number("axis") + 1) + (None,)
    return lambda x: x[where]


def _reshape(op: Op, kinds: tuple[Type, ...]) -> Function:
    source, target = kinds[0].shape, op.result_types[0].shape
    ones = (1,) * len(target)

    def run(x: Array) -> Array:
        return x.reshape(x.shape[:1] + ones) if x.size == x.shape[0] else full(x, source).reshape(x.shape[:1] + target)

    return run


def _transpose(op: Op, kinds: tuple[Type, ...]) -> Function:
    order = (0, *(axis + 1 for axis in op.numbers("order")))
    return lambda x: x.transpose(order)


def _join(op: Op, kinds: tuple[Type, ...]) -> Function:
    return lambda a, b: np.stack(np.broadcast_arrays(a, b), axis=-1)


def _split(op: Op, kinds: tuple[Type, ...]) -> Fold:
    return lambda x: (x[..., 0], x[..., -1])


def _cat(op: Op, kinds: tuple[Type, ...]) -> Function:
    def run(a: Array, b: Array) -> Array:
        count = max(a.shape[0], b.shape[0])
        return np.concatenate([np.broadcast_to(x, (count, *kinds[0].shape)) for x in (a, b)], axis=1)

    return run


def _gather(op: Op, kinds: tuple[Type, ...]) -> Function:
    axis = op.number("axis") + 1

    def run(x: Array, index: Array) -> Array:
        count = max(x.shape[0], index.shape[0])
        x, index = np.broadcast_to(x, (count, *kinds[0].shape)), np.broadcast_to(index, (count, *kinds[1].shape))
        return np.take_along_axis(x, index.astype(np.int64) % x.shape[axis], axis)

    return run


def _histogram(op: Op, kinds: tuple[Type, ...]) -> Function:
    bins = op.result_types[0].shape[0]

    def run(x: Array, mask: Array | None = None) -> Array:
        x = full(x, kinds[0].shape)
        hits = x[..., None] == np.arange(bins)
        counts: Array = (hits if mask is None else hits & mask[..., None]).sum(axis=1, dtype=np.int32)
        return counts

    return run


def select(op: Op, kinds: tuple[Type, ...]) -> Function:
    """Choose between two values; one condition may stand for a whole tensor."""

    def run(which: Array, a: Array, b: Array) -> Array:
        short = a.ndim - which.ndim
        return np.where(which.reshape(which.shape + (1,) * short) if short else which, a, b)

    return run


SPEEDY = {"arith.addf": np.add, "arith.mulf": np.multiply}
FOLDED: dict[str, np.ufunc] = {
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.addi": np.add,
    "arith.muli": np.multiply,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}


def simple(op: Op, kinds: tuple[Type, ...]) -> np.ufunc | None:
    """Recognise a combine region of one operation that NumPy folds; sums of 16-bit floats round at every step."""
    (block,) = op.regions[0]
    if len(block.ops) != 2 or set(block.ops[0].operands) != set(block.args) or len(block.args) != 2:
        return None
    name, element = block.ops[0].name, kinds[0].element
    if element == "i1":
        return FOLDED.get(name) if name in ("arith.andi", "arith.ori", "arith.xori") else None
    return (SPEEDY.get(name) if element in ("f32", "f64") else None) or FOLDED.get(name)


def reduce(op: Op, kinds: tuple[Type, ...], combine: Combine) -> Fold:
    """Fold along an axis: by NumPy, or in halves through the combine region."""
    axis, shape = op.number("axis") + 1, kinds[0].shape
    ufunc = simple(op, kinds)
    if ufunc is not None:
        kind, fold = CODECS[kinds[0].element].carrier, ufunc.reduce
        return lambda x: fold(_stretch(x, axis, shape), axis=axis, dtype=kind)

    def run(*given: Array) -> Array | tuple[Array, ...]:
        values = [full(x, shape) for x in given]
        while (size := values[0].shape[axis]) > 1:
            values = combine([*_part(values, axis, 0, size // 2), *_part(values, axis, size // 2, size)])
        found = tuple(value.squeeze(axis) for value in values)
        return found if len(found) > 1 else found[0]

    return run


def _stretch(x: Array, axis: int, shape: tuple[int, ...]) -> Array:
    size = shape[axis - 1]
    return x if x.shape[axis] == size else np.broadcast_to(x, (*x.shape[:axis], size, *x.shape[axis + 1 :]))


def _part(values: Sequence[Array], axis: int, start: int, stop: int) -> list[Array]:
    where = (slice(None),) * axis + (slice(start, stop),)
    return [value[where] for value in values]


def scan(op: Op, kinds: tuple[Type, ...], combine: Combine) -> Fold:
    """Fold along an axis and keep every step; lane i takes from i - 1, i - 2, i - 4 and so on, as warps do."""
    axis, shape, reverse = op.number("axis") + 1, kinds[0].shape, op.attributes["reverse"]

    def run(*given: Array) -> Array | tuple[Array, ...]:
        values = [full(x, shape) for x in given]
        values = [np.flip(x, axis) for x in values] if reverse else values
        reach, size = 1, shape[axis - 1]
        while reach < size:
            late = combine([*_part(values, axis, 0, size - reach), *_part(values, axis, reach, size)])
            early = _part(values, axis, 0, reach)
            values = [np.concatenate(pair, axis=axis) for pair in zip(early, late, strict=True)]
            reach *= 2
        values = [np.flip(x, axis) for x in values] if reverse else values
        return tuple(values) if len(values) > 1 else values[0]

    return run


PRECISIONS = {"ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"}  # the last three come near float32, and run as float32


def _dot(op: Op, kinds: tuple[Type, ...]) -> Function:
    """Multiply with float32 sums (exact ones for integers); TF32 cuts its operands."""
    (left, right, _), element = kinds, op.result_types[0].element
    if op.attributes.get("inputPrecision", "ieee") not in PRECISIONS:
        raise refuse(op, f"the precision {op.attributes['inputPrecision']}")
    cut = left.element == "f32" and op.attributes.get("inputPrecision") == "tf32"
    codec = CODECS[element]
    wide = np.float64 if element in ("i32", "f64") else np.float32  # BLAS has no integers; 8-bit products sum exactly

    def run(a: Array, b: Array, c: Array) -> Array:
        a, b = full(a, left.shape).astype(wide, copy=False), full(b, right.shape).astype(wide, copy=False)
        product = np.matmul(tf32(a), tf32(b)) if cut else np.matmul(a, b)
        return codec.round((product + c).astype(codec.carrier, copy=False))

    return run


SHAPES: dict[str, Callable[[Op, tuple[Type, ...]], Fold]] = {
    "ub.poison": _poison,
    "tt.make_range": _range,
    "tt.splat": _splat,
    "tt.broadcast": _same,
    "tt.expand_dims": _expand,
    "tt.reshape": _reshape,
    "tt.trans": _transpose,
    "tt.unsplat": _unsplat,
    "tt.join": _join,
    "tt.split": _split,
    "tt.cat": _cat,
    "tt.gather": _gather,
    "tt.histogram": _histogram,
    "arith.select": select,
    "tt.dot": _dot,
    "tt.dot_scaled": dot_scaled,
}
MOVES = {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.unsplat"}
