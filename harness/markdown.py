"""The outcome of a gate as Markdown, for the page of a pull request."""

import re
from collections.abc import Iterable, Iterator

from harness.gate_report import acknowledge, amount, colour, conclusion, counts, loss, verdict_lines, version_notes
from harness.outcome import Gate, Gated, Narrowing, Shift, Verdict


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
        head = ("Configuration", "Other bits", "Median error, ulp", "99.9 %", "Worst", "Margin", "")
        yield from ("", *_table(head, map(_shift_row, moved)))


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


def _shift_row(shift: Shift) -> tuple[str, ...]:
    pairs = [f"{a:.3g} → {b:.3g}" for a, b in zip(shift.errors_before, shift.errors_now, strict=False)]
    errors = pairs or ["exact"] * 3
    margin = f"{shift.margin_before:.2f} → {shift.margin_now:.2f}"
    return (shift.configuration, f"{shift.changed} of {shift.cases}", *errors, margin, loss(shift).removeprefix("; "))


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
