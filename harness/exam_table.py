"""The table of an exam, worst and slowest first: lines of text for a terminal, Markdown for a document.

python -m harness.exam_table RUN.json docs/exam.md
"""

import re
import shlex
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from harness import comparison_figure, comparison_table, thresholds
from harness.columns import aligned, markdown_table
from harness.commands import Verb, one_line_errors
from harness.comparison import compared
from harness.files import write_atomically
from harness.verdicts import Exam, Verdict, from_file

#: The section of a document that is written anew.
TITLE = "## A run"
COLUMNS = ("mutant", "class", "found by", "cases", "seconds", "in all", "smallest", "explained")


def worst_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Faults of the harness, then what was missed, then what was found otherwise than meant, then the slowest."""
    return sorted(verdicts, key=lambda v: (not v.fault, v.found, v.passed, v.explained, -v.seconds))


def row(verdict: Verdict) -> tuple[str, ...]:
    """Its cells, one for each of COLUMNS."""
    return (
        verdict.name,
        verdict.bug_class,
        found_by(verdict),
        str(verdict.cases),
        f"{verdict.seconds:.1f}",
        f"{verdict.total:.1f}",
        smallest(verdict),
        explained(verdict),
    )


def found_by(verdict: Verdict) -> str:
    """The check, or why there is none."""
    if verdict.fault:
        return "FAULT OF THE HARNESS"
    if not verdict.found:
        return "MISSED"
    return verdict.check if verdict.meant else f"{verdict.check} (not meant)"


def smallest(verdict: Verdict) -> str:
    """For example "1 seq, 2 blocks, 17 tokens"."""
    if not verdict.sequences:
        return ""
    counts = {"seq": verdict.sequences, "block": verdict.blocks, "token": verdict.tokens}
    return ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for word, number in counts.items())


def explained(verdict: Verdict) -> str:
    """Whether the finding names the fault."""
    return "" if not verdict.found else "yes" if verdict.explained else "no"


# --- text --------------------------------------------------------------------------------------------------------


def lines(exam: Exam, options: Sequence[str] = ()) -> Iterator[str]:
    """The whole report; `options` are those of the command that reproduces one mutant."""
    planted = worst_first(exam.of(systematic=False))
    if planted:
        yield from aligned([COLUMNS, *(row(verdict) for verdict in planted)])
    for verdict in worst_first(exam.mutants):
        yield from _trouble(verdict, options)
    yield from comparison_table.lines(exam)
    yield from thresholds.lines(exam)
    yield ""
    yield from score_lines(exam)


def _trouble(verdict: Verdict, options: Sequence[str]) -> Iterator[str]:
    """What there is to say of a mutant that was not found, or otherwise than meant, or not explained."""
    if verdict.passed and (verdict.systematic or verdict.explained):
        return
    yield ""
    yield f"{found_by(verdict)}: {verdict.name}: {verdict.story}"
    if verdict.found:
        yield from (f"  says: {words}" for words in verdict.says or (verdict.message,))
        yield from (f"  does not say: {words}" for words in verdict.unsaid)
    yield from (f"  {line}" for line in (verdict.fault or verdict.diff).splitlines())
    if verdict.unfound:
        yield f"  accepted: {verdict.unfound}"
    yield f"  again: {shlex.join(['python', '-m', 'harness.exam', '--name', verdict.name, *options])}"


def score_lines(exam: Exam) -> Iterator[str]:
    """How many of how many, and how soon."""
    planted, systematic = exam.of(systematic=False), exam.of(systematic=True)
    if planted:
        yield _score("planted faults", planted, exam.score(systematic=False), exam.min_score)
        yield from _figures([verdict for verdict in planted if verdict.passed], exam.median_seconds)
    if systematic:
        yield _score("systematic mutants", systematic, exam.score(systematic=True), exam.min_systematic)
        yield f"  so much is a green run of at least {exam.limit:g} s worth on {_subjects(systematic)}"
    if exam.equivalent:
        yield f"  {exam.equivalent} more are known to change nothing"
    whole = f"{exam.seconds / 60:.1f} min" if exam.seconds >= 60 else f"{exam.seconds:.0f} s"
    workers = _count(exam.workers, "worker")
    yield f"{whole} on {exam.executor}, {workers}, seed {exam.seed}, at most {exam.limit:g} s of drawing each"
    if exam.interrupted:
        yield "interrupted: the mutants that were left are not counted"


def _score(what: str, verdicts: Sequence[Verdict], score: float, least: float) -> str:
    found = sum(verdict.passed for verdict in verdicts)
    short = "" if score >= least else f", which is less than {least:.1%}"
    return f"{found} of {len(verdicts)} {what} found ({score:.1%}{short})"


def _subjects(verdicts: Sequence[Verdict]) -> str:
    return ", ".join(dict.fromkeys(verdict.subject for verdict in verdicts))


def _figures(found: Sequence[Verdict], seconds: float) -> Iterator[str]:
    if not found:
        return
    explained = sum(verdict.explained for verdict in found)
    sizes = [statistics.median(getattr(v, name) for v in found) for name in ("sequences", "blocks", "tokens")]
    yield f"  median {seconds:.1f} s from the first drawn case; {explained} explained ({explained / len(found):.1%})"
    yield "  median smallest case: sequences {:g}, blocks {:g}, tokens {:g}".format(*sizes)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


# --- Markdown ----------------------------------------------------------------------------------------------------


def markdown(exam: Exam) -> str:
    """A section with the score, the table of planted faults, and the systematic mutants that were missed."""
    planted, systematic = worst_first(exam.of(systematic=False)), worst_first(exam.of(systematic=True))
    parts = [TITLE, "\n".join(f"* {line.strip()}" for line in score_lines(exam))]
    if planted:
        parts.append(markdown_table([COLUMNS, *map(row, planted)]))
    for verdict in (*planted, *systematic):
        if not verdict.passed:
            reason = f" {verdict.unfound}" if verdict.unfound else ""
            parts.append(f"{found_by(verdict)}: `{verdict.name}`: {verdict.story}.{reason}")
            parts.append(f"```diff\n{verdict.diff.rstrip()}\n```" if verdict.diff else f"> {verdict.message}")
    return "\n\n".join(parts) + "\n"


def into(document: str, section: str) -> str:
    """The document with the section in place of the one of the same title, else at its end."""
    title = section.splitlines()[0]
    old = re.compile(rf"^{re.escape(title)}$.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if old.search(document):
        behind = "\n" if re.search(rf"^{re.escape(title)}$.*?^## ", document, re.DOTALL | re.MULTILINE) else ""
        return old.sub(lambda _: section + behind, document)
    return f"{document.rstrip()}\n\n{section}"


def sections(exam: Exam, figure: str) -> Iterator[str]:
    """Those for which the exam has something; `figure` is the path of the picture from the document."""
    if exam.mutants:
        yield markdown(exam)
    if compared(exam):
        yield comparison_table.markdown(exam, figure)
    if exam.thresholds:
        yield thresholds.markdown(exam)


def write_into(file: Path, exam: Exam) -> None:
    """Put the sections into the file, which need not be there, and the figure of who finds what beside it."""
    document = file.read_text(encoding="utf-8") if file.exists() else "# The exam\n"
    figure = file.with_suffix(".svg")
    for section in sections(exam, figure.name):
        document = into(document, section)
    write_atomically(file, document)
    if compared(exam):
        comparison_figure.write(figure, exam)


@click.command(cls=Verb)
@click.argument("run", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("document", type=click.Path(dir_okay=False, path_type=Path))
@one_line_errors
def main(run: Path, document: Path) -> int:
    """Write the tables of RUN, what `python -m harness.exam --json` printed, into DOCUMENT."""
    write_into(document, from_file(run))
    return 0


if __name__ == "__main__":
    main()
