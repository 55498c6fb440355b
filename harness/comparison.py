"""Who finds what: other projects' recipes and the harness on the same planted faults, from the verdicts of one exam."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from harness.case import Record
from harness.recipes import RECIPES, Recipe
from harness.trials import Trial
from harness.verdicts import Exam, Verdict

OURS = "Kvetch"


class Row(Record, frozen=True):
    """One recipe, all recipes of a project, or the harness itself."""

    who: str
    operations: tuple[str, ...]
    planted: int = 0  # faults of its operations on which it came to a verdict
    found: int = 0
    ours: int = 0  # of the same faults, found by the harness
    median_seconds: float = 0.0  # until it was found, where it was
    declined: int = 0  # faults whose subject declines all of its cases
    fails_as_it_is: int = 0  # that fail it without the fault as well
    out_of_time: int = 0
    reduced: str = ""
    source: str = ""


def compared(exam: Exam) -> list[Verdict]:
    """The planted faults for which there is a recipe; there is none for those of the judge, nor for some operations."""
    return [verdict for verdict in exam.of(systematic=False) if any(trial.recipe for trial in verdict.others)]


def without_recipe(exam: Exam) -> dict[str, int]:
    """How many planted faults of each subject have no recipe, those of the judge left out."""
    subjects = [v.subject for v in exam.of(systematic=False) if any(not trial.recipe for trial in v.others)]
    return {subject: subjects.count(subject) for subject in dict.fromkeys(subjects)}


def ours(exam: Exam) -> Row:
    """What the harness found of the faults for which there is a recipe, as it was meant to be found."""
    verdicts = compared(exam)
    seconds = [verdict.seconds for verdict in verdicts if verdict.passed]
    operations = {recipe.op for recipe in RECIPES if _met(verdicts, [recipe])}
    return Row(
        who=OURS,
        operations=tuple(sorted(operations)),
        planted=len(verdicts),
        found=len(seconds),
        ours=len(seconds),
        median_seconds=_median(seconds),
    )


def projects(exam: Exam) -> list[Row]:
    """All recipes of each project together: a fault is found where one of them finds it, tried one after the other."""
    names = dict.fromkeys(recipe.project for recipe in RECIPES)
    rows = [_row(name, [r for r in RECIPES if r.project == name], compared(exam)) for name in names]
    return [row for row in rows if row.operations]


def by_recipe(exam: Exam) -> list[Row]:
    """Each recipe that was tried."""
    rows = [_row(recipe.name, [recipe], compared(exam), recipe.reduced, recipe.source) for recipe in RECIPES]
    return [row for row in rows if row.operations]


def _met(verdicts: Iterable[Verdict], recipes: Sequence[Recipe]) -> list[tuple[Verdict, list[Trial]]]:
    """The faults on which any of the recipes was tried, with what became of them."""
    names = {recipe.name for recipe in recipes}
    pairs = ((verdict, [trial for trial in verdict.others if trial.recipe in names]) for verdict in verdicts)
    return [(verdict, trials) for verdict, trials in pairs if trials]


def _row(who: str, recipes: Sequence[Recipe], verdicts: Sequence[Verdict], reduced: str = "", source: str = "") -> Row:
    met = _met(verdicts, recipes)
    outcomes = [outcome(trials) for _, trials in met]
    seen = [verdict for (verdict, _), became in zip(met, outcomes, strict=True) if became in ("found", "missed")]
    seconds = [until_found(trials) for _, trials in met if outcome(trials) == "found"]
    return Row(
        who=who,
        operations=tuple(sorted({recipe.op for recipe in recipes if _met(verdicts, [recipe])})),
        planted=len(seen),
        found=len(seconds),
        ours=sum(verdict.passed for verdict in seen),
        median_seconds=_median(seconds),
        declined=outcomes.count("declined"),
        fails_as_it_is=outcomes.count("fails as it is"),
        out_of_time=outcomes.count("out of time"),
        reduced=reduced,
        source=source,
    )


#: What several recipes together make of a fault: the first of these that any of them made of it.
ORDER = ("found", "out of time", "missed", "fails as it is", "declined")


def outcome(trials: Sequence[Trial]) -> str:
    """Of one recipe or of several on one fault; it is open while one that might have found it was out of time."""
    return min((trial.outcome for trial in trials), key=ORDER.index)


def until_found(trials: Sequence[Trial]) -> float:
    """Seconds, the recipes tried one after the other until one finds it."""
    first = next(index for index, trial in enumerate(trials) if trial.outcome == "found")
    return sum(trial.seconds for trial in trials[: first + 1])


def _median(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds), 3) if seconds else 0.0


def figures(exam: Exam) -> dict[str, Any]:
    """For `--json`; nothing where no recipe was tried."""
    if not compared(exam):
        return {}
    others = {
        "kvetch": msgspec.structs.asdict(ours(exam)),
        "projects": [msgspec.structs.asdict(row) for row in projects(exam)],
        "recipes": [msgspec.structs.asdict(row) for row in by_recipe(exam)],
        "without_recipe": without_recipe(exam),
    }
    return {"others": others}
