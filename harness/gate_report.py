"""The outcome of a gate as lines of text."""

import textwrap
from collections.abc import Iterator

from harness.outcome import Gate, Gated, Narrowing, Shift, Verdict, exit_code
from harness.report import explained_lines, finding_lines

WIDTH = 12


def first_line(outcome: Gate, subjects: tuple[str, ...]) -> str:
    """What is gated, against what."""
    part = "" if outcome.shard == "1/1" else f", part {outcome.shard}"
    return f"kvetch: gate of {', '.join(subjects)} on {outcome.executor}, base {outcome.base[:12]}{part}"


def lines(outcome: Gate) -> Iterator[str]:
    """The whole report; the last line is the verdict."""
    for gated in outcome.gated:
        yield from subject_lines(gated)
    yield from narrowing_lines(outcome.narrowings)
    yield from (f"NOTE: {line}" for line in (*version_notes(outcome), *outcome.stale, *outcome.notes))
    yield from (f"FAULT OF THE HARNESS: {fault}" for fault in outcome.harness_faults)
    yield conclusion(outcome)


def subject_lines(gated: Gated) -> Iterator[str]:
    """One subject: how much was run, each verdict, how accuracy moved."""
    because = f" ({', '.join(gated.because)})" if gated.because else ""
    new = ", which the base does not have" if gated.is_new else ""
    yield f"{gated.subject}{new}{because}: {amount(gated)}"
    yield from (f"  declined {number}: {reason}" for reason, number in gated.declined.items())
    for number, verdict in enumerate(gated.verdicts, 1):
        yield from verdict_lines(verdict, number)
    yield from shift_lines(gated.shifts)


def amount(gated: Gated) -> str:
    """For example "300 cases in 41 s, 18 of them kept ones"."""
    kept = f", {gated.kept} of them kept ones" if gated.kept else ""
    cut = f", {gated.cut}" if gated.cut else ""
    return f"{gated.ran} cases in {gated.seconds:.0f} s{kept}{cut}; cases {gated.digest}"


def verdict_lines(verdict: Verdict, number: int) -> Iterator[str]:
    """One finding and whose it is."""
    yield f"  {verdict.word}: {counts(verdict)}"
    if verdict.note:
        yield f"    {verdict.note}"
    if verdict.fails:
        yield from (f"    {line}" for line in finding_lines(verdict.found, number))
    else:
        yield f"    {verdict.found.finding.kind}: {verdict.found.finding.message}"
        yield from (f"    {line}" for line in explained_lines(verdict.found.finding))


def counts(verdict: Verdict) -> str:
    """How often it failed on either side, in words."""
    if verdict.word == "KNOWN":
        return verdict.found.known
    if verdict.change is None:
        return "a kernel that is known to be good fails as well"
    base = f"{verdict.base} on the base" if verdict.base else "the base does not have the subject"
    return f"failed {verdict.change} times on the change, {base}"


def shift_lines(shifts: tuple[Shift, ...]) -> Iterator[str]:
    """How accuracy moved; nothing where no bit did."""
    if not any(shift.changed for shift in shifts):
        if shifts:
            yield f"  no bit of {sum(shift.cases for shift in shifts)} outputs changed"
        return
    yield "  outputs against the base: cases with other bits; median, 99.9th percentile and worst error in ulp; margin"
    width = max(len(shift.configuration) for shift in shifts)
    for shift in shifts:
        yield f"    {shift.configuration:<{width}}  {shift_words(shift)}"


def shift_words(shift: Shift) -> str:
    """For example "12 of 96; 0.21 -> 0.43, 0.5 -> 1.2, 0.6 -> 1.4; 0.31 -> 0.52"."""
    pairs = zip(shift.errors_before, shift.errors_now, strict=False)
    errors = ", ".join(f"{before:.3g} -> {now:.3g}" for before, now in pairs) or "exact"
    margins = f"{shift.margin_before:.2f} -> {shift.margin_now:.2f}"
    return f"{shift.changed} of {shift.cases}; {errors}; {margins}{loss(shift)}"


def loss(shift: Shift) -> str:
    """What is said of a configuration that lost a bit."""
    if not shift.lost:
        return ""
    why = f"ACKNOWLEDGED: {shift.accepted}" if shift.accepted else acknowledge(shift.subject, "accuracy")
    return f"; LESS ACCURATE: the median error more than doubled in {shift.coarser} of {shift.cases} cases; {why}"


def narrowing_lines(narrowings: tuple[Narrowing, ...]) -> Iterator[str]:
    """What the change no longer tests."""
    for narrowing in narrowings:
        label = "ACKNOWLEDGED" if narrowing.accepted else "NARROWED"
        yield f"{label}: {narrowing.subject}: {narrowing.words}"
        yield f"  {narrowing.accepted or acknowledge(narrowing.subject, narrowing.field)}"


def acknowledge(subject: str, field: str) -> str:
    """How a change says that it means it."""
    entry = f'[[accept]] subject = "{subject}", field = "{field}", reason = "..."'
    return f"if that is meant, add to kvetch.toml: {entry}"


def version_notes(outcome: Gate) -> Iterator[str]:
    """Packages that differ between the sides."""
    change, base = outcome.versions.get("change", {}), outcome.versions.get("base", {})
    for name in change:
        if base.get(name) != change[name]:
            yield f"{name} is {change[name]} for the change and {base.get(name, 'missing')} for the base"


def conclusion(outcome: Gate) -> str:
    """The last line."""
    if outcome.harness_faults:
        return "no verdict: the harness or a reference is at fault, see above"
    cut = f"; {'; '.join(outcome.cut)}" if outcome.cut else ""
    if outcome.reasons:
        return f"RED: {', '.join(outcome.reasons)}{cut}"
    if outcome.nothing_ran:
        return "nothing ran: no verdict"
    if cut:
        return f"not green: time was over{cut}"
    if not outcome.gated:
        return f"green: the change touches none of {', '.join(outcome.untouched)}"
    return f"green: nothing new{_tolerated(outcome)}"


def _tolerated(outcome: Gate) -> str:
    others = [verdict.word.lower() for verdict in outcome.verdicts if not verdict.fails]
    told = ", ".join(f"{others.count(word)} {word}" for word in dict.fromkeys(others))
    return f" ({told})" if told else ""


def colour(outcome: Gate) -> str:
    """In one word: for badges and titles."""
    return {0: "green", 1: "red"}.get(exit_code(outcome), "no verdict")


def paragraph(text: str) -> str:
    """The text in one line, for formats that have no lines."""
    return " ".join(textwrap.dedent(text).split())
