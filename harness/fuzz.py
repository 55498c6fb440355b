"""`python -m harness.fuzz`: draw, run, shrink, save, report."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import click
import msgspec
from rich.console import Console

from harness import known, mix, page
from harness.ahead import ahead_of, idle_cores
from harness.attribution import UNOPTIMISED
from harness.campaign import Campaign, Plan
from harness.commands import (
    DEFAULT_OP,
    FAULT,
    NOTHING_RAN,
    WRONG_USE,
    Verb,
    ahead_option,
    check_file,
    check_writable,
    chosen_executor,
    device_option,
    executor_option,
    html_option,
    one_line_errors,
    op_option,
    other_executor,
    subject_option,
)
from harness.corpus import Corpus
from harness.files import write_atomically
from harness.journal import Journal, discard, leftovers
from harness.pictures import pictures
from harness.pool import Worker
from harness.report import first_line, summary_lines
from harness.running import Elsewhere, Journalled, journal_folder
from harness.screen import Screen, write
from harness.subjects import SUBJECTS, WrongUse, operation
from harness.summary import Summary, exit_code, merge, to_builtins

#: Seconds between two summaries that a worker of a larger campaign sends to its parent.
SEND_EVERY = 0.5


class Minutes(click.ParamType[float]):
    """A positive number of minutes."""

    name = "minutes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; fails for what is no positive, finite number."""
        try:
            minutes = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of minutes", param, ctx)
        if not 0 < minutes < 60 * 24 * 365:
            self.fail(f"{value} is not a positive number of minutes", param, ctx)
        return minutes * 60


@click.command(cls=Verb)
@click.option(
    "--minutes", "seconds", type=Minutes(), default=5.0, show_default=True, help="How long, shrinking included."
)
@subject_option
@op_option
@executor_option
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Independent campaigns.")
@device_option
@ahead_option
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Default: a new one, which is printed.")
@click.option(
    "--max-cases", type=click.IntRange(min=1), default=None, help="Draw so many cases; what fails is still shrunk."
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    default=None,
    help="Draw near recorded calls: a folder that was recorded into, or the file that `harness.recorded` writes.",
)
@click.option("--corpus", type=click.Path(file_okay=False, path_type=Path), default=Path("corpus"), show_default=True)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for report.txt and summary.json.",
)
@html_option
@click.option("--list", "listing", is_flag=True, help="Show our subjects and what they declare.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object on standard output.")
@click.option(
    "--as-part",
    "part",
    type=click.IntRange(min=0),
    default=None,
    hidden=True,
    help="Which of several campaigns it is: it sends summaries as JSON lines to a parent.",
)
@one_line_errors
def main(listing: bool, workers: int, **options: Any) -> int:
    """Draw hostile inputs, run kernels on them, and complain about what is wrong, in its smallest form.

    Exit code: 0 nothing new; 1 a new finding; 2 wrong use; 3 the harness or the platform is at fault; 5 nothing ran.
    """
    options["mix"] = None if options["profile"] is None else mix.read(options["profile"])
    options["subjects"] = options["subjects"] or ours(options["op"], options["mix"])
    if not options["subjects"]:
        raise WrongUse(f"--op is {options['op']!r}, but no call of it is in the profile {str(options['profile'])!r}")
    options["op"] = options["op"] or DEFAULT_OP
    options["executor"] = chosen_executor(options["executor"])
    check_writable("--corpus", options["corpus"])
    if options["report"]:
        check_writable("--report", options["report"])
    check_file("--html", options["html"])
    if options["seed"] is None:
        options["seed"] = random.randrange(2**31)  # noqa: S311  (drawing, not secrecy)
    if listing:
        return list_subjects(options, as_json=options["as_json"])
    if options["part"] is not None:
        return run_part(options)
    return run_parts(options, workers) if workers > 1 else run_alone(options)


def ours(op: str | None, recorded: mix.Mix | None = None) -> tuple[str, ...]:
    """Our own subjects, of one operation if it is given, and of what was recorded."""
    ops = {operation(name) for name in SUBJECTS} if recorded is None else {share.case.op for share in recorded.calls}
    return tuple(name for name in SUBJECTS if op in (None, operation(name)) and operation(name) in ops)


