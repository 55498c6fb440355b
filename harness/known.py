"""Known findings: tolerated for a reason, by somebody, until a day."""

import datetime
import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from harness.case import InvalidCase, Record
from harness.subjects import same
from harness.summary import Found
from harness.traits import BY_NAME, traits


class Known(Record, frozen=True):
    """One entry of `known.toml`. It matches findings of its subject and family on cases with all of its traits.

    With a kind or a line it matches those of that kind, and at that line (`FILE.py:NUMBER`), only.

    Where a finding is of a changed case, as a law makes it, the traits of that case count.
    """

    subject: str
    family: str
    reason: str
    owner: str
    expires: datetime.date
    link: str = ""
    traits: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    kind: str = ""
    line: str = ""

    def matches(self, found: Found, platform: str) -> bool:
        """Whether the finding is this one, here, and today."""
        here = not self.platforms or platform in self.platforms
        finding = found.finding
        is_it = same(self.subject, found.subject) and self.family == finding.family
        is_it = is_it and self.kind in ("", finding.kind) and self.line in ("", finding.line)
        names = traits(found.case) | set(finding.beyond)
        return here and is_it and set(self.traits) <= names and not self.expired()

    def expired(self) -> bool:
        """Whether its day has passed."""
        return self.expires < datetime.date.today()


class _File(Record, frozen=True):
    known: tuple[Known, ...] = ()


def read(path: Path) -> tuple[Known, ...]:
    """The entries of the file, none when there is no file; raises InvalidCase naming the field."""
    if not path.is_file():
        return ()
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).known
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise InvalidCase(f"{path}: {error}") from None
    for entry in entries:
        for trait in set(entry.traits) - set(BY_NAME):
            raise InvalidCase(f"{path}: traits holds {trait!r}, but the traits are {', '.join(BY_NAME)}")
    return entries


def expired(known: tuple[Known, ...], subjects: Iterable[str]) -> tuple[str, ...]:
    """A line for each entry of these subjects whose day has passed."""
    names = list(subjects)
    return tuple(
        f"{entry.family} of {entry.subject} was tolerated until {entry.expires} ({entry.reason}; {entry.owner})"
        for entry in known
        if entry.expired() and any(same(entry.subject, name) for name in names)
    )


def reason(known: tuple[Known, ...], found: Found, platform: str) -> str:
    """Why the finding is tolerated, or nothing."""
    return next((entry.reason for entry in known if entry.matches(found, platform)), "")
