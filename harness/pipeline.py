"""`run_case`: one case, one subject, one executor, one result. Everything else is a loop round it."""

import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from harness import looks, relations, ulps, witnesses, xray
from harness.arithmetic import Arithmetic
from harness.bounds import Bound
from harness.case import Case
from harness.checks import Run, base_findings, suspect, tell_access, worst_margin
from harness.executors import Executor, Observed, executor
from harness.executors.base import Conditions
from harness.inputs import Materials, materialise
from harness.judge import judge
from harness.landmarks import Landmarks, landmarks
from harness.laws import First, told
from harness.operations import ATTENTION
from harness.platforms import flushing, judging
from harness.probe import Seen
from harness.reading import Reading, attending, read
from harness.relations import Relation
from harness.results import NOT_WRITTEN, READ_KINDS, RELATIONAL_KINDS, RETIRE_NOTE, SEVERITY, Finding, Result
from harness.stopwatch import WATCH, phase
from harness.subjects import Subject, load

#: One case in so many is shown to the witness, and one in so many is repeated where repeating proves little.
SAMPLE = 8
#: What is accused where only a call after another one is wrong.
KEPT = "what the subject keeps from one call for the next: a plan, a buffer or a number of the first"


@cache
def the_executor(name: str) -> Executor:
    """The one executor of this process; a forkserver asks for it early, so that its workers inherit what it loads."""
    return executor(name)


def run_case(
    case: Case,
    subject: Subject,
    executor_name: str,
    thorough: bool = False,
    explain: bool = False,
    looking: bool = True,
) -> Result:
    """Run and judge the case; `thorough` asks the witness and repeats whatever the sampling says.

    `explain` adds an x-ray to a finding of a wrong output: many more calls, so it is for shrunk cases. Without
    `looking` there is the base set alone.
    """
    began = time.perf_counter()
    WATCH.taken()
    where = the_executor(executor_name)
    session = Session(case, subject, where, thorough, explain, looking)
    reason = subject.declines(case) or _elsewhere(subject, where) or where.declines(case)
    result = session.declined(reason) if reason else session.judged()
    elapsed = round(time.perf_counter() - began, 6)
    return _timed(result, elapsed, WATCH.taken())


def shown(case: dict[str, Any], subject: str) -> tuple[dict[str, Any], bool]:
    """What one call under gridsim shows: the subject's arithmetic, and whether it needs no GPU; to run in a worker."""
    drawn = msgspec.convert(case, Case)
    tested = load(subject, drawn.op)
    observed = the_executor("gridsim").observe(tested, materialise(drawn))
    anywhere = observed.failure is None and not observed.ttir
    return asdict(reading_of(drawn, tested, observed).arithmetic), anywhere


@phase("reading the IR")
def reading_of(case: Case, subject: Subject, observed: Observed) -> Reading:
    """How the subject's kernels round; what copies or merges does so in one known way."""
    if case.op not in ATTENTION:
        return Reading(Arithmetic(divisions=2))
    declared = subject.declaration
    reading = read(attending(observed.ttir), declared.arithmetic, case.dtype, case.block_size)
    if case.new_kv == "dense":
        reading = replace(reading, arithmetic=replace(reading.arithmetic, seams=1))
    splits = case.hints.num_splits
    if not (declared.splits and 0 < splits < reading.arithmetic.max_splits):
        return reading
    return replace(reading, arithmetic=replace(reading.arithmetic, max_splits=splits))


def _timed(result: Result, seconds: float, phases: dict[str, float]) -> Result:
    return msgspec.structs.replace(result, seconds=seconds, phases=phases)


