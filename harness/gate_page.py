"""The outcome of a gate as one HTML page: whose each finding is, its drawings, and what else moved."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from harness import page
from harness.gate_report import (
    BUILT_HEAD,
    SHIFT_HEAD,
    SPEED_HEAD,
    acknowledge,
    amount,
    built_row,
    conclusion,
    counts,
    shift_row,
    speed_row,
    version_notes,
)
from harness.outcome import Gate, Verdict
from harness.page import Exhibit, Fact, Section
from harness.pictures import Picture, pictures
from harness.sides import Place, sides

Row = tuple[bool, tuple[str, ...]]


def drawn(outcome: Gate, root: Path, device: int | None) -> str:
    """The page, with a picture of each finding drawn by one more call of the change, whose folder is the root."""
    if not outcome.verdicts:
        return of_gate(outcome, [])
    change = Place("change", root)
    subjects = tuple(gated.subject for gated in outcome.gated)
    with sides((change,), outcome.executor, device, subjects) as (side,):
        named = [replace(v.found, subject=change.own_name(v.found.subject)) for v in outcome.verdicts]
        return of_gate(outcome, pictures(side.worker, named))


def of_gate(outcome: Gate, seen: Iterable[Picture]) -> str:
    """The page; a picture for each of its verdicts, in their order: what fails comes first."""
    return page.render("Kvetch: the gate", conclusion(outcome), list(_sections(outcome, seen)))


def _sections(outcome: Gate, seen: Iterable[Picture]) -> Iterator[Section]:
    yield _glance(outcome)
    exhibits = [_exhibit(verdict, picture) for verdict, picture in zip(outcome.verdicts, seen, strict=True)]
    if exhibits:
        head = ("Verdict", "Subject", "Finding", "Change", "Base", "Met")
        yield page.table("Verdicts", head, map(_verdict_row, outcome.verdicts))
        yield page.findings(exhibits)
    tables = (
        ("No longer tested", ("Subject", "What", "Acknowledged"), _narrowing_rows(outcome)),
        ("Accuracy", ("Subject", *SHIFT_HEAD), _shift_rows(outcome)),
        ("Builds", ("Subject", *BUILT_HEAD), _built_rows(outcome)),
        ("Speed", ("Subject", *SPEED_HEAD), _speed_rows(outcome)),
    )
    for heading, columns, rows in tables:
        if told := list(rows):
            yield page.table(heading, columns, told)


def _glance(outcome: Gate) -> Section:
    on = f"{outcome.executor} (platform {outcome.platform})" if outcome.platform else outcome.executor
    facts = [
        ("change", outcome.head),
        ("base", outcome.base),
        ("executor", on),
        ("part", "" if outcome.shard == "1/1" else outcome.shard),
        ("time", f"{outcome.seconds:.0f} s"),
        *_subject_facts(outcome),
        ("untouched", ", ".join(outcome.untouched)),
    ]
    notes = [*version_notes(outcome), *outcome.stale, *outcome.notes, *_part_notes(outcome)]
    notes += [f"Fault of the harness: {fault}" for fault in outcome.harness_faults]
    declined = sum((Counter(gated.declined) for gated in outcome.gated), Counter[str]()).most_common()
    told = [(name, words) for name, words in facts if words]
    return page.section("At a glance", "glance.html", facts=told, notes=notes, declined=declined, rounding=[])


def _subject_facts(outcome: Gate) -> Iterator[Fact]:
    for gated in outcome.gated:
        because = f", for {', '.join(gated.because)}" if gated.because else ""
        new = ", which the base does not have" if gated.is_new else ""
        yield gated.subject, f"{amount(gated)}{because}{new}"
        if gated.shifts and not any(shift.changed for shift in gated.shifts):
            yield (
                f"{gated.subject}, accuracy",
                f"no bit of {sum(shift.cases for shift in gated.shifts)} outputs changed",
            )
        if gated.rebuilt:
            yield f"{gated.subject}, compiled", f"{', '.join(gated.rebuilt.targets)}: {gated.rebuilt.counts}"


def _part_notes(outcome: Gate) -> Iterator[str]:
    for gated in outcome.gated:
        notes = (note for part in (gated.rebuilt, gated.clocked) if part for note in part.notes)
        yield from (f"{gated.subject}: {note}" for note in notes)


def _exhibit(verdict: Verdict, picture: Picture) -> Exhibit:
    return Exhibit(
        verdict.found,
        picture,
        f"{verdict.word}: {counts(verdict)}",
        more=(("note", verdict.note), ("kept case", verdict.origin)),
    )


def _verdict_row(verdict: Verdict) -> Row:
    found = verdict.found
    told = f"{found.finding.kind}: {found.finding.message}"
    tallies = [str(tally) if tally else "-" for tally in (verdict.change, verdict.base)]
    return verdict.fails, (verdict.word, found.subject, told, *tallies, str(found.met))


def _narrowing_rows(outcome: Gate) -> Iterator[Row]:
    for narrowing in outcome.narrowings:
        said = narrowing.accepted or f"no: {acknowledge(narrowing.subject, narrowing.field)}"
        yield not narrowing.accepted, (narrowing.subject, narrowing.words, said)


def _shift_rows(outcome: Gate) -> Iterator[Row]:
    for shift in outcome.shifts:
        if shift.changed:
            yield shift.lost and not shift.accepted, (shift.subject, *shift_row(shift))


def _built_rows(outcome: Gate) -> Iterator[Row]:
    for gated in outcome.gated:
        if gated.rebuilt:
            for worse in gated.rebuilt.worse:
                is_red = worse.fails and not gated.rebuilt.accepted
                yield is_red, (gated.subject, *built_row(gated.subject, gated.rebuilt, worse))


def _speed_rows(outcome: Gate) -> Iterator[Row]:
    for gated in outcome.gated:
        if gated.clocked:
            for compared in gated.clocked.times:
                is_red = compared in gated.clocked.slower and not gated.clocked.accepted
                yield is_red, (gated.subject, *speed_row(gated.subject, gated.clocked, compared))
