"""`python -m harness.corpus`: adopt what a nightly run has found, tell what is kept, prune it."""

import datetime
import json
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import click
import msgspec

from harness.case import InvalidCase, decode, to_json
from harness.commands import Verb, chosen_executor, executor_option, one_line_errors
from harness.corpus import Corpus, Entry
from harness.files import write_atomically
from harness.pool import Worker
from harness.replay import SECONDS
from harness.scaling import too_large
from harness.shrink import size
from harness.subjects import WrongUse, is_named, same
from harness.traits import traits

#: What an artefact may hold: bytes of a file, files.
LARGEST_FILE, MOST_FILES = 2**18, 500

Signature = tuple[str, str, tuple[str, ...]]

corpus_option = click.option(
    "--corpus", type=click.Path(file_okay=False, path_type=Path), default=Path("corpus"), show_default=True
)


class Verbs(Verb, click.Group):
    """Subcommands that tell wrong use in one line."""


@click.command(cls=Verbs)
def main() -> None:
    """Keep cases: adopt an artefact, list what is kept, prune it.

    Exit code: 0 done; 2 wrong use or an artefact that is refused; 3 the harness is at fault.
    """


def signature(entry: Entry) -> Signature:
    """What makes two entries one finding: subject, family and traits. A case kept by hand is its own."""
    if entry.finding is None:
        return entry.subject, to_json(entry.case), ()
    return entry.subject, entry.finding.family, tuple(sorted(traits(entry.case)))


# --- adopt -------------------------------------------------------------------------------------------------------


@main.command(cls=Verb)
@click.argument("artefacts", nargs=-1, required=True, metavar="ARTEFACT...")
@click.option("--subject", metavar="NAME", default=None, help="What the cases are kept for, if not what they say.")
@corpus_option
@one_line_errors
def adopt(artefacts: tuple[str, ...], subject: str | None, corpus: Path) -> int:
    """Make the cases of artefacts (files, folders, zips) cases of the corpus.

    An artefact may come from a fork: nothing in it is run, no path of its own is written to, and what is no entry
    within bounds is refused.
    """
    entries = [checked(entry, subject, where) for name in artefacts for where, entry in unpacked(Path(name))]
    if not entries:
        raise WrongUse(f"there is no case in {', '.join(artefacts)}")
    for entry in entries:
        path, kept = adopted(Corpus(corpus), entry)
        click.echo(f"{path}: {_life(kept)}")
    return 0


def unpacked(artefact: Path) -> Iterator[tuple[str, Entry]]:
    """The entries of a file, a folder or a zip, each with where it was; raises InvalidCase for what is none."""
    for count, (where, text) in enumerate(_texts(artefact), 1):
        if count > MOST_FILES or len(text) > LARGEST_FILE:
            raise InvalidCase(f"{where}: an artefact holds up to {MOST_FILES} files of {LARGEST_FILE} bytes")
        yield where, decode(text, Entry, where)


def _texts(artefact: Path) -> Iterator[tuple[str, bytes]]:
    if artefact.is_dir():
        for path in sorted(artefact.rglob("*.json")):
            if not path.is_symlink():
                yield str(path), _start(path)
    elif zipfile.is_zipfile(artefact):
        with zipfile.ZipFile(artefact) as archive:
            for name in sorted(name for name in archive.namelist() if name.endswith(".json")):
                with archive.open(name) as file:
                    yield f"{artefact}/{name}", file.read(LARGEST_FILE + 1)
    else:
        yield str(artefact), _start(artefact)


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST_FILE + 1)


def checked(entry: Entry, subject: str | None, where: str) -> Entry:
    """The entry without control characters, for the given subject; raises InvalidCase for one out of bounds."""
    name = subject or entry.subject
    path = PurePosixPath(name.rpartition(":")[0])
    if not is_named(name) and (path.is_absolute() or ".." in path.parts or path.suffix != ".py"):
        raise InvalidCase(
            f"{where}: subject is {_printable(name)!r}, but should be one of ours, PROJECT.KERNEL or a file of this "
            "project; --subject says which it is"
        )
    if large := too_large(entry.case):
        raise InvalidCase(f"{where}: the case {large}")
    plain = msgspec.to_builtins(entry) | {"subject": name}
    return msgspec.convert(_all_printable(plain), Entry)


def _all_printable(value: Any) -> Any:
    if isinstance(value, str):
        return _printable(value)
    if isinstance(value, dict):
        return {_all_printable(key): _all_printable(part) for key, part in value.items()}
    return [_all_printable(part) for part in value] if isinstance(value, list | tuple) else value


def _printable(words: str) -> str:
    """What a terminal shows as it is: no escapes, no lines of their own."""
    return "".join(letter if letter.isprintable() else " " for letter in words)


