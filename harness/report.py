"""Reports: pure functions from a summary to lines of text."""

import shlex
from collections import Counter
from collections.abc import Iterator

from harness import coverage, reach
from harness.case import Case
from harness.profiles import FEATURES
from harness.results import NOT_WRITTEN, PLATFORM, Finding
from harness.summary import Found, Summary
from harness.traits import BY_NAME, RUNGS, rung

#: So many things that never happened are told of each subject.
NEVER = 8


def first_line(subjects: tuple[str, ...], executor: str, seconds: float) -> str:
    """What is tested, where, how long."""
    return f"kvetch: {', '.join(subjects)} on {executor}, {seconds / 60:.3g} min"


def summary_lines(summary: Summary) -> Iterator[str]:
    """The whole report of a campaign."""
    yield counts(summary)
    yield from witness_lines(summary)
    yield from (f"NOTE: {note}" for note in shared_notes(summary))
    for subject in summary.subjects:
        yield from ladder_lines(summary, subject)
    yield from drawn_lines(summary)
    yield from reached_lines(summary)
    for number, found in enumerate(summary.findings, 1):
        yield ""
        yield from finding_lines(found, number)
    yield from _fault_lines(summary)
    yield ""
    yield from (f"EXPIRED in known.toml: {line}" for line in summary.expired)
    yield verdict(summary)


def counts(summary: Summary) -> str:
    """Cases, rate, margin and novelty in one line."""
    speed = f"{summary.cases_per_second:.1f} a second, {summary.runs} runs"
    rate = f"{summary.cases} cases in {summary.seconds:.0f} s ({speed})"
    worst = f"worst margin {summary.worst_margin:.2f} of the bound"
    term = f" ({summary.worst_term})" if summary.worst_term else ""
    new = f"last new behaviour after {summary.last_new:.0f} s"
    compiling = f"; {summary.compile_seconds / summary.seconds:.0%} of the time compiling" if summary.seconds else ""
    restarts = f"; {summary.restarts} workers replaced" if summary.restarts else ""
    return f"{rate}; {worst}{term}; {new}{compiling}{restarts}"


def witness_lines(summary: Summary) -> Iterator[str]:
    """What the witnesses said to the cases that they were shown."""
    for name, heard in summary.witnesses.items():
        said = sorted(heard.items(), key=lambda item: -item[1])
        yield f"witness {name}: {'; '.join(words if len(heard) == 1 else f'{words} {n}' for words, n in said)}"


def drawn_lines(summary: Summary) -> Iterator[str]:
    """What was drawn, field by field, with 0 for what was not."""
    if not summary.cases:
        return
    if summary.drawn:
        yield "judged cases by what was drawn:"
    yield from (f"  {line}" for line in coverage.lines(summary.drawn))


def reached_lines(summary: Summary) -> Iterator[str]:
    """What was reached in each subject's source, and what was not."""
    for subject, row in summary.reached.items():
        yield f"{subject}: {reach.tally(row)}"
        never = list(reach.missing(row))
        yield from (f"  {words}" for words in never[:NEVER])
        if len(never) > NEVER:
            yield f"  and {len(never) - NEVER} more; see --json"


def declined_lines(summary: Summary) -> Iterator[str]:
    """What was not run, and why."""
    for reason, number in sorted(summary.declined.items(), key=lambda item: -item[1]):
        yield f"  declined {number}: {reason}"


# --- the ladder --------------------------------------------------------------------------------------------------


def ladder_lines(summary: Summary, subject: str) -> Iterator[str]:
    """How far the subject is right, and what limits it."""
    if subject in summary.not_written:
        yield f"{subject}: {summary.not_written[subject]}"
        return
    found = [f for f in summary.findings if f.subject == subject and f.finding.kind != PLATFORM]
    passed = summary.passed.get(subject, {})
    yield f"{subject}: {ladder_verdict(passed, found)}"
    for step, words in RUNGS.items():
        yield f"  rung {step}  {words:<32} {rung_verdict(passed.get(step, 0), step, found, summary, subject)}"
    yield from ladder_notes(summary, subject)
    yield from declined_lines(summary) if subject == summary.subjects[-1] else ()


def ladder_notes(summary: Summary, subject: str) -> Iterator[str]:
    """What limits the subject, and what else there is to know of it."""
    yield from limit_lines([f for f in summary.findings if f.subject == subject and f.finding.kind != PLATFORM])
    shared = shared_notes(summary)
    yield from (f"  NOTE: {note}" for note in summary.notes.get(subject, ()) if note not in shared)
    if summary.not_drawn.get(subject):
        yield f"  not drawn, since it is not declared: {', '.join(summary.not_drawn[subject])}"


def shared_notes(summary: Summary) -> list[str]:
    """What would be said of several subjects is said once: it is of the platform."""
    told = Counter(note for notes in summary.notes.values() for note in notes)
    return [note for note, subjects in told.items() if subjects > 1]


def ladder_verdict(passed: dict[int, int], found: list[Found]) -> str:
    """For example "right on rungs 1, 2 and 3 (412 cases)"."""
    wrong = {rung(f.needs) for f in found if not f.known}
    right = [step for step in RUNGS if passed.get(step) and step not in wrong]
    if not right:
        return "right on no rung" if found else "nothing was judged"
    cases = sum(passed[step] for step in right)
    return f"right on {'rung' if len(right) == 1 else 'rungs'} {_join(right)} ({cases} cases)"


