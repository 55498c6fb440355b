"""The element types of TTIR: the NumPy type that carries one, how it is rounded, how it lies in memory.

A 16-bit or 8-bit float is carried as the float32 of the same value, and rounded back to its type after every operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from harness.executors.gridsim.ir import Unsupported

Array = NDArray[Any]
Unary = Callable[[Array], Array]

FLOAT8 = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}
NAN = np.uint32(0x7FFFFFFF).view(np.float32)  # what NVIDIA's conversions make of every NaN; cut to 16 bits, 0x7FFF
POISON = 0x5EADBEEF  # what a read out of bounds gives where there is no NaN: positive, and far out as an index


@dataclass(frozen=True)
class Codec:
    """One element type: `carrier` computes, `storage` lies in memory, `round` brings a float32 back to the type."""

    carrier: np.dtype[Any]
    storage: np.dtype[Any]
    round: Unary
    pack: Unary
    unpack: Unary
    poison: Array


def same(x: Array) -> Array:
    """Leave as is."""
    return x


def half(x: Array) -> Array:
    """Round to fp16, nearest even; beyond its range lies infinity."""
    if x.dtype != np.float32:
        return _one_nan(x.astype(np.float16).astype(np.float32), 13)
    found = _nearest(x, 13)
    size = np.abs(x)
    if size.size and not size.min() >= 2.0**-14:  # fp16 subnormals: steps of 2^-24, which is the last place of 0.5
        found = np.where(size < 2.0**-14, np.copysign((size + np.float32(0.5)) - np.float32(0.5), x), found)
    if size.size and not size.max() < 65520:
        found = np.where(size >= 65520, np.copysign(np.float32(np.inf), x), found)
        return _one_nan(np.where(np.isnan(x), x, found), 13)
    return found


def brain(x: Array) -> Array:
    """Round to bf16, nearest even."""
    x = x.astype(np.float32, copy=False)
    found = _nearest(x, 16)
    nan = np.isnan(x)
    return _one_nan(np.where(nan, x, found), 16) if nan.any() else found  # a payload may lie in bits cut off


def _one_nan(x: Array, bits: int) -> Array:
    """Give every NaN the bits that NVIDIA's instructions give it: all ones, so many of them cut off."""
    return np.where(np.isnan(x), (NAN.view(np.uint32) >> bits << bits).view(np.float32), x)


def _nearest(x: Array, bits: int) -> Array:
    """Round float32 mantissas to fewer bits, nearest even; carries go into the exponent, as they should."""
    raw = np.ascontiguousarray(x).view(np.uint32)
    found = raw >> np.uint32(bits)
    found &= np.uint32(1)
    found += np.uint32((1 << bits - 1) - 1)
    found += raw
    found &= np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)
    return found.view(np.float32)


def _widen(raw: Array) -> Array:
    """Read fp16: its bits, in a float32's places, lack a factor of 2^112 (NumPy's own cast is 6 times slower)."""
    wide = raw.view(np.int16).astype(np.int32)
    special = (wide & 0x7C00) == 0x7C00
    wide <<= 13
    wide &= np.int32(-0x70002000)
    found = wide.view(np.float32)
    found *= np.float32(2.0**112)
    if special.any():
        wide |= np.where(special, np.int32(0x7F800000), np.int32(0))
    return found


def _narrow(x: Array) -> Array:
    """Write fp16; a NaN keeps its bits, which some processors' conversions would change."""
    found = x.astype(np.float16)
    if (nan := np.isnan(x)).any():
        raw = np.ascontiguousarray(x).view(np.uint32)
        kept = (
            (raw >> np.uint32(16) & np.uint32(0x8000)) | np.uint32(0x7C00) | (raw >> np.uint32(13) & np.uint32(0x3FF))
        )
        found = np.where(nan, kept.astype(np.uint16).view(np.float16), found)
    return found


