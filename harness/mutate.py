"""Systematic mutants: every operator applied wherever it applies to the kernels of a file."""

import ast
import difflib
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten

import msgspec

from harness.case import Record
from harness.operators import OPERATORS, Edit, edits
from harness.source import Function, Source
from harness.subjects import WrongUse

#: Characters of a changed text that a name shows.
SHOWN = 60


@dataclass(frozen=True)
class Change:
    """One systematic mutant: what one operator does at one place of a kernel."""

    source: Source
    function: str
    operator: str
    edit: Edit
    nth: int = 1  # of those that do the same to lines that read the same

    @property
    def name(self) -> str:
        """For example `decode.py:123 "<" to "<="`; unique within its file."""
        return f"{self.source.file}:{self.number} {self.change}"

    @property
    def number(self) -> int:
        """The number of the changed line; where several are, of the first."""
        return self.source.line_of(self.edit.start)

    @property
    def line(self) -> str:
        """The text of that line."""
        return self.source.line(self.number)

    @property
    def change(self) -> str:
        """What is done to the line, in words."""
        return self.says + (f" ({self.nth})" if self.nth > 1 else "")

    @property
    def says(self) -> str:
        """The same, whichever of several it is."""
        old = _shown(self.source.text[self.edit.start : self.edit.end].strip(", "))
        is_gone = self.edit.new in ("", "pass")
        return f'without "{old}"' if is_gone else f'"{old}" to "{_shown(self.edit.new)}"'

    @property
    def text(self) -> str:
        """The whole file with the change."""
        return self.source.text[: self.edit.start] + self.edit.new + self.source.text[self.edit.end :]

    @property
    def diff(self) -> str:
        """A unified diff of the file."""
        before, after = self.source.text.splitlines(keepends=True), self.text.splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, after, f"a/{self.source.file}", f"b/{self.source.file}", n=2))

    @property
    def texts(self) -> tuple[str, str]:
        """Old and new text of whole lines, as many as it takes for the old one to be there only once."""
        text, edit = self.source.text, self.edit
        start, end = text.rfind("\n", 0, edit.start) + 1, _behind_line(text, edit.end)
        while text.count(text[start:end]) > 1:
            start, end = text.rfind("\n", 0, max(start - 1, 0)) + 1, _behind_line(text, end)
        return text[start:end], text[start : edit.start] + edit.new + text[edit.end : end]


def _behind_line(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end + 1


def _shown(text: str) -> str:
    return shorten(text, SHOWN, placeholder=" ...")


def changes(path: Path) -> list[Change]:
    """All mutants of the file's kernels, in the order of its text, none twice; raises WrongUse without a kernel."""
    source = Source.read(path)
    kernels = source.kernels()
    if not kernels:
        raise WrongUse(f"{path} has no function decorated with triton.jit, so there is nothing to make mutants of")
    return list(_counted(change for kernel in kernels for change in _distinct(source, kernel)))


def _distinct(source: Source, kernel: Function) -> Iterator[Change]:
    """Those of one kernel that parse, each once; the kernel itself is no mutant."""
    found = [Change(source, kernel.name, name, edit) for name, edit in edits(source, kernel)]
    found.sort(key=lambda change: (change.edit.start, change.edit.end, list(OPERATORS).index(change.operator)))
    seen = {_meaning(source, kernel, Edit(0, 0, ""))}
    for change in found:
        meaning = _meaning(source, kernel, change.edit)
        if meaning is not None and meaning not in seen:
            seen.add(meaning)
            yield change


def _meaning(source: Source, kernel: Function, edit: Edit) -> str | None:
    """The syntax tree of a kernel after an edit, as text; None where it is no Python any more."""
    start, end = source.start(kernel), source.end(kernel)
    inside = source.text[start:end]
    if edit.end:
        inside = source.text[start : edit.start] + edit.new + source.text[edit.end : end]
    try:
        return ast.dump(ast.parse("if True:\n" + " " * kernel.col_offset + inside if kernel.col_offset else inside))
    except SyntaxError:
        return None


def _counted(found: Iterator[Change]) -> Iterator[Change]:
    times: Counter[tuple[str, str, str]] = Counter()
    for change in found:
        same = (change.function, change.line, change.says)
        times[same] += 1
        yield replace(change, nth=times[same])


# --- those that are no faults ------------------------------------------------------------------------------------


class Equivalent(Record, frozen=True):
    """A mutant that no input which the subject declares can tell from the kernel; named by text: lines move."""

    file: str
    function: str
    line: str
    change: str
    reason: str

    def is_of(self, change: Change) -> bool:
        """Whether this is the mutant that is meant."""
        named = (Path(self.file).name, self.function, self.line, self.change)
        return named == (change.source.file, change.function, change.line, change.change)


class _File(Record, frozen=True):
    equivalent: tuple[Equivalent, ...] = ()


def equivalents(path: Path) -> tuple[Equivalent, ...]:
    """The records of one TOML file; raises WrongUse naming file and field."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).equivalent
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise WrongUse(f"{path}: {error}") from None


def faults(found: Sequence[Change], records: Sequence[Equivalent]) -> list[Change]:
    """The mutants that a checker has to find: all but those that are recorded as equivalent."""
    return [change for change in found if not any(record.is_of(change) for record in records)]
