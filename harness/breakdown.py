"""`python -m harness.breakdown`: where the time of a campaign's cases goes, phase by phase."""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from harness.ahead import ahead_of
from harness.campaign import Campaign, Plan
from harness.case import Case, Record
from harness.commands import (
    DEFAULT_OP,
    NOTHING_RAN,
    Verb,
    ahead_option,
    check_file,
    chosen_executor,
    device_option,
    one_line_errors,
    op_option,
    subject_option,
)
from harness.files import write_atomically
from harness.fuzz import ours
from harness.journal import Journal
from harness.pool import HarnessFault, Worker
from harness.results import Result
from harness.running import Journalled, journal_folder
from harness.stopwatch import COMPILING, WATCH
from harness.worker import EXECUTORS

#: The executor that gives calls back.
ECHO = "echo"
#: What the worker waits for: cases are drawn while the one before runs, so `DRAWING` is what it takes longer than that.
#: `REST` is what of a case's time in the worker has no name of its own.
DRAWING, COUNTING, MESSAGING, REST = "drawing", "counting", "messaging", "rest"
#: Of the times of one phase: so many of a hundred cases take less.
SPREAD = (10, 50, 90)
#: Packages whose versions decide how fast something is.
PACKAGES = ("torch", "triton", "numpy", "hypothesis")


class Phase(Record, frozen=True):
    """One phase: its share of all time, and milliseconds of a case."""

    share: float
    mean: float
    low: float
    median: float
    high: float


class Breakdown(Record, frozen=True):
    """What a run came to; the phases add up to its seconds."""

    executor: str
    platform: str
    subjects: dict[str, tuple[int, float]]  # judged cases, and the mean of their milliseconds
    seed: int
    looks: bool
    cases: int
    declined: int
    seconds: float
    cases_per_second: float
    compile_share: float
    phases: dict[str, Phase]  # the largest first
    versions: dict[str, str]
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lap:
    """One case from the end of the one before it to its own."""

    result: Result
    began: float
    phases: dict[str, float]

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.phases.values())


