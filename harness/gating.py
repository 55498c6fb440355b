"""The gate of one subject: its cases run on both sides, what is the change's own is shrunk and confirmed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from harness.against import Against, Pair, families
from harness.campaign import Campaign, Plan
from harness.case import Case
from harness.confirming import Confirming
from harness.control import platform_fault
from harness.fixed import digest_of
from harness.hunt import CONFIRMATIONS, Stop
from harness.known import Known, reason
from harness.outcome import Gated, Verdict
from harness.results import Result
from harness.shifts import shifts
from harness.shrink import size
from harness.sides import Side
from harness.subjects import Declaration
from harness.summary import Found
from harness.traits import traits

#: A finding's smallest case and its family: two families may shrink to one case.
Key = tuple[Case, str]

#: Told of a subject how many of its cases are done.
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Trial:
    """A case to run, and the corpus file that it is from."""

    case: Case
    origin: str = ""


@dataclass
class Gating:
    """What is known so far of one subject."""

    subject: str
    campaign: Campaign
    against: Against
    own: dict[Key, Verdict] = field(default_factory=dict)  # on the campaign's findings
    apart: list[Verdict] = field(default_factory=list)  # on what is flaky or not the change's
    met: dict[Key, int] = field(default_factory=dict)  # how many cases show each of them
    excuses: dict[str, int] = field(default_factory=dict)  # family to its place in `apart`
    pairs: list[tuple[Case, Pair]] = field(default_factory=list)
    shared: dict[str, list[Result]] = field(default_factory=dict)  # family to results that the base shows as well
    declined: dict[str, int] = field(default_factory=dict)

    def run(self, trials: list[Trial], tell: Tell) -> int:
        """Run the trials in their order; how many were run before the time was over."""
        try:
            for done, trial in enumerate(trials):
                tell(self.subject, done, len(trials))
                if self.campaign.out_of_time:
                    return done
                self._take(trial)
        except Stop:
            return done
        return len(trials)

    def _take(self, trial: Trial) -> None:
        now, before = self.against.meet(trial.case, self.campaign.limit())
        self.pairs.append((trial.case, (now, before)))
        self._note_shared(now, before)
        own = families(now) - families(before)
        if own and self._is_excused(trial.case, now, own):
            return
        there = set(map(_key, self.campaign.findings))
        self.campaign.take_up(trial.case, self.subject)
        for found in tuple(self.campaign.findings):
            if _key(found) not in there:
                self._confirm(found, trial, (now, before))
        self._count_met(now, own)

    def _count_met(self, now: Result, own: set[str]) -> None:
        """A finding counts the cases of the gate that it explains."""
        names = traits(now.case)
        for found in self.campaign.findings:
            if any(found.explains(self.subject, finding, names) for finding in now.findings if finding.family in own):
                self.met[_key(found)] = self.met.get(_key(found), 0) + 1

    def _note_shared(self, now: Result, before: Result | None) -> None:
        for finding in now.findings:
            if finding.family in families(before):
                alone = msgspec.structs.replace(now, findings=(finding,))
                self.shared.setdefault(finding.family, []).append(alone)

    # --- what explains nothing else ----------------------------------------------------------------------------

    def _is_excused(self, case: Case, now: Result, own: set[str]) -> bool:
        """Whether it is an earlier fault again that is flaky, or the platform's; counts it there."""
        if not own <= set(self.excuses):
            return False
        at = self.excuses[min(own)]
        verdict = self.apart[at]
        excused = self._is_platforms(case, now, own) if verdict.word == "PLATFORM" else not self._is_steady(case, own)
        if excused:
            found = msgspec.structs.replace(verdict.found, met=verdict.found.met + 1)
            self.apart[at] = msgspec.structs.replace(verdict, found=found)
        return excused

    def _is_steady(self, case: Case, own: set[str]) -> bool:
        def fails() -> bool:
            options = {"thorough": True, "fresh": True}
            return bool(own & families(self.against.run(case, self.subject, self.campaign.limit(), **options)))

        return all(fails() for _ in range(CONFIRMATIONS))

    def _is_platforms(self, case: Case, now: Result, own: set[str]) -> bool:
        found = [finding for finding in now.findings if finding.family in own]
        return all(platform_fault(self.campaign, self.subject, case, finding) for finding in found)

    def _confirm(self, found: Found, trial: Trial, pair: Pair) -> None:
        """A finding that is flaky or not the change's must not explain what is met later: who knows what it needs."""
        verdict = self._on_either(found, trial, pair)
        self.campaign.findings.remove(found)
        if verdict.word in ("NEW", "KNOWN"):
            self.campaign.findings.append(verdict.found)
            self.own[_key(verdict.found)] = verdict
        else:
            self.excuses |= dict.fromkeys(families(pair[0]) - families(pair[1]), len(self.apart))
            self.apart.append(_met_once(verdict))

    def _on_either(self, found: Found, trial: Trial, pair: Pair) -> Verdict:
        """The verdict on the smallest case; if that is not the change's, the case it was shrunk from may still be."""
        confirming = Confirming(self.against.change, self.against.base, self.campaign.limit())
        now, before = pair
        own = families(now) - families(before)
        note = f"the base declines this case: {before.declined}" if before is not None and before.declined else ""
        verdict = confirming.verdict(found, trial.origin, note)
        if verdict.word in ("NEW", "KNOWN") or self._is_platforms(trial.case, now, own):
            return verdict
        whole = confirming.verdict(_unshrunk(found, now, own), trial.origin, note)
        return whole if whole.word == "NEW" or verdict.word in ("PLATFORM", "NOT SEEN AGAIN") else verdict

    # --- the end -----------------------------------------------------------------------------------------------

    def verdicts(self) -> tuple[Verdict, ...]:
        """On everything that was met; the change's own first."""
        own = (self._updated(found) for found in self.campaign.findings)
        return (*own, *self.apart, *map(self._on_shared, self.shared.values()))

    def _updated(self, found: Found) -> Verdict:
        verdict = self.own[_key(found)]
        met = self.met.get(_key(found), 1)
        return msgspec.structs.replace(verdict, found=msgspec.structs.replace(verdict.found, met=met))

    def _on_shared(self, results: list[Result]) -> Verdict:
        smallest = min(results, key=lambda result: size(result.case))
        finding = smallest.findings[0]
        found = Found(subject=self.subject, case=smallest.case, finding=finding, executor=smallest.executor)
        tolerated = reason(self.campaign.plan.known, found, smallest.platform)
        found = msgspec.structs.replace(found, met=len(results), known=tolerated)
        return Confirming(self.against.change, self.against.base, self.campaign.limit()).verdict(found)


