"""Arguments that are hard for float32, and the worst of what came back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from harness.probes.probe import Worst
from harness.tensors import Array

#: Arguments of an elementwise probe.
COUNT = 1 << 19


def random(salt: str) -> np.random.Generator:
    """The same numbers for the same words, always."""
    return np.random.default_rng([*salt.encode()])


def between(low: float, high: float, salt: str) -> Array:
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
    spread = np.linspace(low, high, COUNT // 2), random(salt).uniform(low, high, COUNT // 2)
    found = np.concatenate([*spread, *near]).astype(np.float32)
    return found[(found >= low) & (found <= high)]


def spread(low: int, high: int, salt: str, signed: bool = True) -> Array:
    """Random mantissas, also all ones and all zeros, at random exponents from low to high: float32."""
    rng = random(salt)
    mantissas = rng.uniform(1.0, 2.0, COUNT).astype(np.float32)
    mantissas[::16], mantissas[1::16] = 1.0, np.nextafter(np.float32(2), np.float32(0))
    signs = rng.choice([-1.0, 1.0], COUNT) if signed else 1.0
    return np.asarray(signs * mantissas * 2.0 ** rng.integers(low, high, COUNT)).astype(np.float32)


def worst_of(errors: Array, tell_at: Callable[[int], str]) -> Worst:
    """The largest; NaN is larger than any."""
    errors = np.where(np.isnan(errors), np.inf, errors)
    at = int(np.argmax(errors))
    return Worst(float(errors[at]), tell_at(at))


def tell_of(function: str, arguments: Iterable[Array], got: Array, truth: Array) -> Callable[[int], str]:
    """Tells the call at an index: its arguments, its result and the truth."""

    def tell_at(at: int) -> str:
        values = ", ".join(repr(float(a[at])) for a in arguments)
        return f"{function}({values}) is {float(got[at])!r}, but should be {float(truth[at])!r}"

    return tell_at


def double(x: Array) -> Array:
    """As float64."""
    with np.errstate(invalid="ignore"):  # a NaN may signal
        return x.astype(np.float64)
