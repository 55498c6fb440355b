"""The smallest injected errors that are still found: each ladder is hunted from large to small, until one is missed."""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from harness.columns import aligned, markdown_table
from harness.injections import Step, Threshold, next_mutant
from harness.mutants import Mutant
from harness.verdicts import Exam, Verdict

#: What each error may take: one that needs more is called missed.
CASES, SECONDS = 200, 120.0

#: Hunts mutants; the verdicts, one for each, come in any order.
Examine = Callable[[list[Mutant]], Iterable[Verdict]]


def measured(thresholds: Iterable[Threshold], examine: Examine) -> Iterator[Threshold]:
    """Each threshold again and again, every time one step further down; all ladders go down together."""
    going = {threshold: pair for threshold in thresholds if (pair := next_mutant(threshold))}
    while going:
        stepped = []
        for threshold in _stepped(going, examine):
            yield threshold
            stepped.append(threshold)
        going = {threshold: pair for threshold in stepped if (pair := next_mutant(threshold))}


def _stepped(going: dict[Threshold, tuple[str, Mutant]], examine: Examine) -> Iterator[Threshold]:
    by_name = {mutant.name: (threshold, error) for threshold, (error, mutant) in going.items()}
    for verdict in examine([mutant for _, mutant in going.values()]):
        threshold, error = by_name[verdict.name]
        yield msgspec.structs.replace(threshold, steps=(*threshold.steps, step(error, verdict)))


def step(error: str, verdict: Verdict) -> Step:
    """What came of one error."""
    return Step(
        error=error,
        found=verdict.found,
        kind=verdict.check,
        cases=verdict.cases,
        seconds=verdict.seconds,
        fault=verdict.fault,
    )


def line(threshold: Threshold) -> str:
    """What came of the last step."""
    last = threshold.steps[-1]
    became = "FAULT OF THE HARNESS" if last.fault else "found" if last.found else "missed"
    return (
        f"{threshold.injection}, {threshold.dtype}, {last.error}: {became} in {last.cases} cases, {last.seconds:.1f} s"
    )


# --- the table ---------------------------------------------------------------------------------------------------

TITLE = "## The smallest errors that are found"
COLUMNS = ("fault", "dtype", "smallest found", "by", "after cases", "first missed", "of cases")
WORDS = f"""\
An error is injected into a copy of a kernel, and made smaller until it is not found within {CASES} cases, or within
{SECONDS:g} s where these take longer. The dtype is that of the queries and, unless a case has it in FP8, of the cache.
The first missed is "none" where the smallest error of the ladder was found too.
"""


def row(threshold: Threshold) -> tuple[str, ...]:
    """Its cells, one for each of COLUMNS."""
    least, missed = threshold.smallest, threshold.missed
    found = (least.error, least.kind, str(least.cases)) if least else ("none", "", "")
    lost = (told(missed), str(missed.cases)) if missed else ("not reached" if next_mutant(threshold) else "none", "")
    return (threshold.injection, threshold.dtype, *found, *lost)


def told(missed: Step) -> str:
    """The error, or that there is no verdict on it."""
    return f"{missed.error}: FAULT OF THE HARNESS" if missed.fault else missed.error


def lines(exam: Exam) -> Iterator[str]:
    """For a terminal; nothing where nothing was injected."""
    begun = [threshold for threshold in exam.thresholds if threshold.steps]
    if begun:
        yield from aligned([COLUMNS, *map(row, begun)])
    for threshold in begun:
        for one in threshold.steps:
            if one.fault:
                yield f"FAULT OF THE HARNESS: {threshold.injection} {threshold.dtype} {one.error}: {one.fault}"


def markdown(exam: Exam) -> str:
    """The section: what the faults are, and how small an error of each is found."""
    begun = [threshold for threshold in exam.thresholds if threshold.steps]
    stories = dict.fromkeys(f"* {t.injection}: {t.story} ({t.subject})." for t in begun)
    run = f"Seed {exam.seed}, {exam.executor}, {exam.workers} at once, {exam.seconds:.0f} s in all."
    return "\n".join([TITLE, "", WORDS + run, "", markdown_table([COLUMNS, *map(row, begun)]), "", *stories, ""])