def list_subjects(options: dict[str, Any], as_json: bool) -> int:
    """Print each subject's declaration."""
    with Worker(options["executor"], options["device"]) as worker:
        declared = {name: worker.describe(name, options["op"]) for name in options["subjects"]}
    plain = {name: {"op": declaration.op} | msgspec.to_builtins(declaration) for name, declaration in declared.items()}
    if as_json:
        click.echo(json.dumps(plain))
        return 0
    for name, fields in plain.items():
        click.echo(f"{name}: {', '.join(f'{field}={value}' for field, value in fields.items())}")
    return 0


def run_alone(options: dict[str, Any]) -> int:
    """One campaign in this process, on the screen."""
    console = Console(stderr=options["as_json"])
    say = _say(console)
    say(f"{first_line(options['subjects'], options['executor'], options['seconds'])}, seed {options['seed']}")
    with Screen(console, options["seconds"]) as screen:
        summary = run_campaign(options, lambda c: screen.show(c.summary, c.shrinking), say)
    return conclude(summary, options, say)


def run_part(options: dict[str, Any]) -> int:
    """One of several campaigns: summaries go to standard output, a line each; it ends with its standard input."""
    threading.Thread(target=_interrupt_at_end_of_input, daemon=True).start()
    last = time.monotonic()

    def send(campaign: Campaign) -> None:
        nonlocal last
        if time.monotonic() - last >= SEND_EVERY:
            last = time.monotonic()
            _send(campaign.summary(), campaign.shrinking)

    summary = run_campaign(options, send, lambda line: click.echo(line, err=True))
    _send(summary, "")
    return exit_code(summary)


def _interrupt_at_end_of_input() -> None:
    """The parent had a Ctrl-C, or is dead."""
    sys.stdin.read()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _send(summary: Summary, activity: str) -> None:
    line = msgspec.json.encode({"summary": summary, "activity": activity}).decode()
    click.echo(line)
    sys.stdout.flush()


def run_campaign(options: dict[str, Any], tell: Callable[[Campaign], None], say: Callable[[str], None]) -> Summary:
    """Run one campaign with a worker of its own."""
    began = time.monotonic()
    folder = journal_folder()
    other = other_executor(options["executor"])
    with (
        Worker(options["executor"], options["device"]) as worker,
        Elsewhere(other or "", options["device"] if other == "gpu" else None) as elsewhere,
        Elsewhere("gpu", options["device"], UNOPTIMISED) as unoptimised,
        ahead_of(options["executor"], options["ahead"], options["device"]) as ahead,
    ):
        where = worker.call("harness.executors:platform_of", options["executor"])
        declared = {name: worker.describe(name, options["op"]) for name in options["subjects"]}
        recorded = {} if options["mix"] is None else mix.near(options["mix"], declared, say)
        plan = Plan(
            subjects={name: one for name, one in declared.items() if name in recorded or not recorded},
            recorded=recorded,
            executor=options["executor"],
            seconds=options["seconds"],
            seed=_seed(options["seed"], options["part"]),
            pools=options["seed"],
            first=options["part"] or 0,
            max_cases=options["max_cases"],
            corpus=Corpus(options["corpus"]),
            known=known.read(options["corpus"] / "known.toml"),
        )
        runner = Journalled(worker, Journal(folder))
        campaign = Campaign(
            plan, runner, tell, began, elsewhere if other else None, ahead=ahead, platform=where,
            unoptimised=unoptimised if options["executor"] == "gpu" else None,
        )  # fmt: skip
        return campaign.run(first=lambda: _take_up_leftovers(campaign, folder, say))


def _seed(seed: int, part: int | None) -> int:
    """What a part draws is its own; pools are common to all parts, so that each kernel is compiled once."""
    return seed if part is None else seed * 1000 + part


def _take_up_leftovers(campaign: Campaign, folder: Path, say: Callable[[str], None]) -> None:
    """Cases that were in flight when an earlier run was killed: run them first."""
    for entry in leftovers(folder):
        if entry.subject in campaign.plan.subjects and entry.executor == campaign.plan.executor:
            say(f"an earlier run was killed during a case of {entry.subject}: running it again")
            campaign.take_up(entry.case, entry.subject)
            discard(folder, entry)


def _say(console: Console) -> Callable[[str], None]:
    return lambda line: write(console, line)


