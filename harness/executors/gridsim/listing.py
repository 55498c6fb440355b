"""Lists every operation of Triton's IR as run or refused: `python -m harness.executors.gridsim.listing`."""

from __future__ import annotations

import textwrap

import click

from harness.executors.gridsim import control, steps
from harness.executors.gridsim.arith import ELEMENTWISE, LIBRARY
from harness.executors.gridsim.casts import CASTS
from harness.executors.gridsim.operations import DIALECTS, OPERATIONS, REFUSED
from harness.executors.gridsim.shapes import SHAPES

APART = {"tt.func", "arith.constant", "tt.load", "tt.reduce", "tt.scan"}  # run, and in no table
HEAD = """\
# Operations of Triton's IR under gridsim

Written by `python -m harness.executors.gridsim.listing > docs/gridsim-operations.md`; a test holds it up to date. It
names every operation that Triton 3.6 to 3.9 register in the dialects of TTIR. A kernel that uses a refused one is
declined with the operation, the reason and the kernel's line.
"""
TITLES = {"tt": "tt: Triton's own", "others": "Of other dialects, what TTIR shows"}


def supported() -> frozenset[str]:
    """Collect what gridsim's tables run."""
    tables = (ELEMENTWISE, CASTS, SHAPES, steps.EFFECTS, steps.POINTERS, control.STRUCTURED)
    return frozenset(APART | steps.IDLE | control.ENDS).union(*tables)


def listing() -> str:
    """Write the list in Markdown."""
    parts = [HEAD, *(_section(dialect) for dialect in DIALECTS)]
    library = _wrapped("With and without `__nv_`, `fast_` and a letter for the type: ", sorted(LIBRARY))
    return "\n".join([*parts, f"## Functions of libdevice\n\n{library}\n"])


def _section(dialect: str) -> str:
    names = [name for name in OPERATIONS if _dialect(name) == dialect]
    run = _wrapped("Run: ", [name for name in names if name in supported()])
    reasons = sorted({REFUSED[name] for name in names if name in REFUSED})
    lines = [_wrapped(f"* {reason}: ", [n for n in names if REFUSED.get(n) == reason], "  ") for reason in reasons]
    refused = "\n".join(["Refused:\n", *lines, ""]) if lines else "None is refused.\n"
    return f"## {TITLES.get(dialect, dialect)}\n\n{run}\n\n{refused}"


def _wrapped(head: str, names: list[str], indent: str = "") -> str:
    text = f"{head}{', '.join(f'`{name}`' for name in names)}."
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _dialect(name: str) -> str:
    head = name.split(".")[0]
    return head if head in DIALECTS else "others"


if __name__ == "__main__":
    click.echo(listing(), nl=False)
