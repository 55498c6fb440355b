"""What a campaign reached in the source of kernels, and the cases that did what few others did."""

from collections.abc import Iterable, Iterator

from harness.case import Case
from harness.results import Result

#: Behaviour, "decode.py:34 mask mixed" say, to the judged cases that showed it; 0 where it was possible only.
Row = dict[str, int]

#: How the report puts what was never seen; what matters most comes first.
WORDS = {
    "line run": "line {line} of {file} was never run",
    "mask mixed": "line {line} of {file} was never run with a partly true mask",
    "mask all": "line {line} of {file} was never run with a mask that is true throughout",
    "branch taken": "the branch on line {line} of {file} was never taken",
    "branch passed": "the branch on line {line} of {file} was always taken",
    "loop many": "the loop on line {line} of {file} never ran more than once",
    "loop never": "the loop on line {line} of {file} was never skipped",
    "loop once": "the loop on line {line} of {file} never ran just once",
}
#: Cases of the rarest behaviours that a round draws near.
LEADS = 3


def count(table: dict[str, Row], result: Result) -> None:
    """Add one judged case to its subject's row."""
    row = table.setdefault(result.subject, {})
    for behaviour in result.possible:
        row.setdefault(behaviour, 0)
    for behaviour in result.behaviours:
        row[behaviour] = row.get(behaviour, 0) + 1


def note(table: dict[str, dict[str, Case]], result: Result) -> None:
    """Keep the case as the latest one of each of its behaviours."""
    table.setdefault(result.subject, {}).update(dict.fromkeys(result.behaviours, result.case))


def leads(row: Row, latest: dict[str, Case]) -> tuple[Case, ...]:
    """Cases that did what few others did, the rarest first."""
    rarest = sorted((behaviour for behaviour in latest), key=lambda behaviour: row[behaviour])
    return tuple(dict.fromkeys(latest[behaviour] for behaviour in rarest[: 2 * LEADS]))[:LEADS]


def missing(row: Row) -> Iterator[str]:
    """What never happened, in words: a line that was never run stands for all that is on it."""
    absent = [_parts(behaviour) for behaviour, cases in row.items() if not cases]
    idle = {place for place, what in absent if what == "line run"}
    open_ = [(place, what) for place, what in absent if what == "line run" or place not in idle]
    for what, words in WORDS.items():
        for file, line in sorted(place for place, which in open_ if which == what):
            yield words.format(file=file, line=line)
    shut = sorted(place for place, what in open_ if what == "mask none")
    if shut:
        places = ", ".join(f"{file}:{line}" for file, line in shut)
        yield f"masks never false throughout, which most cannot be: {places}"


def _parts(behaviour: str) -> tuple[tuple[str, int], str]:
    """The place, file and line, and what happened there."""
    place, _, what = behaviour.partition(" ")
    file, _, line = place.rpartition(":")
    return (file, int(line)), what


def tally(row: Row) -> str:
    """How much was reached, in one line."""
    run, lines = _share(row, [behaviour for behaviour in row if behaviour.endswith(" line run")])
    seen, ways = _share(row, [behaviour for behaviour in row if not behaviour.endswith(" line run")])
    return f"{run} of {lines} lines of its kernels were run, with {seen} of {ways} ways of masks, branches and loops"


def _share(row: Row, names: Iterable[str]) -> tuple[int, int]:
    cases = [row[name] for name in names]
    return sum(map(bool, cases)), len(cases)