@dataclass
class Session:
    """The calls that one case takes."""

    case: Case
    subject: Subject
    where: Executor
    thorough: bool
    explain: bool = False
    looking: bool = True
    runs: int = 0
    compile_seconds: float = 0.0
    lost: bool = False  # the device context is gone: a further call would show only that
    materials: Materials | None = None  # of the case; calls leave them as they are
    truth: Bound | None = None  # of the case as it is: what tells a wrong number from one that merely moved

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
        if self.case.before is not None:
            self.observe_on(self.where, materialise(self.case.before))
        self.materials = materials = materialise(self.case)
        observed = self.observe(materials)
        if reason := _no_verdict(observed):
            return self.declined(reason)
        reading = reading_of(self.case, self.subject, observed)
        run = Run(materials, observed, self._bound(materials, observed, reading.arithmetic), reading.arithmetic)
        with phase("checking"):
            shown = base_findings(run)
        findings = self.explained(_unkept(shown, reading), materials)
        if observed.out is not None:
            self.truth = run.bound
            findings += self.compared(observed, run.bound)
        if not findings and self.looking:
            with phase("looks", whole=True):
                findings += looks.look(First(run, reading.arithmetic, self))
        findings = self.xrayed(findings, landmarks(attending(observed.ttir))) if self.explain else findings
        findings = findings if self.case.before is None else _remembered(findings)
        return self._result(run, findings, reading)

    def explained(self, findings: list[Finding], materials: Materials) -> list[Finding]:
        """Look once more at wrong values of several sequences, and watch whose blocks each program reads."""
        where, wrong = self.where.under(Conditions(owners=True)), ("accuracy", "not finite", "inexact")
        if self.lost or where is None or len(self.case.batch) == 1 or not any(f.kind in wrong for f in findings):
            return findings
        found = suspect(self.observe_on(where, materials))
        return [msgspec.structs.replace(f, **found) if f.kind in wrong else f for f in findings]

    def xrayed(self, findings: list[Finding], known: Landmarks) -> list[Finding]:
        """The findings of an output that is wrong by itself, with what the weights behind it say."""
        if not self.lost and findings and all(f.kind == "block order" for f in findings):
            return [msgspec.structs.replace(f, explains=self._elsewhere(known)) for f in findings]
        wrong = [f for f in findings if f.family == "wrong output" and f.kind not in RELATIONAL_KINDS]
        kinds = {f.kind for f in wrong}
        if kinds <= READ_KINDS or self.lost or "unwritten output" in kinds:  # what is not there has no weights
            return findings
        words = xray.explain(self.case, self.look, next((f.where for f in wrong if f.where), ()), known)
        told = min(wrong, key=lambda f: SEVERITY.index(f.kind))
        return [msgspec.structs.replace(f, explains=(*f.explains, *words)) if f is told else f for f in findings]

    def _elsewhere(self, known: Landmarks) -> tuple[str, ...]:
        """What the weights say where blocks lie elsewhere: where they lay, the output was right by luck."""
        changed = relations.RENUMBER.transform(self.case, self.takes)
        words = () if changed is None else xray.explain(changed, self.look, known=known)
        return tuple(f"with its blocks elsewhere: {sentence}" for sentence in words)

    def look(self, materials: Materials) -> Seen | None:
        """What one more call gives, with the bound of its own inputs."""
        observed = self.observe(materials) if not self.lost else None
        if observed is None or observed.out is None:
            return None
        bound = self._bound(materials, observed, reading_of(materials.case, self.subject, observed).arithmetic)
        return None if bound is None else Seen(observed.out, bound, observed.lse)

    def observe(self, materials: Materials) -> Observed:
        """One call."""
        return self.observe_on(self.where, materials)

    def again(self, materials: Materials, subject: Subject | None = None) -> Observed:
        """A further call, of the subject or of another one in its place."""
        return self.observe_on(self.where, materials, subject)

    def bound(self, materials: Materials, observed: Observed) -> Bound | None:
        """Truth and bound of a further call."""
        return self._bound(materials, observed, reading_of(materials.case, self.subject, observed).arithmetic)

    def takes(self, case: Case) -> bool:
        """Whether subject and executor do the case."""
        return self.subject.declines(case) is None and self.where.declines(case) is None

    def compiles(self) -> bool:
        """Whether a compiler may reorder what the kernel's source says."""
        return judging(self.where.platform).recomputes

    def observe_on(self, where: Executor, materials: Materials, subject: Subject | None = None) -> Observed:
        """One call on an executor that may run under other conditions."""
        self.runs += 1
        observed = where.observe(subject or self.subject, materials)
        self.compile_seconds += observed.compile_seconds
        self.lost |= observed.failure is not None and observed.failure.poisoned
        return observed

    @phase("truth and bound")
    def _bound(self, materials: Materials, observed: Observed, arithmetic: Arithmetic) -> Bound | None:
        if observed.out is None or self.case.op == "gather":
            return None
        return judge(materials, arithmetic, flushing(judging(self.where.platform)))

    def compared(self, first: Observed, bound: Bound | None) -> list[Finding]:
        """The relations of the base set; what the access log already proves is not launched again.

        What moves by itself has not been moved by the change, so where something moved the call is repeated. A
        subject that does not promise to be deterministic is held to the bound alone.
        """
        deterministic = self.subject.declaration.deterministic
        limit = None if deterministic else bound
        moved = [] if first.log_is_complete and not _dead_reads(first) else self._dead(first, limit)
        moved += self._related(relations.RENUMBER, first, limit)
        moved += self._refilled(first, limit) + self._undefined(first, limit)
        repeats = bool(moved) or self.thorough or not first.log_is_complete or self._sampled(3)
        return (self._repeated(first) if deterministic and repeats else []) or moved

    def _repeated(self, first: Observed) -> list[Finding]:
        """The call once more; where programs have an order, later calls that agree in any order have no race."""
        if (where := self._under(relations.ORDER)) is None:
            return self._related(relations.REPEAT, first, None)
        found = self._related(relations.ORDER, first, None)
        if not found or self.lost:
            return found
        shuffled, plain = (self.observe_on(each, self._made(self.case)) for each in (where, self.where))
        if shuffled.out is None or plain.out is None or relations.moved_elements(shuffled, plain):
            return found
        words = f"the first call alone is another: {KEPT}"
        return [msgspec.structs.replace(finding, accuses=words) for finding in found]

    def _refilled(self, first: Observed, limit: Bound | None) -> list[Finding]:
        """A read of what nobody had written is a fault where the output depends on it."""
        reads = [access for access in first.accesses if access.kind == "uninitialised read"]
        found = self._related(relations.REFILL, first, limit) if reads else []
        told = {"accuses": tell_access(reads[0]), "line": reads[0].line} if reads else {}
        return [msgspec.structs.replace(finding, **told) for finding in found]

    def _undefined(self, first: Observed, limit: Bound | None) -> list[Finding]:
        """What a masked load without `other` leaves in the lanes that it shuts out must not reach the output."""
        found = self._related(relations.UNDEFINED, first, limit) if first.undefined else []
        places = ", ".join(f"{line} (of {tensor})" for line, tensor in first.undefined)
        words = f"the load at {places}: lanes that its mask shuts out are undefined without `other`"
        return [msgspec.structs.replace(f, accuses=words, line=first.undefined[0][0]) for f in found]

    def _dead(self, first: Observed, limit: Bound | None) -> list[Finding]:
        finite = np.isfinite(np.asarray(first.out).astype(np.float64)).all()
        dead = relations.DEAD if finite else relations.TAME
        changed = relations.all_dead(self.case, self.takes, dead)
        together = self._compared(relations.TOGETHER, changed, first, limit)
        apart = [f for relation in dead for f in self._related(relation, first, limit)] if together else []
        return apart or together

    def _related(self, relation: Relation, first: Observed, limit: Bound | None) -> list[Finding]:
        changed = relation.transform(self.case, self.takes)
        return [] if changed is None else self._compared(relation, changed, first, limit)

    def _compared(self, relation: Relation, changed: Case, first: Observed, limit: Bound | None) -> list[Finding]:
        where = self._under(relation)
        if self.lost or where is None:
            return []
        second = self.observe_on(where, self._made(changed))
        with phase("checking"):
            return list(relations.compare(relation, first, second, limit, self.truth))

    def _made(self, case: Case) -> Materials:
        return self.materials if self.materials and case == self.case else materialise(case)

    def _under(self, relation: Relation) -> Executor | None:
        return self.where if relation.under is None else self.where.under(relation.under)

    def _sampled(self, salt: int) -> bool:
        """By a hash: seeds that are drawn are 0 far more often than one in so many."""
        return crc32(b"%d %d" % (self.case.data_seed, salt)) % SAMPLE == 0

    def _result(self, run: Run, findings: list[Finding], reading: Reading) -> Result:
        asks = bool(findings) or self.thorough or self._sampled(0)
        asks = asks and self.case.op in ATTENTION
        with phase("witnesses"):
            testimonies = witnesses.hear(run.materials, self.where.platform) if asks else ()
        with phase("checking"):
            worst, term = worst_margin(run)
            errors, digest = ulps.errors(run), ulps.bits(run)
        return Result(
            case=self.case,
            subject=self.subject.name,
            executor=self.where.name,
            platform=self.where.platform,
            findings=tuple(findings),
            harness_fault="; ".join(heard.fault for heard in testimonies if heard.fault),
            witnesses={heard.witness: heard.says for heard in testimonies},
            margin=worst,
            margin_term=term,
            errors=errors,
            bits=digest,
            behaviours=tuple(sorted(run.observed.behaviours)),
            possible=tuple(sorted(run.observed.possible)),
            arithmetic=reading.arithmetic.describe(),
            notes=(*reading.notes, *judging(self.where.platform).notes, *([RETIRE_NOTE] if self.lost else [])),
            runs=self.runs,
            compile_seconds=round(self.compile_seconds, 6),
        )


def _unkept(findings: list[Finding], reading: Reading) -> list[Finding]:
    """A number beyond its bound with the promises that the kernel breaks."""
    numbers = ("accuracy", "inexact")
    return [
        msgspec.structs.replace(f, explains=(*f.explains, *reading.broken)) if f.kind in numbers else f
        for f in findings
    ]


def _remembered(findings: list[Finding]) -> list[Finding]:
    """Findings of a call that is right when no other came before it."""
    return [
        msgspec.structs.replace(found, accuses="; ".join(filter(None, (KEPT, found.accuses))))
        for found in told("another call came first in the same process", findings)
    ]


def _dead_reads(observed: Observed) -> bool:
    return any(access.kind == "dead read" for access in observed.accesses)


def _elsewhere(subject: Subject, where: Executor) -> str | None:
    able = subject.declaration.executors
    return None if able is None or where.name in able else f"{subject.name} runs on {' and '.join(able)} only"


def _no_verdict(observed: Observed) -> str:
    failure = observed.failure
    if failure is None:
        return ""
    if failure.not_written:
        return f"{NOT_WRITTEN} ({failure.line}){f': {failure.message}' if failure.message else ''}"
    return f"the executor cannot: {failure.message}" if failure.unsupported else ""
