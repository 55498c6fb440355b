"""Casts and products under Triton's interpreter beside gridsim's: `python tests/against_interpreter.py` prints them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from agreement import Aside, cast_on, multiplied_on
from patterns import SMALL, codes, every, hostile

KINDS = ("float32", *SMALL)
DOTS = (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee"), ("float8_e4m3fn", "ieee"))


@contextmanager
def interpreting() -> Iterator[Aside]:
    """A process in which Triton interprets: it reads the environment where kernels are declared."""
    os.environ["TRITON_INTERPRET"] = "1"
    there = Aside()
    try:
        there.ask(abs, 0)  # it has its environment from now on
        del os.environ["TRITON_INTERPRET"]
        yield there
    finally:
        os.environ.pop("TRITON_INTERPRET", None)
        there.close()


def given(source: str) -> np.ndarray:
    """What is cast: every sixteenth of the hostile float32, or all of a small type."""
    return hostile()[::16] if source == "float32" else every(source)


def cast_by_both(there: Aside, source: str, kind: str) -> tuple[np.ndarray, np.ndarray | str, np.ndarray]:
    """What was cast, what the interpreter made of it (or its error), and what gridsim made of it."""
    values = given(source)
    return values, there.ask(cast_on, "interpreter", values, kind), cast_on("gridsim", values, kind)


def operands(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matrices to multiply: [16, 64], [64, 32], and what is added, [16, 32]."""
    random, of = np.random.default_rng(7), SMALL.get(kind, kind)
    a, b = random.normal(size=(16, 64)) * 2, random.normal(size=(64, 32))
    return a.astype(of), b.astype(of), random.normal(size=(16, 32)).astype(np.float32)


def errors(there: Aside, kind: str, precision: str) -> tuple[float, float]:
    """The largest error of a product by the interpreter and by gridsim."""
    a, b, c = operands(kind)
    truth = a.astype(np.float64) @ b.astype(np.float64) + c
    found = (there.ask(multiplied_on, "interpreter", a, b, c, precision), multiplied_on("gridsim", a, b, c, precision))
    return tuple(float(np.abs(one - truth).max()) for one in found)


def lines() -> Iterator[str]:
    """The two tables in words."""
    with interpreting() as there:
        for source in KINDS:
            for kind in KINDS:
                values, theirs, ours = cast_by_both(there, source, kind)
                said = theirs if isinstance(theirs, str) else int((codes(theirs) != codes(ours)).sum())
                yield f"{source} to {kind}: of {len(values)} values differ: {said}"
        for kind, precision in DOTS:
            yield f"dot of {kind}, {precision}: largest error {errors(there, kind, precision)}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines())
