"""`python -m harness.bench`: every kernel that is installed, side by side on named workloads, each judged and timed."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from harness import speed_figure, speed_table
from harness.benching import LIMIT, QUICK, USUAL, Rig, adapted, check_name, installed
from harness.commands import (
    DEFAULT_OP,
    Verb,
    check_file,
    check_gpu,
    chosen_executor,
    device_option,
    executor_option,
    one_line_errors,
    op_option,
)
from harness.pool import Died, HarnessFault, Worker
from harness.settings import read as settings
from harness.speeds import SCHEMA, Bench, Size, Speed, read, save
from harness.subjects import SUBJECTS, WrongUse, operation
from harness.workloads import WORKLOADS, Workload, named

#: By how much `--check` makes workloads smaller.
SCALE = 64
Keep = Callable[[Bench], None]


@click.command(cls=Verb)
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="NAME|FILE.py:FUNCTION",
    help="What to time. Default: ours, every installed adapter, and the FILE.py:FUNCTIONs of kvetch.toml.",
)
@op_option
@click.option("--workload", "workloads", multiple=True, help="By name (--list shows them); default: all.")
@click.option("--list", "listing", is_flag=True, help="Name the workloads and the subjects, and run nothing.")
@click.option("--check", "checking", is_flag=True, help="Judge smaller workloads, on a CPU as well, and time nothing.")
@click.option(
    "--scale", type=click.IntRange(min=2), default=SCALE, show_default=True, help="How much smaller --check has them."
)
@click.option("--quick", is_flag=True, help="3 repeats of 10 ms rather than 5 of 50.")
@click.option(
    "--turn",
    type=click.FloatRange(min=1),
    default=None,
    metavar="MS",
    help="Milliseconds of a repeat. In long ones a GPU slows down to what its power limit allows.",
)
@click.option(
    "--limit",
    "seconds",
    type=click.FloatRange(min=1),
    default=LIMIT,
    show_default=True,
    help="Seconds of a subject on a workload.",
)
@executor_option
@device_option
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write every repeat.")
@click.option(
    "--plot",
    "figure",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw shares of the ceilings; needs matplotlib.",
)
@click.option(
    "--show",
    "shown",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show what --json wrote, and run nothing.",
)
@one_line_errors
def main(
    listing: bool, checking: bool, file: Path | None, figure: Path | None, shown: Path | None, **options: Any
) -> int:
    """Time kernels side by side: cold caches, CUDA graphs, ceilings of the same run, and each output judged.

    Exit code: 0 all that was judged is right; 1 a subject is wrong; 2 wrong use; 3 the harness is at fault; 5 nothing
    was judged.
    """
    chosen = named(options["workloads"])
    for name in options["subjects"]:
        check_name(name)
    speed_figure.check(figure)
    check_file("--json", file)
    if listing:
        return _list()
    keep: Keep = (lambda bench: save(bench, file)) if file else lambda _: None
    bench = read(shown) if shown else (_checked if checking else _timed)(chosen, options, keep)
    keep(bench)
    speed_table.show(bench)
    if figure:
        speed_figure.draw(bench, figure)
    return bench.exit_code


def _list() -> int:
    for workload in WORKLOADS.values():
        click.echo(f"{workload.name}: {workload.words}")
    for name in SUBJECTS:
        click.echo(f"{name} ({operation(name)})")
    for name, op, version in adapted():
        click.echo(f"{name} ({op}): {f'{version} is installed' if version else 'not installed'}")
    return 0


def _timed(workloads: tuple[Workload, ...], options: dict[str, Any], keep: Keep) -> Bench:
    """Every row in full size on a GPU."""
    check_gpu("a bench times kernels on a GPU (--check judges them without one)")
    if options["executor"] not in (None, "gpu"):
        raise click.UsageError(f"--executor is {options['executor']!r}, but only a GPU can be timed; add --check")
    turn, repeats = QUICK if options["quick"] else USUAL
    pace = options["turn"] or turn, repeats
    with _rig(workloads, options, "gpu") as rig:
        bench = _begun(rig, workloads, "gpu")
        try:
            bench = replace(bench, ceilings=rig.ceilings(pace))
        except (Died, HarnessFault) as why:
            bench = replace(bench, faults=(f"the ceilings could not be measured: {why}",))
        for pair in rig.pairs(workloads):
            bench = _with(bench, rig.timed(*pair, pace))
            keep(bench)
    return bench


def _checked(workloads: tuple[Workload, ...], options: dict[str, Any], keep: Keep) -> Bench:
    """Every row of a smaller workload, judged where this machine can run it."""
    executor, scale = chosen_executor(options["executor"]), options["scale"]
    with _rig(workloads, options, executor) as rig:
        bench = replace(_begun(rig, workloads, executor), scale=scale)
        for pair in rig.pairs(workloads):
            bench = _with(bench, *rig.checked(*pair, scale))
            keep(bench)
    return bench


@contextmanager
def _rig(workloads: tuple[Workload, ...], options: dict[str, Any], executor: str) -> Iterator[Rig]:
    """A worker with the subjects; raises WrongUse where none takes one of the workloads."""
    with Worker(executor, options["device"]) as worker:
        rig = Rig(worker, options["op"] or DEFAULT_OP, options["seconds"])
        rig.load(options["subjects"] or (*installed(workloads), *_own_files()))
        if not rig.missing and not any(rig.pairs(workloads)):
            raise WrongUse(f"no subject takes one of these workloads; they are {_operations(rig)}")
        yield rig


def _begun(rig: Rig, workloads: tuple[Workload, ...], executor: str) -> Bench:
    """The record before its first row."""
    device, versions = rig.worker.call("harness.measuring:machine")
    return Bench(
        schema=SCHEMA,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(["python", "-m", "harness.bench", *sys.argv[1:]]),
        executor=executor,
        device=device,
        versions=versions,
        sizes=tuple(Size.of(workload) for workload in workloads),
        about={name: declared.about for name, declared in rig.declared.items() if declared.about},
        missing=rig.missing,
    )


def _with(bench: Bench, row: Speed, fault: str = "") -> Bench:
    """The record with one more row, which is told as it comes: a bench takes minutes."""
    time = f", {row.milliseconds:.4f} ms" if row.repeats else ""
    click.echo(f"{row.workload}: {row.subject}: {row.state}{time}{f', {row.says}' if row.says else ''}", err=True)
    return replace(bench, speeds=(*bench.speeds, row), faults=(*bench.faults, *filter(None, [fault])))


def _operations(rig: Rig) -> str:
    return ", ".join(f"{name} ({declared.op})" for name, declared in rig.declared.items()) or "none"


def _own_files() -> tuple[str, ...]:
    """The functions in files that the settings of this folder name as subjects."""
    return tuple(name for name in settings(Path()).subjects if ":" in name)


if __name__ == "__main__":
    main()
