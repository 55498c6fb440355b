"""`python -m harness.exam`: hunt mutants, and say how much a green run is worth."""

import json
import os
import random
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness import comparison, exam_page, exam_table, injections, thresholds
from harness.commands import (
    DEFAULT_OP,
    Verb,
    check_writable,
    chosen_executor,
    device_option,
    executor_option,
    one_line_errors,
    op_option,
    subject_option,
)
from harness.crew import Crew
from harness.examiner import Job
from harness.mutants import CLASSES, Mutant
from harness.screen import PLAIN_EVERY, write
from harness.selection import Selected, Wanted, select
from harness.subjects import WrongUse, operation
from harness.verdicts import Exam, Verdict, exit_code, to_builtins


@click.command(cls=Verb)
@subject_option
@click.option(
    "--mutants",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE|FOLDER",
    help="Faults to plant, in TOML. Default: those that come with the harness, in our own kernels.",
)
@click.option("--class", "classes", type=click.Choice(list(CLASSES)), multiple=True, help="Faults of this class only.")
@click.option("--name", "names", multiple=True, help="The mutant of this name only; may be given several times.")
@click.option("--planted/--no-planted", default=True, help="Faults written by hand.")
@click.option("--systematic/--no-systematic", default=True, help="Small changes made wherever they can be made.")
@click.option("--workers", type=click.IntRange(min=1), default=os.cpu_count(), help="Default: one per core.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True, max=86400),
    default=60.0,
    show_default=True,
    help="How long cases are drawn for each mutant.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--min-score", type=click.FloatRange(0, 1), default=0.98, show_default=True, help="Of planted faults.")
