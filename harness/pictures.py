"""What a page shows of a finding beyond its words: records that a worker fills, and how it is asked for them."""

from collections.abc import Iterable

import msgspec

from harness.case import Record
from harness.pool import Died, HarnessFault, Worker
from harness.subjects import WrongUse
from harness.summary import Found

#: Seconds that one picture may take: a call, and the calls of an x-ray, compilations included.
SECONDS = 90.0
#: Findings of one page that get a picture; the others are told in words.
MOST_PICTURES = 8
#: Kinds of finding whose call gives nothing to look at: only the case is drawn.
SILENT = ("crash", "hang")

#: What a slot is.
USED, NEW, SHARED, DEAD, FREE = "u", "n", "s", "d", "f"
#: What went wrong there.
READ, MISSED, WRITTEN, FINE = "r", "m", "w", " "


def letter(sequence: int) -> str:
    """A name for a sequence that fits in a drawing: a to z, and again."""
    return chr(ord("a") + sequence % 26)


class TableRow(Record, frozen=True):
    """One row of the block table: whose it is, the blocks in use, and the entries behind them."""

    name: str
    kv_len: int
    used: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    more: int = 0  # further entries that are not shown
    read: tuple[int, ...] = ()  # columns that were read and should not have been


class Block(Record, frozen=True):
    """One block of the pool: who has it, as (sequence, column), and a letter per slot for what it is and what is wrong.

    Letters are those above: `slots` of USED to FREE, `marks` of READ to FINE.
    """

    number: int
    slots: str
    marks: str
    owners: tuple[tuple[int, int], ...] = ()


class Pool(Record, frozen=True):
    """The cache, block by block."""

    num_blocks: int
    blocks: tuple[Block, ...] = ()  # those that are drawn


class Heat(Record, frozen=True):
    """The error of an output in multiples of its bound, [rows, columns]; None where it is not finite."""

    name: str  # out or lse
    rows: tuple[str, ...]
    margins: tuple[tuple[float | None, ...], ...]
    wrong: int  # elements beyond the bound, of all
    elements: int
    all_rows: int
    dims: int
    per_column: int = 1  # dims that one column stands for, by the largest error


class Weight(Record, frozen=True):
    """What a row of the output makes of one slot, and what it should."""

    place: str
    true: float
    got: float | None  # None: not finite
    wrong: bool = False


class Weights(Record, frozen=True):
    """The weights of one row; so many of all."""

    row: str
    shown: tuple[Weight, ...]
    count: int


class Source(Record, frozen=True):
    """Part of a kernel's source, and by line number what happened there."""

    file: str
    first: int
    lines: tuple[str, ...]
    marks: dict[int, str] = {}


class Picture(Record, frozen=True):
    """Everything that can be drawn of one case; what is missing or cut is said in `notes`."""

    table: tuple[TableRow, ...] = ()
    pool: Pool | None = None
    heats: tuple[Heat, ...] = ()
    weights: Weights | None = None
    source: Source | None = None
    notes: tuple[str, ...] = ()


def pictures(worker: Worker, findings: Iterable[Found]) -> list[Picture]:
    """A picture of each finding, in their order; only words after the first few, and after a Ctrl-C."""
    wanted, seen = list(findings), []
    missing = f"of the findings, the first {MOST_PICTURES} are drawn"
    try:
        for found in wanted[:MOST_PICTURES]:
            seen.append(picture(worker, found))
    except KeyboardInterrupt:
        missing = "interrupted before it was drawn"
    return seen + [Picture(notes=(missing,))] * (len(wanted) - len(seen))


def picture(worker: Worker, found: Found) -> Picture:
    """Run the smallest case once more in the worker and look; where that fails, the case alone and a note."""
    if not found.subject or found.finding.kind in SILENT:
        return _laid_out(worker, found)
    try:
        told = found.case, found.subject, found.finding, worker.executor
        return _convert(worker.call("harness.painting:painted", *told, limit_seconds=SECONDS))
    except Died as death:
        return _laid_out(worker, found, f"one more call, which was to be drawn, failed: {death.finding.message}")
    except (HarnessFault, WrongUse) as fault:
        return _laid_out(worker, found, f"the call could not be drawn: {_last_line(fault)}")


def _laid_out(worker: Worker, found: Found, *notes: str) -> Picture:
    """The table and the cache of the case."""
    try:
        seen = _convert(worker.call("harness.painting:laid_out", found.case, limit_seconds=SECONDS))
    except (Died, HarnessFault, WrongUse) as fault:
        return Picture(notes=(*notes, f"the case could not be drawn: {_last_line(fault)}"))
    return msgspec.structs.replace(seen, notes=(*seen.notes, *notes))


def _convert(answer: object) -> Picture:
    return msgspec.convert(answer, Picture, str_keys=True)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[-1]
