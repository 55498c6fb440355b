"""`python benchmarks/gridsim.py`: the CPU road against Triton's interpreter, on one fixed set of drawn cases.

The set is kept beside this file, so that figures of different days are of the same cases whatever the strategies have
learned since; `--draw` draws it anew. `ours.split_decode` is not in it: the interpreter refuses its last mask.

Each case is judged by `pipeline.run_case` with the base checks, in a fresh process for each executor, one thread each,
case by case in turn so that a busy machine slows both. What the numbers mean:

* `pipeline_ratio`: seconds of all cases on the interpreter over those on gridsim; `pipeline_ratio_median`: the median
  of that ratio by case. A verdict is what is timed, not a call: what gridsim's log of accesses proves, the interpreter
  has to show by running the kernel again, so it makes about twice as many calls.
* `kernel_ratio`: mean seconds of a launch of at least 64 programs, from `kernel[grid](...)` to its return, on the
  interpreter over gridsim, summed over the cases that have such launches.
* `cases_per_second`: cases over seconds on gridsim, inside `run_case`; `cases_per_second_worker`: the same as a
  campaign has it, with the journal, the JSON and the pipe to the worker.

Each of them is of a second pass (warm). With `_cold`, it is of the first: a new process, and nothing compiled yet.
"""

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from harness.case import Case, decode
from harness.commands import FAULT, Verb, one_line_errors
from harness.journal import Journal
from harness.pool import Worker
from harness.results import Result
from harness.running import Journalled

SET = Path(__file__).with_suffix(".json")
SUBJECTS = ("ours.decode", "ours.extend", "ours.step", "ours.cache_write", "ours.gather", "ours.merge")
CASES = 40
#: Launches with fewer programs do not count for `kernel_ratio`.
PROGRAMS = 64
#: Seconds that one case may take on the interpreter.
PATIENCE = 600.0


class Drawn(msgspec.Struct):
    """One case of the set."""

    subject: str
    case: Case


class Timed(msgspec.Struct):
    """What one case took."""

    seconds: float
    launches: list[tuple[int, float]]  # programs, seconds