@click.option(
    "--min-systematic", type=click.FloatRange(0, 1), default=0.95, show_default=True, help="Of systematic mutants."
)
@op_option
@executor_option
@device_option
@click.option("--others", is_flag=True, help="Try the recipes of other projects' tests on the planted faults as well.")
@click.option(
    "--sensitivity", is_flag=True, help="Instead of mutants, find the smallest injected errors that are found."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page to this file.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Write a section into this file.")
@one_line_errors
def main(**options: Any) -> int:
    """Plant faults in kernels, hunt each of them, and say which were found, by what, and how soon.

    On your own kernel: `--subject my.py:fn` changes a copy of it in small ways, one at a time, which tells how much a
    green run of `python -m harness.fuzz` on it is worth.

    Exit code: 0 enough were found; 1 too few; 2 wrong use, or a subject that fails as it is; 3 the harness is at fault;
    5 interrupted.
    """
    for option in ("html", "markdown"):
        if options[option]:
            check_writable(f"--{option}", options[option].absolute().parent)
            options[option].absolute().parent.mkdir(parents=True, exist_ok=True)
    options["executor"] = chosen_executor(options["executor"])
    if options["others"] and options["executor"] != "gridsim":
        raise WrongUse(f"--others runs on gridsim alone, but the executor is {options['executor']!r}")
    console = Console(stderr=options["as_json"])
    exam = sensed(options, console) if options["sensitivity"] else run(_selected(options), options, console)
    conclude(exam, options, lambda line: write(console, line))
    return exit_code(exam)


def _selected(options: dict[str, Any]) -> Selected:
    return select(Wanted(**{name: options[name] for name in Wanted.__dataclass_fields__}))


def run(selected: Selected, options: dict[str, Any], console: Console) -> Exam:
    """Hunt every mutant, and count."""
    began = time.monotonic()
    verdicts, interrupted = _hunted(selected, options, console)
    return Exam(
        executor=options["executor"],
        seed=options["seed"],
        limit=options["seconds"],
        workers=options["workers"],
        seconds=round(time.monotonic() - began, 1),
        min_score=options["min_score"],
        min_systematic=options["min_systematic"],
        equivalent=selected.equivalent,
        interrupted=interrupted,
        mutants=tuple(verdicts),
    )


def sensed(options: dict[str, Any], console: Console) -> Exam:
    """Inject errors, smaller and smaller, and tell which were found."""
    _check_injected(options)
    chosen = [one for one in injections.INJECTIONS if not options["names"] or one.name in options["names"]]
    known = {(blank.injection, blank.dtype): blank for blank in injections.blank(chosen)}
    began, interrupted = time.monotonic(), False
    with (
        tempfile.TemporaryDirectory(prefix="kvetch-exam-") as folder,
        Crew(options["workers"], options["executor"], options["device"]) as crew,
    ):
        try:
            for one in thresholds.measured(
                known.values(), lambda mutants: crew.examine(_steps(mutants, options, folder))
            ):
                known[one.injection, one.dtype] = one
                write(console, thresholds.line(one))
        except KeyboardInterrupt:
            interrupted = True
    return Exam(
        executor=options["executor"],
        seed=options["seed"],
        limit=thresholds.SECONDS,
        workers=options["workers"],
        seconds=round(time.monotonic() - began, 1),
        interrupted=interrupted,
        thresholds=tuple(known.values()),
    )


def _check_injected(options: dict[str, Any]) -> None:
    """Raise WrongUse for what makes no sense without mutants."""
    for option, name in (("subject", "subjects"), ("mutants", "mutants"), ("class", "classes"), ("others", "others")):
        if options[name]:
            raise WrongUse(f"--{option} does not go with --sensitivity, which injects errors into kernels of ours")
    names = [one.name for one in injections.INJECTIONS]
    for name in options["names"]:
        if name not in names:
            raise WrongUse(f"no injected error is named {name!r}; there are {', '.join(names)}")


def _steps(mutants: list[Mutant], options: dict[str, Any], folder: str) -> list[Job]:
    return [
        Job(
            mutant=mutant,
            op=operation(mutant.subject),
            seconds=thresholds.SECONDS,
            cases=thresholds.CASES,
            seed=_seed(options["seed"], mutant),
            folder=folder,
            systematic=True,
        )
        for mutant in mutants
    ]


def _hunted(selected: Selected, options: dict[str, Any], console: Console) -> tuple[list[Verdict], bool]:
    """The verdicts, and whether Ctrl-C ended it with those that there are."""
    verdicts: list[Verdict] = []
    with (
        tempfile.TemporaryDirectory(prefix="kvetch-exam-") as folder,
        Crew(options["workers"], options["executor"], options["device"]) as crew,
        Watch(console, len(selected.all)) as watch,
    ):
        jobs = list(_jobs(selected, options, folder))
        _check_right(crew, jobs, watch)
        try:
            for verdict in crew.examine(jobs):
                verdicts.append(verdict)
                watch.show(verdict)
        except KeyboardInterrupt:
            return verdicts, True
    return verdicts, False


def _jobs(selected: Selected, options: dict[str, Any], folder: str) -> Iterator[Job]:
    for mutants, systematic in ((selected.planted, False), (selected.systematic, True)):
        for mutant in mutants:
            yield Job(
                mutant=mutant,
                op=operation(mutant.subject) if mutant.is_ours else options["op"] or DEFAULT_OP,
                seconds=options["seconds"],
                seed=_seed(options["seed"], mutant),
                folder=folder,
                systematic=systematic,
                others=options["others"],
            )


def _seed(seed: int, mutant: Mutant) -> int:
    """A seed of its own, the same whether it is hunted alone or among others."""
    return random.Random(f"{seed} {mutant.name}").getrandbits(32)  # noqa: S311  (drawing, not secrecy)


def _check_right(crew: Crew, jobs: Sequence[Job], watch: "Watch") -> None:
    """Raise WrongUse for a user's subject that fails as it is, since every mutant of it would seem to be found."""
    first = {job.mutant.subject: job for job in reversed(jobs) if not job.mutant.is_ours}
    if first:
        watch.say(f"hunting in {', '.join(first)} as it is, so that what is found later is the mutant's")
    for verdict in crew.examine([msgspec.structs.replace(job, as_it_is=True) for job in first.values()]):
        if verdict.fault:
            raise WrongUse(f"{verdict.subject} cannot be examined: {verdict.fault}")
        if verdict.found:
            again = shlex.join(["python", "-m", "harness.fuzz", "--subject", verdict.subject])
            told = f"{verdict.subject} fails as it is: {verdict.check}: {verdict.message}"
            raise WrongUse(f"{told}; every mutant would seem to be found. Mend or declare it first: {again}")
        if not verdict.cases:
            raise WrongUse(f"{verdict.subject} took none of the cases that were drawn in {verdict.seconds:.0f} s")


def conclude(exam: Exam, options: dict[str, Any], say: Callable[[str], None]) -> None:
    """Print the report, and write what was asked for."""
    for line in exam_table.lines(exam, list(_repeated(options))):
        say(line)
    if options["as_json"]:
        click.echo(json.dumps(to_builtins(exam) | comparison.figures(exam)))
    if options["html"]:
        exam_page.write(options["html"], exam)
    if options["markdown"]:
        exam_table.write_into(options["markdown"], exam)


def _repeated(options: dict[str, Any]) -> Iterator[str]:
    """The options without which a mutant is not hunted in the same way again."""
    for subject in options["subjects"]:
        yield from ("--subject", subject)
    for name, default in (("mutants", None), ("op", None), ("seconds", 60.0), ("seed", 0)):
        if options[name] != default:
            yield from (f"--{name}", f"{options[name]:g}" if name == "seconds" else str(options[name]))
    yield from ("--executor", options["executor"])


class Watch:
    """Shows how far the exam is: a bar in a terminal, plain lines elsewhere; what is missed is told at once."""

    def __init__(self, console: Console, number: int) -> None:
        self.console, self.number = console, number
        self._verdicts: list[Verdict] = []
        self._last = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("hunting", total=number)

    def __enter__(self) -> "Watch":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """One line above the bar."""
        write(self.console, line)

    def show(self, verdict: Verdict) -> None:
        """One more verdict."""
        self._verdicts.append(verdict)
        missed = sum(not other.passed for other in self._verdicts)
        self._bar.update(self._task, completed=len(self._verdicts), description=f"hunting, {missed} missed")
        if not verdict.passed:
            self.say(f"{exam_table.found_by(verdict)}: {verdict.name}")
        if not self.console.is_terminal and time.monotonic() - self._last >= PLAIN_EVERY:
            self._last = time.monotonic()
            self.say(f"{len(self._verdicts)} of {self.number} hunted, {missed} missed")


if __name__ == "__main__":
    main()
