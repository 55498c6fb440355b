"""The function of a kernel's source in which something happened, with its lines marked."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from harness.pictures import Source

#: Lines that are shown at most, a third of them before the line that matters.
MOST_LINES = 24


def excerpt(ttir: Iterable[str], told: dict[str, str]) -> Source | None:
    """The source round the first of these lines, "decode.py:34" say, that a kernel of this TTIR has; else None."""
    texts = tuple(ttir)
    for place in told:
        name, _, number = place.rpartition(":")
        path = _path(texts, name)
        if number.isdigit() and path is not None:
            return _cut(path, int(number), _marks(told, name))
    return None


def _path(texts: tuple[str, ...], name: str) -> Path | None:
    """Where the file lies, from the locations in the IR."""
    for text in texts:
        if name and (found := re.search(rf'"([^"\n]*/{re.escape(name)})"', text)) and Path(found[1]).is_file():
            return Path(found[1])
    return None


def _marks(told: dict[str, str], name: str) -> dict[int, str]:
    places = {place.rpartition(":"): words for place, words in told.items()}
    return {int(line): words for (file, _, line), words in places.items() if file == name and line.isdigit()}


def _cut(path: Path, line: int, marks: dict[int, str]) -> Source:
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    first, last = _function(text, line) or (1, len(lines))
    if last - first >= MOST_LINES:
        first = min(max(line - MOST_LINES // 3, first), last - MOST_LINES + 1)
        last = first + MOST_LINES - 1
    inside = {number: words for number, words in marks.items() if first <= number <= last}
    return Source(file=path.name, first=first, lines=tuple(lines[first - 1 : last]), marks=inside)


def _function(text: str, line: int) -> tuple[int, int] | None:
    """First and last line of the function, decorators included."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno):
            return min([node.lineno, *(mark.lineno for mark in node.decorator_list)]), node.end_lineno or line
    return None
