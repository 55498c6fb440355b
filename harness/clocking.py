"""A subject timed on both sides of a gate, on the named workloads of its operation."""

from dataclasses import dataclass

from harness import paired
from harness.outcome import Clocked
from harness.paired import Compared, NotTimed
from harness.sides import Side
from harness.subjects import Declaration
from harness.workloads import chosen


@dataclass(frozen=True)
class Runner:
    """A side with what it declares; its worker is one of a GPU."""

    side: Side
    declared: Declaration

    def paired(self, subject: str) -> paired.Side:
        """The side as it is timed."""
        return paired.Side(self.side.worker, self.side.place.own_name(subject))


def clocked(subject: str, change: Runner, base: Runner) -> Clocked:
    """Every workload of the operation that both sides take.

    What the base cannot do is told; what only the change cannot do is missing.
    """
    times, notes, missing = [], [], []
    declarations = [(f"the {runner.side.place.name}", runner.declared) for runner in (base, change)]
    was, now = base.paired(subject), change.paired(subject)
    workloads = chosen((), change.declared.op)
    if not workloads:
        notes.append(f"there is no named workload of {change.declared.op}")
    for workload in workloads:
        if reason := paired.declined(declarations, workload.case()):
            notes.append(f"{workload.name} is not timed: {reason}")
            continue
        try:
            times.append(_sure(was, now, workload.name))
        except NotTimed as why:
            notes.append(f"the base: {why}") if why.side is was else missing.append(f"the change: {why}")
    return Clocked(times=tuple(times), notes=tuple(notes), missing="; ".join(missing))


def _sure(base: paired.Side, change: paired.Side, workload: str) -> Compared:
    """What looks slower is timed once more: of many workloads, one may look so by chance."""
    found = paired.timed(base, change, workload)
    return paired.timed(base, change, workload) if found.verdict == "slower" else found
