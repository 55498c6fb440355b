"""Probes of exp, log, tanh, division, and of ordinary arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.platforms import Platform
from harness.probes import kernels
from harness.probes.arguments import COUNT, between, double, random, spread, tell_of, worst_of
from harness.probes.device import Device
from harness.probes.probe import Worst, probe
from harness.tensors import Array

#: Exponents at which neither an argument nor a quotient comes near the ends of float32.
LOW, HIGH = -60, 60


def _relative(device: Device, function: Any, truth: Array, *arguments: Array) -> tuple[Array, Array]:
    """Results and their relative errors."""
    got = device.elementwise(function, *arguments).astype(np.float64)
    return got, np.abs(got - truth) / np.abs(truth)


@probe("exp2, relative, on [-125, 126]", "eps_exp")
def exp2(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """Also next to integers and near 0."""
    x = between(-125, 126, "exp2")
    truth = np.exp2(double(x))
    got, errors = _relative(device, kernels.exp2, truth, x)
    return worst_of(errors, tell_of("exp2", [x], got, truth))


@probe("exp, relative, on [-87, 87], beyond two roundings of x log2(e)", "eps_exp")
def exp(device: Device, platform: Platform) -> Worst:
    """The bound allows for the two roundings among the errors of a score."""
    x = between(-87, 87, "exp")
    truth = np.exp(double(x))
    got, errors = _relative(device, kernels.exp, truth, x)
    return worst_of(errors - 2 * platform.unit * np.abs(double(x)), tell_of("exp", [x], got, truth))


@probe("exp2 of 0 and of what is far below", "exp2 at its ends", lambda _: 0.0)
def exp2_ends(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """A key that is the largest weighs exactly 1, and one that is masked exactly 0."""
    x = np.array([0.0, -0.0, -150.5, -1e4, -1e30, -np.inf], np.float32)
    got, truth = double(device.elementwise(kernels.exp2, x)), np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    return worst_of(np.abs(got - truth), tell_of("exp2", [x], got, truth))


@probe("exp2 below -125, absolute", "eta")
def exp2_underflow(device: Device, platform: Platform) -> Worst:
    """A result that is subnormal may be flushed to 0."""
    x = between(-152, -125, "exp2 underflow")
    truth = np.exp2(double(x))
    got = double(device.elementwise(kernels.exp2, x))
    # The largest results err by eps_exp as well, which the bound adds.
    errors = np.abs(got - truth) - platform.eps_exp * truth
    return worst_of(errors, tell_of("exp2", [x], got, truth))


def _logarithm(device: Device, function: Any, reference: Any, name: str, x: Array) -> tuple[Array, Array, Any]:
    truth = reference(double(x))
    got = double(device.elementwise(function, x))
    return np.abs(got - truth), np.abs(truth), tell_of(name, [x], got, truth)


def _outside(salt: str) -> Array:
    x = spread(-126, 127, salt, signed=False)
    return x[(x <= 0.5) | (x >= 2)]


def _near_one(salt: str) -> Array:
    x = between(0.5, 2.0, salt)
    steps = np.float32(1) + np.arange(-64, 65).astype(np.float32) * np.float32(2.0**-24)
    return np.concatenate([x, steps.astype(np.float32)])


def _enter_logarithm(name: str, function: Any, reference: Any) -> None:
    def relative(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
        errors, size, at = _logarithm(device, function, reference, name, _outside(name))
        return worst_of(errors / size, at)

    def absolute(device: Device, platform: Platform) -> Worst:
        errors, size, at = _logarithm(device, function, reference, name, _near_one(name))
        return worst_of(errors - platform.eps_log * size, at)

    probe(f"{name}, relative, outside [0.5, 2]", "eps_log")(relative)
    probe(f"{name}, absolute, within [0.5, 2], beyond the relative error", "eps_log_abs")(absolute)


_enter_logarithm("log2", kernels.log2, np.log2)
_enter_logarithm("log", kernels.log, np.log)


@probe("x / y, relative", "eps_div")
def division(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """Quotients and divisors far from the ends of float32."""
    return _quotients(device, kernels.divide, "divide")


@probe("1 / y, relative", "eps_div")
def reciprocal(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """Compilers treat a constant 1 in a way of its own only where they see it; here it comes from memory."""
    y = spread(2 * LOW, 2 * HIGH, "reciprocal")
    x = np.ones_like(y)
    truth = 1.0 / double(y)
    got, errors = _relative(device, kernels.divide, truth, x, y)
    return worst_of(errors, tell_of("divide", [x, y], got, truth))


@probe("div_rn, relative", "unit")
def division_rn(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """To nearest, as its name says."""
    return _quotients(device, kernels.divide_rn, "div_rn")


def _quotients(device: Device, function: Any, name: str) -> Worst:
    x, y = spread(LOW, HIGH, f"{name} x"), spread(LOW, HIGH, f"{name} y")
    truth = double(x) / double(y)
    got, errors = _relative(device, function, truth, x, y)
    return worst_of(errors, tell_of(name, [x, y], got, truth))


@probe("tanh of the library, relative", "eps_tanh")
def tanh(device: Device, platform: Platform) -> Worst:
    """Near 0 as well, where a subnormal may be flushed to 0."""
    x = np.concatenate([between(-20, 20, "tanh"), spread(-60, 4, "tanh small")])
    x = x[x != 0]
    truth = np.tanh(double(x))
    got = double(device.elementwise(kernels.tanh, x))
    errors = np.maximum(np.abs(got - truth) - platform.eta, 0.0) / np.abs(truth)
    return worst_of(errors, tell_of("tanh", [x], got, truth))


@probe("2 sigmoid(2x) - 1, absolute", "eps_tanh_abs")
def tanh_by_sigmoid(device: Device, platform: Platform) -> Worst:
    """Beyond the relative error, which the bound adds."""
    x = np.concatenate([between(-40, 40, "sigmoid"), spread(-40, 5, "sigmoid small")])
    truth = np.tanh(double(x))
    got = double(device.elementwise(kernels.tanh_by_sigmoid, x))
    return worst_of(np.abs(got - truth) - platform.eps_tanh * np.abs(truth), tell_of("tanh", [x], got, truth))


# --- ordinary arithmetic -----------------------------------------------------------------------------------------


@probe("x + y, relative", "unit")
def addition(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """Numbers of like and of unlike sizes."""
    x, y = spread(-14, 14, "add x"), spread(-14, 14, "add y")
    truth = double(x) + double(y)
    keep = truth != 0
    x, y, truth = x[keep], y[keep], truth[keep]
    got, errors = _relative(device, kernels.add, truth, x, y)
    return worst_of(errors, tell_of("add", [x, y], got, truth))


@probe("x y + z, relative to |x y| + |x y + z|", "unit")
def multiply_add(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """Holds whether a compiler fuses them or not; half of the sums cancel."""
    x, y = spread(-8, 8, "fma x"), spread(-8, 8, "fma y")
    z = spread(-16, 16, "fma z")
    product = double(x) * double(y)
    z[::2] = -product[::2].astype(np.float32)
    got = double(device.elementwise(kernels.multiply_add, x, y, z))
    truth = product + double(z)
    # A sum that was rounded twice in float64 errs by 2^-53 of its parts: far below what is looked for.
    errors = np.abs(got - truth) / (np.abs(product) + np.abs(truth))
    fused = "fused" if (got[::2] == truth[::2]).mean() > 0.5 else "not fused"
    worst = worst_of(errors, tell_of("multiply_add", [x, y, z], got, truth))
    return Worst(worst.value, f"{worst.shows}; {fused}")


@probe("x y that is subnormal, absolute", "eta")
def product_underflow(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """May be flushed to 0."""
    x, y = spread(-100, -60, "underflow x"), spread(-90, -30, "underflow y")
    truth = double(x) * double(y)
    keep = np.abs(truth) < 2.0**-126
    x, y, truth = x[keep], y[keep], truth[keep]
    got = double(device.elementwise(kernels.multiply, x, y))
    return worst_of(np.abs(got - truth), tell_of("multiply", [x, y], got, truth))


@probe("x y with x subnormal, relative to |y|", "eta")
def subnormal_operand(device: Device, platform: Platform) -> Worst:
    """An operand may be taken for 0."""
    x = (random("subnormal").integers(1, 1 << 23, COUNT) * 2.0**-149).astype(np.float32)
    y = spread(20, 60, "subnormal y")
    truth = double(x) * double(y)
    got = double(device.elementwise(kernels.multiply, x, y))
    errors = (np.abs(got - truth) - platform.unit * np.abs(truth)) / np.abs(double(y))
    return worst_of(np.maximum(errors, 0.0), tell_of("multiply", [x, y], got, truth))


@probe("a weight in the numerator and alone", "recomputes")
def recomputed(device: Device, platform: Platform) -> Worst:  # noqa: ARG001
    """Whether the same weight comes out of a kernel in two values."""
    rng = random("weights")
    shapes = (128, 64), (128, 32, 64)
    q, k = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    numerator, alone = device.weights(q, k, 0.37)
    differs = numerator != alone
    if not differs.any():
        return Worst(False, f"{alone.size} weights are the same in both places")
    at = tuple(int(i) for i in np.argwhere(differs)[0])
    pair = f"{float(numerator[at])!r} and {float(alone[at])!r}"
    return Worst(True, f"{int(differs.sum())} of {alone.size} weights differ, the first is {pair}")
