"""`python -m harness.compiles`: whether every kernel that drawn cases launch compiles for GPUs that are not here."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from harness.builds import TARGETS, Build, chosen_targets, counts, reproduction, tell
from harness.case import Case, Record
from harness.commands import DEFAULT_OP, NOTHING_RAN, Verb, check_writable, one_line_errors, op_option, subject_option
from harness.compiles_table import table
from harness.corpus import versions
from harness.files import write_atomically
from harness.fixed import fixed_cases
from harness.fuzz import ours
from harness.pool import Died, Worker
from harness.profiles import Constants
from harness.strategies import constants_of
from harness.subjects import Declaration, WrongUse

#: Cases that are drawn, and how many are compiled: those that differ most in what the compiler sees.
DRAWN, CASES = 300, 8
#: Seconds that a case may take on gridsim, and builds that a worker is asked for at once, for each process.
CASE_SECONDS, BATCH = 60.0, 8
#: Seconds of processor time that one compilation may take.
SECONDS = 300
#: How many times that a worker is waited for: on a busy machine a compilation waits for its turn.
PATIENCE = 12

Tell = Callable[[str], None]


class Compiled(Record, frozen=True):
    """What became of the kernels of one subject."""

    subject: str
    builds: tuple[Build, ...] = ()
    raised: tuple[str, ...] = ()  # cases that ended early, so that their later launches were not seen
    died: str = ""  # how the cases killed the worker, so that nothing was compiled
    seconds: float = 0.0

    @property
    def failures(self) -> tuple[Build, ...]:
        """The builds that cannot be launched."""
        return tuple(build for build in self.builds if build.outcome in ("fails", "does not fit"))


class Report(Record, frozen=True):
    """A whole run of the command."""

    seed: int
    cases: int
    targets: tuple[str, ...]
    versions: dict[str, str]
    subjects: tuple[Compiled, ...]

    @property
    def exit_code(self) -> int:
        """1 where something cannot be launched, 5 where nothing was compiled."""
        if any(found.failures or found.died for found in self.subjects):
            return 1
        return 0 if any(found.builds for found in self.subjects) else NOTHING_RAN


@click.command(cls=Verb)
@subject_option
@op_option
@click.option("--targets", default=",".join(TARGETS), show_default=True, help="For which GPUs; none need be here.")
@click.option(
    "--cases", type=click.IntRange(min=1), default=CASES, show_default=True, help="How many, of each subject."
)
@click.option(
    "--case", "only", type=click.IntRange(min=0), default=None, help="Only the case of this number, for a failure."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="What the cases are drawn from.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes. Default: one for each core.")
@click.option(
    "--seconds",
    type=click.IntRange(min=1),
    default=SECONDS,
    show_default=True,
    help="Of processor time, that one compilation may take.",
)
@click.option(
    "--table",
    "table_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write a Markdown table of shared memory, registers and spills.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@one_line_errors
def main(subjects: tuple[str, ...], op: str | None, targets: str, as_json: bool, **options: Any) -> int:
    """Compile every specialisation that drawn cases launch, with Triton's own compiler; no GPU is needed.

    Exit code: 0 all compile and fit; 1 one does not; 2 wrong use; 3 the harness is at fault; 5 nothing was compiled.
    """
    chosen = chosen_targets(targets)
    if options["table_file"]:
        check_writable("--table", options["table_file"].absolute().parent)
    say: Tell = lambda line: click.echo(line, err=as_json)  # noqa: E731
    found = []
    with Worker("gridsim") as worker:
        for name in subjects or ours(op):
            declared = worker.describe(name, op or DEFAULT_OP)
            found.append(compile_subject(worker, name, declared, _numbered(declared, options), chosen, say, options))
    report = Report(options["seed"], options["cases"], chosen, versions(), tuple(found))
    for line in failure_lines(report):
        say(line)
    if options["table_file"]:
        write_atomically(options["table_file"], table(report.subjects, chosen, versions(), _command(report)))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report) | {"exit_code": report.exit_code}))
    return report.exit_code


def _numbered(declared: Declaration, options: dict[str, Any]) -> dict[int, Case]:
    drawn = distinct(fixed_cases(declared, options["seed"], DRAWN), options["cases"])
    only = options["only"]
    if only is not None and only not in drawn:
        raise WrongUse(f"--case is {only}, but the cases that are compiled are {', '.join(map(str, drawn))}")
    return drawn if only is None else {only: drawn[only]}


def distinct(cases: Iterable[Case], number: int) -> dict[int, Case]:
    """The first cases with compile-time constants that no earlier one has, by their numbers among all cases."""
    first: dict[Constants, int] = {}
    numbered = dict(enumerate(cases))
    for i, case in numbered.items():
        first.setdefault(constants_of(case), i)
    return {i: numbered[i] for i in list(first.values())[:number]}


def compile_subject(
    worker: Worker,
    subject: str,
    declared: Declaration,
    cases: Mapping[int, Case],
    targets: tuple[str, ...],
    say: Tell,
    options: Mapping[str, Any],
) -> Compiled:
    """Compile what the cases launch; `options` may hold `jobs` and `seconds`. The worker is one of gridsim."""
    began = time.monotonic()
    jobs, seconds = options.get("jobs") or len(os.sched_getaffinity(0)), options.get("seconds") or SECONDS
    try:
        found = worker.call(
            "harness.compiling:collect", subject, declared.op, list(cases.values()), list(cases), targets,
            limit_seconds=CASE_SECONDS * len(cases),
        )  # fmt: skip
    except Died as death:
        say(f"{subject}: {death}")
        return Compiled(subject, died=str(death), seconds=round(time.monotonic() - began, 1))
    builds = tuple(_built(worker, len(found["builds"]), jobs, seconds))
    took = round(time.monotonic() - began, 1)
    compiled = Compiled(subject, builds, tuple(found["raised"]), seconds=took)
    say(summary_line(compiled))
    return compiled


def _built(worker: Worker, number: int, jobs: int, seconds: int) -> Iterator[Build]:
    size = BATCH * jobs
    for start in range(0, number, size):
        wanted = list(range(start, min(start + size, number)))
        limit = float(-(-len(wanted) // jobs) * seconds * PATIENCE)
        plain = worker.call("harness.compiling:compiled", wanted, jobs, seconds, limit_seconds=limit)
        yield from msgspec.convert(plain, list[Build])


# --- words ---------------------------------------------------------------------------------------------------------


def summary_line(found: Compiled) -> str:
    """How many of what."""
    return f"{found.subject}: {counts(found.builds)}, {found.seconds:.0f} s"


def failure_lines(report: Report) -> Iterator[str]:
    """Each build that cannot be launched, with what reproduces it; then what was not seen, and what was declined."""
    for found in report.subjects:
        for build in found.failures:
            yield tell(build)
            yield f"  {reproduction(found.subject, report.seed, build)}"
        for line in found.raised:
            yield f"{found.subject}: {line}: what it would have launched after that was not compiled"
    builds = [build for found in report.subjects for build in found.builds if build.outcome == "declined"]
    for kernel, target, says in sorted({(build.kernel, build.target, build.says) for build in builds}):
        yield f"declined: {kernel} on {target}: {says}"


def _command(report: Report) -> str:
    names = "".join(f" --subject {found.subject}" for found in report.subjects)
    where = "" if report.targets == tuple(TARGETS) else f" --targets {','.join(report.targets)}"
    everything = [found.subject for found in report.subjects] == list(ours(None))
    return f"python -m harness.compiles{'' if everything else names} --cases {report.cases} --seed {report.seed}{where}"


if __name__ == "__main__":
    main()
