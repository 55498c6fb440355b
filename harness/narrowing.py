"""What a change no longer tests: declarations, kept cases, tolerated findings and subjects, held against the base."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.case import Case, InvalidCase
from harness.corpus import read as read_entry
from harness.known import Known
from harness.known import read as read_known
from harness.outcome import Narrowing
from harness.settings import Accepted, Settings
from harness.subjects import Declaration, declines

#: Fields that say what a subject takes or promises: to lose one is a narrowing. All other yes-or-no fields are needs.
NEEDS = ("finite_dead_slots", "padded_table", "own_splits")
#: Fields that only say something to a reader.
TOLD = ("about", "not_drawn", "corners")


def of_declaration(subject: str, base: Declaration, change: Declaration, cases: list[Case]) -> Iterator[Narrowing]:
    """Each field that takes or promises less, and how many of the cases that the base takes it turns away."""
    for name in Declaration.__struct_fields__:
        before, after = getattr(base, name), getattr(change, name)
        if is_narrower(name, before, after):
            alone = msgspec.structs.replace(base, **{name: after})
            lost = sum(declines(alone, case) is not None for case in cases)
            words = f"{name} was {before!r} and is {after!r}: {_told(lost, len(cases))}"
            yield Narrowing(subject=subject, field=name, words=words, cases=lost)


def _told(lost: int, cases: int) -> str:
    return f"{lost} of {cases} cases no longer run" if lost else "what it promised is no longer checked"


def is_narrower(name: str, before: Any, after: Any) -> bool:
    """Whether a field of a declaration takes or promises less than before."""
    if name in TOLD:
        return False
    if name in ("op", "arithmetic"):  # another operation, another bound: neither is more nor less
        return bool(before != after)
    if isinstance(before, bool):
        return (after and not before) if name in NEEDS else (before and not after)
    if name in ("max_kv_len", "configs"):
        return after is not None and (before is None or after < before)
    if before is None:
        return after is not None
    return after is not None and not set(before) <= set(after)


def of_known(base: Path, change: Path) -> Iterator[Narrowing]:
    """Entries of `known.toml` that the base does not have, or that tolerate more or longer than they did there."""
    before = {_tolerance(entry) for entry in read_known(base)}
    for entry in read_known(change):
        if _tolerance(entry) not in before:
            words = f"known.toml tolerates {entry.family!r} until {entry.expires}: {entry.reason} ({_where(entry)})"
            yield Narrowing(subject=entry.subject, field=f"known {entry.family}", words=words)


def _tolerance(entry: Known) -> Known:
    """What an entry tolerates, without the words about it."""
    return msgspec.structs.replace(entry, reason="", owner="", link="")


def _where(entry: Known) -> str:
    return " and ".join(entry.traits) or "on every case"


def of_corpus(base: Path, change: Path) -> Iterator[Narrowing]:
    """Kept cases that the base has and the change has not, whatever their files are called."""
    before, after = _kept(base), _kept(change)
    for (subject, case), path in before.items():
        if (subject, case) not in after:
            words = f"the kept case {path.name} is gone, or another one now: 1 case no longer runs"
            yield Narrowing(subject=subject, field=f"corpus {path.relative_to(base)}", words=words, cases=1)


def _kept(corpus: Path) -> dict[tuple[str, Case], Path]:
    found: dict[tuple[str, Case], Path] = {}
    for path in sorted(corpus.rglob("*.json")):
        try:
            entry = read_entry(path)
        except InvalidCase:  # told where the corpus is read to be run
            continue
        found[entry.subject, entry.case] = path
    return found


def of_settings(base: Settings, change: Settings) -> Iterator[Narrowing]:
    """Subjects, globs and the compiling that the change takes out of the settings."""
    for subject in base.subjects:
        if subject not in change.subjects:
            yield Narrowing(
                subject=subject, field="subjects", words="it is no longer among the subjects that are gated"
            )
    for name, globs in base.paths.items():
        gone = [glob for glob in globs if glob not in change.paths.get(name, ())]
        if gone:
            yield Narrowing(subject=name, field="paths", words=f"changes of {', '.join(gone)} no longer gate it")
    if base.compile and not change.compile:
        yield Narrowing(subject="*", field="compile", words="kernels are no longer compiled for GPUs that are not here")


def acknowledged(narrowings: tuple[Narrowing, ...], fresh: tuple[Accepted, ...]) -> tuple[Narrowing, ...]:
    """The narrowings with the reasons that the change gives for them."""
    return tuple(
        msgspec.structs.replace(narrowing, accepted=reason_for(fresh, narrowing.subject, narrowing.field))
        for narrowing in narrowings
    )


def reason_for(fresh: tuple[Accepted, ...], subject: str, field: str) -> str:
    """The reason of the entry that acknowledges this, or nothing."""
    return next((entry.reason for entry in fresh if entry.covers(subject, field)), "")
