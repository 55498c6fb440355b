"""The outcome of a gate as JUnit XML, in the form that Jenkins's xunit plugin publishes a schema of."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from harness import paired
from harness.builds import reproduction, tell_worse
from harness.gate_report import counts, loss, shift_words, verdict_lines
from harness.outcome import Clocked, Gate, Gated, Narrowing, Rebuilt, Shift, Verdict

#: What XML 1.0 cannot hold, not even escaped.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(outcome: Gate) -> str:
    """The whole document: a suite for each subject, one for what is no longer tested."""
    root = ET.Element("testsuites")
    for gated in outcome.gated:
        _suite(root, gated.subject, list(_cases(gated)), gated.seconds)
    rest = [*map(_of_narrowing, outcome.narrowings), *map(_of_fault, outcome.harness_faults)]
    if rest:
        _suite(root, "kvetch", rest, 0.0)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ET.Element, name: str, cases: list[ET.Element], seconds: float) -> None:
    suite = ET.SubElement(root, "testsuite", name=_clean(name), tests=str(len(cases)), time=f"{seconds:.3f}")
    for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(plural, str(sum(case.find(kind) is not None for case in cases)))
    suite.extend(cases)


def _cases(gated: Gated) -> Iterator[ET.Element]:
    yield _of_running(gated)
    yield from (_of_verdict(gated.subject, number, verdict) for number, verdict in enumerate(gated.verdicts, 1))
    yield from map(_of_shift, gated.shifts)
    yield from _of_builds(gated.subject, gated.rebuilt) if gated.rebuilt else ()
    yield from _of_speed(gated.subject, gated.clocked) if gated.clocked else ()


def _case(subject: str, name: str, seconds: float = 0.0) -> ET.Element:
    return ET.Element("testcase", classname=_clean(subject), name=_clean(name), time=f"{seconds:.3f}")


def _of_running(gated: Gated) -> ET.Element:
    case = _case(gated.subject, f"{gated.asked} cases", gated.seconds)
    if gated.cut:
        _add(case, "error", gated.cut, "cut")
    elif not gated.judged:
        _add(case, "error", "nothing ran", "nothing ran")
    return case


def _of_verdict(subject: str, number: int, verdict: Verdict) -> ET.Element:
    finding = verdict.found.finding
    case = _case(subject, f"{number}: {finding.kind}", verdict.found.seconds)
    if verdict.fails:
        _add(case, "failure", finding.message, verdict.word, "\n".join(verdict_lines(verdict, number)))
    else:
        _add(case, "skipped", f"{verdict.word}: {counts(verdict)}: {finding.message}")
    return case


def _of_shift(shift: Shift) -> ET.Element:
    case = _case(shift.subject, f"accuracy: {shift.configuration}")
    if shift.lost and not shift.accepted:
        _add(case, "failure", loss(shift).removeprefix("; "), "accuracy", shift_words(shift))
    return case


def _of_builds(subject: str, rebuilt: Rebuilt) -> Iterator[ET.Element]:
    """One case for all, one for each that cannot be launched; what takes more is printed by the first."""
    told = [*(tell_worse(worse) for worse in rebuilt.worse if not worse.fails), *rebuilt.notes]
    whole = _case(subject, f"builds for {', '.join(rebuilt.targets)}")
    _print(whole, [rebuilt.counts, *told])
    yield whole
    for number, worse in enumerate(rebuilt.lost, 1):
        case = _case(subject, f"build {number}: {worse.build.kernel} on {worse.build.target}")
        again = reproduction(subject, rebuilt.seed, worse.build)
        if rebuilt.accepted:
            _add(case, "skipped", f"acknowledged: {rebuilt.accepted}: {tell_worse(worse)}")
        else:
            _add(case, "failure", tell_worse(worse), worse.kind, again)
        yield case


def _of_speed(subject: str, clocked: Clocked) -> Iterator[ET.Element]:
    for compared in clocked.times:
        case = _case(subject, f"speed: {compared.workload}", compared.change / 1000)
        if compared in clocked.slower and not clocked.accepted:
            _add(case, "failure", paired.tell(compared), compared.verdict)
        else:
            _print(case, [paired.tell(compared)])
        yield case
    if clocked.notes:
        case = _case(subject, "speed")
        _add(case, "skipped", "; ".join(clocked.notes))
        yield case


def _of_narrowing(narrowing: Narrowing) -> ET.Element:
    case = _case(narrowing.subject, narrowing.field)
    if not narrowing.accepted:
        _add(case, "failure", narrowing.words, "narrowed")
    return case


def _of_fault(fault: str) -> ET.Element:
    case = _case("kvetch", "harness")
    _add(case, "error", fault, "harness fault")
    return case


def _add(case: ET.Element, tag: str, message: str, kind: str = "", body: str = "") -> None:
    part = ET.SubElement(case, tag, message=_clean(message))
    part.text = _clean(body) or None
    if kind:
        part.set("type", kind)


def _print(case: ET.Element, lines: list[str]) -> None:
    ET.SubElement(case, "system-out").text = _clean("\n".join(lines))


def _clean(words: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", words)
