"""The probes of `doctor`: each runs one operation on inputs chosen to break a constant of the platform."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import torch

from harness import probe_kernels as kernels
from harness.arithmetic import ETA_TF32, FORMATS
from harness.executors.base import failure, to_numpy, to_torch
from harness.platforms import Platform
from harness.propagation import Array
from harness.tables import Measured, Value
from harness.values import DTYPES

TORCH = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
#: Arguments of an elementwise probe, and elements that one program takes.
COUNT, BLOCK = 1 << 19, 1024
#: Programs of a probe of `tl.dot`, its columns, and its inner dimension where that does not matter.
PROGRAMS, COLUMNS, INNER = 32, 16, 32
#: The least and the largest exponent at which neither an argument nor a quotient comes near the ends of float32.
LOW, HIGH = -60, 60


class Machine:
    """Where the kernels of the probes run: a GPU, or gridsim."""

    def __init__(self, executor: str) -> None:
        self.executor = executor
        self.device = "cuda" if executor == "gpu" else "cpu"

    def elementwise(self, function: Any, *arguments: Array, dtype: str = "float32") -> Array:
        """FUNCTION of up to three float32 arrays [n], stored as `dtype`."""
        x, y, z = (self._placed(a.astype(np.float32)) for a in (*arguments, *(arguments[:1] * 2))[:3])
        out = torch.empty(len(x), dtype=TORCH[dtype], device=self.device)
        grid = (-(-len(x) // BLOCK),)
        self._launch(kernels.elementwise, grid, x, y, z, out, len(x), FUNCTION=function, BLOCK=BLOCK)
        return to_numpy(out)

    def dot(self, a: Array, b: Array, precision: str = "ieee") -> Array:
        """a [programs, M, K] times b [programs, K, N], of one type; float32 [programs, M, N]."""
        programs, rows, inner = a.shape
        columns = b.shape[2]
        c = torch.empty((programs, rows, columns), dtype=torch.float32, device=self.device)
        sizes = {"M": rows, "N": columns, "K": inner, "PRECISION": precision}
        self._launch(kernels.dot, (programs,), self._placed(a), self._placed(b), c, **sizes)
        return to_numpy(c)

    def weights(self, q: Array, k: Array, scale: float) -> tuple[Array, Array]:
        """The weights of q [programs, dim] over k [programs, keys, dim], in the numerator and alone."""
        programs, keys, dim = k.shape
        out = [torch.empty((programs, keys), dtype=torch.float32, device=self.device) for _ in range(2)]
        v = self._placed(np.eye(keys, dtype=np.float32))
        self._launch(
            kernels.weights, (programs,), self._placed(q), self._placed(k), v, *out, scale, KEYS=keys, DIM=dim
        )
        return to_numpy(out[0]), to_numpy(out[1])

    def _placed(self, array: Array) -> torch.Tensor:
        name = next(name for name, dtype in DTYPES.items() if np.dtype(dtype) == array.dtype)
        return to_torch(np.ascontiguousarray(array), name).to(self.device)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        with self._active():
            kernel[grid](*arguments, **constants)
        if self.executor == "gpu":
            torch.cuda.synchronize()

    def _active(self) -> Any:
        if self.executor != "gridsim":
            return nullcontext()
        from harness.executors import gridsim

        return gridsim.active()


@dataclass(frozen=True)
class Worst:
    """The worst that was seen, and on what."""

    value: Value
    shows: str


@dataclass(frozen=True)
class Probe:
    """An attempt to falsify one constant."""

    name: str
    constant: str
    measure: Callable[[Machine, Platform], Worst]
    assumed: Callable[[Platform], Value]


PROBES: dict[str, Probe] = {}

Measure = Callable[[Machine, Platform], Worst]


def probe(
    name: str, constant: str, assumed: Callable[[Platform], Value] | None = None
) -> Callable[[Measure], Measure]:
    """Enter a probe of that constant; what is assumed is the constant itself unless `assumed` says otherwise."""

    def enter(measure: Measure) -> Measure:
        PROBES[name] = Probe(name, constant, measure, assumed or (lambda platform: getattr(platform, constant)))
        return measure

    return enter


def names() -> list[str]:
    """What can be probed, in the order in which it is."""
    return list(PROBES)


def run_probe(name: str, executor: str, platform: dict[str, Any]) -> dict[str, Any]:
    """One probe with the platform's constants as plain data; to be called in a worker."""
    found: dict[str, Any] = msgspec.to_builtins(tried(PROBES[name], Machine(executor), Platform(**platform)))
    return found


