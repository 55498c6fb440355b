"""The corpus: one readable file per case, named by its content, with what it found."""

import contextlib
import datetime
import hashlib
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from harness.case import Case, InvalidCase, Record, decode, digest, to_json
from harness.files import write_atomically
from harness.results import Finding
from harness.subjects import same
from harness.summary import Found


class Entry(Record, frozen=True):
    """A case and why it is kept."""

    why: str
    case: Case
    schema: int = 1
    subject: str = ""
    executor: str = ""
    finding: Finding | None = None
    date: str = ""  # when it was first seen
    last_seen: str = ""  # when it was adopted again; nothing: never
    seen: int = 1
    versions: dict[str, str] = {}
    settings: dict[str, str] = {}
    notes: tuple[str, ...] = ()  # of a recorded case: what of the call it does not hold


@dataclass(frozen=True)
class Corpus:
    """A folder of entries."""

    folder: Path

    def save(self, found: Found) -> Path:
        """Keep a finding's smallest case; saving the same case twice is a no-op."""
        entry = Entry(
            why=f"{found.finding.family} of {found.subject}",
            case=found.case,
            subject=found.subject,
            executor=found.executor,
            finding=found.finding,
            date=datetime.date.today().isoformat(),
            versions=versions(),
            settings=triton_settings(),
        )
        return self.add(entry)

    def add(self, entry: Entry) -> Path:
        """Write the entry unless its case is there for the same subject already."""
        path = self.folder / entry.case.op / name_of(entry)
        there = self.find(entry)
        if there is not None:
            return there
        if path.exists():  # spoilt, or of a subject in another folder that has the same name
            path = path.with_stem(f"{_mark(entry.subject)}-{path.stem}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(entry))
        return path

    def find(self, entry: Entry) -> Path | None:
        """The file that holds the entry's case for its subject, whatever it is called."""
        files = sorted((self.folder / entry.case.op).glob(f"*-{digest(entry.case)}.json"))
        return next((file for file in files if _is_of(file, entry.subject)), None)

    def entries(self) -> Iterator[tuple[Path, Entry]]:
        """Every entry in the order of names; raises InvalidCase for a file that is none."""
        for path in sorted(self.folder.rglob("*.json")):
            yield path, read(path)


def read(path: Path) -> Entry:
    """One entry, or a bare Case wrapped in one; raises InvalidCase naming file, value and what was expected."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidCase(f"{path}: {error.strerror}") from None
    if b'"case"' not in text and b'"why"' not in text:
        return Entry(why="given by hand", case=decode(text, Case, str(path)))
    return decode(text, Entry, str(path))


def name_of(entry: Entry) -> str:
    """A slug for people, a digest for machines."""
    kind = entry.finding.kind if entry.finding else entry.why
    subject = re.sub(r".*/", "", entry.subject)
    slug = re.sub(r"[^a-z0-9]+", "-", f"{subject} {kind}".lower()).strip("-")[:60]
    return f"{slug}-{digest(entry.case)}.json"


def _is_of(path: Path, subject: str) -> bool:
    with contextlib.suppress(InvalidCase):
        return same(read(path).subject, subject)
    return False


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:4]


def versions() -> dict[str, str]:
    """Of what a verdict may depend on."""
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "numpy", "hypothesis", "kvetch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def triton_settings() -> dict[str, str]:
    """Triton's environment variables that are set."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("TRITON_")}


if __name__ == "__main__":
    from harness.keeping import main

    main()
