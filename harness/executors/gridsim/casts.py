"""Conversions between element types, with the roundings and the saturation of NVIDIA's instructions."""
# ruff: noqa: ARG001 - every maker of a table has one signature

from __future__ import annotations

import numpy as np

from harness.executors.gridsim.arith import Builder, Function, refuse, unsigned
from harness.executors.gridsim.codecs import CODECS, FLOAT8, Array, brain, chop, half, same
from harness.executors.gridsim.ir import Op, Type


def _float_to_float(op: Op, kinds: tuple[Type, ...]) -> Function:
    source, target = kinds[0].element, op.result_types[0].element
    codec = CODECS[target]
    if op.attributes.get("rounding") == "rtz":
        return _towards_zero(op, target)
    if source == "f8E5M2" and target == "bf16":
        return _scaled_up
    if target == "f64" or op.name == "arith.extf":
        return lambda x: x.astype(codec.carrier, copy=False)
    if target == "f16":
        return half
    if source == "f64" and target == "f32":
        return lambda x: x.astype(np.float32)
    return lambda x: codec.round(x.astype(np.float32, copy=False))


def _scaled_up(x: Array) -> Array:
    """Triton multiplies the bits of e5m2 to get bf16, so infinity and NaN become the numbers that follow 57344."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    code = bits >> np.uint32(16) & np.uint32(3)  # a NaN's last two bits of e5m2 lie there
    following = (bits & np.uint32(1 << 31)) | np.uint32(127 + 16 << 23) | code << np.uint32(21)
    return np.where(np.isfinite(x), bits, following).view(np.float32)


def _towards_zero(op: Op, target: str) -> Function:
    if target == "bf16":
        return lambda x: np.where(np.isnan(x), brain(x), chop(x, 7))
    if target == "f8E5M2":
        return _upper_half
    if target != "f16":
        raise refuse(op, f"rounding towards zero to {target}")
    return _half_towards_zero


def _half_towards_zero(x: Array) -> Array:
    near = half(x)
    below = np.nextafter(near.astype(np.float16), np.float16(0)).astype(np.float32)
    return np.where(np.abs(near) > np.abs(x), below, near)


def _upper_half(x: Array) -> Array:
    """Cut to e5m2 as Triton does: the upper half of an fp16's bits."""
    bits = CODECS["f16"].pack(_half_towards_zero(x)).view(np.uint16) & np.uint16(0xFF00)
    return CODECS["f16"].unpack(bits.view(np.float16))


def _int_to_float(op: Op, kinds: tuple[Type, ...]) -> Function:
    target = op.result_types[0].element
    signed = op.name == "arith.sitofp"
    wide = np.float64 if target in ("f16", "f64") else np.float32
    bring: Function = half if target == "f16" else brain if target == "bf16" else same

    def run(x: Array) -> Array:
        whole = (-x.astype(np.int8) if signed else x) if x.dtype == np.bool_ else x if signed else unsigned(x)
        return bring(whole.astype(wide))

    if target in FLOAT8:
        raise refuse(op)
    return run


def _float_to_int(op: Op, kinds: tuple[Type, ...]) -> Function:
    """Convert towards zero; beyond the range NVIDIA's conversions saturate.

    A NaN gives 0, or the highest bit alone where either side has 64 bits (PTX ISA, cvt). There is no conversion to
    8 bits: it is one to 16, cut.
    """
    kind = CODECS[op.result_types[0].element].carrier
    if kind == np.bool_:
        return lambda x: x != 0
    letter, width = "i" if op.name == "arith.fptosi" else "u", max(kind.itemsize, 2)
    given = np.dtype(f"{letter}{width}")
    low, high = np.iinfo(given).min, np.iinfo(given).max
    nan = 1 << 8 * width - 1 if 8 in (kind.itemsize, CODECS[kinds[0].element].carrier.itemsize) else 0
    odd = np.array(nan, f"u{width}").view(given)

    def run(x: Array) -> Array:
        wide = np.trunc(x.astype(np.float64))
        inside = np.where((wide >= low) & (wide < high), wide, 0).astype(given)
        found = np.where(wide >= high, given.type(high), np.where(wide < low, given.type(low), inside))
        return np.where(np.isnan(wide), odd, found).astype(f"{letter}{kind.itemsize}").view(kind)

    return run


def _resize(op: Op, kinds: tuple[Type, ...]) -> Function:
    kind = CODECS[op.result_types[0].element].carrier
    if op.name == "arith.trunci" and kind == np.bool_:
        return lambda x: (x & 1).astype(np.bool_)
    if op.name == "arith.extsi" and kinds[0].element == "i1":
        return lambda x: -x.astype(kind)
    if op.name == "arith.extui":
        return lambda x: unsigned(x).astype(f"u{kind.itemsize}").view(kind)
    return lambda x: x.astype(kind)


def _bitcast(op: Op, kinds: tuple[Type, ...]) -> Function:
    source, target = CODECS[kinds[0].element], CODECS[op.result_types[0].element]
    return lambda x: target.unpack(np.ascontiguousarray(source.pack(x)).view(target.storage))


CASTS: dict[str, Builder] = {
    **dict.fromkeys(("arith.extf", "arith.truncf", "tt.fp_to_fp"), _float_to_float),
    **dict.fromkeys(("arith.sitofp", "arith.uitofp"), _int_to_float),
    **dict.fromkeys(("arith.fptosi", "arith.fptoui"), _float_to_int),
    **dict.fromkeys(("arith.extsi", "arith.extui", "arith.trunci"), _resize),
    **dict.fromkeys(("arith.bitcast", "tt.bitcast"), _bitcast),
}
