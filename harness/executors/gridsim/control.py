"""Translates a function of TTIR, once, into a flat list of Python closures over numbered slots.

What depends on no program is computed during the translation; pure operations move out of the loops that do not
change them. Programs that part (in a branch, or because their loops end at different times) run as subsets: each holds
its own programs' rows only, so programs that are done do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from harness.executors.gridsim import steps
from harness.executors.gridsim.arith import refuse
from harness.executors.gridsim.bodies import TURNS, Body, both, branch, looped, outcomes, together, turns_of
from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.flow import addressing, stored, waits
from harness.executors.gridsim.frames import NOBODY, NOWHERE, UNSET, Behaviour, Frame, Programs, Step, Value
from harness.executors.gridsim.ir import Block, Function, Op, Target, Type
from harness.executors.gridsim.spans import Spans
from harness.executors.gridsim.wide import follow

SPIN = 1 << 17  # a loop that long waits for another program, which programs in lockstep never finish
RETURNS = {"tt.return", "tt.map_elementwise.return"}
ENDS = {"scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "cf.br", "cf.cond_br", *RETURNS}


class Translation:
    """One function, ready to run."""

    def __init__(self, function: Function, callees: dict[str, Function], outer: Translation | None = None) -> None:
        self.function, self.callees = function, callees
        self.addressing, self.stored, self.waits = addressing(function), stored(function), waits(function)
        self.slots: dict[str, int] = {}
        self.types: dict[str, Type] = {}
        self.template: list[Value] = []
        self.bodies: list[Body] = []
        self.possible: set[Behaviour] = set()
        self.widest = 1
        self.spans = Spans.of(function)
        if outer is not None:
            self.slots, self.types, self.template = dict(outer.slots), dict(outer.types), outer.template.copy()
        self.blocks = {block.label: (self.block(block), block.ops[-1]) for block in function.body}
        self.args = self.blocks[function.body[0].label][0].args
        self.needed = set().union(*(body.free for body, _ in self.blocks.values())) | {
            slot for body, _ in self.blocks.values() for slot in (*body.writes, *body.args)
        }

    def define(self, names: tuple[str, ...], kinds: tuple[Type, ...]) -> tuple[int, ...]:
        """Give names their slots."""
        for name, kind in zip(names, kinds, strict=True):
            self.slots[name] = len(self.template)
            self.types[name] = kind
            self.template.append(UNSET)
            self.widest = max(self.widest, int(np.prod(kind.shape, dtype=np.int64)))
        return self.find(names)

    def find(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Find the slots of names."""
        return tuple(self.slots[name] for name in names)

    def kinds(self, op: Op) -> tuple[Type, ...]:
        """Give the types of an operation's operands."""
        return tuple(self.types[name] for name in op.operands)

    def block(self, block: Block, *, loop: bool = False) -> Body:
        """Translate one block; its last operation gives its ends."""
        body = Body(self.define(block.args, block.arg_types), loop)
        body.writes.update(body.args)
        self.bodies.append(body)
        for op in block.ops:
            self.add(op)
        self.bodies.pop()
        return body

    def region(self, op: Op, number: int, *, loop: bool = False) -> Body:
        """Translate a region of one block; the body around it reads what it reads."""
        if len(op.regions[number]) != 1:
            raise refuse(op, "branches inside a region")
        body = self.block(op.regions[number][0], loop=loop)
        self.bodies[-1].reads.update(body.free)
        return body

    def add(self, op: Op) -> None:
        """Translate one operation into a step of the body where it belongs."""
        self.learn(op)
        if op.name in ENDS:
            body = self.bodies[-1]
            body.ends = self.find(op.operands)
            body.reads.update(body.ends, *(self.find(target.operands) for target in op.targets))
        elif op.name in STRUCTURED:
            self.emit(op, STRUCTURED[op.name](self, op), pure=False)
        else:
            self.simple(op)

    def learn(self, op: Op) -> None:
        """Note what may come of an operation; a body's lines are run when it is, wherever its steps go."""
        if op.line.number and "/triton/language/" not in op.line.path:
            self.bodies[-1].lines.add((op.line, "line", "run"))
            self.possible.update((op.line, *outcome) for outcome in outcomes(op, self.kinds(op)))

    def fix(self, op: Op, bounds: list[Value]) -> None:
        """Note that a loop whose bounds are constants always runs equally often."""
        known = [bound for bound in bounds if isinstance(bound, np.ndarray) and bound is not UNSET]
        if len(known) == len(bounds):
            always = turns_of(int(_trips(*known)[0]))
            self.possible -= {(op.line, "loop", turns) for turns in TURNS if turns != always}

    def simple(self, op: Op) -> None:
        """Translate an operation without control flow; compute it at once where it depends on no program."""
        combine = self.combine(op) if op.name in ("tt.reduce", "tt.scan") else None
        try:
            made = steps.build(op, self.kinds(op), combine, self.spans)
        except (KeyError, ValueError, IndexError) as error:  # a type or an attribute that no table has
            raise refuse(op, repr(error)) from error
        if made.apply is not None and self.addressing.intersection(op.results):
            made = replace(made, apply=follow(op, self.kinds(op), made.apply))
        if self.spans.led.intersection(op.results):
            made = steps.leading(made)
        places = self.find(op.operands)
        constants = [self.template[place] for place in places]
        slots = self.define(op.results, op.result_types)
        if made.apply is not None and all(value is not UNSET for value in constants):
            with np.errstate(all="ignore"):
                found = made.apply(*constants)
            self.template[slots[0] : slots[-1] + 1] = found if isinstance(found, tuple) else [found]
        else:
            self.place(made.step(places, slots), places, slots, pure=made.pure or made.apply is not None)

    def place(self, step: Step, reads: tuple[int, ...], writes: tuple[int, ...], *, pure: bool) -> None:
        """Append a step to the body, or to the outermost around it whose loops do not change its operands."""
        level = len(self.bodies) - 1
        while pure and level and self.bodies[level].loop and not self.bodies[level].writes.intersection(reads):
            level -= 1
        body = self.bodies[level]
        body.steps.append(step)
        body.reads.update(slot for slot in reads if self.template[slot] is UNSET)
        body.writes.update(writes)
        for inner in self.bodies[level + 1 :]:
            inner.reads.update(writes)

    def emit(self, op: Op, step: Step, *, pure: bool) -> None:
        """Append a step whose operands and results stand in the operation."""
        self.place(step, self.find(op.operands), self.find(op.results), pure=pure)

    def combine(self, op: Op) -> Callable[[list[Array]], list[Array]]:
        """Make the combine region of a fold a function of arrays."""
        body = self.region(op, 0)
        self.bodies[-1].lines |= body.lines
        template = self.template

        def run(given: list[Array]) -> list[Array]:
            frame = Frame(template.copy(), NOBODY, NOWHERE)
            body.enter(frame, given)
            body.run(frame)
            return [frame.array(slot) for slot in body.ends]

        return run

    def start(self, given: list[Value], frame: Frame) -> list[Value]:
        """Run the function for a frame's programs."""
        inner = Frame(self.template.copy(), frame.programs, frame.world)
        for slot, value in zip(self.args, given, strict=True):
            inner.values[slot] = value
        return self.flow(inner)

    def flow(self, frame: Frame) -> list[Value]:
        """Follow the branches between blocks; programs that part do not meet again before they return."""
        entry = self.function.body[0].label
        work = [(entry, np.arange(frame.count), frame)]
        parts: list[tuple[Array, list[Value]]] = []
        while work:
            label, lanes, now = work.pop()
            body, last = self.blocks[label]
            body.run(now)
            if last.name in RETURNS:
                parts.append((lanes, body.results(now)))
            for target, some, after in self.leave(last, now):
                self.hand(after, last.targets[target])
                work.append((last.targets[target].label, lanes if some is None else lanes[some], after))
        return together(parts, frame.count)

    def leave(self, last: Op, frame: Frame) -> list[tuple[int, Array | None, Frame]]:
        """Choose each program's way: the target's number, the rows that take it (None: all), their frame."""
        if len(last.targets) < 2:
            return [(target, None, frame) for target in range(len(last.targets))]
        taken = branch(last, frame, frame.array(self.slots[last.operands[0]]))
        if len(taken) == 1:
            return [(0 if taken[0][0] else 1, None, frame)]
        return [(0 if truth else 1, rows, frame.subset(rows, self.needed)) for truth, rows in taken]

    def hand(self, frame: Frame, target: Target) -> None:
        """Hand a branch's operands to the arguments of the block that it goes to."""
        body, _ = self.blocks[target.label]
        body.enter(frame, [frame.values[slot] for slot in self.find(target.operands)])


