"""gridsim tells which lines ran, and what masks, branches and loops did, of all that they might have done."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import triton
import triton.language as tl

from harness.executors import gridsim


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def kernel(x, y, lengths, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    n = tl.load(lengths + program)
    at = tl.arange(0, BLOCK)
    total = 0.0
    for start in range(0, n, BLOCK):
        tile = tl.load(x + start + at, mask=start + at < n, other=0.0)
        total += tl.reduce(tile, 0, add)
    if n > 100:
        total += 1.0
    for _ in tl.range(0, 2):
        total += 1.0
    tl.store(y + program, total, mask=n > 0)


def traced(*lengths: int) -> gridsim.Trace:
    with gridsim.active() as trace:
        kernel[(len(lengths),)](torch.ones(200), torch.zeros(8), torch.tensor(lengths, dtype=torch.int32), BLOCK=16)
    return trace


def of(trace_part: frozenset[str], text: str, what: str) -> set[str]:
    """What happened on the line of the kernel that holds the text."""
    lines, first = inspect.getsourcelines(kernel.fn)
    number = first + next(i for i, line in enumerate(lines) if text in line)
    start = f"test_gridsim_coverage.py:{number} {what} "
    return {behaviour.removeprefix(start) for behaviour in trace_part if behaviour.startswith(start)}


def test_each_program_s_mask_is_told_by_itself() -> None:
    assert of(traced(16).behaviours, "tile = tl.load", "mask") == {"all"}
    assert of(traced(20).behaviours, "tile = tl.load", "mask") == {"all", "mixed"}
    assert of(traced(5).behaviours, "tile = tl.load", "mask") == {"mixed"}
    assert of(traced(5, 0).behaviours, "tl.store", "mask") == {"all", "none"}


def test_a_scalar_mask_cannot_be_mixed() -> None:
    possible = traced(16).possible
    assert of(possible, "tl.store", "mask") == {"all", "none"}
    assert of(possible, "tile = tl.load", "mask") == {"all", "mixed", "none"}


def test_loops_and_branches_tell_every_way_that_some_program_took() -> None:
    trace = traced(0, 16, 40, 120)
    assert of(trace.behaviours, "for start", "loop") == {"never", "once", "many"}
    assert of(trace.behaviours, "if n > 100", "branch") == {"taken", "passed"}
    assert of(traced(7).behaviours, "if n > 100", "branch") == {"passed"}


def test_a_loop_of_fixed_length_has_one_way_only() -> None:
    assert of(traced(7).possible, "for _ in tl.range", "loop") == {"many"}


def test_lines_that_no_program_came_to_are_possible_and_not_run() -> None:
    inner, skipped = "tile = tl.load", traced(0)
    assert of(skipped.possible, inner, "line") == {"run"}
    assert of(skipped.behaviours, inner, "line") == set()
    assert of(traced(3).behaviours, inner, "line") == {"run"}


def test_what_a_fold_combines_with_runs_when_the_fold_does() -> None:
    trace = traced(3)
    assert trace.behaviours <= trace.possible
    assert {name for name in trace.possible - trace.behaviours if name.endswith("line run")} <= _branch_lines(trace)


def test_triton_s_own_lines_are_not_counted() -> None:
    files: set[Any] = {behaviour.split(":")[0] for behaviour in traced(3).possible}
    assert files == {"test_gridsim_coverage.py"}


def _branch_lines(trace: gridsim.Trace) -> set[str]:
    """The lines inside the branch that short rows do not take."""
    lines, first = inspect.getsourcelines(kernel.fn)
    inside = first + next(i for i, line in enumerate(lines) if "if n > 100" in line) + 1
    return {f"test_gridsim_coverage.py:{inside} line run"}
