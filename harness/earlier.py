"""A fault that a subject carries from one call to the next: which earlier call shows it in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from harness.case import Case, InvalidCase, Seq, replace
from harness.results import RELATIONAL_KINDS, Result
from harness.shrink import shrink, size
from harness.traits import resized

if TYPE_CHECKING:
    from harness.hunt import Hunt

#: Seconds that looking for the earlier call, and shrinking the two together, may take.
SECONDS = 30.0
#: How often a case is run alone in a fresh process, to tell what it lacks there from what comes and goes.
AGAIN = 2
#: Blocks that an earlier call may have more: enough for each of 8 splits.
LONGER = 8
#: What is found where an output moves with the blocks.
MOVED = "block order"


class _Late(Exception):
    """The time is over."""


def after_another(hunt: Hunt, alone: Result) -> Result | None:
    """The case with the call before it that makes it fail where nothing else ran; None where none was found in time.

    Of a call whose output moves with its blocks it is the call in the other blocks that may be wrong after the first.
    """
    if alone.headline is None:
        return None
    pair, case = _Pair(hunt, alone.headline.family), alone.case
    calls = _candidates(case, hunt.campaign.earliest.get(hunt.subject, []))
    if alone.headline.kind == MOVED:
        case, calls = _elsewhere(case), iter([case])
    with suppress(_Late):
        if pair.comes_and_goes(case):
            return None
        for before in calls:
            if (following := _following(case, before)) and pair.fails(following):
                shrink(following, pair.fails)
                break
    return min(pair.failing, key=lambda result: size(result.case), default=None)


def first_of_all(hunt: Hunt, met: Result) -> Result:
    """The smallest case of what fails as the first call of a process alone: each is run in a process of its own."""
    assert met.headline is not None
    family, deadline, failing = met.headline.family, time.monotonic() + SECONDS, [met]

    def fails(case: Case) -> bool:
        if time.monotonic() > deadline or hunt.campaign.interrupted:
            raise _Late
        limit = hunt.campaign.limit()
        result = hunt.campaign.runner.run(case, hunt.subject, limit, thorough=True, fresh=True)
        if result.headline is None or result.headline.family != family:
            return False
        failing.append(result)
        return True

    with suppress(_Late):
        shrink(met.case, fails)
    return min(failing, key=lambda result: size(result.case))


class _Pair:
    """Runs a case after the one before it, each time in a process of its own."""

    def __init__(self, hunt: Hunt, family: str) -> None:
        self.hunt, self.family = hunt, family
        self.deadline = time.monotonic() + SECONDS
        self.seen: dict[Case, bool] = {}
        self.failing: list[Result] = []

    def fails(self, case: Case) -> bool:
        """Whether it does; a case without a call before it has been seen to be right."""
        if case.before is None:
            return False
        if case not in self.seen:
            self.seen[case] = self._run(case)
        return self.seen[case]

    def comes_and_goes(self, case: Case) -> bool:
        """Whether it fails in a process of its own after all, now and then."""
        return any(self._run(case, fresh=True) for _ in range(AGAIN))

    def _run(self, case: Case, **options: Any) -> bool:
        if time.monotonic() > self.deadline or self.hunt.campaign.interrupted:
            raise _Late
        result = self.hunt.campaign.runner.run(
            case, self.hunt.subject, self.hunt.campaign.limit(), thorough=True, **options
        )
        if any(f.family == self.family and f.kind not in RELATIONAL_KINDS for f in result.findings):
            self.failing.append(result)
            return True
        return False


def _candidates(case: Case, earliest: list[Case]) -> Iterator[Case]:
    """A plain call, the same one with shorter or longer sequences, other blocks or numbers, then the first ones."""
    yield Case(op=case.op)
    yield replace(case, seqs=tuple(Seq(tag=seq.tag) for seq in case.seqs))
    yield replace(case, seqs=tuple(resized(seq, seq.kv_len + LONGER * case.block_size) for seq in case.seqs))
    yield _elsewhere(case)
    yield replace(case, data_seed=case.data_seed + 1, scale=1.0)
    yield from earliest


def _elsewhere(case: Case) -> Case:
    """The same sequences in other blocks."""
    placement = "reversed" if case.placement == "shuffled" else "shuffled"
    return replace(case, placement=placement, geometry_seed=case.geometry_seed + 1, spare_blocks=case.spare_blocks + 1)


def _following(case: Case, before: Case) -> Case | None:
    with suppress(InvalidCase):
        return replace(case, before=before)
    return None
