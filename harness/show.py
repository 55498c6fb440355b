"""`python -m harness.show`: a case in words, its block table drawn, or a script that reproduces it alone."""

from collections.abc import Iterator
from pathlib import Path

import click

from harness import page
from harness.case import Case, Seq, to_json
from harness.commands import Verb, check_file, chosen_executor, has_gpu, html_option, one_line_errors
from harness.corpus import Entry
from harness.files import write_atomically
from harness.geometry import Geometry
from harness.inputs import materialise
from harness.pictures import picture
from harness.pool import Worker
from harness.replay import find
from harness.report import explained_lines, in_words
from harness.results import Finding
from harness.scaling import too_large
from harness.script import script
from harness.subjects import WrongUse
from harness.summary import Found
from harness.traits import RUNGS, rung, traits

#: Blocks of the pool that one line of the drawing takes.
PER_LINE = 16
#: Rows of a table, and blocks of a pool, that are drawn at most.
MOST = 64


@click.command(cls=Verb)
@click.argument("names", metavar="CASE...", nargs=-1, required=True)
@click.option("--corpus", type=click.Path(file_okay=False, path_type=Path), default=Path("corpus"), show_default=True)
@click.option("--script", "as_script", is_flag=True, help="Write a reproduction that needs torch and triton only.")
@click.option(
    "--subject", default=None, help="The subject that the script calls. Default: the one that the case was found with."
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write to a file.")
@html_option
@one_line_errors
def main(
    names: tuple[str, ...], corpus: Path, as_script: bool, subject: str | None, output: Path | None, html: Path | None
) -> int:
    """Show a CASE (a file, or part of the name of one in the corpus); with --html any number of them.

    A page shows each as the subject sees it that it was found with, or that is given, on the executor it was found on.
    """
    if html is not None:
        check_file("--html", html)
        write_atomically(html, _page(find(names, corpus), subject))
        return 0
    found = find(names, corpus)
    if len(found) > 1 or not found:
        told = ", ".join(p.name for p, _ in found[:5])
        raise WrongUse(f"{' '.join(names)!r} fits {len(found)} cases, but should fit one: {told}")
    path, entry = found[0]
    if as_script and (large := too_large(entry.case)):
        raise WrongUse(f"--script: the case of {path} {large}")
    text = script(entry, subject) if as_script else "\n".join(lines(path, entry)) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_atomically(output, text)
    return 0


def lines(path: Path, entry: Entry) -> Iterator[str]:
    """The case in words and pictures."""
    case = entry.case
    yield str(path)
    yield f"kept because: {entry.why}"
    yield from (f"not held: {note}" for note in entry.notes)
    yield in_words(case)
    names = traits(case)
    yield f"rung {rung(names)} ({RUNGS[rung(names)]}); beyond the simplest: {', '.join(sorted(names)) or 'nothing'}"
    if entry.versions or entry.settings:
        yield f"with {', '.join(f'{name} {value}' for name, value in (entry.versions | entry.settings).items())}"
    if entry.finding:
        yield f"found: {entry.finding.kind} in {entry.subject} on {entry.executor}, {entry.date}"
        yield f"  {entry.finding.message}"
        yield from explained_lines(entry.finding)
    yield ""
    if large := too_large(case):
        yield f"its block table is not drawn: the case {large}"
    else:
        yield from table_lines(case)
    yield ""
    yield to_json(case).rstrip()


def _page(found: list[tuple[Path, Entry]], subject: str | None) -> str:
    """Cases by the executor that each was found on, each with its picture."""
    for path, entry in found:
        if large := too_large(entry.case):
            raise WrongUse(f"--html: the case of {path} {large}")
    exhibits = {}
    for executor in dict.fromkeys(_executor(entry) for _, entry in found):
        with Worker(executor) as worker:
            for path, entry in found:
                if _executor(entry) == executor:
                    exhibits[path] = _exhibit(worker, path, entry, subject or entry.subject)
    shown = [exhibits[path] for path, _ in found]
    return page.render(
        "Kvetch: cases", f"{len(shown)} {'case' if len(shown) == 1 else 'cases'}", [page.findings(shown, "Cases")]
    )


def _executor(entry: Entry) -> str:
    """Where a case was found, if this machine can run it there."""
    return entry.executor if entry.executor and (entry.executor != "gpu" or has_gpu()) else chosen_executor(None)


def _exhibit(worker: Worker, path: Path, entry: Entry, subject: str) -> page.Exhibit:
    finding = entry.finding or Finding(kind="nothing found", message="")
    place = str(path) if subject else ""  # without a subject there is no command to run it again
    found = Found(subject=subject, case=entry.case, finding=finding, file=place, executor=worker.executor)
    kept = (("kept because", entry.why), ("found on", entry.date))
    return page.Exhibit(found, picture(worker, found), title=path.name, more=kept)


def table_lines(case: Case) -> Iterator[str]:
    """The block table, and the pool with each block's owner and fill."""
    materials = materialise(case)
    tables = materials.inputs.block_tables.view
    yield f"block table {list(tables.shape)} of {case.table_dtype} (in use | padding)"
    for row, (seq, table) in enumerate(zip(case.batch, materials.geometry.tables, strict=True)):
        used = " ".join(str(block) for block in table) or "nothing"
        padding = " ".join(str(entry) for entry in tables[row, len(table) :])
        owner = f"{_whose(case, row)}, kv_len {seq.kv_len:>4}{_apart(case, seq)}"
        yield f"  {owner}: {used}{' | ' + padding if padding else ''}"
    yield from _pool_lines(case, materials.geometry)


def _whose(case: Case, row: int) -> str:
    return f"sequence {row}" if row < len(case.seqs) else "padding row"


def _apart(case: Case, seq: Seq) -> str:
    """How many of the tokens are not in the cache, but come as dense rows."""
    return f", {seq.kv_len - case.paged_len(seq)} of them dense" if case.new_kv == "dense" else ""


def _pool_lines(case: Case, geometry: Geometry) -> Iterator[str]:
    yield f"pool of {geometry.num_blocks} blocks of {case.block_size} slots"
    yield "  (a letter per sequence that reads the block; capital: it is full; a dot: nobody's)"
    if geometry.num_blocks > MOST:
        for block in geometry.used[:MOST].tolist():
            yield f"  block {block}: {_owners(case, geometry, block)}"
        return
    marks = [_owners(case, geometry, block) for block in range(geometry.num_blocks)]
    width = max(len(mark) for mark in marks)
    for first in range(0, len(marks), PER_LINE):
        yield f"  {first:>4}  " + " ".join(mark.ljust(width) for mark in marks[first : first + PER_LINE])


def _owners(case: Case, geometry: Geometry, block: int) -> str:
    """A letter per sequence that reads the block."""
    marks = ""
    for row, (seq, table) in enumerate(zip(case.batch, geometry.tables, strict=True)):
        for place in (table == block).nonzero()[0].tolist():
            full = (place + 1) * case.block_size <= case.paged_len(seq)
            letter = chr(ord("a") + row % 26)
            marks += letter.upper() if full else letter
    return marks or "."


if __name__ == "__main__":
    main()
