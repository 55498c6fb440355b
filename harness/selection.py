"""Which mutants an exam hunts: planted faults from files, systematic mutants of the kernels of its subjects."""

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import mutate
from harness.folders import folder
from harness.mutants import NO_FAULTS, Mutant, home, mutated, read
from harness.subjects import SUBJECTS, WrongUse, same

#: Ours whose kernels are changed systematically where no subject is named.
SYSTEMATIC = ("ours.decode", "ours.extend", "ours.cache_write")
#: The kernels of ours that a subject stands for, where it is not the one of its name.
KERNELS = {
    "ours.extend": ("extend", "tile", "splits"),
    "ours.gather": ("gather", "paged_tile"),
    "ours.split_decode": ("split_decode", "tile", "splits"),
    "ours.step": (),
}


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; empty: everything."""

    subjects: tuple[str, ...] = ()
    mutants: Path | None = None
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    planted: bool = True
    systematic: bool = True


@dataclass(frozen=True)
class Selected:
    """The mutants to hunt, and how many systematic ones were left out because they change nothing."""

    planted: list[Mutant]
    systematic: list[Mutant]
    equivalent: int = 0

    @property
    def all(self) -> list[Mutant]:
        """Both kinds."""
        return self.planted + self.systematic


def select(wanted: Wanted) -> Selected:
    """Read, make and filter; raises WrongUse where nothing is left, or a fault cannot be planted."""
    _check_subjects(wanted.subjects)
    planted = list(_planted(wanted)) if wanted.planted else []
    made, equivalent = _systematic(wanted) if wanted.systematic and not wanted.classes else ([], 0)
    found = Selected(_named(planted, wanted), _named(made, wanted), equivalent)
    if not found.all:
        raise WrongUse(_nothing(wanted, [*planted, *made]))
    for mutant in found.planted:
        mutated(mutant)
    return found


def _check_subjects(names: Sequence[str]) -> None:
    """Whether each could be one at all; what it is, only a worker can tell."""
    for name in names:
        path, _, function = name.rpartition(":")
        if name not in SUBJECTS and not (path.endswith(".py") and function):
            raise WrongUse(f"subject {name!r} is neither one of ours ({', '.join(SUBJECTS)}) nor FILE.py:FUNCTION")
        if name not in SUBJECTS and not Path(path).is_file():
            raise WrongUse(f"subject {name!r}: there is no file {path}")


def _planted(wanted: Wanted) -> Iterator[Mutant]:
    theirs = [name for name in wanted.subjects if name not in SUBJECTS]
    path = wanted.mutants or folder("mutants")
    if wanted.mutants is None and wanted.subjects and len(theirs) == len(wanted.subjects):
        return
    for mutant in read(path, theirs[0] if len(theirs) == 1 else ""):
        right_subject = not wanted.subjects or any(same(mutant.subject, name) for name in wanted.subjects)
        if right_subject and (not wanted.classes or mutant.bug_class in wanted.classes):
            yield mutant


def _systematic(wanted: Wanted) -> tuple[list[Mutant], int]:
    """Those of all subjects, and how many were left out."""
    mutants: list[Mutant] = []
    equivalent = 0
    for subject in wanted.subjects or (() if wanted.mutants else SYSTEMATIC):
        for file in kernel_files(subject):
            made, left_out = systematic(subject, file)
            mutants, equivalent = mutants + made, equivalent + left_out
    return mutants, equivalent


def systematic(subject: str, file: str) -> tuple[list[Mutant], int]:
    """The mutants of one file as faults of the subject, and how many more are recorded as changing nothing."""
    found = mutate.changes(home(Mutant(name="", file=file, old="", new="", story="", subject=subject)) / file)
    faults = mutate.faults(found, mutate.equivalents(folder("mutants") / NO_FAULTS))
    return [_mutant(change, subject, file) for change in faults], len(found) - len(faults)


def _mutant(change: mutate.Change, subject: str, file: str) -> Mutant:
    old, new = change.texts
    return Mutant(name=change.name, file=file, old=old, new=new, story=change.operator, subject=subject)


def kernel_files(subject: str) -> list[str]:
    """Where the kernels of a subject are: its own file, else the files beside it that it imports."""
    if subject in SUBJECTS:
        return [f"kernels/{name}.py" for name in KERNELS.get(subject, (subject.removeprefix("ours."),))]
    path = Path(subject.rpartition(":")[0])
    if _has_kernels(path):
        return [path.name]
    beside = [path.with_name(f"{name}.py") for name in sorted(_imports(path))]
    return [file.name for file in beside if file.is_file() and _has_kernels(file)]


def _has_kernels(path: Path) -> bool:
    decorators = (
        d for node in ast.walk(_parsed(path)) if isinstance(node, ast.FunctionDef) for d in node.decorator_list
    )
    return any("jit" in ast.unparse(decorator) for decorator in decorators)


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise WrongUse(f"{path}:{error.lineno}: {error.msg}, but expected Python") from None


def _named(mutants: list[Mutant], wanted: Wanted) -> list[Mutant]:
    return [mutant for mutant in mutants if not wanted.names or mutant.name in wanted.names]


def _nothing(wanted: Wanted, mutants: list[Mutant]) -> str:
    """Why there is nothing to hunt."""
    known = [mutant.name for mutant in mutants]
    for name in set(wanted.names) - set(known):
        near = difflib.get_close_matches(name, known, 3)
        return f"no mutant is named {name!r}" + (f"; there are {', '.join(near)}" if near else "")
    asked = [*wanted.subjects, *wanted.classes, *([str(wanted.mutants)] if wanted.mutants else [])]
    kind = ", ".join(asked) or "any kind"
    return f"there is no mutant of {kind}: no fault is written for it, and no kernel was found to change"
