"""The outcome of a gate as lines of text, and the rows that its tables in other forms have in common."""

import textwrap
from collections.abc import Iterator

from harness import paired
from harness.builds import Worse, reproduction, tell_worse
from harness.outcome import Clocked, Gate, Gated, Narrowing, Rebuilt, Shift, Verdict, exit_code
from harness.paired import Compared
from harness.report import explained_lines, finding_lines


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
    yield from built_lines(gated.subject, gated.rebuilt)
    yield from speed_lines(gated.subject, gated.clocked)


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


# --- builds and speed ----------------------------------------------------------------------------------------------


def built_lines(subject: str, rebuilt: Rebuilt | None) -> Iterator[str]:
    """What the kernels became on other GPUs; nothing where that was not asked for."""
    if rebuilt is None:
        return
    yield f"  compiled for {', '.join(rebuilt.targets)}: {rebuilt.counts or 'nothing'}"
    for worse in rebuilt.worse:
        yield f"    {built_label(rebuilt, worse)}: {tell_worse(worse)}"
        if worse.fails:
            yield f"      again: {reproduction(subject, rebuilt.seed, worse.build)}"
            yield f"      {rebuilt.accepted or acknowledge(subject, 'compile')}"
    yield from (f"    {note}" for note in rebuilt.notes)


def built_label(rebuilt: Rebuilt, worse: Worse) -> str:
    """Whether it is red."""
    return ("ACKNOWLEDGED" if rebuilt.accepted else "CANNOT BE LAUNCHED") if worse.fails else "TAKES MORE"


def speed_lines(subject: str, clocked: Clocked | None) -> Iterator[str]:
    """How fast the subject is, workload by workload; nothing where that was not asked for."""
    if clocked is None:
        return
    beyond = f"noise and {100 * paired.THRESHOLD:.0f} %"
    yield f"  timed on {len(clocked.times)} workloads; slower or faster is what is beyond {beyond}"
    for compared in clocked.times:
        yield f"    {speed_label(clocked, compared)}{paired.tell(compared)}"
    if clocked.slower:
        yield f"    {clocked.accepted or acknowledge(subject, 'speed')}"
    yield from (f"    {note}" for note in clocked.notes)


def speed_label(clocked: Clocked, compared: Compared) -> str:
    """What stands before a workload: whether it is red."""
    return ("ACKNOWLEDGED: " if clocked.accepted else "SLOWER: ") if compared in clocked.slower else ""


# --- rows of tables ------------------------------------------------------------------------------------------------

SHIFT_HEAD = ("Configuration", "Other bits", "Median error, ulp", "99.9 %", "Worst", "Margin", "")
BUILT_HEAD = ("Kernel", "GPU", "What", "Of it", "Specialisation", "")
SPEED_HEAD = ("Workload", "Change / base", f"{100 * paired.CONFIDENCE:.0f} % interval", "Change, ms", "Base, ms", "")


def shift_row(shift: Shift) -> tuple[str, ...]:
    """The cells of a configuration."""
    pairs = [f"{a:.3g} → {b:.3g}" for a, b in zip(shift.errors_before, shift.errors_now, strict=False)]
    errors = pairs or ["exact"] * 3
    margin = f"{shift.margin_before:.2f} → {shift.margin_now:.2f}"
    return (shift.configuration, f"{shift.changed} of {shift.cases}", *errors, margin, loss(shift).removeprefix("; "))


def built_row(subject: str, rebuilt: Rebuilt, worse: Worse) -> tuple[str, ...]:
    """The cells of a build that a change made worse."""
    build, label = worse.build, built_label(rebuilt, worse)
    said = f"{label}: {rebuilt.accepted or acknowledge(subject, 'compile')}" if worse.fails else label
    return f"{build.kernel} ({build.place})", build.target, worse.kind, worse.message, build.what, said


def speed_row(subject: str, clocked: Clocked, compared: Compared) -> tuple[str, ...]:
    """The cells of a workload."""
    label = speed_label(clocked, compared)
    said = f"{label}{clocked.accepted or acknowledge(subject, 'speed')}" if label else compared.verdict
    interval = f"{compared.low:.3f} to {compared.high:.3f}"
    times = f"{compared.change:.3f}", f"{compared.base:.3f}"
    return compared.workload, f"{compared.ratio:.3f}", interval, *times, said


# --- the whole -----------------------------------------------------------------------------------------------------


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
        return f"not green: not all of it was run{cut}"
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
