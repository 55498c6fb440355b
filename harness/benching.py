"""Subjects and workloads of a bench, pair by pair in a worker that may die; what came of each is its own row."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from harness.adapters import PROJECTS, adapters
from harness.case import Case
from harness.pool import Died, HarnessFault, Worker
from harness.speeds import Ceiling, Speed
from harness.subjects import SUBJECTS, Declaration, WrongUse, is_adapted, operation
from harness.workloads import TAKEN_AS, Workload

#: Seconds that one subject may take on one workload: compiling, judging and timing.
LIMIT = 120.0
#: Milliseconds of a turn and how many of them; in a hurry.
USUAL, QUICK = (50.0, 5), (10.0, 3)


@dataclass
class Rig:
    """A worker with the subjects that it could load, and what became of the others."""

    worker: Worker
    op: str  # of a function that declares none
    seconds: float
    declared: dict[str, Declaration] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def load(self, names: tuple[str, ...]) -> None:
        """Ask each subject what it declares; one that cannot be imported is missing."""
        for name in names:
            try:
                self.declared[name] = self.worker.describe(name, self.op)
            except (WrongUse, HarnessFault) as why:
                self.missing[name] = _last_line(why)

    def pairs(self, workloads: tuple[Workload, ...]) -> Iterator[tuple[Workload, str, Declaration]]:
        """Each workload with the subjects of an operation that can do it."""
        for workload in workloads:
            for name, declared in self.declared.items():
                if declared.op in TAKEN_AS[workload.op]:
                    yield workload, name, declared

    def ceilings(self, pace: tuple[float, int]) -> tuple[Ceiling, ...]:
        """What the device reaches; raises HarnessFault or Died."""
        return msgspec.convert(
            self.worker.call("harness.ceilings:measure", *pace, limit_seconds=self.seconds), tuple[Ceiling, ...]
        )

    def timed(self, workload: Workload, name: str, declared: Declaration, pace: tuple[float, int]) -> Speed:
        """One row; whatever kills the worker or raises is told in it, and the next subject has a fresh worker."""
        wanted = "harness.measuring:measure", name, declared.op, workload.name, *pace
        try:
            found = msgspec.convert(self.worker.call(*wanted, limit_seconds=self.seconds), Speed)
        except (Died, HarnessFault, WrongUse) as why:
            found = Speed(workload=workload.name, subject=name, state="failed", says=_last_line(why))
            if isinstance(why, Died):  # its successor is there already
                return found
        if found.state == "failed":
            self.worker.retire()
        return found

    def checked(self, workload: Workload, name: str, declared: Declaration, scale: int) -> tuple[Speed, str]:
        """One row of the workload made smaller, judged as any case is; and a fault of the harness, "" for none."""
        result = self.worker.run(smaller(workload, declared, scale), name, self.seconds, thorough=True)
        named: dict[str, Any] = {"workload": workload.name, "subject": name}
        if result.declined:
            return Speed(**named, state="declined", says=result.declined), ""
        if result.findings:
            first = result.findings[0]
            return Speed(**named, state="wrong", says=f"{first.kind}: {first.message}"), result.harness_fault
        if result.harness_fault:
            return Speed(**named, state="failed", says=_last_line(result.harness_fault)), result.harness_fault
        return Speed(**named, state="right", margin=result.margin), ""


def smaller(workload: Workload, declared: Declaration, scale: int) -> Case:
    """The workload with lengths and number of sequences divided, and NaN where nobody may read, if that may be."""
    poison: Any = "zero" if declared.finite_dead_slots else "nan"
    return form(declared, workload, poison=poison, scale=scale)


def form(declared: Declaration, workload: Workload, **more: Any) -> Case:
    """The workload as a subject takes it: new tokens in the cache where it can have them there."""
    op = declared.op if declared.op in TAKEN_AS[workload.op] else workload.op
    dense = op == "extend" and "in_cache" not in declared.new_kv
    return workload.case(op, "dense" if dense else "in_cache", **more)


def _last_line(why: object) -> str:
    return (str(why).strip().splitlines() or [""])[-1]


# --- which subjects ------------------------------------------------------------------------------------------------


def installed(workloads: tuple[Workload, ...]) -> tuple[str, ...]:
    """Our own subjects and those of installed projects that can do one of the workloads."""
    wanted = {op for workload in workloads for op in TAKEN_AS[workload.op]}
    ours = (name for name in SUBJECTS if operation(name) in wanted)
    theirs = (name for name, op, version in adapted() if version and op in wanted)
    return (*ours, *theirs)


def adapted() -> Iterator[tuple[str, str, str]]:
    """Every subject that has an adapter: its name, its operation, and the version that is installed or ""."""
    for project in PROJECTS:
        for adapter in adapters(project).values():
            yield adapter.name, adapter.declaration.op, adapter.project.installed


def check_name(name: str) -> None:
    """Raise WrongUse for what is no name of a subject; that a file can be imported is found out later."""
    project = name.partition(".")[0]
    known = list(adapters(project)) if is_adapted(name) else list(SUBJECTS)
    if name not in known and not (":" in name and name.rpartition(":")[0].endswith(".py")):
        raise WrongUse(f"subject is {name!r}, but expected FILE.py:FUNCTION or one of {', '.join(known)}")
