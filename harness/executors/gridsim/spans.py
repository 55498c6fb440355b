"""Tells, before a kernel runs, which integers and pointers count up by one along their last axis.

A load through such pointers fetches rows instead of elements. Wrapping may still break a row: the load looks. Numbers
of 64 bits that begin at a range do not wrap, so where nothing but loads wants them, their first lane stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.executors.gridsim.arith import ELEMENTWISE
from harness.executors.gridsim.casts import CASTS
from harness.executors.gridsim.flow import operations
from harness.executors.gridsim.ir import Function, Op, Type

KEEPING = {"arith.extsi", "tt.bitcast"}
ADDING = {"arith.addi", "tt.addptr"}
LEVELLING = {*ELEMENTWISE, *CASTS, "tt.addptr", "tt.broadcast"}


@dataclass
class Spans:
    """Names of values that count along the last axis, and of those that are the same along it.

    `steady` ones count whatever the numbers are. `led` are those of which the first lane is kept alone.
    """

    types: dict[str, Type]
    counting: set[str] = field(default_factory=set)
    level: set[str] = field(default_factory=set)
    steady: set[str] = field(default_factory=set)
    led: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, function: Function) -> Spans:
        """Follow a function from its arguments on, then back from its loads."""
        ops = list(operations(function.body))
        found = cls(dict(_types(function, ops)))
        for op in ops:
            found.learn(op)
        unfit = {name for op in ops for target in op.targets for name in target.operands}
        for op in reversed(ops):
            if op.results and op.results[0] in found.steady - unfit and found.leads(op):
                found.led.add(op.results[0])
            else:
                unfit.update(op.operands[1:] if op.name == "tt.load" else op.operands)
        return found

    def learn(self, op: Op) -> None:
        """Follow one operation of one result."""
        if not op.result_types or not op.result_types[0].shape:
            return
        name, last = op.results[0], op.result_types[0].shape[-1]
        given = [self.nature(value) for value in op.operands]
        if (
            last == 1
            or op.name == "tt.splat"
            or (op.name == "arith.constant" and "[" not in str(op.attributes["value"]))
        ):
            self.level.add(name)
        elif op.name == "tt.make_range" or (self.counts(op) and given.count("counting") == 1 == 1 + given.count("")):
            self.counting.add(name)
            if op.name == "tt.make_range" or self.stays(op):
                self.steady.add(name)
        elif op.name in LEVELLING and set(given) == {"level"}:
            self.level.add(name)

    def counts(self, op: Op) -> bool:
        """Tell whether an operation with one counting operand among level ones counts too."""
        before_last = op.name == "tt.expand_dims" and op.attributes["axis"] != len(op.result_types[0].shape) - 1
        return op.name in ADDING or op.name in KEEPING or op.name == "tt.broadcast" or before_last

    def stays(self, op: Op) -> bool:
        """Tell whether what counts steadily does so after an operation, too: a sum must be too wide to wrap."""
        narrow = op.name == "arith.addi" and op.result_types[0].element != "i64"
        return op.name != "tt.bitcast" and not narrow and not self.steady.isdisjoint(op.operands)

    def leads(self, op: Op) -> bool:
        """Tell whether the first lane of an operation is made of the first lanes of what it takes."""
        return op.name in ADDING and (op.name == "tt.addptr" or op.result_types[0].element == "i64")

    def nature(self, value: str) -> str:
        """Say how a value behaves along its last axis: counting, level, or unknown."""
        kind = self.types.get(value)  # a function inside another may read what is outside
        if kind is None:
            return ""
        if not kind.shape or kind.shape[-1] == 1:
            return "level"
        return "counting" if value in self.counting else "level" if value in self.level else ""


def _types(function: Function, ops: list[Op]) -> Iterator[tuple[str, Type]]:
    yield from zip(function.args, function.arg_types, strict=True)
    for block in (*function.body, *(block for op in ops for region in op.regions for block in region)):
        yield from zip(block.args, block.arg_types, strict=True)
    for op in ops:
        yield from zip(op.results, op.result_types, strict=True)
