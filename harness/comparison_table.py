"""The table of who finds what: lines of text for a terminal, and a section of Markdown with its figure."""

from collections.abc import Iterator, Sequence

from harness.columns import aligned, markdown_table
from harness.comparison import Row, by_recipe, compared, ours, projects, without_recipe
from harness.verdicts import Exam

TITLE = "## Who finds what"
COLUMNS = ("who", "operations", "tried on", "found", "Kvetch of these", "median seconds", "not counted")
WORDS = """\
Recipes of other projects' own tests, with their data, shapes, oracle and tolerance, tried on the same planted faults in
the same run. A recipe finds a fault when one of its cases fails that passes without the fault, and ends there. "Tried
on" counts the faults of its operations on which it came to a verdict, "Kvetch of these" those of them that the harness
found as they were meant to be found. Median seconds are those from the first case to the finding. The recipes of a
project, tried one after the other, find what any of them finds. Not counted is a fault whose subject declines all of a
recipe's cases, one where the same case fails without the fault too, and one that there was no time for.

The faults are written after public reports of many projects, and the harness was mended where it missed one: its own
row says how far that has come. A recipe stands for one file of tests, not for all that a project does to find a fault.
"""


def rows(exam: Exam) -> list[Row]:
    """The harness first, then each project, then each recipe."""
    return [ours(exam), *projects(exam), *by_recipe(exam)]


def cells(row: Row) -> tuple[str, ...]:
    """One for each of COLUMNS."""
    left_out = {"declined": row.declined, "fails as it is": row.fails_as_it_is, "out of time": row.out_of_time}
    return (
        row.who,
        ", ".join(row.operations),
        str(row.planted),
        str(row.found),
        str(row.ours),
        f"{row.median_seconds:.1f}" if row.found else "",
        ", ".join(f"{number} {why}" for why, number in left_out.items() if number),
    )


def left_out(exam: Exam) -> Iterator[str]:
    """What is no part of the comparison."""
    judge = sum(verdict.bug_class == "ORACLE" for verdict in exam.of(systematic=False))
    if judge:
        yield f"left out, since no recipe can see a fault of the judge: planted there (ORACLE), {judge}"
    for subject, number in without_recipe(exam).items():
        yield f"left out, since there is no recipe of the operation: planted in {subject}, {number}"


def lines(exam: Exam) -> Iterator[str]:
    """For a terminal; nothing where no recipe was tried."""
    if not compared(exam):
        return
    yield ""
    yield f"who finds what, of {len(compared(exam))} planted faults"
    yield from aligned([COLUMNS, *map(cells, rows(exam))])
    yield from left_out(exam)


def notes(exam: Exam) -> Iterator[str]:
    """Where each recipe was read, and what was made smaller."""
    for row in by_recipe(exam):
        smaller = f"; smaller here: {row.reduced}" if row.reduced else "; nothing is smaller here"
        yield f"{row.who}: read in {row.source}{smaller}"


def markdown(exam: Exam, figure: str) -> str:
    """The section; `figure` is the path of its picture from the document."""
    parts = [
        f"{TITLE}\n\n{WORDS}",
        f"![{alternative(projects(exam), ours(exam))}]({figure})\n",
        markdown_table([COLUMNS, *map(cells, rows(exam))]) + "\n",
        *(["\n".join(f"* {line}." for line in left_out(exam)) + "\n"] if list(left_out(exam)) else []),
        "Where each recipe was read, and what was made smaller for a CPU:\n",
        "\n".join(f"* {line}." for line in notes(exam)) + "\n",
    ]
    return "\n".join(parts)


def alternative(others: Sequence[Row], kvetch: Row) -> str:
    """The figure in words."""
    told = [f"{row.who} {row.found} of {row.planted}" for row in (kvetch, *others)]
    return f"Planted faults found of those that each was tried on: {', '.join(told)}"