def adopted(corpus: Corpus, entry: Entry) -> tuple[Path, Entry]:
    """Keep the entry; one of the same signature or case is counted, and gives way to a smaller case."""
    for path, there in corpus.entries():
        is_case = there.case == entry.case and same(there.subject, entry.subject)
        if is_case or signature(there) == signature(entry):
            smaller = min(there, entry, key=lambda one: size(one.case))
            kept = _counted(smaller, there, entry)
            if smaller is not there:
                path.unlink()
                path = corpus.add(kept)
            write_atomically(path, to_json(kept))
            return path, kept
    return corpus.add(entry), entry


def _counted(smaller: Entry, there: Entry, entry: Entry) -> Entry:
    days = sorted(filter(None, (there.date, there.last_seen, entry.date, entry.last_seen)))
    today = datetime.date.today().isoformat()
    first, last = (days[0], days[-1]) if days else (today, today)
    return msgspec.structs.replace(smaller, date=first, last_seen=last, seen=there.seen + entry.seen)


# --- list --------------------------------------------------------------------------------------------------------


@main.command("list", cls=Verb)
@corpus_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@one_line_errors
def show(corpus: Path, as_json: bool) -> int:
    """Tell what is kept: first seen, last seen and how often, per signature."""
    rows = [_row(path.relative_to(corpus), entry) for path, entry in Corpus(corpus).entries()]
    if as_json:
        click.echo(json.dumps({"entries": rows}))
    else:
        for row in rows:
            click.echo(f"{row['file']}: {row['subject']}: {row['why']}; {row['life']}")
    return 0


def _row(path: Path, entry: Entry) -> dict[str, Any]:
    family = entry.finding.family if entry.finding else ""
    names = {"file": str(path), "subject": entry.subject, "family": family, "why": entry.why}
    days = {"first_seen": entry.date, "last_seen": entry.last_seen or entry.date, "seen": entry.seen}
    return names | days | {"life": _life(entry)}


def _life(entry: Entry) -> str:
    times = "once" if entry.seen == 1 else f"{entry.seen} times"
    until = f", last on {entry.last_seen}" if entry.last_seen else ""
    return f"seen {times}, first on {entry.date or 'an unknown day'}{until}"


# --- prune -------------------------------------------------------------------------------------------------------


@main.command(cls=Verb)
@corpus_option
@click.option("--seconds", type=click.FloatRange(min=0.0), required=True, help="What replaying all of it may take.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@executor_option
@one_line_errors
def prune(corpus: Path, seconds: float, dry_run: bool, executor: str | None) -> int:
    """Keep the smallest case of each signature, latest seen first, within a time of replay.

    Cases that were kept by hand always stay.
    """
    entries = list(Corpus(corpus).entries())
    smallest = smallest_of_each(entries)
    kept = within(smallest, seconds, timed(smallest, chosen_executor(executor)))
    for path, entry in entries:
        if path not in kept:
            click.echo(f"{'would prune' if dry_run else 'pruned'} {path}: {entry.why}")
            if not dry_run:
                path.unlink()
    click.echo(f"{len(kept)} of {len(entries)} cases are kept")
    return 0


def smallest_of_each(entries: Iterable[tuple[Path, Entry]]) -> dict[Path, Entry]:
    """Of each signature the entry with the smallest case."""
    found: dict[Signature, tuple[Path, Entry]] = {}
    for path, entry in entries:
        there = found.get(signature(entry))
        if there is None or size(entry.case) < size(there[1].case):
            found[signature(entry)] = path, entry
    return dict(found.values())


def within(entries: dict[Path, Entry], seconds: float, costs: dict[Path, float]) -> set[Path]:
    """Those kept by hand, then those that fit in the time, the latest seen first."""
    kept = {path for path, entry in entries.items() if entry.finding is None}
    left = seconds - sum(costs[path] for path in kept)
    latest = sorted(entries, key=lambda path: (entries[path].last_seen or entries[path].date, str(path)), reverse=True)
    for path in latest:
        if path not in kept and costs[path] <= left:
            kept.add(path)
            left -= costs[path]
    return kept


def timed(entries: dict[Path, Entry], executor: str) -> dict[Path, float]:
    """Seconds that one run of each takes, on its subject where that can be loaded, else on our own."""
    costs: dict[Path, float] = {}
    with Worker(executor) as worker:
        worker.call("harness.executors:platform_of", executor)
        for path, entry in entries.items():
            name = _loadable(worker, entry)
            began = time.monotonic()
            worker.run(entry.case, name, SECONDS, thorough=True)
            costs[path] = time.monotonic() - began
    return costs


def _loadable(worker: Worker, entry: Entry) -> str:
    try:
        worker.describe(entry.subject, entry.case.op)
    except WrongUse:
        return f"ours.{entry.case.op}"
    return entry.subject
