"""What a project tells the gate, in `kvetch.toml` or in `[tool.kvetch]` of `pyproject.toml`."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from harness.case import InvalidCase, Record

FILE, SHARED_FILE = Path("kvetch.toml"), Path("pyproject.toml")


class Accepted(Record, frozen=True):
    """Something that the gate would not let pass, acknowledged by the change itself."""

    subject: str
    field: str
    reason: str

    def covers(self, subject: str, field: str) -> bool:
        """Whether it is this that is acknowledged; `field` may hold `*`."""
        return self.subject == subject and fnmatchcase(field, self.field)


class Settings(Record, frozen=True):
    """Which subjects are gated, which files each uses beyond its imports, and what the change acknowledges."""

    subjects: tuple[str, ...] = ()
    paths: dict[str, tuple[str, ...]] = {}  # subject, or a pattern of subjects, to globs of files
    compile: bool = False  # whether kernels are compiled for GPUs that are not here, as with `--compile`
    accept: tuple[Accepted, ...] = ()

    def globs(self, subject: str) -> tuple[str, ...]:
        """The globs of a subject."""
        return tuple(glob for name, globs in self.paths.items() if fnmatchcase(subject, name) for glob in globs)


def read(root: Path) -> Settings:
    """The settings of the folder, bare ones where it has none; raises InvalidCase naming file and field."""
    name = source(root)
    return Settings() if name is None else _converted(_table(root / name), root / name)


def source(root: Path) -> Path | None:
    """The file that holds the settings of the folder, from the folder."""
    return next((name for name in (FILE, SHARED_FILE) if _table(root / name) is not None), None)


def _table(path: Path) -> Any:
    """What the file has to say to us; None where it is not there or has nothing."""
    if not path.is_file():
        return None
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidCase(f"{path}: {error}") from None
    return table if path.name == FILE.name else table.get("tool", {}).get("kvetch")


def _converted(table: Any, path: Path) -> Settings:
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        raise InvalidCase(f"{path}: {error}") from None


def joined(base: Settings, change: Settings) -> Settings:
    """What is gated: what a change takes away it is gated with all the same."""
    paths = {
        name: tuple(dict.fromkeys((*base.paths.get(name, ()), *change.paths.get(name, ()))))
        for name in base.paths | change.paths
    }
    subjects = tuple(dict.fromkeys((*base.subjects, *change.subjects)))
    compiles = base.compile or change.compile
    return Settings(subjects=subjects, paths=paths, compile=compiles, accept=change.accept)
