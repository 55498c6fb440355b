"""The outcome of a gate as Markdown, for the page of a pull request."""

import re
from collections.abc import Iterable, Iterator

from harness.gate_report import (
    BUILT_HEAD,
    SHIFT_HEAD,
    SPEED_HEAD,
    acknowledge,
    amount,
    built_row,
    colour,
    conclusion,
    counts,
    shift_row,
    speed_row,
    verdict_lines,
    version_notes,
)
from harness.outcome import Gate, Gated, Narrowing, Verdict


def text(outcome: Gate) -> str:
    """The whole summary, with a blank line at its end."""
    return "\n".join(_lines(outcome)) + "\n\n"


def _lines(outcome: Gate) -> Iterator[str]:
    yield f"## Kvetch: {colour(outcome)}"
    yield ""
    yield f"{escaped(conclusion(outcome))}. Base `{outcome.base[:12]}`, {outcome.executor}, {outcome.seconds:.0f} s."
    for gated in outcome.gated:
        yield from _subject(gated)
    yield from _narrowings(outcome.narrowings)
    for line in (*version_notes(outcome), *outcome.stale, *outcome.notes, *outcome.harness_faults):
        yield from ("", f"> {escaped(line)}")


def _subject(gated: Gated) -> Iterator[str]:
    yield from ("", f"### `{gated.subject}`", "", f"{escaped(amount(gated))}.")
    if gated.verdicts:
        yield from ("", *_table(("Verdict", "Finding", "Change", "Base", "Met"), map(_row, gated.verdicts)))
    for number, verdict in enumerate(gated.verdicts, 1):
        if verdict.fails:
            yield from _details(verdict, number)
    moved = [shift for shift in gated.shifts if shift.changed]
    if moved:
        yield from ("", *_table(SHIFT_HEAD, map(shift_row, moved)))
    yield from _built(gated)
    yield from _speed(gated)


def _row(verdict: Verdict) -> tuple[str, ...]:
    finding = verdict.found.finding
    told = f"{finding.kind}: {finding.message}"
    why = counts(verdict) if verdict.change is None else str(verdict.change)
    return f"**{verdict.word}**", told, why, str(verdict.base or "-"), str(verdict.found.met)


def _details(verdict: Verdict, number: int) -> Iterator[str]:
    finding = verdict.found.finding
    title = finding.explains[0] if finding.explains else finding.kind
    body = "\n".join(verdict_lines(verdict, number))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    yield from ("", f"<details><summary>{number}: {escaped(title)}</summary>", "", fence, body, fence, "", "</details>")


def _built(gated: Gated) -> Iterator[str]:
    rebuilt = gated.rebuilt
    if rebuilt is not None:
        yield from ("", f"Compiled for {', '.join(rebuilt.targets)}: {escaped(rebuilt.counts or 'nothing')}.")
        rows = [built_row(gated.subject, rebuilt, worse) for worse in rebuilt.worse]
        yield from ("", *_table(BUILT_HEAD, rows)) if rows else ()
        yield from (part for note in rebuilt.notes for part in ("", f"> {escaped(note)}"))


def _speed(gated: Gated) -> Iterator[str]:
    clocked = gated.clocked
    if clocked is not None:
        rows = [speed_row(gated.subject, clocked, compared) for compared in clocked.times]
        yield from ("", *_table(SPEED_HEAD, rows)) if rows else ()
        yield from (part for note in clocked.notes for part in ("", f"> {escaped(note)}"))


def _narrowings(narrowings: tuple[Narrowing, ...]) -> Iterator[str]:
    if narrowings:
        yield from ("", "### No longer tested", "")
        yield from _table(("Subject", "What", "Acknowledged"), map(_narrowing_row, narrowings))


def _narrowing_row(narrowing: Narrowing) -> tuple[str, ...]:
    missing = f"**no**: {acknowledge(narrowing.subject, narrowing.field)}"
    return f"`{narrowing.subject}`", narrowing.words, narrowing.accepted or missing


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_cell(words) for words in row)} |"


def _cell(words: str) -> str:
    return " ".join(escaped(words).split()).replace("|", r"\|")


def escaped(words: str) -> str:
    """No HTML of a kernel's own: what it printed or raised may hold any."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