def _key(found: Found) -> Key:
    return found.case, found.finding.family


def _met_once(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(verdict, found=msgspec.structs.replace(verdict.found, met=1))


def _unshrunk(found: Found, now: Result, own: set[str]) -> Found:
    """The finding on the case that it was shrunk from; all of its traits may be needed."""
    alone = msgspec.structs.replace(now, findings=tuple(f for f in now.findings if f.family in own))
    assert alone.headline is not None
    needs = tuple(sorted(traits(now.case)))
    return msgspec.structs.replace(found, case=now.case, finding=alone.headline, others=(), needs=needs, known="")


@dataclass(frozen=True)
class Task:
    """What to gate: a subject, what the change declares of it, its cases, how many seconds at most."""

    subject: str
    declared: Declaration
    trials: list[Trial]
    seconds: float
    known: tuple[Known, ...] = ()


def gate_subject(
    task: Task, change: Side, base: Side | None, executor: str, tell: Tell
) -> tuple[Gated, str, list[str]]:
    """The outcome, the platform it is of, and faults of the harness."""
    began = time.monotonic()
    against = Against(task.subject, change, base)
    plan = Plan({task.subject: task.declared}, executor, task.seconds, known=task.known)
    gating = Gating(task.subject, Campaign(plan, against), against)
    ran = gating.run(task.trials, tell)
    verdicts = gating.verdicts()
    against.hands.shutdown()
    campaign = gating.campaign
    outcome = Gated(
        subject=task.subject,
        is_new=base is None,
        asked=len(task.trials),
        ran=ran,
        kept=sum(bool(trial.origin) for trial in task.trials),
        judged=sum(not now.declined for _, (now, _) in gating.pairs),
        declined=dict(campaign.declined),
        verdicts=verdicts,
        shifts=shifts(task.subject, gating.pairs),
        digest=digest_of([trial.case for trial in task.trials]),
        seconds=round(time.monotonic() - began, 3),
    )
    return outcome, campaign.platform, list(dict.fromkeys(campaign.faults))