def _if(self: Translation, op: Op) -> Step:
    bodies = [self.region(op, number) for number in range(len(op.regions))]
    (condition,), results = self.find(op.operands), self.define(op.results, op.result_types)

    def alone(frame: Frame, truth: bool) -> list[Value]:
        if not truth and len(bodies) == 1:
            return []
        body = bodies[0 if truth else 1]
        body.run(frame)
        return body.results(frame)

    def step(frame: Frame) -> None:
        ways = branch(op, frame, frame.array(condition))
        if len(ways) == 1:
            found = alone(frame, ways[0][0])
        else:
            free = set().union(*(body.free for body in bodies))
            parts = [(rows, alone(frame.subset(rows, free), truth)) for truth, rows in ways]
            found = together(parts, frame.count) if results else []
        for slot, value in zip(results, found, strict=True):
            frame.values[slot] = value

    return step


def _trips(low: Array, high: Array, step: Array) -> Array:
    distance = high.astype(np.int64) - low
    return np.maximum(-(-distance // step), 0).astype(np.int64)


def _for(self: Translation, op: Op) -> Step:
    body = self.region(op, 0, loop=True)
    bounds, inits = self.find(op.operands[:3]), self.find(op.operands[3:])
    results = self.define(op.results, op.result_types)
    induction, carried = body.args[0], body.args[1:]
    self.fix(op, [self.template[slot] for slot in bounds])
    kept = body.free.union(bounds, carried)

    def iterate(frame: Frame, first: int, last: int) -> None:
        values = frame.values
        low, pace = frame.array(bounds[0]), frame.array(bounds[2])
        for number in range(first, last):
            values[induction] = low + pace * number
            body.run(frame)
            for slot, value in zip(carried, body.results(frame), strict=True):
                values[slot] = value

    def step(frame: Frame) -> None:
        values = frame.values
        trips = _trips(*(frame.array(slot) for slot in bounds))
        for slot, init in zip(carried, inits, strict=True):
            values[slot] = values[init]
        stops = [int(trips[0])] if trips.shape[0] == 1 else sorted(set(trips.tolist()))
        for stop in stops:
            looped(op, frame, stop)
        if len(stops) == 1:
            iterate(frame, 0, stops[0])
            found = [values[slot] for slot in carried]
        else:
            found = together(_stagger(frame, trips, stops), frame.count)
        for slot, value in zip(results, found, strict=True):
            values[slot] = value

    def _stagger(frame: Frame, trips: Array, stops: list[int]) -> list[tuple[Array, list[Value]]]:
        """Run on with fewer and fewer programs."""
        parts, lanes, done = [], np.arange(frame.count), 0
        frame = frame.subset(lanes, kept)
        for stop in stops:
            iterate(frame, done, stop)
            ended, going = np.flatnonzero(trips == stop), np.flatnonzero(trips != stop)
            parts.append((lanes[ended], [frame.subset(ended, carried).values[slot] for slot in carried]))
            frame, lanes, trips, done = frame.subset(going, kept), lanes[going], trips[going], stop
        return parts

    return step


def _while(self: Translation, op: Op) -> Step:
    before, after = self.region(op, 0, loop=True), self.region(op, 1, loop=True)
    inits, results = self.find(op.operands), self.define(op.results, op.result_types)
    kept = (before.free | after.free).union(after.args)

    def step(frame: Frame) -> None:
        parts: list[tuple[Array, list[Value]]] = []
        lanes, now = np.arange(frame.count), frame
        before.enter(now, [now.values[slot] for slot in inits])
        for turn in range(SPIN):
            before.run(now)
            after.enter(now, before.results(now)[1:])
            ways = dict(both(now, now.array(before.ends[0])))
            if False in ways:
                looped(op, frame, turn)
                ended = now.subset(ways[False], after.args) if len(ways) == 2 else now
                parts.append((lanes[ways[False]], [ended.values[slot] for slot in after.args]))
            if True not in ways:
                break
            if len(ways) == 2:
                now, lanes = now.subset(ways[True], kept), lanes[ways[True]]
            after.run(now)
            before.enter(now, after.results(now))
        else:
            raise refuse(op, f"no end after {SPIN} turns; waiting for another program is not modelled")
        for slot, value in zip(results, together(parts, frame.count), strict=True):
            frame.values[slot] = value

    return step


def _call(self: Translation, op: Op) -> Step:
    callee = Translation(self.callees[str(op.attributes["callee"])], self.callees)
    self.possible |= callee.possible
    self.widest = max(self.widest, callee.widest)
    given, results = self.find(op.operands), self.define(op.results, op.result_types)

    def step(frame: Frame) -> None:
        found = callee.start([frame.values[slot] for slot in given], frame)
        for slot, value in zip(results, found, strict=True):
            frame.values[slot] = value

    return step


def _map(self: Translation, op: Op) -> Step:
    """Run a scalar function for every element, or for so many neighbours at once, as if each were a program."""
    (region,), kinds, pack = op.regions, self.kinds(op), op.number("pack")
    function = Function("map_elementwise", region[0].args, region[0].arg_types, region)
    inner, shape = Translation(function, self.callees, self), kinds[0].shape
    given, results = self.find(op.operands), self.define(op.results, op.result_types)

    def step(frame: Frame) -> None:
        spread = [np.broadcast_to(frame.array(slot), (frame.count, *shape)).reshape(-1, pack) for slot in given]
        programs = Programs(np.repeat(frame.programs.numbers, spread[0].shape[0] // frame.count), frame.programs.grid)
        found = inner.start([column for value in spread for column in value.T], Frame([], programs, frame.world))
        columns = [np.broadcast_to(np.asarray(one), spread[0].shape[:1]) for one in found]
        for number, slot in enumerate(results):
            own = columns[number * pack : (number + 1) * pack]
            frame.values[slot] = np.stack(own, axis=-1).reshape(frame.count, *shape)

    return step


STRUCTURED: dict[str, Callable[[Translation, Op], Step]] = {
    "scf.if": _if,
    "scf.for": _for,
    "scf.while": _while,
    "tt.call": _call,
    "tt.map_elementwise": _map,
}
