"""A fault that a subject carries from one call to the next: which earlier call shows it in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from harness.case import Case, InvalidCase, Seq, replace
from harness.results import Result
from harness.shrink import shrink, size

if TYPE_CHECKING:
    from harness.hunt import Hunt

#: Seconds that looking for the earlier call, and shrinking the two together, may take.
SECONDS = 30.0


class _Late(Exception):
    """The time is over."""


def after_another(hunt: Hunt, alone: Result) -> Result | None:
    """The case with the call before it that makes it fail where nothing else ran; None where none was found in time."""
    if alone.headline is None:
        return None
    pair = _Pair(hunt, alone.headline.family)
    with suppress(_Late):
        for before in _candidates(alone.case, hunt.campaign.earliest.get(hunt.subject, [])):
            if (case := _following(alone.case, before)) and pair.fails(case):
                shrink(case, pair.fails)
                break
    return min(pair.failing, key=lambda result: size(result.case), default=None)


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

    def _run(self, case: Case) -> bool:
        if time.monotonic() > self.deadline or self.hunt.campaign.interrupted:
            raise _Late
        result = self.hunt.campaign.runner.run(case, self.hunt.subject, self.hunt.campaign.limit(), thorough=True)
        if any(finding.family == self.family for finding in result.findings):
            self.failing.append(result)
            return True
        return False


def _candidates(case: Case, earliest: list[Case]) -> Iterator[Case]:
    """A plain call, the same one with shorter sequences, other blocks or numbers, then what the campaign began with."""
    yield Case(op=case.op)
    yield replace(case, seqs=tuple(Seq(tag=seq.tag) for seq in case.seqs))
    placement = "reversed" if case.placement == "shuffled" else "shuffled"
    yield replace(case, placement=placement, geometry_seed=case.geometry_seed + 1, spare_blocks=case.spare_blocks + 1)
    yield replace(case, data_seed=case.data_seed + 1, scale=1.0)
    yield from earliest


def _following(case: Case, before: Case) -> Case | None:
    with suppress(InvalidCase):
        return replace(case, before=before)
    return None