@click.command(cls=Verb)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@click.option("--cases", type=click.IntRange(min=1), default=CASES, show_default=True, help="So many of the set.")
@click.option("--draw", is_flag=True, help="Draw the set anew and write it.")
@one_line_errors
def main(as_json: bool, cases: int, draw: bool) -> int:
    """Time gridsim and Triton's interpreter on the same cases. Exit code: 0, or 3 when a case is not clean."""
    if draw:
        lines = [msgspec.json.encode(drawn).decode() for drawn in drawn_anew()]
        SET.write_text("[\n" + ",\n".join(lines) + "\n]\n")
        return 0
    chosen = decode(SET.read_bytes(), list[Drawn], str(SET))[:cases]
    try:
        figures = measured(chosen)
    except Unclean as unclean:
        click.echo(f"kvetch: {unclean}", err=True)
        return FAULT
    click.echo(json.dumps(figures) if as_json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    return 0


# --- measuring ---------------------------------------------------------------------------------------------------


class Unclean(Exception):
    """A case of the set was declined or has findings, so its time means nothing."""


def measured(chosen: list[Drawn]) -> dict[str, float]:
    """Every figure, of the first pass and of the second."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        slow, fast, worker = (
            stack.enter_context(fresh_worker(name, Path(folder) / str(number)))
            for number, name in enumerate(("interpreter", "gridsim", "gridsim"))
        )
        campaign = Journalled(worker, Journal(Path(folder)))
        passes = [[(timed(slow, drawn), timed(fast, drawn), run(campaign, drawn)) for drawn in chosen] for _ in "12"]
    cold, warm = (figures(found) for found in passes)
    return {"cases": len(chosen)} | warm | {f"{name}_cold": value for name, value in cold.items()}


@contextmanager
def fresh_worker(executor: str, cache: Path) -> Iterator[Worker]:
    """A worker that finds nothing compiled."""
    before = dict(os.environ)
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    try:
        with Worker(executor) as worker:
            worker.call("harness.executors:platform_of", executor)  # started, so the environment may change again
            yield worker
    finally:
        os.environ.clear()
        os.environ.update(before)


def timed(worker: Worker, drawn: Drawn) -> Timed:
    """One case inside a worker, timed there."""
    given = msgspec.to_builtins(drawn.case), drawn.subject, worker.executor
    found = worker.call("benchmarks.gridsim:time_case", *given, limit_seconds=PATIENCE)
    check(msgspec.convert(found["result"], Result))
    return msgspec.convert(found, Timed)


def run(campaign: Journalled, drawn: Drawn) -> float:
    """Seconds of one case as a campaign runs it."""
    began = time.perf_counter()
    result = campaign.run(drawn.case, drawn.subject, PATIENCE)
    seconds = time.perf_counter() - began
    check(result)
    return seconds


def check(result: Result) -> None:
    """Raise Unclean unless the case has passed."""
    if wrong := result.declined or result.harness_fault or (result.headline and result.headline.message):
        raise Unclean(f"{result.subject} on {result.executor}: {wrong}")


def figures(found: list[tuple[Timed, Timed, float]]) -> dict[str, float]:
    """The figures of one pass."""
    slow, fast, worker = zip(*found, strict=True)
    launches = [(mean_launch(a), mean_launch(b)) for a, b in zip(slow, fast, strict=True)]
    return {
        "pipeline_ratio": ratio(sum(case.seconds for case in slow), sum(case.seconds for case in fast)),
        "pipeline_ratio_median": round(median(a.seconds / b.seconds for a, b in zip(slow, fast, strict=True)), 2),
        "kernel_ratio": ratio(sum(a for a, _ in launches), sum(b for _, b in launches)),
        "cases_per_second": ratio(len(found), sum(case.seconds for case in fast)),
        "cases_per_second_worker": ratio(len(found), sum(worker)),
        "interpreter_seconds": round(sum(case.seconds for case in slow), 3),
        "gridsim_seconds": round(sum(case.seconds for case in fast), 3),
    }


def mean_launch(case: Timed) -> float:
    """Mean seconds of the case's launches of many programs; 0 where it has none."""
    seconds = [took for programs, took in case.launches if programs >= PROGRAMS]
    return sum(seconds) / len(seconds) if seconds else 0.0


def ratio(a: float, b: float) -> float:
    """a / b for reading, 0 where there is nothing to divide."""
    return round(a / b, 2) if b else 0.0


# --- in the worker -----------------------------------------------------------------------------------------------


def time_case(case: dict[str, Any], subject: str, executor: str) -> dict[str, Any]:
    """Judge the case; gives its result, its seconds and those of each launch."""
    from harness.pipeline import run_case
    from harness.subjects import load

    drawn = msgspec.convert(case, Case)
    loaded = load(subject, drawn.op)
    with timed_launches(executor) as launches:
        began = time.perf_counter()
        result = run_case(drawn, loaded, executor)
        seconds = time.perf_counter() - began
    return {"result": msgspec.to_builtins(result), "seconds": seconds, "launches": launches}


@contextmanager
def timed_launches(executor: str) -> Iterator[list[tuple[int, float]]]:
    """Collect programs and seconds of every launch inside."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    kind: Any = InterpretedFunction if executor == "interpreter" else JITFunction
    found: list[tuple[int, float]] = []
    plain: Callable[..., Any] = kind.run

    def launch(kernel: Any, *args: Any, grid: tuple[int, ...], **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(kernel, *args, grid=grid, **options)
        finally:
            found.append((math.prod(grid), time.perf_counter() - began))

    kind.run = launch
    try:
        yield found
    finally:
        kind.run = plain


# --- drawing -----------------------------------------------------------------------------------------------------


def drawn_anew() -> Iterator[Drawn]:
    """Cases as a campaign draws them: subjects and rungs in turn, within what the interpreter takes."""
    from harness.campaign import LADDER
    from harness.subjects import load

    for number in range(CASES):
        subject = SUBJECTS[number % len(SUBJECTS)]
        declared = msgspec.structs.replace(
            load(subject).declaration,
            dtypes=("float32", "float16"),
            kv_dtypes=("same",),
            placements=("in_order", "reversed", "shuffled", "interleaved"),
        )
        yield Drawn(subject, eighth(declared, number, LADDER[number // len(SUBJECTS)]))


def eighth(declared: Any, number: int, rungs: int) -> Case:
    """The eighth case of a round of drawing: the first few are the simplest."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from harness.profiles import profile
    from harness.strategies import cases

    found: list[Case] = []

    @seed(number)
    @settings(max_examples=8, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(cases(profile(declared, number, rungs)))
    def keep(case: Case) -> None:
        found.append(case)

    keep()
    return found[-1]


if __name__ == "__main__":
    main()