@dataclass
class Laps:
    """A runner that takes the time of each case; an echo hears each case once, which does not count."""

    inner: Journalled
    looks: bool
    laps: list[Lap] = field(default_factory=list)
    last: float = field(default_factory=time.perf_counter)

    @property
    def restarts(self) -> int:
        """Workers that died and were replaced."""
        return self.inner.restarts

    @property
    def echoes(self) -> bool:
        """Whether calls are given back rather than made."""
        return self.inner.worker.executor == ECHO

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        """Run and judge the case in the worker."""
        with self.begun(case, subject, limit_seconds, **options) as result:
            return result()

    @contextmanager
    def begun(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Iterator[Callable[[], Result]]:
        """The same in two steps; meanwhile the next case is drawn."""
        before, counting = time.perf_counter() - self.last, WATCH.taken().get(COUNTING, 0.0)
        if self.echoes:
            self._heard(case, subject, limit_seconds, options)
        began = time.perf_counter()
        with self.inner.begun(case, subject, limit_seconds, looking=self.looks, **options) as result:
            yield partial(self._timed, result, began, before - counting, counting)

    def _timed(self, answer: Callable[[], Result], began: float, drawing: float, counting: float) -> Result:
        """The result; a worker that has answered before somebody asks for it waits for the next case to be drawn."""
        asked = time.perf_counter()
        result = answer()
        self.last = time.perf_counter()
        idle = max(asked - began - result.seconds, 0.0)
        messaging = self.last - began - idle - result.seconds
        outside = {DRAWING: drawing + idle, COUNTING: counting, MESSAGING: messaging}
        rest = result.seconds - sum(result.phases.values())
        if not (self.echoes and result.declined):
            self.laps.append(Lap(result, began, outside | result.phases | {REST: rest}))
        return result

    def failing_probes(self) -> list[str]:
        """What fails of the probes in the worker."""
        return self.inner.failing_probes()

    def _heard(self, case: Case, subject: str, limit_seconds: float, options: dict[str, Any]) -> None:
        self.inner.worker.call("harness.executors.echo:listen")
        self.inner.run(case, subject, limit_seconds, looking=self.looks, **options)
        self.inner.worker.call("harness.executors.echo:repeat")


@click.command(cls=Verb)
@click.option("--seconds", type=click.FloatRange(1.0), default=30.0, show_default=True, help="How long it is timed.")
@click.option("--cases", type=click.IntRange(min=1), default=None, help="Or until so many cases were drawn in all.")
@click.option("--warm-up", type=click.FloatRange(0.0), default=10.0, show_default=True, help="Seconds before that.")
@subject_option
@op_option
@click.option(
    "--executor",
    type=click.Choice(EXECUTORS),
    default=None,
    help="As for `harness.fuzz`; `echo` gives back at no cost what launches did on gridsim, so that all else is timed.",
)
@device_option
@ahead_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the campaign.")
@click.option("--looks/--base-set", default=True, show_default=True, help="With looks, or the base set alone.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write all of it to this file.")
@one_line_errors
def main(file: Path | None, subjects: tuple[str, ...], op: str | None, executor: str | None, **options: Any) -> int:
    """Run a campaign that shrinks nothing, and tell for each phase how much of the time it takes.

    Exit code: 0; 2 wrong use; 3 the harness is at fault; 5 no case was judged.
    """
    check_file("--json", file)
    found = measured(subjects or ours(op), op or DEFAULT_OP, chosen_executor(executor), **options)
    for line in lines(found):
        click.echo(line)
    if file:
        write_atomically(file, msgspec.json.encode(found).decode() + "\n")
    return 0 if found.cases else NOTHING_RAN


def measured(
    subjects: Sequence[str], op: str, executor: str, seconds: float, warm_up: float = 0.0, seed: int = 0,
    looks: bool = True, cases: int | None = None, device: int | None = None, ahead: int | None = None,
) -> Breakdown:  # fmt: skip
    """One campaign of these subjects, timed after its warm-up; raises HarnessFault."""
    with Worker(executor, device) as worker, ahead_of(executor, ahead, device) as looking:
        where: str = worker.call("harness.executors:platform_of", executor)
        declared = {name: worker.describe(name, op) for name in subjects}
        limits = "gridsim" if executor == ECHO else executor
        runner = Laps(Journalled(worker, Journal(journal_folder())), looks)
        began = time.perf_counter()
        plan = Plan(declared, limits, warm_up + seconds, seed=seed, max_cases=cases, shrinks=False)
        summary = Campaign(plan, runner, ahead=looking).run()
    if summary.harness_faults:
        raise HarnessFault("; ".join(summary.harness_faults))
    laps = [lap for lap in runner.laps if lap.began >= began + warm_up]
    told = tuple(f"{found.subject}: {found.finding.message}" for found in summary.findings)
    return broken_down(laps, executor, where, seed, looks, told)


def broken_down(
    laps: Sequence[Lap], executor: str, where: str, seed: int, looks: bool, findings: tuple[str, ...] = ()
) -> Breakdown:
    """What the laps add up to; those of declined cases count as time and not as cases."""
    seconds, judged = sum(lap.seconds for lap in laps), [lap for lap in laps if not lap.result.declined]
    names = dict.fromkeys(name for lap in laps for name in lap.phases)
    phases = {name: _phase([lap.phases.get(name, 0.0) for lap in laps], seconds) for name in names}
    compiling = sum(lap.result.compile_seconds for lap in laps)
    return Breakdown(
        executor=executor,
        platform=where,
        subjects=dict(_by_subject(judged)),
        seed=seed,
        looks=looks,
        cases=len(judged),
        declined=len(laps) - len(judged),
        seconds=round(seconds, 3),
        cases_per_second=round(len(judged) / seconds, 2) if seconds else 0.0,
        compile_share=round(compiling / seconds, 4) if seconds else 0.0,
        phases=dict(sorted(phases.items(), key=lambda item: -item[1].share)),
        versions={"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        findings=findings,
    )


def _phase(times: Sequence[float], whole: float) -> Phase:
    low, median, high = (round(1e3 * float(value), 3) for value in np.percentile(times, SPREAD))
    mean = round(1e3 * sum(times) / len(times), 3)
    return Phase(share=round(sum(times) / whole, 4), mean=mean, low=low, median=median, high=high)


def _by_subject(laps: Iterable[Lap]) -> Iterator[tuple[str, tuple[int, float]]]:
    times: dict[str, list[float]] = {}
    for lap in laps:
        times.setdefault(lap.result.subject, []).append(lap.seconds)
    for name, spent in times.items():
        yield name, (len(spent), round(1e3 * sum(spent) / len(spent), 2))


def lines(found: Breakdown) -> Iterator[str]:
    """The breakdown as a table."""
    checks = "with looks" if found.looks else "the base set alone"
    yield f"{found.executor} ({found.platform}), {checks}, seed {found.seed}"
    yield f"{found.cases} cases in {found.seconds:.1f} s; {found.declined} were declined"
    yield f"{found.cases_per_second:.1f} cases a second, {found.compile_share:.1%} of the time {COMPILING}"
    yield from (f"{name}: {cases} cases, {mean:.1f} ms each" for name, (cases, mean) in found.subjects.items())
    yield f"{'milliseconds of a case':<24}{'share':>8}{'mean':>9}{'median':>9}   10 % to 90 %"
    for name, phase in found.phases.items():
        spread = f"{phase.low:.2f} to {phase.high:.2f}"
        yield f"{name:<24}{phase.share:>8.1%}{phase.mean:>9.2f}{phase.median:>9.2f}   {spread}"
    yield from (f"found: {words}" for words in found.findings)


if __name__ == "__main__":
    main()
