"""Tells, before a kernel runs, which integers and pointers count up by one along their last axis.

A load through such pointers fetches rows instead of elements. Wrapping may still break a row: the load looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.executors.gridsim.arith import ELEMENTWISE
from harness.executors.gridsim.casts import CASTS
from harness.executors.gridsim.ir import Op, Type

KEEPING = {"arith.extsi", "tt.bitcast"}
ADDING = {"arith.addi", "tt.addptr"}
LEVELLING = {*ELEMENTWISE, *CASTS, "tt.addptr", "tt.broadcast"}


@dataclass
class Spans:
    """Names of values that count along the last axis, and of those that are the same along it."""

    counting: set[str] = field(default_factory=set)
    level: set[str] = field(default_factory=set)

    def learn(self, op: Op, kinds: tuple[Type, ...]) -> None:
        """Follow one operation of one result."""
        if not op.result_types or not op.result_types[0].shape:
            return
        name, last = op.results[0], op.result_types[0].shape[-1]
        given = [self.nature(value, kind) for value, kind in zip(op.operands, kinds, strict=True)]
        if (
            last == 1
            or op.name == "tt.splat"
            or (op.name == "arith.constant" and "[" not in str(op.attributes["value"]))
        ):
            self.level.add(name)
        elif op.name == "tt.make_range" or (self.counts(op) and given.count("counting") == 1 == 1 + given.count("")):
            self.counting.add(name)
        elif op.name in LEVELLING and set(given) == {"level"}:
            self.level.add(name)

    def counts(self, op: Op) -> bool:
        """Tell whether an operation with one counting operand among level ones counts too."""
        before_last = op.name == "tt.expand_dims" and op.attributes["axis"] != len(op.result_types[0].shape) - 1
        return op.name in ADDING or op.name in KEEPING or op.name == "tt.broadcast" or before_last

    def nature(self, value: str, kind: Type) -> str:
        """Say how a value behaves along its last axis: counting, level, or unknown."""
        if not kind.shape or kind.shape[-1] == 1:
            return "level"
        return "counting" if value in self.counting else "level" if value in self.level else ""
