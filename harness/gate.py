"""`python -m harness.gate --base REV`: what a change broke, and nothing that was broken before it."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from harness import gate_page, junit, markdown, sarif
from harness.commands import Verb, device_option, executor_option, html_option, one_line_errors, op_option
from harness.comparing import run
from harness.files import write_atomically
from harness.gate_report import lines
from harness.outcome import Gate, bisect_code, exit_code

#: Cases that are drawn for each touched subject, and the minutes after which a gate is cut.
CASES, MINUTES = 300, 10.0
#: What `git bisect run` takes for "this commit cannot be tested", and for "stop".
SKIP, ABORT = 125, 130


class Shard(click.ParamType[tuple[int, int]]):
    """`2/4`: the second of four."""

    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Part and parts; fails for what is no part of so many."""
        part, _, parts = str(value).partition("/")
        if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
            self.fail(f"{value!r} is not i/n with i from 1 to n", param, ctx)
        return int(part), int(parts)


class _Skipped(click.ClickException):
    exit_code = SKIP


class GateVerb(Verb):
    """With `--bisect`, wrong use must not look like a bad commit."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> click.Context:
        """Parse the arguments."""
        bisecting = "--bisect" in args
        try:
            return super().make_context(info_name, args, *rest, **options)
        except click.ClickException as error:
            raise _Skipped(error.format_message()) if bisecting else error from None


def _file_option(name: str, words: str) -> Callable[[Any], Any]:
    return click.option(name, type=click.Path(dir_okay=False, path_type=Path), default=None, help=words)


@click.command(cls=GateVerb)
@click.option("--base", metavar="REV", default=None, help="What to compare with: where HEAD left this revision.")
@click.option(
    "--base-python",
    metavar="PATH",
    default=None,
    help="The Python of another environment for the base; without --base, on the same kernels.",
)
@click.option(
    "--subject", "subjects", multiple=True, metavar="NAME|FILE.py:FUNCTION",
    help="What to gate; may be given several times. Default: the subjects of kvetch.toml.",
)  # fmt: skip
@op_option
@click.option("--all", "everything", is_flag=True, help="Every subject, whatever the change touches.")
@click.option("--cases", type=click.IntRange(min=1), default=CASES, show_default=True, help="To draw for each subject.")
@click.option(
    "--minutes", type=click.FloatRange(min=0.0, min_open=True), default=MINUTES, show_default=True,
    help="A cap only: a gate that is cut is not green.",
)  # fmt: skip
@executor_option
@device_option
@click.option("--corpus", type=click.Path(file_okay=False, path_type=Path), default=Path("corpus"), show_default=True)
@click.option("--shard", type=Shard(), default="1/1", show_default=True, help="Run the i-th of n parts of the cases.")
@click.option("--compile", is_flag=True, help="Compile what drawn cases launch for GPUs that are not here as well.")
@click.option("--speed", is_flag=True, help="Time both sides on the named workloads as well; needs a GPU.")
@click.option("--bisect", is_flag=True, help="Exit codes for git bisect run: 0 good, 1 bad, 125 cannot be tested.")
@click.option(
    "--save", type=click.Path(file_okay=False, path_type=Path), default=Path("kvetch-findings"), show_default=True,
    help="Folder for the smallest cases of new findings.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object on standard output.")
@_file_option("--junit", "Write JUnit XML.")
@_file_option("--sarif", "Write SARIF 2.1.0.")
@_file_option("--summary", "Append a summary in Markdown. Default: GITHUB_STEP_SUMMARY where it is set.")
@html_option
@one_line_errors
def main(**options: Any) -> int:
    """Say what a change broke, against its base, on a fixed number of cases: the same verdict when run again.

    Exit code: 0 green; 1 something new or unacknowledged; 2 wrong use; 3 the harness is at fault; 5 nothing ran, or
    not all of it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cancelled job leaves no worktree behind
    if not options["bisect"]:
        return exit_code(_told(options))
    try:
        return bisect_code(_told(options))
    except KeyboardInterrupt:
        return ABORT
    except Exception as error:  # whatever it is, it is not that the commit is bad
        click.echo(f"kvetch: cannot be tested: {' '.join(str(error).split())}", err=True)
        return SKIP


# --- what is told ------------------------------------------------------------------------------------------------


def _tell(subject: str, done: int, trials: int) -> None:
    """How far it is, on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r{subject}: {done + 1} of {trials}", nl=done + 1 == trials, err=True)


def _told(options: dict[str, Any]) -> Gate:
    outcome = run(options, lambda line: click.echo(line, err=options["as_json"]), _tell)
    tell_outcome(outcome, options)
    return outcome


def tell_outcome(outcome: Gate, options: dict[str, Any]) -> None:
    """Print the report and write what was asked for."""
    for line in lines(outcome):
        click.echo(line, err=options["as_json"])
    if options["as_json"]:
        click.echo(json.dumps(msgspec.to_builtins(outcome, str_keys=True) | {"exit_code": exit_code(outcome)}))
    if options["junit"]:
        write_atomically(options["junit"], junit.text(outcome))
    if options["sarif"]:
        write_atomically(options["sarif"], sarif.text(outcome))
    _append_summary(outcome, options["summary"] or os.environ.get("GITHUB_STEP_SUMMARY"))
    if options["html"]:
        write_atomically(options["html"], gate_page.drawn(outcome, Path.cwd(), options["device"]))


def _append_summary(outcome: Gate, path: Path | str | None) -> None:
    """GitHub's file may hold what earlier steps wrote."""
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(markdown.text(outcome))


if __name__ == "__main__":
    main()
