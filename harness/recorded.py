"""`python -m harness.recorded`: what recorded calls were like, a drawing profile of them, cases small enough to run."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from harness.case import Case, InvalidCase, decode
from harness.columns import aligned
from harness.commands import Verb, check_file, check_writable, one_line_errors
from harness.corpus import Corpus, Entry
from harness.files import write_atomically
from harness.mix import mixed, to_json
from harness.recording import Counts
from harness.scaling import smaller, told, too_large
from harness.subjects import WrongUse

Entries = list[tuple[Path, Entry]]

#: Rows of the table, and different things that are told to be lost.
MOST = 20
HEAD = ("seen", "op", "seqs", "kv_len", "new", "heads", "dim", "block", "type", "layout", "placement", "")


@click.command(cls=Verb)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--profile",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write the mix of calls to a file, for `harness.fuzz --profile`.",
)
@click.option(
    "--smaller",
    "smaller_into",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Write the cases to a folder, those that are too large to be replayed made smaller.",
)
@one_line_errors
def main(folder: Path, profile: Path | None, smaller_into: Path | None) -> int:
    """Tell what `harness.record` wrote into FOLDER: its cases, what they do not hold, and which calls have none.

    Exit code: 0 done; 2 wrong use, such as a folder without a recording, or a file that is no recorded case.
    """
    _check_places(folder, profile, smaller_into)
    entries, counted = list(Corpus(folder).entries()), list(counts(folder))
    _check_recorded(folder, entries, counted, profile or smaller_into)
    made = [made_smaller(entry) for _, entry in entries] if smaller_into is not None else []
    for line in lines(entries, counted):
        click.echo(line)
    if profile is not None:
        profile.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(profile, to_json(mixed(entries, f"recorded in {folder}")))
        click.echo(f"profile: {profile}")
    if smaller_into is not None:
        written = {Corpus(smaller_into).add(entry) for entry in made}
        click.echo(f"smaller: {len(written)} cases in {smaller_into}")
    return 0


def _check_places(folder: Path, profile: Path | None, smaller_into: Path | None) -> None:
    check_file("--profile", profile)
    if smaller_into is not None:
        check_writable("--smaller", smaller_into)
        if smaller_into.resolve() == folder.resolve():
            raise WrongUse(f"--smaller is {str(smaller_into)!r}, but expected another folder than the recording's")
    if not folder.is_dir():
        raise WrongUse(f"folder is {str(folder)!r}, but there is no such folder")


def _check_recorded(folder: Path, entries: Entries, counted: list[Counts], wanted: Path | None) -> None:
    if not entries and not counted:
        raise WrongUse(f"folder is {str(folder)!r}, but nothing was recorded into it")
    if not entries and wanted is not None:
        raise WrongUse(f"folder is {str(folder)!r}, but there is no recorded case in it for {wanted}")


def counts(folder: Path) -> Iterator[Counts]:
    """What each recorder counted; raises InvalidCase for a file that is none."""
    for path in sorted(folder.rglob("*.counts")):
        yield decode(path.read_bytes(), Counts, str(path))


def made_smaller(entry: Entry) -> Entry:
    """The entry with a case that can be replayed; as it is where it can."""
    small = smaller(entry.case)
    if too_large(small):
        raise InvalidCase(f"the case of {entry.why!r} {too_large(small)}, even when made smaller")
    return msgspec.structs.replace(entry, case=small, notes=(*entry.notes, *told(entry.case, small)))


def lines(entries: Entries, recorders: list[Counts]) -> Iterator[str]:
    """Cases, the most frequent first; what they lost; what became of all calls."""
    found = sorted((entry for _, entry in entries), key=lambda entry: -entry.seen)
    if found:
        yield from aligned([HEAD, *(_row(entry) for entry in found[:MOST])])
    if len(found) > MOST:
        yield f"and {len(found) - MOST} cases more"
    lost = Counter(note for entry in found for note in entry.notes)
    if lost:
        yield "not held by the cases:"
        yield from (f"  {count} of {len(found)}: {note}" for note, count in lost.most_common(MOST))
    if len(lost) > MOST:
        yield f"  and {len(lost) - MOST} things more, told by `harness.show` of each case"
    for one in recorders:
        yield from _counted(one)


def _row(entry: Entry) -> tuple[str, ...]:
    case = entry.case
    return (
        str(entry.seen),
        case.op,
        str(len(case.seqs)),
        _span(seq.kv_len for seq in case.seqs),
        _span(seq.query_len for seq in case.seqs),
        f"{case.num_q_heads}/{case.num_kv_heads}",
        str(case.head_dim) if case.value_dim == case.head_dim else f"{case.head_dim}/{case.value_dim}",
        str(case.block_size),
        case.dtype if case.kv_dtype == "same" else f"{case.dtype}, cache {case.kv_dtype}",
        "/".join(dict.fromkeys(case.kv_layouts)),
        case.placement,
        _marks(case, entry),
    )


def _span(numbers: Iterator[int]) -> str:
    found = sorted(numbers)
    return str(found[0]) if found[0] == found[-1] else f"{found[0]}-{found[-1]}"


def _marks(case: Case, entry: Entry) -> str:
    marks = {
        "shared blocks": any(seq.shared_blocks for seq in case.seqs),
        "padding rows": case.padding_rows > 0,
        "raised": "; raised " in entry.why,
        "too large to replay": too_large(case) is not None,
    }
    return ", ".join(mark for mark, is_so in marks.items() if is_so)


def _counted(one: Counts) -> Iterator[str]:
    kept = f"{one.looked_at} looked at, {one.sample} kept in {one.cases} cases"
    yield f"{one.function}: {one.calls} calls, {kept}; {one.raised} raised, {one.captured} while a graph was captured"
    for reasons, words in ((one.inexpressible, "no Case can hold"), (one.failed, "recording failed for")):
        yield from (f"  {words} {count}: {reason}" for reason, count in reasons.items())


if __name__ == "__main__":
    main()
