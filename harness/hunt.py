"""A hunt: one round, in runs of Hypothesis, that draws until something new fails, and shrinks it to the least case."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from harness import control, earlier
from harness.attribution import attribution
from harness.case import Case, Float, replace
from harness.profiles import Profile
from harness.results import Result
from harness.shrink import shrink, size
from harness.strategies import cases
from harness.subjects import declines
from harness.summary import Found
from harness.traits import TRAITS, Trait, traits

if TYPE_CHECKING:
    from harness.campaign import Campaign

#: Cases that one round draws; then another subject, another pool of compile-time constants, another rung has its turn.
ROUND = 50
#: Cases that one run of Hypothesis draws. Beyond its first ten examples it makes five of six by copying parts of the
#: one before: half of a round had the combination, the values and the data seed of others.
FRESH = 10
#: Seconds that shrinking one fault may take: Hypothesis's part, then what our own passes may add.
SHRINK_SECONDS, FINISH_SECONDS = 30.0, 30.0
#: How often the smallest case is run again before it is reported.
CONFIRMATIONS = 3
#: What is said of one that fails as the first call of a process alone.
ALONE = ", each in a process of its own"
#: Traits that are tried to be taken away; a case has a call before it only where it was seen to need it.
TAKEN = tuple(trait for trait in TRAITS if trait.name != "a call before it")
#: Where one of them does not fail and float32 is not taken, the other tells whether it is needed.
HALVES: tuple[Float, ...] = ("float16", "bfloat16")
#: Seconds that an x-ray may add to a case, calls that are compiling included.
XRAY_SECONDS = 15.0


class Stop(BaseException):
    """Time is over; not an Exception, so that Hypothesis lets it through."""


class _Failed(BaseException):
    """A drawn case shows something new; carries what it was drawn with, so that it can be drawn again and shrunk."""

    def __init__(self, round_seed: int) -> None:
        super().__init__(round_seed)
        self.round_seed = round_seed


class _Fault(Exception):
    """Base of one class per family of findings: Hypothesis tells failures apart by class."""


@dataclass(frozen=True)
class Flight:
    """A case that runs while the next one is drawn."""

    case: Case
    round_seed: int
    result: Callable[[], Result]
    opened: ExitStack  # to be closed when it has landed, or is given up


@dataclass
class Hunt:
    """One round: draws until something new fails, then shrinks it."""

    campaign: Campaign
    subject: str
    memo: dict[Case, Result] = field(default_factory=dict)
    flight: Flight | None = None
    failures: dict[str, list[Result]] = field(default_factory=dict)  # by family, in the order met
    first_failure: float | None = None
    after: tuple[int, float] = (0, 0.0)  # cases and seconds of the campaign until then
    patience: float = SHRINK_SECONDS
    keeps: bool = False  # the smallest case fails here, but not in a process that has run nothing before

    def search(self, drawn: Profile, round_seed: int) -> None:
        """Draw and shrink; returns when the round is over, raises Stop when the campaign is."""
        with _quietly(), ExitStack() as landing:
            landing.callback(self._give_up)
            try:
                self._draw(drawn, round_seed)
            except _Fault:
                return
            except Stop:
                if self.campaign.over:
                    raise

    def _draw(self, drawn: Profile, round_seed: int) -> None:
        """Each case runs while the next one is drawn; what fails is drawn again, known by then, and shrunk."""
        try:
            for turn in range(round_seed, round_seed + ROUND // FRESH):
                self._drawn(partial(self._send, turn), drawn, turn, Phase.generate)
            self._land()
        except _Failed as failed:
            phases = (Phase.generate, Phase.shrink) if self.campaign.plan.shrinks else (Phase.generate,)
            self._drawn(self._hold, drawn, failed.round_seed, *phases)

    def _send(self, round_seed: int, case: Case) -> None:
        """Have the case run, once the one before it has landed."""
        if case in self.memo or (self.flight and self.flight.case == case):
            return
        self._land()
        self._check_time()
        with ExitStack() as opened:
            result = opened.enter_context(self.campaign.begun(case, self.subject))
            self.flight = Flight(case, round_seed, result, opened.pop_all())

    def _land(self) -> None:
        """Wait for the case in flight; raises _Failed where it shows something new."""
        flight, self.flight = self.flight, None
        if flight is None:
            return
        with flight.opened:
            self.memo[flight.case] = flight.result()
        if self._new_family(self.memo[flight.case]):
            raise _Failed(flight.round_seed)

    def _give_up(self) -> None:
        if self.flight:
            self.flight.opened.close()
            self.flight = None

    def _hold(self, case: Case) -> None:
        """Raises for Hypothesis to shrink where the case shows something new."""
        if family := self.examine(case):
            raise _fault_class(family)(family)

    def _drawn(self, take: Callable[[Case], None], drawn: Profile, round_seed: int, *phases: Phase) -> None:
        """Draw cases for `take`, the same for one seed."""

        @seed(round_seed)
        @settings(
            max_examples=FRESH,
            database=None,  # the corpus keeps cases, not choices
            deadline=None,  # a hang is the runner's business
            derandomize=False,
            phases=phases,
            report_multiple_bugs=False,  # one fault a round, so that its shrinking has the whole budget
            suppress_health_check=list(HealthCheck),  # hostile inputs are large and slow by intent
            verbosity=Verbosity.quiet,
            print_blob=False,
        )
        @given(cases(drawn))
        def each(case: Case) -> None:
            take(case)

        each()

    def examine(self, case: Case) -> str:
        """Judge the case once; the family of a finding that nothing known explains, or nothing."""
        if case not in self.memo:
            self._check_time()
            self.memo[case] = self.campaign.judge(case, self.subject)
        return self._new_family(self.memo[case])

    def _check_time(self) -> None:
        if self.first_failure is None:
            must_stop = self.campaign.over
        else:
            must_stop = self.campaign.out_of_time or time.monotonic() - self.first_failure > self.patience
        if must_stop:
            raise Stop

    def _new_family(self, result: Result) -> str:
        finding = result.headline
        if finding is None:
            return ""
        names = traits(result.case) | set(finding.beyond)
        if any(found.explains(self.subject, finding, names) for found in self.campaign.findings):
            return ""
        self.failures.setdefault(finding.family, [])
        if result not in self.failures[finding.family]:
            self.failures[finding.family].append(result)
        if self.first_failure is None:
            self.first_failure = time.monotonic()
            self.after = (self.campaign.cases, round(self.campaign.elapsed, 3))
            self.campaign.shrinking = finding.family
            if finding.family == "hang":  # at seconds a try, only our own passes are frugal enough
                self.patience = 0.0
        return finding.family

    def found(self) -> Iterator[Found]:
        """The smallest case of the family that was shrunk, run again to see whether it always fails."""
        if self.first_failure is None:
            return
        family = self.campaign.shrinking or next(iter(self.failures))
        if not self.campaign.plan.shrinks:
            yield self._as_met(self.failures[family][0])
            return
        self._finish(family)
        yield self._confirmed(self._smallest(family), len(self.failures[family]), time.monotonic() - self.first_failure)

    def _as_met(self, result: Result) -> Found:
        """What failed, neither made smaller nor run again."""
        finding = result.headline
        assert finding is not None
        return Found(
            subject=self.subject,
            case=result.case,
            finding=finding,
            others=tuple(other for other in result.findings if other != finding),
            needs=tuple(sorted(traits(result.case) | set(finding.beyond))),
            executor=self.campaign.plan.executor,
            after_cases=self.after[0],
            after_seconds=self.after[1],
            executions=len(self.memo),
        )

    def _finish(self, family: str) -> None:
        """Take up where Hypothesis stopped; what fails on the way is kept by `examine`.

        Once a case is wrong by itself, those that only a relation shows are no smaller.
        """
        self.patience += FINISH_SECONDS

        def fails(case: Case) -> bool:
            failed = self.examine(case) == family
            return failed and self.memo[case].shows_by_itself >= self._smallest(family).shows_by_itself

        self.campaign.shrinking = family  # a hang is waited for briefly
        with suppress(Stop):
            shrink(self._smallest(family).case, fails)
        self.campaign.shrinking = ""

    def _smallest(self, family: str) -> Result:
        """The smallest case that is wrong by itself, if any is."""
        return min(self.failures[family], key=lambda result: (not result.shows_by_itself, size(result.case)))

    def _confirmed(self, smallest: Result, met: int, seconds: float) -> Found:
        again = self._run_again(smallest.case, smallest.headline.family) if smallest.headline else ""
        odd = self.keeps or (smallest.headline is not None and smallest.headline.kind == earlier.MOVED)
        if odd and (pair := earlier.after_another(self, smallest)) and pair.headline:
            smallest, again = pair, self._run_again(pair.case, pair.headline.family)
        if again.endswith(ALONE):
            smallest = earlier.first_of_all(self, smallest)
        smallest = self._explained(smallest)
        finding = smallest.headline
        assert finding is not None
        blamed = control.platform_fault(self.campaign, self.subject, smallest.case, finding)
        return Found(
            subject=self.subject,
            case=smallest.case,
            finding=blamed or finding,
            others=tuple(other for other in smallest.findings if blamed or other != finding),
            needs=tuple(dict.fromkeys((*self._needs(smallest.case, finding.family), *finding.beyond))),
            met=met,
            again=again,
            attribution="" if blamed else attribution(self.campaign, self.subject, smallest.case, finding.family),
            executor=self.campaign.plan.executor,
            after_cases=self.after[0],
            after_seconds=self.after[1],
            executions=len(self.memo),
            seconds=round(seconds, 2),
        )

    def _explained(self, smallest: Result) -> Result:
        """The result with what an x-ray says of a wrong output; as it was where it says nothing."""
        if self.campaign.interrupted or not any(finding.family == "wrong output" for finding in smallest.findings):
            return smallest
        limit = self.campaign.limit() + XRAY_SECONDS
        seen = self.campaign.runner.run(smallest.case, self.subject, limit, thorough=True, explain=True)
        words = {(finding.kind, finding.detail): finding.explains for finding in seen.findings}
        told = (
            msgspec.structs.replace(finding, explains=words.get((finding.kind, finding.detail), finding.explains))
            for finding in smallest.findings
        )
        return msgspec.structs.replace(smallest, findings=tuple(told))

    def _run_again(self, case: Case, family: str) -> str:
        """For example "3 of 3", the last of them in a process of its own; no hang is waited for when time is over.

        What fails in a process of its own alone is run again in as many.
        """
        if self.campaign.interrupted or (family == "hang" and self.campaign.out_of_time):
            return ""
        again: list[bool] = []
        while len(again) < CONFIRMATIONS and not self.campaign.interrupted:
            again.append(self._again(case, family, patient=True, fresh=len(again) == CONFIRMATIONS - 1))
        self.keeps = len(again) == CONFIRMATIONS and all(again[:-1]) and not again[-1]
        first_only = len(again) == CONFIRMATIONS and again[-1] and not any(again[:-1])
        if first_only and all(self._again(case, family, patient=True, fresh=True) for _ in again[:-1]):
            return f"{len(again)} of {len(again)}{ALONE}"
        return f"{sum(again)} of {len(again)}{', but not in a process of its own' if self.keeps else ''}"

    def _needs(self, case: Case, family: str) -> tuple[str, ...]:
        """The traits that cannot be taken away, one after the other, without losing the fault.

        One that the subject takes no case without is tried again at the end, since another trait may have been the
        reason. If it is declined then as well, every case like this one has it, and nothing was learnt about it.
        """
        given, left = case, sorted(TAKEN, key=lambda trait: -trait.rung)
        for _ in range(2):
            tried, left = left, []
            for trait in tried:
                if not (trait.has(given) and trait.has(case)) or self.campaign.out_of_time:
                    continue
                result = self._taken(trait, case, family)
                if result is None:
                    left.append(trait)
                elif _shows(result, family):
                    case = result.case
        return tuple(t.name for t in TRAITS if t.has(case) and t.has(given) and t not in left)

    def _taken(self, trait: Trait, case: Case, family: str) -> Result | None:
        """What the case gives without the trait; None where the subject takes no such case."""
        plainer = self._without(trait, case)
        if plainer is None:
            return None
        result = self._judged(plainer, family, fresh=case.before is not None)
        return None if result.declined else result

    def _without(self, trait: Trait, case: Case) -> Case | None:
        """The case without the trait; None where the subject declares that it takes no such case."""
        others = (trait.without(case), *(replace(case, dtype=dtype) for dtype in HALVES if trait.name in HALVES))
        declared = self.campaign.plan.subjects[self.subject]
        able = (other for other in others if not trait.has(other) and declines(declared, other) is None)
        return next(able, None)

    def _again(self, case: Case, family: str, patient: bool = False, fresh: bool = False) -> bool:
        return _shows(self._judged(case, family, patient, fresh), family)

    def _judged(self, case: Case, family: str, patient: bool = False, fresh: bool = False) -> Result:
        limit = self.campaign.short_limit() if family == "hang" and not patient else self.campaign.limit()
        options = {"thorough": True} | ({"fresh": True} if fresh else {})
        return self.campaign.runner.run(case, self.subject, limit, **options)


def _shows(result: Result, family: str) -> bool:
    return any(finding.family == family for finding in result.findings)


_FAULTS: dict[str, type[_Fault]] = {}


def _fault_class(family: str) -> type[_Fault]:
    return _FAULTS.setdefault(family, type("Fault", (_Fault,), {}))


@contextmanager
def _quietly() -> Iterator[None]:
    """Hypothesis explains failures on its own; the campaign does the talking."""
    with redirect_stdout(io.StringIO()):
        yield
