"""`python -m harness.landscape`: what kernels do where contracts are silent, measured: the table in docs/landscape.md.

Each question is one small case that asks one thing. It is put to a subject whatever that subject declares of it: a
declaration says what is drawn, and this table says what would come out.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import click
import msgspec

from harness.adapters import PROJECTS, adapters
from harness.case import FAR, Case, InvalidCase
from harness.columns import markdown_table
from harness.commands import Verb, one_line_errors
from harness.corpus import versions
from harness.fixed import fixed_cases, seed_of
from harness.folders import PACKAGE
from harness.pool import Died, Worker
from harness.questions import BARE, PLAIN, TABLES, Question, plain, questions_for
from harness.results import SEVERITY, Finding, Result
from harness.subjects import SUBJECTS, Declaration, WrongUse

#: Seconds for one question, and for one drawn case: both may compile.
SECONDS = 60.0
#: Clean cases of each subject, and how many times as many are drawn at most where some are declined.
CASES, MOST_DRAWN = 100, 4
EXECUTOR = "gridsim"

#: Files in which an error says that a kernel has no form for what was asked.
ADAPTERS = {path.name for path in (PACKAGE / "adapters").glob("*.py")}

#: What a finding is in a cell, by its kind; of any other kind, which needs a second call to show, nothing is told here.
WORDS = {
    "crash": "crash",
    "hang": "hang",
    "exception": "declined by an error",
    "overflow write": "writes out of reach",
    "bad write": "writes out of reach",
    "wrote outside": "writes out of reach",
    "overflow read": "reads out of reach",
    "bad read": "reads out of reach",
    "not finite": "NaN",
    "unwritten output": "unwritten",
    "wrong shape": "wrong",
    "inputs changed": "wrong",
    "wrong cache": "wrong",
    "inexact": "wrong",
    "accuracy": "wrong",
    "dead data read": "wrong",
    "uninitialised read": "wrong",
    "race": "race",
}


def cell(worker: Worker, subject: str, declared: Declaration, question: Question) -> str:
    """What the subject does with it, in a word or two."""
    try:
        case = question.changes(plain(declared))
    except InvalidCase:
        return "–"
    if case.placement in FAR and declared.executors:
        return "not asked"  # its kernels are no Triton kernels, and would read gigabytes for real
    try:
        asked = worker.call(
            "harness.landscape:ask", msgspec.to_builtins(case), subject, question.name, limit_seconds=SECONDS
        )
    except Died as death:
        return WORDS[death.finding.kind]
    return told(msgspec.convert(asked, Result))


def ask(case: dict[str, Any], subject: str, name: str) -> Any:
    """Put the case of a question to the subject, some declarations set aside; to be called in a worker."""
    from harness.pipeline import run_case
    from harness.subjects import Subject, load

    drawn = msgspec.convert(case, Case)
    question = next(one for one in questions_for(drawn.op) if one.name == name)
    known = load(subject, drawn.op)
    if question.name != PLAIN.name:  # whatever else it says that it cannot do is set aside as well
        declaration = msgspec.structs.replace(known.declaration, **question.opens)
        known = Subject(known.name, declaration, known.run, known.validate)
    with _bare(known.run, question.bare):
        return msgspec.to_builtins(run_case(drawn, known, EXECUTOR))


def _bare(run: Callable[..., Any], names: tuple[str, ...]) -> AbstractContextManager[Any]:
    """The names, where the subject's module has them, stand for nothing that helps its kernel."""
    scope = getattr(run, "func", run).__globals__
    return patch.dict(scope, {name: BARE[name] for name in names if name in scope})


def told(result: Result) -> str:
    """The words for a result, the worst first."""
    if result.harness_fault:
        return "fault of the harness"
    if result.declined:
        return f"not asked: {result.declined}"
    found = sorted(result.findings, key=lambda finding: SEVERITY.index(finding.kind))
    words = dict.fromkeys(_word(finding) for finding in found if finding.kind in WORDS)
    output = [word for word in words if word in ("NaN", "unwritten", "wrong")]
    return ", ".join(word for word in words if word not in output[1:]) or "right"


def _word(finding: Finding) -> str:
    if finding.kind != "exception" or not finding.detail:
        return WORDS[finding.kind]
    error, _, place = finding.detail.partition(" ")
    if place.partition(":")[0] in ADAPTERS:
        return "cannot be passed"
    return f"{WORDS['exception']}: {error}"


@dataclass(frozen=True)
class Margins:
    """What drawn cases of a subject say of its numbers."""

    clean: int
    failing: int
    declined: int
    worst: float
    term: str