def conclude(summary: Summary, options: dict[str, Any], say: Callable[[str], None]) -> int:
    """Print the report, write what was asked for, and give the exit code."""
    lines = list(summary_lines(summary))
    for line in lines:
        say(line)
    plain = json.dumps(to_builtins(summary))
    if options["as_json"]:
        click.echo(plain)
    if options["report"]:
        options["report"].mkdir(parents=True, exist_ok=True)
        write_atomically(options["report"] / "report.txt", "\n".join(lines) + "\n")
        write_atomically(options["report"] / "summary.json", plain + "\n")
    if options["html"]:
        write_atomically(options["html"], _page(summary, options))
        say(f"page: {options['html']}")
    return exit_code(summary)


def _page(summary: Summary, options: dict[str, Any]) -> str:
    """The summary as a page; each finding's smallest case is run once more, to be drawn."""
    if not summary.findings:
        return page.of_campaign(summary, [])
    with Worker(options["executor"], options["device"]) as worker:
        return page.of_campaign(summary, pictures(worker, summary.findings))


# --- several campaigns at once -----------------------------------------------------------------------------------


def run_parts(options: dict[str, Any], workers: int) -> int:
    """N campaigns with seeds of their own, which share pools and the corpus; their summaries are added up."""
    console = Console(stderr=options["as_json"])
    say = _say(console)
    about = first_line(options["subjects"], options["executor"], options["seconds"])
    say(f"{about}, {workers} workers, seed {options['seed']}")
    parts = [_Part(options, number, workers) for number in range(workers)]
    with Screen(console, options["seconds"]) as screen:
        try:
            _watch(parts, screen)
        except KeyboardInterrupt:
            for part in parts:
                part.stop()
    for part in parts:
        part.finish()
    for line in dict.fromkeys(line for part in parts for line in part.errors):
        click.echo(line, err=True)
    if not any(part.latest for part in parts):
        codes = {part.code for part in parts}
        return codes.pop() if codes in ({WRONG_USE}, {NOTHING_RAN}) else FAULT
    return conclude(_merged(parts), options, say)


def _watch(parts: list["_Part"], screen: Screen) -> None:
    while any(part.is_running() for part in parts):
        time.sleep(0.1)
        if all(part.latest for part in parts):
            screen.show(lambda: _merged(parts), "; ".join(part.activity for part in parts if part.activity))


def _merged(parts: list["_Part"]) -> Summary:
    whole = merge(part.latest for part in parts if part.latest)
    lost = tuple(f"a worker ended with exit code {part.code}, its last summary counts" for part in parts if part.lost)
    return msgspec.structs.replace(whole, harness_faults=(*whole.harness_faults, *lost))


class _Part:
    """A campaign in a process of its own."""

    def __init__(self, options: dict[str, Any], number: int, workers: int) -> None:
        self.latest: Summary | None = None
        self.activity = ""
        self.code = 0
        self.errors: list[str] = []
        command = [sys.executable, "-m", "harness.fuzz", *_arguments(options, number, workers)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is the parent's alone
        )
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_errors, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            message = json.loads(line)
            self.latest = msgspec.convert(message["summary"], Summary, str_keys=True)
            self.activity = message["activity"]

    def _read_errors(self, stream: IO[str]) -> None:
        self.errors.extend(line.rstrip() for line in stream)

    def is_running(self) -> bool:
        """Whether the campaign goes on."""
        return self._process.poll() is None

    @property
    def lost(self) -> bool:
        """Whether it ended in another way than a campaign does."""
        return self.code not in (0, 1, FAULT, NOTHING_RAN)

    def stop(self) -> None:
        """Ask for an early end with what there is."""
        if self._process.stdin:
            self._process.stdin.close()

    def finish(self) -> None:
        """Wait for the last summary."""
        self.code = self._process.wait()
        for reader in self._readers:
            reader.join()


def _arguments(options: dict[str, Any], number: int, workers: int) -> Iterator[str]:
    for name in options["subjects"]:
        yield from ("--subject", name)
    yield from ("--minutes", str(options["seconds"] / 60), "--op", options["op"], "--executor", options["executor"])
    yield from ("--seed", str(options["seed"]), "--as-part", str(number), "--corpus", str(options["corpus"]))
    yield from ("--ahead", str(_ahead(options["ahead"], workers) if number == 0 else 0))
    for name in ("device", "profile"):
        if options[name] is not None:
            yield from (f"--{name}", str(options[name]))
    if options["max_cases"] is not None:
        yield from ("--max-cases", str(-(-options["max_cases"] // workers)))


def _ahead(wanted: int | None, workers: int) -> int:
    """What the first part has compiled ahead for all of them."""
    return idle_cores(workers) if wanted is None else wanted


if __name__ == "__main__":
    main()
