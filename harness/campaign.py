"""A campaign: rounds of drawn cases over subjects, each new fault shrunk on its own, within a time budget."""

import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from types import FrameType
from typing import Any, Protocol

import msgspec

from harness import coverage, reach
from harness.ahead import Ahead, Pool
from harness.case import Case
from harness.corpus import Corpus
from harness.frames import framed
from harness.hunt import Hunt, Stop
from harness.known import Known, expired, reason
from harness.profiles import Profile, not_drawn, profile
from harness.results import NOT_WRITTEN, PLATFORM, RETIRE_NOTE, Result
from harness.running import Elsewhere
from harness.stopwatch import phase
from harness.subjects import Declaration
from harness.summary import Found, Summary, merge_findings
from harness.traits import avoidable, rung, traits

#: In a round that stands for no rung, cases are drawn near those that did what few others did.
NEAR = 0
#: The rungs that rounds draw up to, in turn: mostly everything, since one round cannot have all features, but the low
#: rungs must have their cases for a verdict.
LADDER = (6, 1, 6, 3, 2, 6, 4, NEAR, 6, 5, NEAR)
#: So many rounds of one subject and rung share a pool of compile-time constants where a kernel takes long to compile.
STAYS = {"gpu": 8}
#: Seconds before a case counts as hanging: at first (compiling, importing), and later on at least.
FIRST_LIMIT = {"gridsim": 10.0, "gpu": 60.0, "interpreter": 60.0}
LEAST_LIMIT = {"gridsim": 5.0, "gpu": 20.0, "interpreter": 20.0}  # a GPU may have to compile for seconds
#: The same while a hang is being shrunk, where each candidate that hangs costs that long.
SHRINKING_LIMIT = {"gridsim": 1.0, "gpu": 20.0, "interpreter": 5.0}
#: A case hangs when it takes so many times the median.
HANG_FACTOR = 20
#: Seconds by which the last case may outlast the budget.
OVERTIME = 2.0
#: A subject that says of so many cases in turn that it is not written yet, and has had none judged, is not asked again.
UNWRITTEN = 10
#: So many of the first cases are remembered: a subject may have kept something of theirs.
EARLIEST = 20


class Runner(Protocol):
    """Runs one case somewhere: in a worker that may die, or in this process.

    One that has a context manager `begun` with the arguments of `run` runs the case inside it: what it gives waits for
    the result.
    """

    @property
    def restarts(self) -> int:
        """Workers that died and were replaced."""

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        """Run and judge the case."""

    def failing_probes(self) -> list[str]:
        """What fails of the probes of the platform, in words."""


@dataclass(frozen=True)
class Plan:
    """What a campaign is to do."""

    subjects: dict[str, Declaration]
    executor: str
    seconds: float
    seed: int = 0
    pools: int | None = None  # the seed of pools that stay, of campaigns side by side; None: the campaign's own
    first: int = 0  # the number of the first round: side by side, campaigns begin with different subjects
    max_cases: int | None = None
    corpus: Corpus | None = None
    known: tuple[Known, ...] = ()
    stop_at_first: bool = False
    shrinks: bool = True  # False: what fails is reported as it was met, and only once seen
    grace: float = 0.0  # seconds beyond the budget that shrinking may take
    recorded: dict[str, tuple[Case, ...]] = field(default_factory=dict)  # by subject: draw near these calls only


