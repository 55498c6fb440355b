"""What came out of running a case: findings and the result that carries them, all of it JSON."""

from harness.case import Case, Record

#: Kinds that say "the output is wrong": one fault shows as any of them, so they share a family.
VALUE_KINDS = frozenset(
    {
        "accuracy", "not finite", "unwritten output", "dead data read", "block order", "bad read", "wrong shape",
        "overflow read", "uninitialised read", "accuracy in float32", "relation", "inexact",
    }
)  # fmt: skip
#: Wrong at once; the output may be right all the same.
READ_KINDS = frozenset({"bad read", "overflow read"})
WRITE_KINDS = frozenset({"wrong cache", "wrote outside", "inputs changed", "bad write", "overflow write"})

#: Held against the error bound, and so against the constants of a platform.
JUDGED_KINDS = frozenset({"accuracy", "not finite"})
#: A fault of the platform: a kernel that is known to be good fails as well.
PLATFORM = "platform"

#: Seen only in comparison with a second run: a case that is wrong by itself tells more.
RELATIONAL_KINDS = frozenset(
    {
        "dead data read", "block order", "uninitialised read", "accuracy in float32", "relation", "determinism",
        "ignored argument", "contract",
    }
)  # fmt: skip

#: The order in which a result's findings are told: the first is the headline.
SEVERITY = (
    "crash",
    "hang",
    "exception",
    "wrong shape",
    "overflow write",
    "bad write",
    "wrote outside",
    "inputs changed",
    "wrong cache",
    "overflow read",
    "bad read",
    "race",
    "unwritten output",
    "inexact",
    "accuracy",
    "not finite",
    "uninitialised read",
    "dead data read",
    "block order",
    "accuracy in float32",
    "relation",
    "ignored argument",
    "contract",
    "not repeatable",
    "determinism",
    PLATFORM,
)


#: How a subject that raises NotImplementedError is declined.
NOT_WRITTEN = "not written yet"
#: A result with this note comes from a worker whose device context is lost.
RETIRE_NOTE = "worker must be replaced"


class Finding(Record, frozen=True):
    """One complaint: what is wrong, where, how far beyond the bound, and which part of the kernel is accused."""

    kind: str
    message: str
    detail: str = ""  # what tells two findings of a kind apart: an exception's type and line, a signal
    where: tuple[int, ...] = ()  # sequence, token, head, dim
    times_bound: float | None = None
    dominating: str = ""
    accuses: str = ""
    line: str = ""  # the kernel's file:line where the executor knows it
    beyond: tuple[str, ...] = ()  # traits that only the changed case has, where a second call is what is wrong
    explains: tuple[str, ...] = ()  # what the output or an x-ray of it says about the fault, in words

    @property
    def family(self) -> str:
        """Findings of one family with the same traits are one fault."""
        if self.kind in VALUE_KINDS:
            return "wrong output"
        if self.kind in WRITE_KINDS:
            return "wrong write"
        return f"{self.kind} {self.detail}".strip()


class Result(Record, frozen=True):
    """What `run_case` returns: a case is clean, declined, or has findings."""

    case: Case
    subject: str
    executor: str
    platform: str = ""
    findings: tuple[Finding, ...] = ()
    declined: str = ""
    harness_fault: str = ""  # the judge and a witness disagree, or the harness itself raised
    witnesses: dict[str, str] = {}  # what each said, on the cases that they were shown
    margin: float = 0.0
    margin_term: str = ""
    errors: tuple[float, ...] = ()  # median, 99.9th percentile and worst, in units of the last place of each row
    bits: str = ""  # a digest of the output: two runs that gave the same bits have the same one
    behaviours: tuple[str, ...] = ()  # "decode.py:34 mask mixed": what lines, masks, branches and loops did
    possible: tuple[str, ...] = ()  # and might have done
    notes: tuple[str, ...] = ()
    arithmetic: str = ""
    runs: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    phases: dict[str, float] = {}  # seconds by what was done; what is missing of `seconds` had no name

    @property
    def shows_by_itself(self) -> bool:
        """Whether one call is enough to see that something is wrong."""
        return self.headline is not None and self.headline.kind not in RELATIONAL_KINDS

    @property
    def headline(self) -> Finding | None:
        """The finding to name first."""
        return min(self.findings, key=lambda f: SEVERITY.index(f.kind), default=None)