def failing(executor: str, platform: dict[str, Any]) -> list[str]:
    """What fails of all probes, in words; to be called in a worker."""
    where, machine = Platform(**platform), Machine(executor)
    seen = [tried(each, machine, where) for each in PROBES.values()]
    return [tell(found) for found in seen if found.verdict == "FAILS"]


def tell(found: Measured) -> str:
    """A probe's result in words."""
    if found.verdict == "could not be probed":
        return f"{found.constant}, {found.probe}: could not be probed: {found.reason}"
    return f"{found.constant}, {found.probe}: assumed {told(found.assumed)}, measured {told(found.measured)}: {found.shows}"


def told(value: Value) -> str:
    """A value in words."""
    if value is None:
        return "no number"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def tried(each: Probe, machine: Machine, platform: Platform) -> Measured:
    """Run the probe; one that raises is no verdict."""
    began, assumed = time.perf_counter(), each.assumed(platform)
    found = Measured(probe=each.name, constant=each.constant, assumed=assumed)
    try:
        worst = each.measure(machine, platform)
    except Exception as error:  # a type that the compiler does not know, a library that is not there
        reason = f"{type(error).__name__}: {failure(error).message}"
        outcome: dict[str, Any] = {"verdict": "could not be probed", "reason": reason}
    else:
        value = None if isinstance(worst.value, float) and not np.isfinite(worst.value) else worst.value
        outcome = {
            "verdict": "FAILS" if _wider(value, assumed) else "holds",
            "measured": value,
            "shows": worst.shows,
        }
    return msgspec.structs.replace(found, **outcome, seconds=round(time.perf_counter() - began, 3))


def _wider(measured: Value, assumed: Value) -> bool:
    """Whether what was measured is beyond what is assumed; that copies may differ also allows that they do not."""
    if isinstance(measured, bool) and isinstance(assumed, bool):
        return measured and not assumed
    if isinstance(measured, float) and isinstance(assumed, float):
        return not measured <= assumed
    return measured != assumed


# --- arguments ---------------------------------------------------------------------------------------------------


def _random(salt: str) -> np.random.Generator:
    return np.random.default_rng([*salt.encode()])


