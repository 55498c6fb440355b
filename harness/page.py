"""One self-contained HTML page: sections in a common frame, and those that campaigns, replays and cases are told in."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness import coverage, drawing, reach, report
from harness.case import to_json
from harness.corpus import versions
from harness.folders import PACKAGE
from harness.pictures import Picture, letter
from harness.results import PLATFORM
from harness.summary import Found, Summary
from harness.traits import RUNGS, rung

TEMPLATES = PACKAGE / "templates"
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,  # a subject's message, name or source may hold HTML
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.globals |= {"drawing": drawing, "letter": letter}

#: A name and what there is to say of it.
Fact = tuple[str, str]


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    heading: str
    body: Markup

    @property
    def anchor(self) -> str:
        """Its name in links."""
        return re.sub(r"[^a-z0-9]+", "-", self.heading.lower()).strip("-")


@dataclass(frozen=True)
class Exhibit:
    """A finding as a page shows it; `verdict` is a word such as new, known or flaky, with its reason."""

    found: Found
    picture: Picture
    verdict: str = ""
    title: str = ""  # instead of what is wrong with whom
    more: tuple[Fact, ...] = ()

    @property
    def heading(self) -> str:
        """What is wrong with whom, and where."""
        if self.title:
            return self.title
        on = f", on {self.found.executor}" if self.found.executor else ""
        return f"{self.found.finding.kind} in {self.found.subject}{on}"

    @property
    def explained(self) -> tuple[str, ...]:
        """What an x-ray or an exact output says."""
        findings = (self.found.finding, *self.found.others)
        return tuple(dict.fromkeys(words for finding in findings for words in finding.explains))

    @property
    def facts(self) -> list[Fact]:
        """What else there is to say, in the order in which it helps."""
        found, finding = self.found, self.found.finding
        facts = [
            ("kind", finding.kind if self.title else ""),
            ("seen", finding.message),
            ("accused", finding.accuses),
            ("line", finding.line),
            *(("also", f"{other.kind}: {other.message}") for other in found.others[:4]),
            ("smallest case", report.in_words(found.case)),
            ("needs", report.in_need(found) if found.again else ""),
            ("run again", f"{report.confirmed(found)}; met {found.met} times" if found.again else ""),
            ("attribution", found.attribution),
            *self.more,
        ]
        return [(name, words) for name, words in facts if words]

    @property
    def commands(self) -> list[str]:
        """How to see it again."""
        return [line.partition(":")[2].strip() for line in report.again_lines(self.found)]

    @property
    def json(self) -> str:
        """The smallest case."""
        return to_json(self.found.case).rstrip()


def section(heading: str, template: str, **given: Any) -> Section:
    """A part of a page from a template in harness/templates."""
    return Section(heading, Markup(ENVIRONMENT.get_template(template).render(**given)))  # noqa: S704  (escaped there)


def render(title: str, verdict: str, sections: Sequence[Section]) -> str:
    """The whole page: it needs nothing from elsewhere."""
    told = {"title": title, "verdict": verdict, "sections": sections, "footer": f"Kvetch, with {_versions()}"}
    style = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8").rstrip())  # noqa: S704  (our own file)
    return ENVIRONMENT.get_template("base.html").render(**told, style=style)


def _versions() -> str:
    return ", ".join(f"{name} {version}" for name, version in versions().items())


def table(heading: str, head: Sequence[str], rows: Iterable[tuple[bool, Sequence[str]]]) -> Section:
    """A table as wide as it needs; of a row that is wrong, the first cell is marked."""
    return section(heading, "table.html", name=heading, head=head, rows=list(rows))


def findings(exhibits: Sequence[Exhibit], heading: str = "Findings") -> Section:
    """Findings one after the other, each with its drawings."""
    return section(heading, "findings.html", exhibits=exhibits)


# --- a campaign --------------------------------------------------------------------------------------------------


def of_campaign(summary: Summary, pictures: Iterable[Picture]) -> str:
    """The page of a campaign; a picture for each of its findings."""
    exhibits = [Exhibit(found, seen, label(found)) for found, seen in zip(summary.findings, pictures, strict=True)]
    sections = [_glance(summary)]
    sections += [findings(exhibits)] if exhibits else []
    sections += [_ladder(summary)]
    sections += [_drawn(summary)] if summary.drawn else []
    sections += [_reached(summary)] if summary.reached else []
    return render(f"Kvetch: {', '.join(summary.subjects)}", report.verdict(summary), sections)


def label(found: Found) -> str:
    """Whether a finding is news."""
    if found.finding.kind == PLATFORM:
        return "not the subject's"
    return f"known: {found.known}" if found.known else "new"


def _glance(summary: Summary) -> Section:
    term = f" ({summary.worst_term})" if summary.worst_term else ""
    compiling = f", {summary.compile_seconds:.0f} s of them compiling" if summary.compile_seconds >= 1 else ""
    facts = [
        ("subjects", ", ".join(summary.subjects)),
        ("executor", f"{summary.executor} (platform {summary.platform})" if summary.platform else summary.executor),
        ("seed", str(summary.seed)),
        ("cases", f"{summary.cases}, {summary.cases_per_second:.1f} a second; {summary.runs} runs"),
        ("time", f"{summary.seconds:.0f} s{compiling}; last new behaviour after {summary.last_new:.0f} s"),
        ("worst margin of a right case", f"{summary.worst_margin:.2f} of the bound{term}"),
        *(("witness", line.removeprefix("witness ")) for line in report.witness_lines(summary)),
        ("versions", _versions()),
        ("workers replaced", str(summary.restarts) if summary.restarts else ""),
    ]
    notes = [*report.shared_notes(summary), *(f"Expired in known.toml: {line}" for line in summary.expired)]
    notes += [f"Fault of the harness: {fault}" for fault in summary.harness_faults]
    declined = sorted(summary.declined.items(), key=lambda item: -item[1])
    told = [(name, words) for name, words in facts if words]
    rounding = [(name, words) for name, words in summary.arithmetic.items() if words]
    return section("At a glance", "glance.html", facts=told, notes=notes, declined=declined, rounding=rounding)


def _ladder(summary: Summary) -> Section:
    return section("How far it is right", "ladder.html", subjects=[_rungs(summary, name) for name in summary.subjects])


def _rungs(summary: Summary, subject: str) -> dict[str, Any]:
    found = [f for f in summary.findings if f.subject == subject and f.finding.kind != PLATFORM]
    passed = summary.passed.get(subject, {})
    rungs = [
        (step, words, report.rung_verdict(passed.get(step, 0), step, found, summary, subject), _limits(found, step))
        for step, words in RUNGS.items()
    ]
    lines = [line.strip() for line in report.ladder_notes(summary, subject)]
    return {"name": subject, "verdict": report.ladder_verdict(passed, found), "rungs": rungs, "lines": lines}


def _limits(found: list[Found], step: int) -> bool:
    return any(rung(f.needs) == step for f in found)


def _drawn(summary: Summary) -> Section:
    fields = [(name, coverage.ordered(row)) for name, row in summary.drawn.items() if row]
    never = [f"{name} {', '.join(missing)}" for name, row in fields if (missing := [v for v, n in row if not n])]
    return section("What was drawn", "drawn.html", fields=fields, never=never)


def _reached(summary: Summary) -> Section:
    subjects = [(name, reach.tally(row), list(reach.missing(row))) for name, row in summary.reached.items()]
    return section("What was reached in the source", "reached.html", subjects=subjects)
