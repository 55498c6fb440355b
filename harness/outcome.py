"""The outcome of a gate, as one JSON-able record: everything that is printed, written or uploaded reads this.

What else is compared with the base becomes a field of `Gated`, and a reason of `Gate.reasons` where it is red.
"""

from typing import Literal

from harness.case import Record
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
    digest: str = ""  # of the cases: the same one means that the same cases were run
    seconds: float = 0.0

    @property
    def cut(self) -> str:
        """For example "cut at 412 of 600"; nothing where all was run."""
        return f"cut at {self.ran} of {self.asked}" if self.ran < self.asked else ""


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
        counted = ((new, "new finding"), (unacknowledged, "unacknowledged narrowing"), (coarser, "loss of accuracy"))
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
    plural = {"loss of accuracy": "losses of accuracy"}.get(words, f"{words}s")
    return f"{number} {words if number == 1 else plural}"


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
