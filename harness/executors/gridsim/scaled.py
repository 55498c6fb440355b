"""`tl.dot_scaled`: products of microscaled operands, as Triton computes them on chips that have no such instruction."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.executors.gridsim.arith import Function, refuse
from harness.executors.gridsim.codecs import CODECS, Array, brain, half
from harness.executors.gridsim.ir import Op, Type

E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])
GROUP = 32  # elements along K that share a scale


def dot_scaled(op: Op, kinds: tuple[Type, ...]) -> Function:
    """Multiply by the scales in bfloat16 (in fp16 if an operand is), then sum in float32."""
    formats, scaled = (str(op.attributes["lhs"]), str(op.attributes["rhs"])), op.numbers("scaled")
    if False in (op.attributes.get("lhs_k_pack", True), op.attributes.get("rhs_k_pack", True)):
        raise refuse(op, "4-bit numbers packed along another axis than K")
    if any(kind.element not in ("i8", "ui8") for kind in _scales(kinds, scaled)):
        raise refuse(op, "scales that are not powers of two")
    bring = half if "fp16" in formats else brain
    codec = CODECS[op.result_types[0].element]

    def run(*given: Array) -> Array:
        rest = iter(zip(given, kinds, strict=True))
        a = bring(_operand(rest, formats[0], bool(scaled[0]), axis=2))
        b = bring(_operand(rest, formats[1], bool(scaled[1]), axis=1))
        return codec.round((np.matmul(a, b) + next(rest)[0]).astype(np.float32))

    return run


def _scales(kinds: tuple[Type, ...], scaled: tuple[int, ...]) -> list[Type]:
    first = kinds[1 : 1 + scaled[0]]
    return [*first, *kinds[2 + scaled[0] : 2 + sum(scaled)]]


def _operand(rest: Iterator[tuple[Array, Type]], form: str, scaled: bool, axis: int) -> Array:
    """Decode one operand; two 4-bit numbers share a byte, the lower first."""
    value, kind = next(rest)
    value = np.broadcast_to(value, (value.shape[0], *kind.shape))
    if form == "e2m1":
        raw = value.view(np.uint8)
        pair = np.stack([E2M1[raw & 15], E2M1[raw >> 4]], axis=axis + 1)
        value = pair.reshape(*raw.shape[:axis], 2 * raw.shape[axis], *raw.shape[axis + 1 :])
    if not scaled:
        return value
    scale, kind = next(rest)
    scale = np.broadcast_to(scale, (scale.shape[0], *kind.shape))
    factor = np.where(
        scale.view(np.uint8) == 255, np.nan, np.ldexp(np.float32(1), scale.view(np.uint8).astype(int) - 127)
    )
    factor = np.repeat(factor, GROUP, axis=2)
    return value * (factor if axis == 2 else factor.swapaxes(1, 2))
