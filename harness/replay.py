"""`python -m harness.replay`: run the cases of a corpus again and give a verdict on each."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from harness import known, page
from harness.commands import (
    DEFAULT_OP,
    Verb,
    check_file,
    chosen_executor,
    device_option,
    executor_option,
    html_option,
    one_line_errors,
    op_option,
    subject_option,
)
from harness.corpus import Corpus, Entry, read
from harness.files import write_atomically
from harness.pictures import pictures
from harness.pool import Worker
from harness.results import Result
from harness.scaling import too_large
from harness.subjects import SUBJECTS, WrongUse, declines, is_adapted, operation, same
from harness.summary import Found

#: A case counts as fixed after so many clean runs, and as flaky when they disagree.
RUNS = 3
#: Seconds that one case may take.
SECONDS = 120.0

EXIT_CODES = {"PASSED": 0, "FIXED": 0, "KNOWN": 0, "DECLINED": 0, "FAILED": 1, "FLAKY": 1, "ERROR": 3}


@dataclass(frozen=True)
class Verdict:
    """What replay says of one case and one subject."""

    path: Path
    subject: str
    verdict: str
    detail: str
    explains: tuple[str, ...] = ()
    found: Found | None = None  # what failed, for a page


@click.command(cls=Verb)
@click.argument("paths", nargs=-1, metavar="[PATH or id]...")
@subject_option
@op_option
@executor_option
@device_option
@click.option("--corpus", type=click.Path(file_okay=False, path_type=Path), default=Path("corpus"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as one JSON object on standard output.")
@html_option
@one_line_errors
def main(paths: tuple[str, ...], corpus: Path, as_json: bool, html: Path | None, **options: Any) -> int:
    """Replay corpus cases: PASSED, FIXED, FAILED, FLAKY, KNOWN, DECLINED or ERROR for each.

    Exit code: 0 nothing fails; 1 something does; 2 wrong use; 3 the harness is at fault; 5 nothing ran.
    """
    check_file("--html", html)
    entries = find(paths, corpus)
    tolerated = known.read(corpus / "known.toml")
    pairs = [
        (path, entry, name) for path, entry in entries for name in options["subjects"] or _default(entry, bool(paths))
    ]
    expired = known.expired(tolerated, [name for _, _, name in pairs])
    verdicts: list[Verdict] = []
    executor = chosen_executor(options["executor"])
    try:
        with Worker(executor, options["device"]) as worker:
            worker.call("harness.executors:platform_of", executor)
            for path, entry, name in pairs:
                verdicts.append(replay(worker, path, entry, name, options["op"] or DEFAULT_OP, tolerated))
    except KeyboardInterrupt:
        click.echo(f"kvetch: interrupted after {len(verdicts)} of {len(pairs)}", err=True)
    _print(verdicts, expired, as_json)
    if html is not None:
        write_atomically(html, _page(verdicts, executor, options["device"]))
    return exit_code(verdicts)


def _default(entry: Entry, asked_for: bool) -> tuple[str, ...]:
    """A case that was asked for is run on the subject it was found with, when that is there; else on ours."""
    is_there = is_adapted(entry.subject) or Path(entry.subject.rpartition(":")[0]).is_file()
    ours = tuple(name for name in SUBJECTS if operation(name) == entry.case.op)
    return (entry.subject,) if asked_for and is_there else ours


def exit_code(verdicts: list[Verdict]) -> int:
    """The worst verdict's code; 5 when nothing ran."""
    ran = [v for v in verdicts if v.verdict != "DECLINED"]
    return max((EXIT_CODES[v.verdict] for v in ran), default=5)


def find(paths: tuple[str, ...], corpus: Path) -> list[tuple[Path, Entry]]:
    """Files, folders, or ids (any part of a file's name); the whole corpus when none is given."""
    if not paths:
        return list(Corpus(corpus).entries())
    return [pair for wanted in paths for pair in _find_one(wanted, corpus)]


def _find_one(wanted: str, corpus: Path) -> list[tuple[Path, Entry]]:
    path = Path(wanted)
    if path.is_dir():
        return list(Corpus(path).entries())
    if path.is_file():
        return [(path, read(path))]
    found = [p for p in sorted(corpus.rglob("*.json")) if wanted in p.name]
    if not found:
        raise WrongUse(f"{wanted!r} is neither a file nor part of the name of a case in {corpus}")
    return [(p, read(p)) for p in found]


def replay(
    worker: Worker, path: Path, entry: Entry, subject: str, op: str, tolerated: tuple[known.Known, ...]
) -> Verdict:
    """Run one case until the verdict is clear."""
    reason = declines(worker.describe(subject, op), entry.case) or too_large(entry.case)
    if reason:
        return Verdict(path, subject, "DECLINED", reason)
    results = _results(worker, entry, subject)
    verdict, detail = judge(entry, subject, results, tolerated)
    words = _explained(worker, subject, results[-1]) if verdict == "FAILED" else ()
    return Verdict(path, subject, verdict, detail, words, _found(path, subject, results, words))


