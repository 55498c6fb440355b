"""Probes of casts: to nearest, and what becomes of a value out of range."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from harness.arithmetic import FORMATS
from harness.platforms import Platform
from harness.probes import kernels
from harness.probes.arguments import COUNT, double, random, tell_of, worst_of
from harness.probes.device import Device
from harness.probes.probe import Measure, Worst, probe
from harness.tensors import Array
from harness.values import DTYPES


def _castable(dtype: str) -> Array:
    """Every midpoint of two neighbours of the type with its float32 neighbours, and random bits: float32, finite."""
    kind = np.dtype(DTYPES[dtype])
    patterns = np.arange(1 << (8 * kind.itemsize), dtype=f"u{kind.itemsize}")
    exact = np.sort(double(patterns.view(kind)[np.isfinite(double(patterns.view(kind)))]))
    exact = np.unique(exact)
    middles = ((exact[1:] + exact[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(middles, np.float32(way)) for way in (-np.inf, np.inf)]
    bits = random(f"cast {dtype}").integers(0, 1 << 32, COUNT, dtype=np.uint64).astype(np.uint32).view(np.float32)
    found = np.concatenate([exact.astype(np.float32), middles, *near, bits])
    return np.asarray(found[np.isfinite(found)])


def _cast_errors(device: Device, platform: Platform, dtype: str) -> tuple[Array, Array, Array]:
    """Arguments, results, and errors in units of what rounding to nearest may err by; all float64, within range."""
    x = _castable(dtype)
    got = double(device.elementwise(kernels.identity, x, dtype=dtype))
    unit, eta = FORMATS[dtype]
    wide = double(x)
    flushed = np.where(np.abs(wide) < 2.0**-126, platform.eta, 0.0)
    return wide, got, np.abs(got - wide) / np.maximum(np.maximum(unit * np.abs(wide), eta), flushed)


def _largest(dtype: str) -> float:
    return float(ml_dtypes.finfo(DTYPES[dtype]).max)  # type: ignore[no-untyped-call]


@probe("cast to float16, in half units of its last place", "cast to float16", lambda _: 1.0)
def cast_fp16(device: Device, platform: Platform) -> Worst:
    """To nearest; beyond the range infinity or the largest number."""
    x, got, errors = _cast_errors(device, platform, "float16")
    beyond = np.abs(x) > _largest("float16")
    right = (np.abs(got) >= _largest("float16")) & (np.sign(got) == np.sign(x))
    return worst_of(np.where(beyond, np.where(right, 0.0, np.inf), errors), tell_of("float16", [x], got, x))


@probe("cast to bfloat16", "truncates_bf16")
def cast_bf16(device: Device, platform: Platform) -> Worst:
    """To nearest, or towards zero; worse than that is no number."""
    x, got, errors = _cast_errors(device, platform, "bfloat16")
    inside = np.abs(x) <= _largest("bfloat16")
    worst = worst_of(np.where(inside, errors, 0.0), tell_of("bfloat16", [x], got, x))
    assert isinstance(worst.value, float)
    return Worst(worst.value > 1 if worst.value <= 2 else None, worst.shows)


def _cast_fp8(dtype: str) -> Measure:
    def measure(device: Device, platform: Platform) -> Worst:
        x, got, errors = _cast_errors(device, platform, dtype)
        inside = np.abs(x) <= _largest(dtype)
        worst = worst_of(np.where(inside, errors, 0.0), tell_of(dtype, [x], got, x))
        if not errors[inside].max() <= 1:
            return Worst("broken", worst.shows)
        wrong = ~inside & (got != np.sign(x) * _largest(dtype))
        at = tell_of(dtype, [x], got, np.sign(x) * _largest(dtype))
        return Worst("overflows", at(int(wrong.argmax()))) if wrong.any() else Worst("saturates", worst.shows)

    return measure


for _dtype in ("e4m3", "e5m2"):
    probe(f"cast to {_dtype}", "fp8_cast")(_cast_fp8(_dtype))
