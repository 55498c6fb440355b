"""`run_case`: one case, one subject, one executor, one result. Everything else is a loop round it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import msgspec

from harness import relations
from harness.arithmetic import Arithmetic
from harness.bounds import Bound
from harness.case import Case
from harness.checks import Run, base_findings, worst_margin
from harness.executors import Executor, Observed, executor
from harness.inputs import Materials, materialise
from harness.judge import disagreement, judge
from harness.platforms import platform
from harness.reading import Reading, read
from harness.relations import Relation
from harness.results import RETIRE_NOTE, Finding, Result
from harness.subjects import Subject

#: One case in so many is shown to the witness, and one in so many is repeated where repeating proves little.
SAMPLE = 8


@cache
def _executor(name: str) -> Executor:
    return executor(name)


def run_case(case: Case, subject: Subject, executor_name: str, thorough: bool = False) -> Result:
    """Run and judge the case; `thorough` asks the witness and repeats whatever the sampling says."""
    began = time.perf_counter()
    where = _executor(executor_name)
    session = Session(case, subject, where, thorough)
    reason = subject.declines(case) or where.declines(case)
    result = session.declined(reason) if reason else session.judged()
    elapsed = round(time.perf_counter() - began, 6)
    return _timed(result, elapsed)


def _timed(result: Result, seconds: float) -> Result:
    return msgspec.structs.replace(result, seconds=seconds)


@dataclass
class Session:
    """The calls that one case takes."""

    case: Case
    subject: Subject
    where: Executor
    thorough: bool
    runs: int = 0

    def declined(self, reason: str) -> Result:
        """No verdict, with the reason."""
        return Result(
            case=self.case,
            subject=self.subject.name,
            executor=self.where.name,
            platform=self.where.platform,
            declined=reason,
        )

    def judged(self) -> Result:
        """Call, judge, compare with changed inputs."""
        materials = materialise(self.case)
        observed = self.observe(materials)
        if reason := _no_verdict(observed):
            return self.declined(reason)
        reading = read(observed.ttir, self.subject.declaration.arithmetic, self.case.dtype, self.case.block_size)
        run = Run(materials, observed, self._bound(materials, observed, reading.arithmetic))
        findings = base_findings(run)
        if observed.out is not None:
            findings += list(self.compared(observed))
        return self._result(run, findings, reading)

    def observe(self, materials: Materials) -> Observed:
        """One call."""
        self.runs += 1
        return self.where.observe(self.subject, materials)

    def _bound(self, materials: Materials, observed: Observed, arithmetic: Arithmetic) -> Bound | None:
        return None if observed.out is None else judge(materials, arithmetic, platform(self.where.platform))

    def compared(self, first: Observed) -> Iterator[Finding]:
        """The relations of the base set; what the access log already proves is not launched again."""
        if not (first.log_is_complete and not _dead_reads(first)):
            yield from self._dead(first)
        yield from self._related(relations.RENUMBER, first)
        if self.thorough or not first.log_is_complete or self._sampled(3):
            yield from self._related(relations.REPEAT, first)

    def _dead(self, first: Observed) -> Iterator[Finding]:
        second = self.observe(materialise(relations.all_dead(self.case)))
        if second.failure is None and not relations.moved_elements(first, second):
            return
        for relation in relations.DEAD:
            yield from self._related(relation, first)

    def _related(self, relation: Relation, first: Observed) -> Iterator[Finding]:
        second = self.observe(materialise(relation.transform(self.case)))
        yield from relations.compare(relation, first, second)

    def _sampled(self, salt: int) -> bool:
        return (self.case.data_seed + salt) % SAMPLE == 0

    def _result(self, run: Run, findings: list[Finding], reading: Reading) -> Result:
        asks_witness = bool(findings) or self.thorough or self._sampled(0)
        worst, term = worst_margin(run)
        return Result(
            case=self.case,
            subject=self.subject.name,
            executor=self.where.name,
            platform=self.where.platform,
            findings=tuple(findings),
            harness_fault=(disagreement(run.materials) or "") if asks_witness else "",
            margin=worst,
            margin_term=term,
            behaviours=tuple(sorted(run.observed.behaviours)),
            arithmetic=reading.arithmetic.describe(),
            notes=_notes(run.observed, reading),
            runs=self.runs,
        )


def _notes(observed: Observed, reading: Reading) -> tuple[str, ...]:
    lost = observed.failure is not None and observed.failure.poisoned
    return (*reading.notes, RETIRE_NOTE) if lost else reading.notes


def _dead_reads(observed: Observed) -> bool:
    return any(access.kind == "dead read" for access in observed.accesses)


def _no_verdict(observed: Observed) -> str:
    failure = observed.failure
    if failure is None:
        return ""
    if failure.not_written:
        return f"not written yet ({failure.line})"
    return f"gridsim lacks {failure.message}" if failure.unsupported else ""
