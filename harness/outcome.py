"""The outcome of a gate, as one JSON-able record: everything that is printed, written or uploaded reads this.

What else is compared with the base becomes a field of `Gated`, and a reason of `Gate.reasons` where it is red.
"""

from typing import Literal

from harness.builds import Worse
from harness.case import Record
from harness.paired import Compared
from harness.summary import Found

Word = Literal["NEW", "FLAKY ON THE CHANGE", "PRE-EXISTING", "FLAKY ON BOTH", "NOT SEEN AGAIN", "PLATFORM", "KNOWN"]

#: What fails a gate: it is there with the change, and the base was silent for long enough to say that it is not there.
FAILING: tuple[Word, ...] = ("NEW", "FLAKY ON THE CHANGE")

GREEN, RED, FAULT, NO_VERDICT = 0, 1, 3, 5


class Tally(Record, frozen=True):
    """How many of so many runs in fresh processes showed a finding."""

    failed: int
    runs: int

    def __str__(self) -> str:
        return f"{self.failed} of {self.runs}"


class Verdict(Record, frozen=True):
    """One finding on the smallest case that shows it, and whose it is."""

    word: Word
    found: Found
    change: Tally | None = None
    base: Tally | None = None  # None where the base does not have the subject, or was not asked
    note: str = ""  # what was special, in words: "the base declines this case: ..."
    origin: str = ""  # the corpus file of the case that showed it first, where it was kept

    @property
    def fails(self) -> bool:
        """Whether it makes the gate red."""
        return self.word in FAILING


class Narrowing(Record, frozen=True):
    """Something that the base tested and the change does not: red until the change acknowledges it."""

    subject: str
    field: str  # what an `[[accept]]` names
    words: str
    cases: int = 0  # of the fixed Cases, those that no longer run
    accepted: str = ""  # the reason that the change gives


class Shift(Record, frozen=True):
    """How accuracy moved on the same cases of one configuration; errors are in units of the last place of a row."""

    subject: str
    configuration: str
    cases: int
    changed: int  # cases whose output has other bits
    errors_before: tuple[float, ...]  # median over the cases of each case's median, 99.9th percentile and worst
    errors_now: tuple[float, ...]
    margin_before: float  # the worst, as a share of the bound
    margin_now: float
    coarser: int = 0  # cases that lost more than a bit
    chance: float = 1.0  # that so many did without the median having lost one
    lost: bool = False  # beyond what chance explains
    accepted: str = ""


class Rebuilt(Record, frozen=True):
    """What the kernels of a subject became on GPUs that are not here, held against the base's."""

    targets: tuple[str, ...] = ()
    seed: int = 0  # of the cases that launched them
    counts: str = ""  # of the change's builds, in words
    worse: tuple[Worse, ...] = ()
    notes: tuple[str, ...] = ()  # what was not seen or not compared, and why
    missing: str = ""  # why the change's kernels were not compiled, so that the gate is not green
    accepted: str = ""  # the reason that the change gives for what cannot be launched

    @property
    def lost(self) -> tuple[Worse, ...]:
        """What cannot be launched, acknowledged or not."""
        return tuple(worse for worse in self.worse if worse.fails)


class Clocked(Record, frozen=True):
    """How fast a subject is on named workloads, held against the base."""

    times: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = ()  # what was not timed, and why
    missing: str = ""  # what the base could do and the change could not, so that the gate is not green
    accepted: str = ""  # the reason that the change gives for what is slower

    @property
    def slower(self) -> tuple[Compared, ...]:
        """What is slower beyond noise and threshold, acknowledged or not."""
        return tuple(compared for compared in self.times if compared.verdict == "slower")


class Gated(Record, frozen=True):
    """What was done about one subject."""

    subject: str
    because: tuple[str, ...] = ()  # files of it that the change touches
    files: tuple[str, ...] = ()  # all of its files, from the root
    is_new: bool = False  # the base does not have it
    asked: int = 0  # cases to run, kept ones included
    ran: int = 0
    kept: int = 0  # of the corpus
    judged: int = 0
    declined: dict[str, int] = {}
    verdicts: tuple[Verdict, ...] = ()
    shifts: tuple[Shift, ...] = ()
    rebuilt: Rebuilt | None = None  # None where it was not asked for
    clocked: Clocked | None = None
    digest: str = ""  # of the cases: the same one means that the same cases were run
    seconds: float = 0.0

    @property
    def cut(self) -> str:
        """For example "cut at 412 of 600"; nothing where all was run."""
        cases = f"cut at {self.ran} of {self.asked}" if self.ran < self.asked else ""
        missing = (part.missing for part in (self.rebuilt, self.clocked) if part is not None)
        return "; ".join(filter(None, (cases, *missing)))


class Gate(Record, frozen=True):
    """The outcome of `python -m harness.gate`."""

    base: str  # the merge base, or the other Python
    head: str
    executor: str
    platform: str = ""
    versions: dict[str, dict[str, str]] = {}  # side to package to version
    shard: str = "1/1"
    seconds: float = 0.0
    gated: tuple[Gated, ...] = ()
    untouched: tuple[str, ...] = ()
    narrowings: tuple[Narrowing, ...] = ()
    stale: tuple[str, ...] = ()  # acknowledgements that acknowledge nothing, expired entries of known.toml
    notes: tuple[str, ...] = ()
    harness_faults: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Of all subjects, what fails first."""
        found = [verdict for gated in self.gated for verdict in gated.verdicts]
        return tuple(sorted(found, key=lambda verdict: not verdict.fails))

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """Of all subjects."""
        return tuple(shift for gated in self.gated for shift in gated.shifts)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the gate is red, in words; nothing where it is not."""
        new = sum(verdict.fails for verdict in self.verdicts)
        unacknowledged = sum(not narrowing.accepted for narrowing in self.narrowings)
        coarser = sum(shift.lost and not shift.accepted for shift in self.shifts)
        built = [part.rebuilt for part in self.gated if part.rebuilt and not part.rebuilt.accepted]
        clocked = [part.clocked for part in self.gated if part.clocked and not part.clocked.accepted]
        counted = (
            (new, "new finding"),
            (unacknowledged, "unacknowledged narrowing"),
            (coarser, "loss of accuracy"),
            (sum(len(part.lost) for part in built), "build that cannot be launched"),
            (sum(len(part.slower) for part in clocked), "slower workload"),
        )
        return tuple(_counted(number, words) for number, words in counted if number)

    @property
    def cut(self) -> tuple[str, ...]:
        """What was not run to its end."""
        return tuple(f"{gated.subject}: {gated.cut}" for gated in self.gated if gated.cut)

    @property
    def nothing_ran(self) -> bool:
        """Whether something was to be run and nothing was judged."""
        return bool(self.gated) and not any(gated.judged for gated in self.gated)


def _counted(number: int, words: str) -> str:
    return f"{number} {words if number == 1 else _PLURALS.get(words, f'{words}s')}"


_PLURALS = {
    "loss of accuracy": "losses of accuracy",
    "build that cannot be launched": "builds that cannot be launched",
}


def exit_code(gate: Gate) -> int:
    """0 green; 1 something new or unacknowledged; 3 a fault of the harness; 5 nothing ran, or not all of it."""
    if gate.harness_faults:
        return FAULT
    if gate.reasons:
        return RED
    return NO_VERDICT if gate.nothing_ran or gate.cut else GREEN


def bisect_code(gate: Gate) -> int:
    """For `git bisect run`: 0 good, 1 bad, 125 cannot tell."""
    code = exit_code(gate)
    return code if code in (GREEN, RED) else 125