def chop(x: Array, bits: int) -> Array:
    """Cut float32 mantissas to this many bits, towards zero."""
    mask = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    cut = (np.ascontiguousarray(x, np.float32).view(np.uint32) & mask).view(np.float32)
    return np.where(np.isnan(x), x, cut)


def tf32(x: Array) -> Array:
    """Cut to TF32, as the tensor cores do: they ignore the low bits."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _upper(x: Array) -> Array:
    """Give the upper half of a float32's bits: of an FP8 value it holds all."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _float8_tables(kind: type[np.generic]) -> tuple[Array, Array]:
    """Make the float32 of each of the 256 codes, and the code by the upper half of the float32; NaNs keep their bits.

    A NaN that came about in float32 has the code 0x7F, as in NVIDIA's conversions.
    """
    every = np.arange(256, dtype=np.uint8)
    values = every.view(kind).astype(np.float32)
    code = every.astype(np.uint32)
    payload = (code & 0x80) << 24 | np.uint32(0x7F800000) | (code & 0x7F) << 16
    values = np.where(np.isnan(values), payload.view(np.float32), values)
    codes = np.full(1 << 16, 0x7F, np.uint8)
    codes[_upper(values)] = every
    return values, codes


def _float8(name: str) -> Codec:
    info = ml_dtypes.finfo(FLOAT8[name])  # type: ignore[no-untyped-call]
    top, step = float(info.max), float(info.smallest_subnormal)
    table, codes = _float8_tables(FLOAT8[name])

    def rounded(x: Array) -> Array:
        _, exponent = np.frexp(x)
        unit = np.maximum(np.ldexp(np.float32(1), exponent - 1 - info.nmant), np.float32(step))
        finite = np.clip(x, -top, top)  # saturates, infinity too
        near = np.where(np.abs(x) >= top, finite, np.rint(finite / unit) * unit).astype(np.float32)
        return np.where(np.isnan(x), table[0x7F], near)

    return Codec(
        np.dtype(np.float32),
        np.dtype(np.uint8),
        rounded,
        lambda x: codes[_upper(x)],
        lambda raw: table[raw],
        np.full(1, table[0x7F], np.float32),
    )


def _plain(kind: type[np.generic]) -> Codec:
    of = np.dtype(kind)
    poison = np.nan if of.kind == "f" else POISON >> max(0, 32 - 8 * of.itemsize)
    return Codec(of, of, same, same, same, np.full(1, poison, of))


class _Codecs(dict[str, Codec]):
    """By the names of TTIR. Those of FP8 that NVIDIA's chips lack are no entries, nor is Triton's own with bias 15."""

    def __missing__(self, element: str) -> Codec:
        raise Unsupported(f"numbers of the type {element} are not supported")


CODECS = _Codecs(
    {
        "f32": _plain(np.float32),
        "f64": _plain(np.float64),
        "i8": _plain(np.int8),
        "i16": _plain(np.int16),
        "i32": _plain(np.int32),
        "i64": _plain(np.int64),
        "i1": Codec(
            np.dtype(np.bool_),
            np.dtype(np.uint8),
            same,
            lambda x: x.astype(np.uint8),
            lambda raw: raw != 0,
            np.full(1, True),
        ),
        "f16": Codec(
            np.dtype(np.float32),
            np.dtype(np.float16),
            half,
            _narrow,
            _widen,
            np.full(1, np.nan, np.float32),
        ),
        "bf16": Codec(
            np.dtype(np.float32),
            np.dtype(np.uint16),
            brain,
            lambda x: (np.ascontiguousarray(x).view(np.uint32) >> np.uint32(16)).astype(np.uint16),
            lambda raw: (raw.astype(np.uint32) << 16).view(np.float32),
            np.full(1, np.nan, np.float32),
        ),
        **{name: _float8(name) for name in FLOAT8},
    }
)
CODECS.update({f"{sign}i{bits}": CODECS[f"i{bits}"] for sign in "su" for bits in (8, 16, 32, 64)})  # of descriptors
