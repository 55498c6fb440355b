"""Whose a finding is: its smallest case is run again, in fresh processes, on the change and on the base."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from harness.outcome import Tally, Verdict, Word
from harness.results import PLATFORM
from harness.sides import Side
from harness.summary import Found

#: Runs of a candidate on either side; of a hang, each of which takes its whole limit.
RUNS, RUNS_OF_A_HANG = 20, 3
#: How seldom a base that has the fault as often as the change may be silent all the same.
DOUBT = 1e-3


@dataclass(frozen=True)
class Confirming:
    """Runs candidates again."""

    change: Side
    base: Side | None
    limit_seconds: float

    def verdict(self, found: Found, origin: str = "", note: str = "") -> Verdict:
        """The verdict on a finding."""
        if found.finding.kind == PLATFORM:
            return Verdict(word="PLATFORM", found=found, origin=origin, note=note)
        if found.known:
            return Verdict(word="KNOWN", found=found, origin=origin, note=note)
        change, base = self._both(found)
        return Verdict(word=word(change, base), found=found, change=change, base=base, origin=origin, note=note)

    def _both(self, found: Found) -> tuple[Tally, Tally | None]:
        runs = RUNS_OF_A_HANG if found.finding.family == "hang" else RUNS
        with ThreadPoolExecutor(2) as hands:
            other = hands.submit(self._tally, self.base, found, runs) if self.base else None
            change = self._tally(self.change, found, runs)
            base = other.result() if other else None
        if base is not None and self.base is not None and not base.failed:
            more = silent_runs(change) - base.runs
            base = _sum(base, self._tally(self.base, found, more)) if more > 0 else base
        return change, base

    def _tally(self, side: Side, found: Found, runs: int) -> Tally:
        """Count the runs that show the family; a base that shows it once has told enough beyond the first runs."""
        failed = 0
        for _ in range(runs):
            result = side.run(found.case, found.subject, self.limit_seconds, thorough=True, fresh=True)
            failed += any(finding.family == found.finding.family for finding in result.findings)
        return Tally(failed=failed, runs=runs)


def _sum(a: Tally, b: Tally) -> Tally:
    return Tally(failed=a.failed + b.failed, runs=a.runs + b.runs)


def silent_runs(change: Tally) -> int:
    """Runs after which a base that fails as often as the change would be silent once in 1/DOUBT times.

    (1 - k/n)^m <= DOUBT, solved for m; 20 of 20 need one, 3 of 20 need 43.
    """
    if change.failed in (0, change.runs):
        return change.runs
    return max(change.runs, math.ceil(math.log(DOUBT) / math.log(1 - change.failed / change.runs)))


def word(change: Tally, base: Tally | None) -> Word:
    """The verdict that two tallies give.

    What always fails on the change and now and then on the base is new where a fault as rare as the base's would have
    failed so often in a row once in 1/DOUBT times at most.
    """
    always = change.failed == change.runs
    if base is None or not base.failed:
        return "NEW" if always else "FLAKY ON THE CHANGE" if change.failed else "NOT SEEN AGAIN"
    if always and base.failed == base.runs:
        return "PRE-EXISTING"
    return "NEW" if always and (base.failed / base.runs) ** change.runs <= DOUBT else "FLAKY ON BOTH"