def _join(steps: list[int]) -> str:
    words = [str(step) for step in steps]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def rung_verdict(passed: int, step: int, found: list[Found], summary: Summary, subject: str) -> str:
    """For example "12 right, 1 limit found"."""
    limits = sum(rung(f.needs) == step for f in found)
    if limits:
        return f"{passed} right, {limits} {'limit' if limits == 1 else 'limits'} found"
    if passed:
        return f"{passed} right"
    undeclared = step == 6 and set(FEATURES[:7]) <= set(summary.not_drawn.get(subject, ()))
    return "no feature is declared" if undeclared else "not reached"


def limit_lines(found: list[Found]) -> Iterator[str]:
    """What each finding limits, and what to declare so that such cases are not drawn."""
    for f in found:
        yield f"  LIMIT: {in_need(f)}: {f.finding.kind}{f' at {f.finding.line}' if f.finding.line else ''}"
    arguments = [argument for f in found if (argument := declaration(f.needs))]
    if arguments and len(arguments) == len(found):
        yield f'  with these limits it is: @subject(op="{found[0].case.op}", {", ".join(dict.fromkeys(arguments))})'


def declaration(needs: tuple[str, ...]) -> str:
    """The argument of `@subject` that keeps such cases away: that of the trait on the highest rung."""
    steps = sorted((BY_NAME[name] for name in needs), key=lambda trait: -trait.rung)
    return next((trait.declare for trait in steps if trait.declare), "")


def in_need(found: Found) -> str:
    """The traits that the finding needs, the highest rung first."""
    return " and ".join(sorted(found.needs, key=lambda name: -BY_NAME[name].rung)) or "nothing beyond the simplest case"


# --- findings ----------------------------------------------------------------------------------------------------


def finding_lines(found: Found, number: int) -> Iterator[str]:
    """One finding: what, where, the smallest case, how to see it again."""
    label = f"known: {found.known}" if found.known else "new"
    if found.finding.kind == PLATFORM:
        label = "not the subject's"
    yield f"FINDING {number} ({label}): {found.finding.kind} in {found.subject}, on {found.executor}"
    yield f"  {found.finding.message}"
    if found.finding.accuses:
        yield f"  accused: {found.finding.accuses}"
    if found.finding.line and found.finding.line not in found.finding.message + found.finding.accuses:
        yield f"  line: {found.finding.line}"
    yield from explained_lines(found.finding)
    for other in found.others[:4]:
        yield f"  also: {other.kind}: {other.message}"
        yield from (f"  {line}" for line in explained_lines(other))
    yield f"  smallest case: {in_words(found.case)}"
    yield f"  needs: {in_need(found)}; {confirmed(found)}; met {found.met} times"
    if found.attribution:
        yield f"  {found.attribution}"
    yield from again_lines(found)


def explained_lines(finding: Finding) -> Iterator[str]:
    """What an exact output or an x-ray says of the fault."""
    yield from (f"  explained: {words}" for words in finding.explains)


def confirmed(found: Found) -> str:
    """How often the smallest case failed again."""
    return f"failed {found.again} when run again" if found.again else "not run again"


def again_lines(found: Found) -> Iterator[str]:
    """The commands that run and show the smallest case again."""
    if found.file:
        file, subject = shlex.quote(found.file), shlex.quote(found.subject)
        yield f"  again: python -m harness.replay {file} --subject {subject} --executor {found.executor}"
        yield f"  look:  python -m harness.show {file}"


def in_words(case: Case) -> str:
    """The case in one line: only what matters."""
    lengths = ", ".join(str(seq.kv_len) for seq in case.seqs)
    plural = "sequence" if len(case.seqs) == 1 else "sequences"
    words = [
        f"{case.op}, {len(case.seqs)} {plural} of kv_len {lengths}",
        f"{case.num_q_heads} query and {case.num_kv_heads} KV heads of dim {case.head_dim}",
        f"block size {case.block_size}",
        case.dtype,
    ]
    return "; ".join([*words, *_unusual(case)])


_TOLD = {"op", "seqs", "num_q_heads", "num_kv_heads", "head_dim", "block_size", "dtype", "schema"}


def _unusual(case: Case) -> Iterator[str]:
    plain = Case()
    for name in Case.__struct_fields__:
        value = getattr(case, name)
        if name not in _TOLD and value != getattr(plain, name):
            yield f"{name} {value}"


def _fault_lines(summary: Summary) -> Iterator[str]:
    for fault in summary.harness_faults:
        yield ""
        yield f"FAULT OF THE HARNESS: {fault}"


def verdict(summary: Summary) -> str:
    """The last line."""
    new, known = len(summary.new_findings), len(summary.findings) - len(summary.new_findings)
    if summary.harness_faults:
        return "no verdict: the harness or a reference is at fault, see above"
    if summary.platform_faults:
        return f"no verdict: the platform {summary.platform} is at fault, see above"
    if not summary.cases:
        return f"{NOT_WRITTEN}: no verdict" if summary.not_written else "nothing ran: no verdict"
    tolerated = f", {known} known" if known else ""
    ended = " (interrupted)" if summary.interrupted else ""
    return f"{new or 'no'} new {'finding' if new == 1 else 'findings'}{tolerated}{ended}"
