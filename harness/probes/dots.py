"""Probes of `tl.dot`: how matrix units add, and what they keep of their operands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.arithmetic import ETA_TF32
from harness.platforms import Platform
from harness.probes.arguments import double, random, spread, tell_of, worst_of
from harness.probes.device import Device
from harness.probes.probe import Worst, probe
from harness.tensors import Array
from harness.values import DTYPES

#: Programs of a probe, its columns, and its inner dimension where that does not matter.
PROGRAMS, COLUMNS, INNER = 32, 16, 32


def _products(rows: int, inner: int, dtype: str, salt: str) -> tuple[Array, Array]:
    """Operands whose products all add up, or where one is large and the others fall below its last place."""
    rng = random(salt)
    kind = DTYPES[dtype]
    a, b = rng.uniform(0.5, 1, (PROGRAMS, rows, inner)), rng.uniform(0.5, 1, (PROGRAMS, inner, COLUMNS))
    for program in range(PROGRAMS // 4, PROGRAMS):
        small = 2.0 ** -(program % (6 if dtype in ("e4m3", "e5m2") else 12))
        a[program], b[program] = a[program] * small, b[program] * small
        large = rng.integers(0, inner)
        a[program, :, large], b[program, large, :] = 1.0, 1.0
        if program % 3 == 0:  # the large ones cancel: what the small ones lost is all the result
            a[program, :, large - 1], b[program, large - 1, :] = -1.0, 1.0
    return a.astype(kind), b.astype(kind)


def _implied_unit(device: Device, platform: Platform, dtype: str, shape: tuple[int, int], matrix: bool) -> Worst:
    """The unit that the bound's growth of a sum of products must have to cover the errors, which it is solved for."""
    a, b = _products(*shape, dtype, f"dot {dtype} {shape}")
    got = double(device.dot(a, b))
    truth, size = double(a) @ double(b), np.abs(double(a)) @ np.abs(double(b))
    terms = shape[1] + (2 * np.ceil(shape[1] / platform.dot_block) if matrix and platform.dot_block else 0.0)
    errors = np.abs(got - truth) / (terms * size)

    def tell_at(at: int) -> str:
        where = tuple(int(i) for i in np.unravel_index(at, got.shape))
        mean = float(((got - truth) / size).mean()) * 2.0**24
        sums = f"a sum of {shape[1]} products is {float(got[where])!r}, but should be {float(truth[where])!r}"
        return f"{sums} (program, row, column {list(where)}); mean {mean:+.3g} of 2^-24 of the absolute sum"

    return worst_of(errors.ravel(), tell_at)


def _enter_dot(dtype: str, shape: tuple[int, int], constant: str, matrix: bool = True) -> None:
    def measure(device: Device, platform: Platform) -> Worst:
        return _implied_unit(device, platform, dtype, shape, matrix)

    probe(f"dot of {dtype}, {shape[0]} rows and {shape[1]} products, unit of its accumulator", constant)(measure)


#: Rows and products of a dot: few rows go to one kind of matrix instruction, 64 and more to another.
SMALL, LARGE = (16, 32), (64, 128)

for _shape in (SMALL, LARGE):
    _enter_dot("float16", _shape, "dot_unit")
    _enter_dot("bfloat16", _shape, "dot_unit")
    _enter_dot("e4m3", _shape, "fp8_dot_unit")
    _enter_dot("e5m2", _shape, "fp8_dot_unit")
_enter_dot("float32", SMALL, "unit", matrix=False)


def _lone_products(device: Device, precision: str, both: bool, salt: str) -> Iterator[tuple[Array, Array, Array]]:
    """Got, truth and size where each sum has one product: x times 1 and 1 times x, or x times y; any mantissa."""
    shape = (PROGRAMS, 16, INNER)
    for first in (True, False):
        a, b = np.zeros(shape, np.float32), np.zeros((PROGRAMS, INNER, COLUMNS), np.float32)
        x = spread(-20, 20, f"{salt} {first}")
        x[2::8] = np.ldexp(np.float32(1 + 8191 * 2.0**-23), np.arange(len(x[2::8])) % 40 - 20)  # the last 13 bits are 1
        if both or first:
            a[:, :, 3] = x[: PROGRAMS * 16].reshape(PROGRAMS, 16)
        if both or not first:
            b[:, 3, :] = x[-PROGRAMS * COLUMNS :].reshape(PROGRAMS, COLUMNS)
        a[:, :, 3], b[:, 3, :] = np.where(a[:, :, 3] == 0, 1, a[:, :, 3]), np.where(b[:, 3, :] == 0, 1, b[:, 3, :])
        truth = double(a) @ double(b)
        yield double(device.dot(a, b, precision)).ravel(), truth.ravel(), np.abs(truth).ravel()


@probe("operands of a TF32 dot", "u_tf32")
def tf32(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """Each by itself against 1, so that nothing else is rounded."""
    found = []
    for got, truth, size in _lone_products(device, "tf32", False, "tf32"):
        errors = np.abs(got - truth) / size
        low = float((np.abs(got) < size).mean())
        at = tell_of("x times 1 in TF32", [truth], got, truth)
        worst = worst_of(errors, at)
        found.append(Worst(worst.value, f"{worst.shows}; {low:.0%} are too small"))
    return max(found, key=lambda worst: worst.value if isinstance(worst.value, float) else 0.0)


@probe("a product of a TF32x3 dot", "u_tf32")
def tf32x3(device: Device, platform: Platform) -> Worst:
    """Errs by 3 u^2 and the accumulator's growth, and is solved for u."""
    found = []
    steps = 3 * (INNER + (2 * np.ceil(INNER / platform.dot_block) if platform.dot_block else 0))
    for got, truth, size in _lone_products(device, "tf32x3", True, "tf32x3"):
        beyond = np.maximum(np.abs(got - truth) / size - steps * platform.dot_unit, 0.0)
        found.append(worst_of(np.sqrt(beyond / 3), tell_of("x y in TF32x3", [truth], got, truth)))
    return max(found, key=lambda worst: worst.value if isinstance(worst.value, float) else 0.0)


def _lost(device: Device, dtype: str, smallest: float, count: int, precision: str = "ieee") -> Worst:
    """What a dot loses of subnormal operands, relative to the other operand."""
    kind, large = DTYPES[dtype], 2.0**10
    a, b = np.zeros((PROGRAMS, 16, INNER), kind), np.zeros((PROGRAMS, INNER, COLUMNS), kind)
    x = random(f"lost {dtype}").integers(1, count, (PROGRAMS, 16)) * smallest
    a[:, :, 3], b[:, 3, :] = x.astype(kind), large
    truth = (double(a) @ double(b)).ravel()
    got = double(device.dot(a, b, precision)).ravel()
    return worst_of(
        np.abs(got - truth) / large, tell_of(f"x times {large} in a {dtype} dot", [truth / large], got, truth)
    )


def _enter_lost(dtype: str, smallest: float, count: int, precision: str = "ieee") -> None:
    def measure(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
        return _lost(device, dtype, smallest, count, precision)

    def assumed(platform: Platform) -> float:
        return max(platform.eta, ETA_TF32) if precision == "tf32" else platform.eta

    how = f" in {precision}" if dtype == "float32" else ""
    probe(f"subnormal operands of a {dtype} dot{how}", "eta", assumed)(measure)


_enter_lost("float16", 2.0**-24, 1 << 10)
_enter_lost("bfloat16", 2.0**-133, 1 << 7)
_enter_lost("float32", 2.0**-149, 1 << 23)
_enter_lost("float32", 2.0**-149, 1 << 23, "tf32")