def _found(path: Path, subject: str, results: list[Result], words: tuple[str, ...]) -> Found | None:
    """What the first run that failed shows, with what an x-ray of the last one says."""
    failing = [result for result in results if result.headline is not None]
    if not failing or failing[0].headline is None:
        return None
    first, finding = failing[0], failing[0].headline
    return Found(
        subject=subject,
        case=first.case,
        finding=msgspec.structs.replace(finding, explains=words or finding.explains),
        others=tuple(other for other in first.findings if other != finding),
        executor=first.executor,
        file=str(path),
    )


def _results(worker: Worker, entry: Entry, subject: str) -> list[Result]:
    """A few runs; a hang is not waited for again."""
    results: list[Result] = []
    while len(results) < RUNS and not any(finding.kind == "hang" for result in results for finding in result.findings):
        results.append(worker.run(entry.case, subject, SECONDS, thorough=True))
    return results


def _explained(worker: Worker, subject: str, failing: Result) -> tuple[str, ...]:
    """What an x-ray says of a wrong output; what the first run said where it says nothing."""
    findings = failing.findings
    if any(finding.family == "wrong output" for finding in findings):
        findings = worker.run(failing.case, subject, SECONDS, thorough=True, explain=True).findings or findings
    return tuple(dict.fromkeys(words for finding in findings for words in finding.explains))


def judge(entry: Entry, subject: str, results: list[Result], tolerated: tuple[known.Known, ...]) -> tuple[str, str]:
    """The verdict on repeated results of one case."""
    for result in results:
        if result.harness_fault:
            return "ERROR", result.harness_fault
    if results[0].declined:
        return "DECLINED", results[0].declined
    failing = [result for result in results if result.findings]
    if not failing:
        return _clean(entry, subject, results[0].platform, tolerated)
    return _failing(failing, len(results), subject, tolerated)


def _clean(entry: Entry, subject: str, platform: str, tolerated: tuple[known.Known, ...]) -> tuple[str, str]:
    if entry.finding is None or not same(entry.subject, subject):
        return "PASSED", ""
    found = Found(subject=subject, case=entry.case, finding=entry.finding)
    reason = known.reason(tolerated, found, platform)
    stale = f"; known.toml still tolerates it ({reason}): take the entry out" if reason else ""
    return "FIXED", f"failed before: {entry.finding.kind}{stale}"


def _failing(failing: list[Result], runs: int, subject: str, tolerated: tuple[known.Known, ...]) -> tuple[str, str]:
    finding = failing[0].headline
    assert finding is not None
    found = Found(subject=subject, case=failing[0].case, finding=finding)
    if reason := known.reason(tolerated, found, failing[0].platform):
        return "KNOWN", reason
    if len(failing) < runs:
        return "FLAKY", f"failed {len(failing)} of {runs} times: {finding.message}"
    return "FAILED", f"{finding.kind}: {finding.message}"


def _print(verdicts: list[Verdict], expired: tuple[str, ...], as_json: bool) -> None:
    for v in verdicts:
        click.echo(f"{v.verdict:<9}{v.path.name}  {v.subject}{f': {v.detail}' if v.detail else ''}", err=as_json)
        for words in v.explains:
            click.echo(f"{'':<9}explained: {words}", err=as_json)
    for line in expired:
        click.echo(f"EXPIRED in known.toml: {line}", err=as_json)
    counts = Counter(v.verdict for v in verdicts)
    click.echo(_counted(verdicts), err=as_json)
    if as_json:
        rows = [_plain(v) for v in verdicts]
        click.echo(
            json.dumps({"verdicts": rows, "counts": counts, "expired": expired, "exit_code": exit_code(verdicts)})
        )


def _plain(verdict: Verdict) -> dict[str, Any]:
    fields = {name: told for name, told in vars(verdict).items() if name != "found"}
    return fields | {"path": str(verdict.path)}


def _counted(verdicts: list[Verdict]) -> str:
    counts = Counter(v.verdict for v in verdicts)
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "nothing to replay"


def _page(verdicts: list[Verdict], executor: str, device: int | None) -> str:
    """Every verdict, and what failed with its picture; each failing case is run once more, to be drawn."""
    rows = [(bool(EXIT_CODES[v.verdict]), (v.verdict, v.path.name, v.subject, v.detail)) for v in verdicts]
    sections = [page.table("Verdicts", ("verdict", "case", "subject", "why"), rows)]
    failed = [(v, v.found) for v in verdicts if v.found is not None]
    if failed:
        with Worker(executor, device) as worker:
            seen = pictures(worker, [found for _, found in failed])
        told = zip(failed, seen, strict=True)
        sections.append(page.findings([page.Exhibit(found, picture, v.verdict) for (v, found), picture in told]))
    return page.render("Kvetch: replay", _counted(verdicts), sections)


if __name__ == "__main__":
    main()
