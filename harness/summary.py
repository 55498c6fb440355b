"""What a campaign has seen so far, as one JSON-able record; two of them merge into one."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from harness.case import Case, Record
from harness.results import JUDGED_KINDS, PLATFORM, Finding

Key = TypeVar("Key", str, int)


class Found(Record, frozen=True):
    """One fault: the smallest case that shows it, and how often it was met."""

    subject: str
    case: Case
    finding: Finding
    others: tuple[Finding, ...] = ()  # what else the smallest case shows
    needs: tuple[str, ...] = ()  # the traits without which it does not fail
    met: int = 1  # cases that show it, the smallest one's relatives included
    again: str = ""  # "5 of 5": how often the smallest case failed when run again
    attribution: str = ""  # what another executor makes of the smallest case, and who is at fault then
    known: str = ""  # the reason in known.toml, when it is tolerated
    file: str = ""  # where the case was saved
    executor: str = ""
    after_cases: int = 0  # judged when it was first met, that case included
    after_seconds: float = 0.0  # from the start of the campaign until then
    executions: int = 0
    seconds: float = 0.0  # from the first failure to the smallest case

    def explains(self, subject: str, finding: Finding, names: Iterable[str]) -> bool:
        """Whether a finding on a case with these traits is this fault met again; a platform's fault touches all."""
        if self.finding.kind == PLATFORM:
            return finding.kind in (PLATFORM, *JUDGED_KINDS)
        moved = finding.kind == "determinism" and finding.detail == self.finding.kind  # the same change, less visible
        same = subject == self.subject and (moved or finding.family == self.finding.family)
        return same and set(self.needs) <= set(names)


class Summary(Record, frozen=True):
    """Everything that a campaign reports."""

    subjects: tuple[str, ...] = ()
    executor: str = ""
    platform: str = ""
    seed: int = 0
    seconds: float = 0.0
    cases: int = 0
    runs: int = 0
    passed: dict[str, dict[int, int]] = {}  # subject to rung to cases
    failed: int = 0
    declined: dict[str, int] = {}
    not_written: dict[str, str] = {}  # subject to what it says; it was not asked any more
    not_drawn: dict[str, tuple[str, ...]] = {}
    drawn: dict[str, dict[str, int]] = {}  # field to value to judged cases; 0 where it could have been drawn
    reached: dict[str, dict[str, int]] = {}  # subject to behaviour of its source to cases; 0 where only possible
    findings: tuple[Found, ...] = ()
    witnesses: dict[str, dict[str, int]] = {}  # witness to what it said to cases
    worst_margin: float = 0.0
    worst_term: str = ""
    arithmetic: dict[str, tuple[str, ...]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    behaviours: int = 0
    last_new: float = 0.0  # seconds after the start at which the last new behaviour was seen
    compile_seconds: float = 0.0
    restarts: int = 0
    expired: tuple[str, ...] = ()  # entries of known.toml whose day has passed
    harness_faults: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def cases_per_second(self) -> float:
        """Judged cases, declined ones not counted."""
        return self.cases / self.seconds if self.seconds else 0.0

    @property
    def new_findings(self) -> tuple[Found, ...]:
        """Findings that nobody tolerates, of the subjects."""
        return tuple(found for found in self.findings if not found.known and found.finding.kind != PLATFORM)

    @property
    def platform_faults(self) -> tuple[Found, ...]:
        """Findings that are the platform's."""
        return tuple(found for found in self.findings if found.finding.kind == PLATFORM)


def exit_code(summary: Summary) -> int:
    """0 nothing new, 1 a new finding, 3 a fault of the harness or the platform, 5 nothing ran."""
    if summary.harness_faults or summary.platform_faults:
        return 3
    if summary.new_findings:
        return 1
    return 0 if summary.cases else 5


def to_builtins(summary: Summary) -> dict[str, Any]:
    """For `--json`: every field, and the figures derived from them."""
    fields: dict[str, Any] = {name: getattr(summary, name) for name in Summary.__struct_fields__}
    fields["cases_per_second"] = round(summary.cases_per_second, 2)
    fields["exit_code"] = exit_code(summary)
    plain: dict[str, Any] = msgspec.to_builtins(fields, str_keys=True)
    return plain


def merge(parts: Iterable[Summary]) -> Summary:
    """Add up the summaries of independent workers; one fault found by several is told once."""
    parts = list(parts)
    whole = parts[0]
    for part in parts[1:]:
        whole = _merge_two(whole, part)
    return whole


def _merge_two(a: Summary, b: Summary) -> Summary:
    worst = max(a, b, key=lambda part: part.worst_margin)
    return Summary(
        subjects=a.subjects,
        executor=a.executor,
        platform=a.platform or b.platform,
        seed=a.seed,
        seconds=max(a.seconds, b.seconds),
        cases=a.cases + b.cases,
        runs=a.runs + b.runs,
        passed=_add_rows(a.passed, b.passed),
        failed=a.failed + b.failed,
        declined=_add(a.declined, b.declined),
        not_written=a.not_written | b.not_written,
        not_drawn=a.not_drawn | b.not_drawn,
        drawn=_add_rows(a.drawn, b.drawn),
        reached=_add_rows(a.reached, b.reached),
        findings=merge_findings((*a.findings, *b.findings)),
        witnesses=_add_rows(a.witnesses, b.witnesses),
        worst_margin=worst.worst_margin,
        worst_term=worst.worst_term,
        arithmetic=_merge_words(a.arithmetic, b.arithmetic),
        notes=_merge_words(a.notes, b.notes),
        behaviours=max(a.behaviours, b.behaviours),
        last_new=max(a.last_new, b.last_new),
        compile_seconds=a.compile_seconds + b.compile_seconds,
        restarts=a.restarts + b.restarts,
        expired=tuple(dict.fromkeys((*a.expired, *b.expired))),
        harness_faults=(*a.harness_faults, *b.harness_faults),
        interrupted=a.interrupted or b.interrupted,
    )


def _add(a: dict[Key, int], b: dict[Key, int]) -> dict[Key, int]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in a | b}


def _add_rows(a: dict[str, dict[Key, int]], b: dict[str, dict[Key, int]]) -> dict[str, dict[Key, int]]:
    return {name: _add(a.get(name, {}), b.get(name, {})) for name in a | b}


def _merge_words(a: dict[str, tuple[str, ...]], b: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(dict.fromkeys((*a.get(name, ()), *b.get(name, ())))) for name in a | b}


def merge_findings(findings: Iterable[Found]) -> tuple[Found, ...]:
    """Keep the findings that no simpler one explains; the simpler one counts the others' cases.

    Those of the platform come last, so that they take none away that a control has confirmed.
    """
    kept: list[Found] = []
    for found in sorted(findings, key=lambda found: (found.finding.kind == PLATFORM, len(found.needs))):
        for i, other in enumerate(kept):
            if other.explains(found.subject, found.finding, found.needs):
                kept[i] = msgspec.structs.replace(other, met=other.met + found.met)
                break
        else:
            kept.append(found)
    return tuple(kept)