@dataclass
class Campaign:
    """The state of a running campaign; `summary()` can be asked for at any time."""

    plan: Plan
    runner: Runner
    tell: Callable[["Campaign"], None] = lambda _: None
    began: float = field(default_factory=time.monotonic)
    elsewhere: Elsewhere | None = None
    unoptimised: Elsewhere | None = None
    ahead: Ahead | None = None
    cases: int = 0
    runs: int = 0
    passed: dict[str, dict[int, int]] = field(default_factory=dict)
    failed: int = 0
    compile_seconds: float = 0.0
    declined: dict[str, int] = field(default_factory=dict)
    findings: list[Found] = field(default_factory=list)
    worst: tuple[float, str] = (0.0, "")
    words: dict[str, dict[str, set[str]]] = field(default_factory=lambda: {"arithmetic": {}, "notes": {}})
    witnesses: dict[str, dict[str, int]] = field(default_factory=dict)
    behaviours: set[str] = field(default_factory=set)
    last_new: float = 0.0
    drawn: coverage.Drawn = field(default_factory=dict)
    reached: dict[str, reach.Row] = field(default_factory=dict)
    latest: dict[str, dict[str, Case]] = field(default_factory=dict)  # subject to behaviour to a case that showed it
    earliest: dict[str, list[Case]] = field(default_factory=dict)  # subject to the first cases that were judged
    platform: str = ""
    faults: list[str] = field(default_factory=list)
    interrupted: bool = False
    reporting: bool = False
    shrinking: str = ""
    subject: str = ""
    times: list[float] = field(default_factory=list)
    finished: float | None = None
    probed: list[str] | None = None
    visits: dict[tuple[str, int], int] = field(default_factory=dict)  # subject and rung to rounds so far
    unwritten: dict[str, list[str]] = field(default_factory=dict)  # subject to what it says is not written yet

    def __post_init__(self) -> None:
        self.drawn = coverage.undrawn(self.plan.subjects.values())
        self.words["notes"] = {name: set(declared.notes()) for name, declared in self.plan.subjects.items()}

    def run(self, first: Callable[[], None] = lambda: None) -> Summary:
        """Do what comes first, then draw until time or cases are used up; Ctrl-C ends it with what there is."""
        try:
            with self._noting_interrupts():
                first()
                self._look_ahead()
                for number in itertools.count(self.plan.first):
                    self._round(number)
        except Stop:
            pass
        except KeyboardInterrupt:
            self.interrupted = True
        self.finished = time.monotonic()
        return self.summary()

    @contextmanager
    def _noting_interrupts(self) -> Iterator[None]:
        """Ctrl-C is noted as well as raised, since Hypothesis's callback of the garbage collector loses exceptions.

        A finding on its way to the result is not lost to it: only a second Ctrl-C is raised there. Python says on
        stderr which exceptions such callbacks lost; that of a Ctrl-C is no news.
        """

        def note(number: int, frame: FrameType | None) -> None:
            again, self.interrupted = self.interrupted, True
            if again or not self.reporting:
                signal.default_int_handler(number, frame)

        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not _in_main_thread():
            yield
            return
        told = sys.unraisablehook
        sys.unraisablehook = lambda lost: None if lost.exc_type is KeyboardInterrupt else told(lost)
        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = told

    @property
    def elapsed(self) -> float:
        """Seconds since the campaign began."""
        return (self.finished or time.monotonic()) - self.began

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        enough = self.plan.max_cases is not None and self.cases >= self.plan.max_cases
        done = self.plan.stop_at_first and any(not found.known for found in self.findings)
        return enough or done or self.out_of_time or self.elapsed >= self.plan.seconds or not self.written

    @property
    def written(self) -> list[str]:
        """The subjects that can be judged."""
        return [name for name in self.plan.subjects if not self._is_unwritten(name)]

    def _is_unwritten(self, name: str) -> bool:
        return name not in self.earliest and len(self.unwritten.get(name, ())) >= UNWRITTEN

    @property
    def left(self) -> float:
        """Seconds until shrinking has to end as well."""
        return self.plan.seconds + self.plan.grace - self.elapsed

    @property
    def out_of_time(self) -> bool:
        """Whether shrinking has to end as well; a budget of cases only ends the drawing."""
        return self.interrupted or bool(self.faults) or self.left <= 0

    def failing_probes(self) -> list[str]:
        """What fails of the probes of the platform; they run once."""
        if self.probed is None:
            self.probed = self.runner.failing_probes()
        return self.probed

    def limit(self) -> float:
        """Seconds after which a case hangs."""
        if len(self.times) < 10:
            return FIRST_LIMIT[self.plan.executor]
        return max(LEAST_LIMIT[self.plan.executor], HANG_FACTOR * median(self.times[-200:]))

    def short_limit(self) -> float:
        """The same while a hang is shrunk; what it cuts off wrongly is seen when the smallest case is run again."""
        usual = median(self.times[-200:]) if self.times else 0.0
        return max(SHRINKING_LIMIT[self.plan.executor], HANG_FACTOR / 10 * usual)

    def _round(self, number: int) -> None:
        names = self.written
        if not names:
            raise Stop
        self.subject = names[number % len(names)]
        turn = number // len(names)
        round_seed = random.Random(f"{self.plan.seed} {number}").getrandbits(32)  # noqa: S311
        step = LADDER[turn % len(LADDER)]
        drawn = self.profile(self._pool_seed(round_seed, step or 6), step)
        hunt = Hunt(self, self.subject)
        try:
            hunt.search(drawn, round_seed)
        except KeyboardInterrupt:
            self.interrupted = True
        except Exception:  # what an interruption in the midst of Hypothesis turns into
            if not self.interrupted:
                raise
        finally:
            self.shrinking = ""
            self._report(hunt)

    def _pool_seed(self, round_seed: int, step: int) -> int:
        """The round's own, or where pools stay that of the first of so many rounds like this one."""
        if (stays := STAYS.get(self.plan.executor, 1)) == 1:
            return round_seed
        visit = self.visits.get((self.subject, step), 0)
        self.visits[self.subject, step] = visit + 1
        if visit % stays == stays // 2:  # sooner, it would keep cores from kernels that are needed first
            self._prepare(self.subject, step, visit // stays + 1)
        return self._seed_of(self.subject, step, visit // stays)

    def _seed_of(self, subject: str, step: int, number: int) -> int:
        pools = self.plan.seed if self.plan.pools is None else self.plan.pools
        return random.Random(f"{pools} {subject} {step} {number}").getrandbits(32)  # noqa: S311

    def _look_ahead(self) -> None:
        """Have the first pool of every subject and rung compiled, in the order in which they come."""
        for step in dict.fromkeys(step or 6 for step in LADDER):
            for subject in self.plan.subjects:
                self._prepare(subject, step, 0)

    def _prepare(self, subject: str, step: int, number: int) -> None:
        if self.ahead is not None and subject not in self.plan.recorded:
            op, seed = self.plan.subjects[subject].op, self._seed_of(subject, step, number)
            self.ahead.prepare(Pool(subject=subject, op=op, seed=seed, rungs=step))

    def profile(self, round_seed: int, step: int) -> Profile:
        """What a round draws: up to a rung, near cases that did what few others did, or near recorded calls."""
        if self.subject in self.plan.recorded:
            drawn = profile(self.plan.subjects[self.subject], round_seed)
            return msgspec.structs.replace(drawn, recorded=self.plan.recorded[self.subject])
        drawn = profile(self.plan.subjects[self.subject], round_seed, step or 6)
        if self.plan.executor in STAYS:
            drawn = framed(drawn, round_seed)
        if step or self.subject not in self.latest:
            return drawn
        near = reach.leads(self.reached[self.subject], self.latest[self.subject])
        return msgspec.structs.replace(drawn, near=near)

    def take_up(self, case: Case, subject: str) -> None:
        """Judge a given case, and report it as it is when it fails."""
        hunt = Hunt(self, subject)
        if hunt.examine(case):
            self.shrinking = ""
            self._report(hunt)

    def _report(self, hunt: "Hunt") -> None:
        self.reporting = True
        try:
            for found in hunt.found():
                self.findings = list(merge_findings([*self.findings, self._keep(found)]))
        finally:
            self.reporting = False
        self.tell(self)

    def _keep(self, found: Found) -> Found:
        tolerated = reason(self.plan.known, found, self.platform)
        found = msgspec.structs.replace(found, known=tolerated)
        if self.plan.corpus is None or tolerated or found.finding.kind == PLATFORM:
            return found
        try:
            return msgspec.structs.replace(found, file=str(self.plan.corpus.save(found)))
        except OSError as error:  # a full disk loses the file, not the finding
            self.words["notes"].setdefault(found.subject, set()).add(f"a case could not be saved: {error}")
            return found

    def judge(self, case: Case, subject: str, **options: Any) -> Result:
        """Run one case and count it; a hang counts when it hangs for twice as long as well."""
        with self.begun(case, subject, **options) as result:
            return result()

    @contextmanager
    def begun(self, case: Case, subject: str, **options: Any) -> Iterator[Callable[[], Result]]:
        """The same in two steps: the case runs, where the runner can, until what this yields is called."""
        hurries = self.shrinking == "hang"
        limit = self.short_limit() if hurries else self.limit()
        with self._within_budget(case, subject, limit, options) as answer:

            def result() -> Result:
                said = answer()
                if _hangs(said) and not hurries:
                    with self._within_budget(case, subject, 2 * self.limit(), options) as again:
                        said = again()
                self._count(said)
                self.tell(self)
                return said

            yield result

    @contextmanager
    def _within_budget(
        self, case: Case, subject: str, limit: float, options: dict[str, Any]
    ) -> Iterator[Callable[[], Result]]:
        """Run the case for no longer than the campaign has left; a hang that was cut short is no verdict."""
        left = self.left + OVERTIME
        with self._asked(case, subject, min(limit, max(left, OVERTIME)), **options) as answer:

            def result() -> Result:
                said = answer()
                if left < limit and _hangs(said):
                    raise Stop
                return said

            yield result

    def _asked(self, *asked: Any, **options: Any) -> AbstractContextManager[Callable[[], Result]]:
        """The runner's own two steps, or both in the second."""
        begun = getattr(self.runner, "begun", None)
        return begun(*asked, **options) if begun else nullcontext(partial(self.runner.run, *asked, **options))

    @phase("counting")
    def _count(self, result: Result) -> None:
        self.runs += result.runs
        self.compile_seconds += result.compile_seconds
        self.platform = self.platform or result.platform
        if result.declined:
            self.declined[result.declined] = self.declined.get(result.declined, 0) + 1
            if result.declined.startswith(NOT_WRITTEN):
                self.unwritten.setdefault(result.subject, []).append(result.declined)
            return
        self.cases += 1
        earliest = self.earliest.setdefault(result.subject, [])
        if len(earliest) < EARLIEST:
            earliest.append(result.case)
        coverage.count(self.drawn, result.case)
        reach.count(self.reached, result)
        reach.note(self.latest, result)
        if not _hangs(result):
            self.times.append(result.seconds)
        if result.harness_fault:
            self.faults.append(result.harness_fault)
            return
        if not result.findings and result.margin > self.worst[0]:
            self.worst = (result.margin, result.margin_term)
        self._learn(result)

    def _learn(self, result: Result) -> None:
        for name, said in result.witnesses.items():
            heard = self.witnesses.setdefault(name, {})
            heard[said] = heard.get(said, 0) + 1
        names = traits(result.case)
        self._score(result, rung(avoidable(result.case, self.plan.subjects[result.subject])))
        seen = {*result.behaviours, *(f"{result.subject} {name}" for name in names)}
        if not seen <= self.behaviours:
            self.behaviours |= seen
            self.last_new = self.elapsed
        self.words["arithmetic"].setdefault(result.subject, set()).add(result.arithmetic)
        self.words["notes"].setdefault(result.subject, set()).update({*result.notes} - {RETIRE_NOTE})

    def _score(self, result: Result, step: int) -> None:
        if result.findings:
            self.failed += 1
        else:
            steps = self.passed.setdefault(result.subject, {})
            steps[step] = steps.get(step, 0) + 1

    def summary(self) -> Summary:
        """Everything so far."""
        return Summary(
            subjects=tuple(self.plan.subjects),
            executor=self.plan.executor,
            platform=self.platform,
            seed=self.plan.seed,
            not_written={name: self.unwritten[name][0] for name in self.plan.subjects if self._is_unwritten(name)},
            seconds=round(self.elapsed, 3),
            cases=self.cases,
            runs=self.runs,
            passed={name: dict(sorted(steps.items())) for name, steps in self.passed.items()},
            failed=self.failed,
            declined=dict(self.declined),
            not_drawn={name: not_drawn(declared) for name, declared in self.plan.subjects.items()},
            drawn={name: dict(row) for name, row in self.drawn.items()},
            reached={name: dict(row) for name, row in self.reached.items() if row},
            findings=tuple(self.findings),
            witnesses={name: dict(heard) for name, heard in self.witnesses.items()},
            worst_margin=self.worst[0],
            worst_term=self.worst[1],
            arithmetic=_sorted_words(self.words["arithmetic"]),
            notes=_sorted_words(self.words["notes"]),
            behaviours=len(self.behaviours),
            last_new=round(self.last_new, 3),
            compile_seconds=round(self.compile_seconds, 3),
            restarts=self.runner.restarts,
            expired=expired(self.plan.known, self.plan.subjects),
            harness_faults=tuple(self.faults),
            interrupted=self.interrupted,
        )


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _hangs(result: Result) -> bool:
    return any(finding.kind == "hang" for finding in result.findings)


def _sorted_words(words: dict[str, set[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(sorted(texts - {""})) for name, texts in words.items()}
