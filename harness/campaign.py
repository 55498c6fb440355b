"""A campaign: rounds of drawn cases over subjects, each new fault shrunk on its own, within a time budget."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from harness.case import Case
from harness.corpus import Corpus
from harness.known import Known, reason
from harness.results import RETIRE_NOTE, Result
from harness.shrink import shrink, size
from harness.strategies import Profile, cases, not_drawn, profile
from harness.subjects import Declaration
from harness.summary import Found, Summary, merge_findings
from harness.traits import TRAITS, rung, traits

#: Cases that one round draws; then another subject, another pool of compile-time constants, another rung has its turn.
ROUND = 80
#: The rungs that rounds draw up to, in turn: mostly everything, but the low rungs must have their cases for a verdict.
LADDER = (6, 1, 3, 2, 4, 6, 5, 6)
#: Seconds that shrinking one fault may take: Hypothesis's part, then what our own passes may add.
SHRINK_SECONDS, FINISH_SECONDS = 30.0, 20.0
#: Seconds before a case counts as hanging: at first (compiling, importing), and at least, once the median is known.
FIRST_LIMIT, LEAST_LIMIT = 60.0, 5.0
#: A case hangs when it takes so many times the median.
HANG_FACTOR = 20
#: How often the smallest case is run again before it is reported.
CONFIRMATIONS = 3


class Runner(Protocol):
    """Runs one case somewhere: in a worker that may die, or in this process."""

    @property
    def restarts(self) -> int:
        """Workers that died and were replaced."""

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        """Run and judge the case."""


class Stop(BaseException):
    """Time is over; not an Exception, so that Hypothesis lets it through."""


class _Fault(Exception):
    """Base of one class per family of findings: Hypothesis tells failures apart by class."""


@dataclass(frozen=True)
class Plan:
    """What a campaign is to do."""

    subjects: dict[str, Declaration]
    executor: str
    seconds: float
    seed: int = 0
    max_cases: int | None = None
    corpus: Corpus | None = None
    known: tuple[Known, ...] = ()
    stop_at_first: bool = False


@dataclass
class Campaign:
    """The state of a running campaign; `summary()` can be asked for at any time."""

    plan: Plan
    runner: Runner
    tell: Callable[["Campaign"], None] = lambda _: None
    began: float = field(default_factory=time.monotonic)
    cases: int = 0
    runs: int = 0
    passed: dict[str, dict[int, int]] = field(default_factory=dict)
    failed: int = 0
    declined: dict[str, int] = field(default_factory=dict)
    findings: list[Found] = field(default_factory=list)
    worst: tuple[float, str] = (0.0, "")
    words: dict[str, dict[str, set[str]]] = field(default_factory=lambda: {"arithmetic": {}, "notes": {}})
    behaviours: set[str] = field(default_factory=set)
    last_new: float = 0.0
    platform: str = ""
    faults: list[str] = field(default_factory=list)
    interrupted: bool = False
    shrinking: str = ""
    subject: str = ""
    times: list[float] = field(default_factory=list)
    finished: float | None = None

    def run(self) -> Summary:
        """Draw until the time, the cases or the patience are used up; Ctrl-C ends it with what there is."""
        try:
            for number in range(10**9):
                self._round(number)
        except Stop:
            pass
        except KeyboardInterrupt:
            self.interrupted = True
        self.finished = time.monotonic()
        return self.summary()

    @property
    def elapsed(self) -> float:
        """Seconds since the campaign began."""
        return (self.finished or time.monotonic()) - self.began

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        enough = self.plan.max_cases is not None and self.cases >= self.plan.max_cases
        done = self.plan.stop_at_first and any(not found.known for found in self.findings)
        return enough or done or bool(self.faults) or self.elapsed >= self.plan.seconds

    def limit(self) -> float:
        """Seconds after which a case hangs."""
        if len(self.times) < 10:
            return FIRST_LIMIT
        return max(LEAST_LIMIT, HANG_FACTOR * median(self.times[-200:]))

    def _round(self, number: int) -> None:
        names = list(self.plan.subjects)
        self.subject = names[number % len(names)]
        turn = number // len(names)
        round_seed = random.Random(f"{self.plan.seed} {number}").getrandbits(32)  # noqa: S311
        drawn = profile(self.plan.subjects[self.subject], round_seed, LADDER[turn % len(LADDER)])
        hunt = Hunt(self, self.subject)
        try:
            hunt.search(drawn, round_seed)
        finally:
            self.shrinking = ""
            self._report(hunt)

    def take_up(self, case: Case, subject: str) -> None:
        """Judge a given case, and report it as it is when it fails."""
        hunt = Hunt(self, subject)
        if hunt.examine(case):
            self._report(hunt)

    def _report(self, hunt: "Hunt") -> None:
        for found in hunt.found():
            self.findings = list(merge_findings([*self.findings, self._keep(found)]))
        self.tell(self)

    def _keep(self, found: Found) -> Found:
        tolerated = reason(self.plan.known, found, self.platform)
        found = msgspec.structs.replace(found, known=tolerated)
        if self.plan.corpus is None or tolerated:
            return found
        return msgspec.structs.replace(found, file=str(self.plan.corpus.save(found)))

    def judge(self, case: Case, subject: str, **options: Any) -> Result:
        """Run one case and count it."""
        result = self.runner.run(case, subject, self.limit(), **options)
        self._count(result)
        self.tell(self)
        return result

    def _count(self, result: Result) -> None:
        self.runs += result.runs
        self.platform = self.platform or result.platform
        if result.declined:
            self.declined[result.declined] = self.declined.get(result.declined, 0) + 1
            return
        self.cases += 1
        self.times.append(result.seconds)
        if result.harness_fault:
            self.faults.append(result.harness_fault)
            return
        if not result.findings and result.margin > self.worst[0]:
            self.worst = (result.margin, result.margin_term)
        self._learn(result)

    def _learn(self, result: Result) -> None:
        names = traits(result.case)
        self._score(result, rung(names))
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
            seconds=round(self.elapsed, 3),
            cases=self.cases,
            runs=self.runs,
            passed={name: dict(sorted(steps.items())) for name, steps in self.passed.items()},
            failed=self.failed,
            declined=dict(self.declined),
            not_drawn={name: not_drawn(declared) for name, declared in self.plan.subjects.items()},
            findings=tuple(self.findings),
            worst_margin=self.worst[0],
            worst_term=self.worst[1],
            arithmetic=_sorted_words(self.words["arithmetic"]),
            notes=_sorted_words(self.words["notes"]),
            behaviours=len(self.behaviours),
            last_new=round(self.last_new, 3),
            restarts=self.runner.restarts,
            harness_faults=tuple(self.faults),
            interrupted=self.interrupted,
        )


def _sorted_words(words: dict[str, set[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(sorted(texts - {""})) for name, texts in words.items()}


@dataclass
class Hunt:
    """One run of Hypothesis: draws until something new fails, then shrinks it."""

    campaign: Campaign
    subject: str
    memo: dict[Case, Result] = field(default_factory=dict)
    failures: dict[str, list[Result]] = field(default_factory=dict)  # by family, in the order met
    first_failure: float | None = None
    patience: float = SHRINK_SECONDS

    def search(self, drawn: Profile, round_seed: int) -> None:
        """Draw and shrink; returns when the round is over, raises Stop when the campaign is."""
        with _quietly():
            try:
                self._property(drawn, round_seed)()
            except _Fault:
                return
            except Stop:
                if self.campaign.over:
                    raise

    def _property(self, drawn: Profile, round_seed: int) -> Callable[[], None]:
        @seed(round_seed)
        @settings(
            max_examples=ROUND,
            database=None,  # the corpus keeps cases, not choices
            deadline=None,  # a hang is the runner's business
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,  # one fault a round, so that its shrinking has the whole budget
            suppress_health_check=list(HealthCheck),  # hostile inputs are large and slow by intent
            verbosity=Verbosity.quiet,
            print_blob=False,
        )
        @given(cases(drawn))
        def holds(case: Case) -> None:
            if family := self.examine(case):
                raise _fault_class(family)(family)

        return holds

    def examine(self, case: Case) -> str:
        """Judge the case once; the family of a finding that nothing known explains, or nothing."""
        if case not in self.memo:
            self._check_time()
            self.memo[case] = self.campaign.judge(case, self.subject)
        return self._new_family(self.memo[case])

    def _check_time(self) -> None:
        shrinking = 0.0 if self.first_failure is None else time.monotonic() - self.first_failure
        if shrinking > self.patience or self.campaign.over:
            raise Stop

    def _new_family(self, result: Result) -> str:
        finding = result.headline
        if finding is None:
            return ""
        names = traits(result.case)
        if any(found.explains(self.subject, finding, names) for found in self.campaign.findings):
            return ""
        self.failures.setdefault(finding.family, [])
        if result not in self.failures[finding.family]:
            self.failures[finding.family].append(result)
        if self.first_failure is None:
            self.first_failure = time.monotonic()
            self.campaign.shrinking = finding.family
        return finding.family

    def found(self) -> Iterator[Found]:
        """The smallest case of the family that was shrunk, run again to see whether it always fails."""
        if self.first_failure is None:
            return
        family = self.campaign.shrinking or next(iter(self.failures))
        self._finish(family)
        smallest = min(self.failures[family], key=lambda result: size(result.case))
        yield self._confirmed(smallest, len(self.failures[family]), time.monotonic() - self.first_failure)

    def _finish(self, family: str) -> None:
        """Take up where Hypothesis stopped; what fails on the way is kept by `examine`."""
        smallest = min(self.failures[family], key=lambda result: size(result.case)).case
        self.patience += FINISH_SECONDS
        with suppress(Stop):
            shrink(smallest, lambda case: self.examine(case) == family)

    def _confirmed(self, smallest: Result, met: int, seconds: float) -> Found:
        finding = smallest.headline
        assert finding is not None
        again = [self._again(smallest.case, finding.family) for _ in range(CONFIRMATIONS)]
        return Found(
            subject=self.subject,
            case=smallest.case,
            finding=finding,
            others=tuple(other for other in smallest.findings if other != finding),
            needs=self._needs(smallest.case, finding.family),
            met=met,
            again=f"{sum(again)} of {len(again)}",
            executor=self.campaign.plan.executor,
            executions=len(self.memo),
            seconds=round(seconds, 2),
        )

    def _needs(self, case: Case, family: str) -> tuple[str, ...]:
        """The traits that cannot be taken away, one after the other, without losing the fault."""
        for trait in sorted(TRAITS, key=lambda trait: -trait.rung):
            if trait.has(case) and self._again(trait.without(case), family):
                case = trait.without(case)
        return tuple(trait.name for trait in TRAITS if trait.has(case))

    def _again(self, case: Case, family: str) -> bool:
        result = self.campaign.runner.run(case, self.subject, self.campaign.limit(), thorough=True)
        return any(finding.family == family for finding in result.findings)


_FAULTS: dict[str, type[_Fault]] = {}


def _fault_class(family: str) -> type[_Fault]:
    return _FAULTS.setdefault(family, type("Fault", (_Fault,), {}))


@contextmanager
def _quietly() -> Iterator[None]:
    """Hypothesis explains failures on its own; the campaign does the talking."""
    import io
    from contextlib import redirect_stdout

    with redirect_stdout(io.StringIO()):
        yield
