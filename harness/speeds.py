"""What a bench measured, as a record: sizes of workloads, ceilings of the device, and every time of every subject."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from harness.case import InvalidCase, Op, Record, decode
from harness.files import write_atomically
from harness.subjects import PROJECTS
from harness.workloads import Workload

SCHEMA = 1
#: The names of the ceilings.
COPY, READ, MATMUL, NOTHING = "copy", "read", "matmul", "empty graph"
#: How calls are repeated, in words.
AS_GRAPH, ONE_BY_ONE = "as a CUDA graph", "launched one by one"

#: right and wrong: judged; declined: beforehand, with the reason; failed: no answer to judge.
State = Literal["right", "wrong", "declined", "failed"]


class Size(Record, frozen=True):
    """A workload as it was measured: what it moves and computes at least."""

    name: str
    op: Op
    bytes_moved: int
    flops: int
    words: str

    @classmethod
    def of(cls, workload: Workload) -> "Size":
        """Of a workload."""
        sizes = {"bytes_moved": workload.bytes_moved, "flops": workload.flops, "words": workload.words}
        return cls(name=workload.name, op=workload.op, **sizes)  # type: ignore[arg-type]  # each by its name


class Ceiling(Record, frozen=True):
    """What the device reached at something simple in the same run: `amount` bytes or operations in each repeat."""

    name: str
    amount: float
    repeats: tuple[float, ...]  # milliseconds

    @property
    def milliseconds(self) -> float:
        """The median."""
        return median(self.repeats)

    @property
    def rate(self) -> float:
        """Amount in a second."""
        return self.amount / (self.milliseconds * 1e-3)


class Speed(Record, frozen=True):
    """One subject on one workload."""

    workload: str
    subject: str
    state: State
    says: str = ""  # why it is not right, declined or failed
    repeats: tuple[float, ...] = ()  # milliseconds of a call, each the median of a turn; none where it was not timed
    how: str = ""  # how calls were repeated
    core: str = ""  # the project's own function that was timed alone; "": the subject as a whole
    places: int = 0  # rows that were judged, each of one KV head; 0: all of the output
    margin: float = 0.0  # the largest error, as a multiple of the bound

    @property
    def milliseconds(self) -> float:
        """The median."""
        return median(self.repeats)

    @property
    def spread(self) -> float:
        """From the least to the largest repeat, as a share of the median."""
        return (max(self.repeats) - min(self.repeats)) / self.milliseconds

    @property
    def is_peer(self) -> bool:
        """Whether it is another project's."""
        return self.subject.partition(".")[0] in PROJECTS and ":" not in self.subject


class Bench(Record, frozen=True):
    """One run of the command."""

    schema: int
    date: str
    command: str
    executor: str
    device: str = ""
    versions: dict[str, str] = {}
    scale: int = 1  # by which the workloads were made smaller, to be checked and not timed; 1: full size
    ceilings: tuple[Ceiling, ...] = ()
    sizes: tuple[Size, ...] = ()
    speeds: tuple[Speed, ...] = ()
    about: dict[str, str] = {}  # by subject, what was tested with its version
    missing: dict[str, str] = {}  # subjects that could not be loaded, with the reason
    faults: tuple[str, ...] = ()  # of the harness

    def ceiling(self, name: str) -> Ceiling | None:
        """The ceiling of that name, None where it was not measured."""
        return next((ceiling for ceiling in self.ceilings if ceiling.name == name), None)

    def of(self, workload: str) -> tuple[Speed, ...]:
        """The speeds on a workload, the fastest first, then what was not timed."""
        found = [speed for speed in self.speeds if speed.workload == workload]
        return tuple(sorted(found, key=lambda speed: speed.milliseconds if speed.repeats else float("inf")))

    def best_peer(self, workload: str) -> Speed | None:
        """The fastest right subject of another project."""
        right = (speed for speed in self.of(workload) if speed.is_peer and speed.repeats and speed.state == "right")
        return next(right, None)

    @property
    def exit_code(self) -> int:
        """0 none is wrong; 1 one is; 3 the harness is at fault; 5 nothing was judged."""
        states = {speed.state for speed in self.speeds}
        if "wrong" in states:
            return 1
        return 3 if self.faults else 0 if "right" in states else 5


def save(bench: Bench, file: Path) -> None:
    """Write it as JSON."""
    write_atomically(file, msgspec.json.format(msgspec.json.encode(bench), indent=1).decode() + "\n")


def read(file: Path) -> Bench:
    """Read it again; raises InvalidCase with the file and what is wrong with it."""
    found = decode(file.read_bytes(), Bench, str(file))
    if found.schema != SCHEMA:
        raise InvalidCase(f"{file}: schema is {found.schema}, but this version reads {SCHEMA}")
    return found


def wrong_lines(bench: Bench) -> Iterator[str]:
    """A line for each subject that is wrong, that failed, or that could not be loaded."""
    for speed in bench.speeds:
        if speed.state in ("wrong", "failed"):
            word = "WRONG" if speed.state == "wrong" else "failed"
            yield f"{word}: {speed.subject} on {speed.workload}: {speed.says}"
    yield from (f"not loaded: {subject}: {reason}" for subject, reason in bench.missing.items())
    yield from (f"the harness is at fault: {fault}" for fault in bench.faults)