def _between(low: float, high: float, salt: str) -> Array:
    """Even steps, a random sample, the neighbours of integers and of powers of two: float32, low to high."""
    whole = np.arange(np.ceil(low), np.floor(high) + 1)
    powers = 2.0 ** np.arange(-30, 8)
    special = np.concatenate([whole, powers, -powers]).astype(np.float32)
    near = [special]
    for direction in (-np.inf, np.inf):
        step = special
        for _ in range(4):
            step = np.nextafter(step, np.float32(direction))
            near.append(step)
    spread = np.linspace(low, high, COUNT // 2), _random(salt).uniform(low, high, COUNT // 2)
    found = np.concatenate([*spread, *near]).astype(np.float32)
    return found[(found >= low) & (found <= high)]


def _spread(low: int, high: int, salt: str, signed: bool = True) -> Array:
    """Random mantissas, also all ones and all zeros, at random exponents from low to high: float32."""
    rng = _random(salt)
    mantissas = rng.uniform(1.0, 2.0, COUNT).astype(np.float32)
    mantissas[::16], mantissas[1::16] = 1.0, np.nextafter(np.float32(2), np.float32(0))
    signs = rng.choice([-1.0, 1.0], COUNT) if signed else 1.0
    return np.asarray(signs * mantissas * 2.0 ** rng.integers(low, high, COUNT)).astype(np.float32)


def _worst(errors: Array, tell_at: Callable[[int], str]) -> Worst:
    """The largest; NaN is larger than any."""
    errors = np.where(np.isnan(errors), np.inf, errors)
    at = int(np.argmax(errors))
    return Worst(float(errors[at]), tell_at(at))


def _of(function: str, arguments: Iterable[Array], got: Array, truth: Array) -> Callable[[int], str]:
    def tell_at(at: int) -> str:
        values = ", ".join(repr(float(a[at])) for a in arguments)
        return f"{function}({values}) is {float(got[at])!r}, but should be {float(truth[at])!r}"

    return tell_at


def _relative(machine: Machine, function: Any, truth: Array, *arguments: Array) -> tuple[Array, Array]:
    """Results and their relative errors."""
    got = machine.elementwise(function, *arguments).astype(np.float64)
    return got, np.abs(got - truth) / np.abs(truth)


def _double(x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a NaN may signal
        return x.astype(np.float64)


# --- exp, log, tanh, division ------------------------------------------------------------------------------------


@probe("exp2, relative, on [-126, 126]", "eps_exp")
def exp2(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """Also next to integers and near 0."""
    x = _between(-126, 126, "exp2")
    truth = np.exp2(_double(x))
    got, errors = _relative(machine, kernels.exp2, truth, x)
    return _worst(errors, _of("exp2", [x], got, truth))


@probe("exp, relative, on [-87, 87], beyond two roundings of x log2(e)", "eps_exp")
def exp(machine: Machine, platform: Platform) -> Worst:
    """The bound allows for the two roundings among the errors of a score."""
    x = _between(-87, 87, "exp")
    truth = np.exp(_double(x))
    got, errors = _relative(machine, kernels.exp, truth, x)
    return _worst(errors - 2 * platform.unit * np.abs(_double(x)), _of("exp", [x], got, truth))


@probe("exp2 of 0 and of what is far below", "exp2 at its ends", lambda _: 0.0)
def exp2_ends(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """A key that is the largest weighs exactly 1, and one that is masked exactly 0."""
    x = np.array([0.0, -0.0, -150.5, -1e4, -1e30, -np.inf], np.float32)
    got, truth = _double(machine.elementwise(kernels.exp2, x)), np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    return _worst(np.abs(got - truth), _of("exp2", [x], got, truth))


@probe("exp2 below -126, absolute", "eta")
def exp2_underflow(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """A result that is subnormal may be flushed to 0."""
    x = _between(-152, -126, "exp2 underflow")
    truth = np.exp2(_double(x))
    got = _double(machine.elementwise(kernels.exp2, x))
    # The largest subnormal results err by eps_exp of 2^-126 as well, which the bound adds.
    errors = np.abs(got - truth) - platform.eps_exp * truth
    return _worst(errors, _of("exp2", [x], got, truth))


def _logarithm(machine: Machine, function: Any, reference: Any, name: str, x: Array) -> tuple[Array, Array, Any]:
    truth = reference(_double(x))
    got = _double(machine.elementwise(function, x))
    return np.abs(got - truth), np.abs(truth), _of(name, [x], got, truth)


def _outside(salt: str) -> Array:
    x = _spread(-126, 127, salt, signed=False)
    return x[(x <= 0.5) | (x >= 2)]


def _near_one(salt: str) -> Array:
    x = _between(0.5, 2.0, salt)
    steps = np.float32(1) + np.arange(-64, 65).astype(np.float32) * np.float32(2.0**-24)
    return np.concatenate([x, steps.astype(np.float32)])


def _enter_logarithm(name: str, function: Any, reference: Any) -> None:
    def relative(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
        errors, size, at = _logarithm(machine, function, reference, name, _outside(name))
        return _worst(errors / size, at)

    def absolute(machine: Machine, platform: Platform) -> Worst:
        errors, size, at = _logarithm(machine, function, reference, name, _near_one(name))
        return _worst(errors - platform.eps_log * size, at)

    probe(f"{name}, relative, outside [0.5, 2]", "eps_log")(relative)
    probe(f"{name}, absolute, within [0.5, 2], beyond the relative error", "eps_log_abs")(absolute)


_enter_logarithm("log2", kernels.log2, np.log2)
_enter_logarithm("log", kernels.log, np.log)


@probe("x / y, relative", "eps_div")
def division(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """Quotients and divisors far from the ends of float32."""
    return _quotients(machine, kernels.divide, "divide")


@probe("1 / y, relative", "eps_div")
def reciprocal(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """Compilers treat a constant 1 in a way of its own only where they see it; here it comes from memory."""
    y = _spread(2 * LOW, 2 * HIGH, "reciprocal")
    x = np.ones_like(y)
    truth = 1.0 / _double(y)
    got, errors = _relative(machine, kernels.divide, truth, x, y)
    return _worst(errors, _of("divide", [x, y], got, truth))


@probe("div_rn, relative", "unit")
def division_rn(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """To nearest, as its name says."""
    return _quotients(machine, kernels.divide_rn, "div_rn")


def _quotients(machine: Machine, function: Any, name: str) -> Worst:
    x, y = _spread(LOW, HIGH, f"{name} x"), _spread(LOW, HIGH, f"{name} y")
    truth = _double(x) / _double(y)
    got, errors = _relative(machine, function, truth, x, y)
    return _worst(errors, _of(name, [x, y], got, truth))


@probe("tanh of the library, relative", "eps_tanh")
def tanh(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """Near 0 as well."""
    x = np.concatenate([_between(-20, 20, "tanh"), _spread(-60, 4, "tanh small")])
    x = x[x != 0]
    truth = np.tanh(_double(x))
    got, errors = _relative(machine, kernels.tanh, truth, x)
    return _worst(errors, _of("tanh", [x], got, truth))


@probe("2 sigmoid(2x) - 1, absolute", "eps_tanh_abs")
def tanh_by_sigmoid(machine: Machine, platform: Platform) -> Worst:
    """Beyond the relative error, which the bound adds."""
    x = np.concatenate([_between(-40, 40, "sigmoid"), _spread(-40, 5, "sigmoid small")])
    truth = np.tanh(_double(x))
    got = _double(machine.elementwise(kernels.tanh_by_sigmoid, x))
    return _worst(np.abs(got - truth) - platform.eps_tanh * np.abs(truth), _of("tanh", [x], got, truth))


# --- ordinary arithmetic -----------------------------------------------------------------------------------------


@probe("x + y, relative", "unit")
def addition(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """Numbers of like and of unlike sizes."""
    x, y = _spread(-14, 14, "add x"), _spread(-14, 14, "add y")
    truth = _double(x) + _double(y)
    keep = truth != 0
    x, y, truth = x[keep], y[keep], truth[keep]
    got, errors = _relative(machine, kernels.add, truth, x, y)
    return _worst(errors, _of("add", [x, y], got, truth))


@probe("x y + z, relative to |x y| + |x y + z|", "unit")
def multiply_add(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """Holds whether a compiler fuses them or not; half of the sums cancel."""
    x, y = _spread(-8, 8, "fma x"), _spread(-8, 8, "fma y")
    z = _spread(-16, 16, "fma z")
    product = _double(x) * _double(y)
    z[::2] = -product[::2].astype(np.float32)
    got = _double(machine.elementwise(kernels.multiply_add, x, y, z))
    truth = product + _double(z)
    # A sum that was rounded twice in float64 errs by 2^-53 of its parts: far below what is looked for.
    errors = np.abs(got - truth) / (np.abs(product) + np.abs(truth))
    fused = "fused" if (got[::2] == truth[::2]).mean() > 0.5 else "not fused"
    worst = _worst(errors, _of("multiply_add", [x, y, z], got, truth))
    return Worst(worst.value, f"{worst.shows}; {fused}")


@probe("x y that is subnormal, absolute", "eta")
def product_underflow(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """May be flushed to 0."""
    x, y = _spread(-100, -60, "underflow x"), _spread(-90, -30, "underflow y")
    truth = _double(x) * _double(y)
    keep = np.abs(truth) < 2.0**-126
    x, y, truth = x[keep], y[keep], truth[keep]
    got = _double(machine.elementwise(kernels.multiply, x, y))
    return _worst(np.abs(got - truth), _of("multiply", [x, y], got, truth))


@probe("x y with x subnormal, relative to |y|", "eta")
def subnormal_operand(machine: Machine, platform: Platform) -> Worst:
    """An operand may be taken for 0."""
    x = (_random("subnormal").integers(1, 1 << 23, COUNT) * 2.0**-149).astype(np.float32)
    y = _spread(20, 60, "subnormal y")
    truth = _double(x) * _double(y)
    got = _double(machine.elementwise(kernels.multiply, x, y))
    errors = (np.abs(got - truth) - platform.unit * np.abs(truth)) / np.abs(_double(y))
    return _worst(np.maximum(errors, 0.0), _of("multiply", [x, y], got, truth))


@probe("a weight in the numerator and alone", "recomputes")
def recomputed(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """Whether the same weight comes out of a kernel in two values."""
    rng = _random("weights")
    shapes = (128, 64), (128, 32, 64)
    q, k = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    numerator, alone = machine.weights(q, k, 0.37)
    differs = numerator != alone
    if not differs.any():
        return Worst(False, f"{alone.size} weights are the same in both places")
    at = tuple(int(i) for i in np.argwhere(differs)[0])
    pair = f"{float(numerator[at])!r} and {float(alone[at])!r}"
    return Worst(True, f"{int(differs.sum())} of {alone.size} weights differ, the first is {pair}")


# --- casts -------------------------------------------------------------------------------------------------------


def _castable(dtype: str) -> Array:
    """Every midpoint of two neighbours of the type with its float32 neighbours, and random bits: float32, finite."""
    kind = np.dtype(DTYPES[dtype])
    patterns = np.arange(1 << (8 * kind.itemsize), dtype=f"u{kind.itemsize}")
    exact = np.sort(_double(patterns.view(kind)[np.isfinite(_double(patterns.view(kind)))]))
    exact = np.unique(exact)
    middles = ((exact[1:] + exact[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(middles, np.float32(way)) for way in (-np.inf, np.inf)]
    bits = _random(f"cast {dtype}").integers(0, 1 << 32, COUNT, dtype=np.uint64).astype(np.uint32).view(np.float32)
    found = np.concatenate([exact.astype(np.float32), middles, *near, bits])
    return found[np.isfinite(found)]


def _cast_errors(machine: Machine, platform: Platform, dtype: str) -> tuple[Array, Array, Array]:
    """Arguments, results, and errors in units of what rounding to nearest may err by; all float64, within range."""
    x = _castable(dtype)
    got = _double(machine.elementwise(kernels.identity, x, dtype=dtype))
    unit, eta = FORMATS[dtype]
    wide = _double(x)
    flushed = np.where(np.abs(wide) < 2.0**-126, platform.eta, 0.0)
    return wide, got, np.abs(got - wide) / np.maximum(np.maximum(unit * np.abs(wide), eta), flushed)


def _largest(dtype: str) -> float:
    return float(ml_dtypes.finfo(DTYPES[dtype]).max)  # type: ignore[no-untyped-call]


@probe("cast to float16, in half units of its last place", "cast to float16", lambda _: 1.0)
def cast_fp16(machine: Machine, platform: Platform) -> Worst:
    """To nearest; beyond the range infinity or the largest number."""
    x, got, errors = _cast_errors(machine, platform, "float16")
    beyond = np.abs(x) > _largest("float16")
    right = (np.abs(got) >= _largest("float16")) & (np.sign(got) == np.sign(x))
    return _worst(np.where(beyond, np.where(right, 0.0, np.inf), errors), _of("float16", [x], got, x))


@probe("cast to bfloat16", "truncates_bf16")
def cast_bf16(machine: Machine, platform: Platform) -> Worst:
    """To nearest, or towards zero; worse than that is no number."""
    x, got, errors = _cast_errors(machine, platform, "bfloat16")
    inside = np.abs(x) <= _largest("bfloat16")
    worst = _worst(np.where(inside, errors, 0.0), _of("bfloat16", [x], got, x))
    assert isinstance(worst.value, float)
    return Worst(worst.value > 1 if worst.value <= 2 else None, worst.shows)


def _cast_fp8(dtype: str) -> Measure:
    def measure(machine: Machine, platform: Platform) -> Worst:
        x, got, errors = _cast_errors(machine, platform, dtype)
        inside = np.abs(x) <= _largest(dtype)
        worst = _worst(np.where(inside, errors, 0.0), _of(dtype, [x], got, x))
        if not errors[inside].max() <= 1:
            return Worst("broken", worst.shows)
        wrong = ~inside & (got != np.sign(x) * _largest(dtype))
        at = _of(dtype, [x], got, np.sign(x) * _largest(dtype))
        return Worst("overflows", at(int(wrong.argmax()))) if wrong.any() else Worst("saturates", worst.shows)

    return measure


for _dtype in ("e4m3", "e5m2"):
    probe(f"cast to {_dtype}", "fp8_cast")(_cast_fp8(_dtype))


# --- matrix units ------------------------------------------------------------------------------------------------


def _products(rows: int, inner: int, dtype: str, salt: str) -> tuple[Array, Array]:
    """Operands whose products all add up, or where one is large and the others fall below its last place."""
    rng = _random(salt)
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


def _implied_unit(machine: Machine, platform: Platform, dtype: str, shape: tuple[int, int], matrix: bool) -> Worst:
    """The unit that the bound's growth of a sum of products must have to cover the errors, which it is solved for."""
    a, b = _products(*shape, dtype, f"dot {dtype} {shape}")
    got = _double(machine.dot(a, b))
    truth, size = _double(a) @ _double(b), np.abs(_double(a)) @ np.abs(_double(b))
    terms = shape[1] + (2 * np.ceil(shape[1] / platform.dot_block) if matrix and platform.dot_block else 0.0)
    errors = np.abs(got - truth) / (terms * size)

    def tell_at(at: int) -> str:
        where = tuple(int(i) for i in np.unravel_index(at, got.shape))
        mean = float(((got - truth) / size).mean()) * 2.0**24
        sums = f"a sum of {shape[1]} products is {float(got[where])!r}, but should be {float(truth[where])!r}"
        return f"{sums} (program, row, column {list(where)}); mean {mean:+.3g} of 2^-24 of the absolute sum"

    return _worst(errors.ravel(), tell_at)


def _enter_dot(dtype: str, shape: tuple[int, int], constant: str, matrix: bool = True) -> None:
    def measure(machine: Machine, platform: Platform) -> Worst:
        return _implied_unit(machine, platform, dtype, shape, matrix)

    probe(f"dot of {dtype}, {shape[0]} rows and {shape[1]} products, unit of its accumulator", constant)(measure)


#: Rows and products of a dot: few rows go to one kind of matrix instruction, 64 and more to another.
SMALL, LARGE = (16, 32), (64, 128)

for _shape in (SMALL, LARGE):
    _enter_dot("float16", _shape, "dot_unit")
    _enter_dot("bfloat16", _shape, "dot_unit")
    _enter_dot("e4m3", _shape, "fp8_dot_unit")
    _enter_dot("e5m2", _shape, "fp8_dot_unit")
_enter_dot("float32", SMALL, "unit", matrix=False)


def _lone_products(machine: Machine, precision: str, both: bool, salt: str) -> Iterator[tuple[Array, Array, Array]]:
    """Got, truth and size where each sum has one product: x times 1 and 1 times x, or x times y; any mantissa."""
    shape = (PROGRAMS, 16, INNER)
    for first in (True, False):
        a, b = np.zeros(shape, np.float32), np.zeros((PROGRAMS, INNER, COLUMNS), np.float32)
        x = _spread(-20, 20, f"{salt} {first}")
        x[2::8] = np.ldexp(np.float32(1 + 8191 * 2.0**-23), np.arange(len(x[2::8])) % 40 - 20)  # the last 13 bits are 1
        if both or first:
            a[:, :, 3] = x[: PROGRAMS * 16].reshape(PROGRAMS, 16)
        if both or not first:
            b[:, 3, :] = x[-PROGRAMS * COLUMNS :].reshape(PROGRAMS, COLUMNS)
        a[:, :, 3], b[:, 3, :] = np.where(a[:, :, 3] == 0, 1, a[:, :, 3]), np.where(b[:, 3, :] == 0, 1, b[:, 3, :])
        truth = _double(a) @ _double(b)
        yield _double(machine.dot(a, b, precision)).ravel(), truth.ravel(), np.abs(truth).ravel()


@probe("operands of a TF32 dot", "u_tf32")
def tf32(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
    """Each by itself against 1, so that nothing else is rounded."""
    found = []
    for got, truth, size in _lone_products(machine, "tf32", False, "tf32"):
        errors = np.abs(got - truth) / size
        low = float((np.abs(got) < size).mean())
        at = _of("x times 1 in TF32", [truth], got, truth)
        worst = _worst(errors, at)
        found.append(Worst(worst.value, f"{worst.shows}; {low:.0%} are too small"))
    return max(found, key=lambda worst: worst.value if isinstance(worst.value, float) else 0.0)


@probe("a product of a TF32x3 dot", "u_tf32")
def tf32x3(machine: Machine, platform: Platform) -> Worst:
    """Errs by 3 u^2 and the accumulator's growth, and is solved for u."""
    found = []
    steps = 3 * (INNER + (2 * np.ceil(INNER / platform.dot_block) if platform.dot_block else 0))
    for got, truth, size in _lone_products(machine, "tf32x3", True, "tf32x3"):
        beyond = np.maximum(np.abs(got - truth) / size - steps * platform.dot_unit, 0.0)
        found.append(_worst(np.sqrt(beyond / 3), _of("x y in TF32x3", [truth], got, truth)))
    return max(found, key=lambda worst: worst.value if isinstance(worst.value, float) else 0.0)


def _lost(machine: Machine, dtype: str, smallest: float, count: int, precision: str = "ieee") -> Worst:
    """What a dot loses of subnormal operands, relative to the other operand."""
    kind, large = DTYPES[dtype], 2.0**10
    a, b = np.zeros((PROGRAMS, 16, INNER), kind), np.zeros((PROGRAMS, INNER, COLUMNS), kind)
    x = _random(f"lost {dtype}").integers(1, count, (PROGRAMS, 16)) * smallest
    a[:, :, 3], b[:, 3, :] = x.astype(kind), large
    truth = (_double(a) @ _double(b)).ravel()
    got = _double(machine.dot(a, b, precision)).ravel()
    return _worst(np.abs(got - truth) / large, _of(f"x times {large} in a {dtype} dot", [truth / large], got, truth))


def _enter_lost(dtype: str, smallest: float, count: int, precision: str = "ieee") -> None:
    def measure(machine: Machine, platform: Platform) -> Worst:  # noqa: ARG001
        return _lost(machine, dtype, smallest, count, precision)

    def assumed(platform: Platform) -> float:
        return max(platform.eta, ETA_TF32) if precision == "tf32" else platform.eta

    how = f" in {precision}" if dtype == "float32" else ""
    probe(f"subnormal operands of a {dtype} dot{how}", "eta", assumed)(measure)


_enter_lost("float16", 2.0**-24, 1 << 10)
_enter_lost("bfloat16", 2.0**-133, 1 << 7)
_enter_lost("float32", 2.0**-149, 1 << 23)
_enter_lost("float32", 2.0**-149, 1 << 23, "tf32")
