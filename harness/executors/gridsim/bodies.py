"""Straight runs of steps, and how programs part over them and come together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.frames import Frame, Step, Value, merge
from harness.executors.gridsim.ir import Op, Type

TURNS = ("never", "once", "many")
MASKED = {"tt.load", "tt.store", "tt.atomic_rmw"}


@dataclass
class Body:
    """A straight run of steps, with the slots of its arguments, of what ends it, and of what it uses from outside."""

    args: tuple[int, ...]
    loop: bool
    steps: list[Step] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    ends: tuple[int, ...] = ()
    lines: set[str] = field(default_factory=set)

    @property
    def free(self) -> set[int]:
        """Give the slots that it reads and does not write."""
        return self.reads - self.writes

    def run(self, frame: Frame) -> None:
        """Run every step."""
        frame.world.seen.update(self.lines)
        for step in self.steps:
            step(frame)

    def enter(self, frame: Frame, given: Sequence[Value]) -> None:
        """Hand arguments over."""
        for slot, value in zip(self.args, given, strict=True):
            frame.values[slot] = value

    def results(self, frame: Frame) -> list[Value]:
        """Take what ends it."""
        return [frame.values[slot] for slot in self.ends]


def together(parts: list[tuple[Array, list[Value]]], count: int) -> list[Value]:
    """Merge the results of subsets of programs."""
    return [merge([(lanes, values[i]) for lanes, values in parts], count) for i in range(len(parts[0][1]))]


def both(frame: Frame, which: Array) -> list[tuple[bool, Array]]:
    """Split programs by a truth value; one entry where they agree."""
    every, some = bool(which.all()), bool(which.any())
    if every or not some:
        return [(every, np.arange(frame.count))]
    return [(True, np.flatnonzero(which)), (False, np.flatnonzero(~which))]


def branch(op: Op, frame: Frame, which: Array) -> list[tuple[bool, Array]]:
    """Split programs at a branch, and note which way they went."""
    ways = both(frame, which)
    frame.world.saw(op.line, "branch", *("taken" if truth else "passed" for truth, _ in ways))
    return ways


def outcomes(op: Op, kinds: Sequence[Type]) -> Iterator[str]:
    """Give what may come of an operation, apart from its result."""
    yield "line run"
    if op.name in ("scf.if", "cf.cond_br"):
        yield from ("branch taken", "branch passed")
    elif op.name in ("scf.for", "scf.while"):
        yield from (f"loop {turns}" for turns in TURNS)
    elif op.name in MASKED:
        shapes = [kind.shape for kind in kinds[1:] if kind.element == "i1"]
        yield from (f"mask {what}" for what in ("all", "mixed", "none") if shapes and (what != "mixed" or shapes[0]))


def looped(op: Op, frame: Frame, turns: int) -> None:
    """Note how often some program went through a loop."""
    frame.world.saw(op.line, "loop", turns_of(turns))


def turns_of(turns: int) -> str:
    """Say how often, as far as it matters."""
    return TURNS[min(turns, 2)]
