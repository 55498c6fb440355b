"""Which files a subject uses: its imports, followed by reading them, and what the settings name beyond."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.settings import Settings
from harness.subjects import SUBJECTS

#: Below the root, where packages may lie.
SOURCES = ("", "src")
#: The judge is the same on both sides, so it is no part of a subject.
JUDGE = "harness"


def file_of(subject: str) -> Path:
    """The file that declares the subject, from the root; for our own that is where ours are declared."""
    return Path("harness/ours.py") if subject in SUBJECTS else Path(subject.rpartition(":")[0])


def used(root: Path, subject: str, settings: Settings) -> set[Path]:
    """Every file below the root that the subject uses, from the root."""
    start = {file_of(subject), *_globbed(root, settings.globs(subject))}
    root = root.resolve()
    found: set[Path] = set()
    waiting = {(root / path).resolve() for path in start if (root / path).is_file()}
    while waiting:
        path = waiting.pop()
        found.add(path)
        waiting |= _imported(root, path) - found if path.suffix == ".py" else set()
    return {path.relative_to(root) for path in found if path.is_relative_to(root)}


def _globbed(root: Path, globs: Iterable[str]) -> Iterator[Path]:
    for glob in globs:
        yield from (path.relative_to(root) for path in sorted(root.glob(glob)) if path.is_file())


def _imported(root: Path, path: Path) -> set[Path]:
    """The files below the root that a file imports, in functions too."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # told when the subject is loaded
        return set()
    found: set[Path] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found |= _absolute(root, path, alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found |= _from(root, path, node, alias.name)
    return found


def _from(root: Path, path: Path, node: ast.ImportFrom, name: str) -> set[Path]:
    """`from a.b import c` loads a, a.b and, where there is one, the module a.b.c."""
    dotted = ".".join(filter(None, (node.module, name)))
    if not node.level:
        return _absolute(root, path, dotted)
    return _modules(path.parents[node.level - 1], dotted)


def _absolute(root: Path, path: Path, dotted: str) -> set[Path]:
    """A module beside the file, as for a script, or of a package below the root."""
    if dotted.partition(".")[0] == JUDGE and (root / JUDGE / "ours.py").is_file():
        return set()
    return set().union(*(_modules(folder, dotted) for folder in (path.parent, *(root / name for name in SOURCES))))


def _modules(folder: Path, dotted: str) -> set[Path]:
    """The files that importing the name from the folder loads: packages on the way, and the module at its end."""
    found: set[Path] = set()
    for part in dotted.split("."):
        folder = folder / part
        found |= {file.resolve() for file in (folder.with_suffix(".py"), folder / "__init__.py") if file.is_file()}
    return found


def mapped(paths: Iterable[Path], globs: Iterable[str]) -> set[Path]:
    """Those of the paths that a glob matches, whether they are still there or not."""
    patterns = tuple(globs)
    return {path for path in paths if any(_matches(path, pattern) for pattern in patterns)}


def _matches(path: Path, pattern: str) -> bool:
    """As `Path.glob` does: `**` stands for any number of folders."""
    return _parts_match(path.parts, Path(pattern).parts)


def _parts_match(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_parts_match(parts[i:], pattern[1:]) for i in range(len(parts) + 1))
    return bool(parts) and Path(parts[0]).match(pattern[0]) and _parts_match(parts[1:], pattern[1:])