def margins(worker: Worker, subject: str, declared: Declaration, count: int) -> Margins:
    """The largest error of so many clean cases, in units of its bound; more are drawn where some are declined."""
    results: list[Result] = []
    for case in fixed_cases(declared, seed_of("landscape", subject), MOST_DRAWN * count):
        if sum(map(_clean, results)) == count:
            break
        results.append(worker.run(case, subject, SECONDS))
    clean = [result for result in results if _clean(result)]
    worst = max(clean, key=lambda result: result.margin, default=None)
    failing = sum(bool(result.findings) for result in results)
    declined = len(results) - len(clean) - failing
    return Margins(len(clean), failing, declined, worst.margin if worst else 0.0, worst.margin_term if worst else "")


def _clean(result: Result) -> bool:
    return not (result.findings or result.declined or result.harness_fault)


HEAD = """\
# Landscape

What kernels do where their contracts are silent, and how near their errors come to the derived bound. Everything here
was measured on gridsim, which runs Triton's IR on a CPU. Written by

    python -m harness.landscape > docs/landscape.md

with {versions}.

A question is one small case that changes one thing of a plain one. The plain case lies within what a subject declares,
the question is put to it whatever it declares of that. *right*: the output is within its bound, and nothing was read or
written out of reach. *declined by an error*: the call raised what is named. *NaN*: a number that should be finite is
not. *wrong*: beyond the bound, or dependent on what is dead. *unwritten*: no program wrote it. *reads out of reach*:
beyond a tensor, or at an address that wrapped round; the output may be right all the same. *cannot be passed*: the
kernel has no form for it, as a cache of slots has no odd strides. Where several hold, the worst comes first.

A kernel that does badly here has not promised otherwise: what each adapter declares, and why, is told by
`python -m harness.adapters`. A kernel that takes a list of slots or pages never sees the padding of a table, since its
adapter makes that list. Where an adapter widens a table or leaves out an empty row, as its project's server does, the
question takes that away.
"""
MARGINS = """\
## Errors

The worst error in {count} clean cases of each subject, as a part of the derived bound of its element, and what is
largest in that bound. Cases are drawn within what the subject declares, and more of them where an adapter's limits or
gridsim decline some. What has findings here is told in docs/findings. A write or a copy is compared bit by bit, and has
no error.
"""


def page(subjects: list[str], count: int, tell: Callable[[str], None] = lambda _: None) -> str:
    """The whole page for these subjects."""
    answers: dict[str, tuple[Declaration, list[str]]] = {}
    measured: dict[str, Margins] = {}
    with Worker(EXECUTOR) as worker:
        for subject in subjects:
            declared = worker.describe(subject, "decode")
            questions = questions_for(declared.op)
            tell(f"{subject}: {len(questions)} questions, {count} cases")
            answers[subject] = declared, [cell(worker, subject, declared, question) for question in questions]
            measured[subject] = margins(worker, subject, declared, count)
            worker.renew()
    told_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    return "\n".join([HEAD.format(versions=told_with), *_tables(answers), *_errors(measured, count)])


def _tables(answers: dict[str, tuple[Declaration, list[str]]]) -> Iterator[str]:
    for title, ops, questions in TABLES:
        rows = [
            [subject, declared.about.partition(" (")[0] or "ours", *cells]
            for subject, (declared, cells) in answers.items()
            if declared.op in ops
        ]
        if rows:
            head = ["kernel", "of", *(question.name for question in questions)]
            yield f"## {title}\n\n{markdown_table([head, *rows])}\n"


def _errors(measured: dict[str, Margins], count: int) -> Iterator[str]:
    yield MARGINS.format(count=count)
    head = ["kernel", "clean", "with findings", "declined", "worst of the bound", "largest in the bound"]
    yield markdown_table([head, *(_error(name, found) for name, found in measured.items())]) + "\n"


def _error(name: str, found: Margins) -> list[str]:
    worst = f"{found.worst:.2f}" if found.term else "exact"
    counts = (found.clean, found.failing, found.declined)
    return [name, *map(str, counts), worst, found.term.removeprefix("which is ")]


def installed() -> list[str]:
    """Our own subjects, and every kernel that is installed here and that gridsim runs."""
    others = [
        name
        for project in PROJECTS
        for name, adapter in adapters(project).items()
        if adapter.project.installed and EXECUTOR in (adapter.declaration.executors or (EXECUTOR,))
    ]
    return [*SUBJECTS, *others]


@click.command(cls=Verb)
@click.option("--subject", "subjects", multiple=True, help="Ask this one only (default: ours, and all installed ones).")
@click.option("--cases", type=click.IntRange(1), default=CASES, show_default=True, help="Clean cases of each.")
@one_line_errors
def main(subjects: tuple[str, ...], cases: int) -> int:
    """Print what kernels do where contracts are silent, as Markdown.

    Exit code: 0; 2 wrong use.
    """
    if not (subjects or installed()):
        raise WrongUse("no kernel is installed here")
    click.echo(page(list(subjects) or installed(), cases, lambda line: click.echo(line, err=True)), nl=False)
    return 0


if __name__ == "__main__":
    main()
