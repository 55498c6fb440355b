"""Many cases in pieces: campaigns with one seed after the other, what each saw kept in a file, to go on another day.

Each piece is a line of JSON in the file; a run that is started again goes on with the next seed.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

#: Of a campaign's summary, what a piece keeps.
KEPT = ("seed", "executor", "platform", "seconds", "cases", "runs", "passed", "failed", "worst_margin", "exit_code")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--cases", default=100_000, show_default=True, help="Stop when the file holds so many judged cases.")
@click.option("--minutes", default=0.0, help="Stop after so many minutes; 0: never.")
@click.option("--piece", default=5.0, show_default=True, help="Minutes a piece.")
@click.option("--workers", default=2, show_default=True)
@click.option("--executor", default="gridsim", show_default=True)
@click.option("--seed", default=1000, show_default=True, help="The first piece's.")
def main(file: Path, cases: int, minutes: float, piece: float, workers: int, executor: str, seed: int) -> None:
    """Run pieces until FILE holds enough cases, and print what it holds."""
    began = time.monotonic()
    pieces = read(file)
    while counted(pieces) < cases and not (minutes and time.monotonic() - began > 60 * minutes):
        following = max((one["seed"] for one in pieces), default=seed - 1) + 1
        found = run(following, piece, workers, executor)
        with file.open("a") as out:
            out.write(json.dumps(found) + "\n")
        pieces.append(found)
        click.echo(
            f"seed {following}: {found['cases']} cases, {len(found['findings'])} findings; {counted(pieces)} in all"
        )
    for line in told(pieces):
        click.echo(line)
    sys.exit(any(one["exit_code"] for one in pieces))


def read(file: Path) -> list[dict[str, Any]]:
    """The pieces so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def counted(pieces: list[dict[str, Any]]) -> int:
    """Judged cases."""
    return sum(one["cases"] for one in pieces)


def run(seed: int, minutes: float, workers: int, executor: str) -> dict[str, Any]:
    """One campaign, cut down to what is kept; findings are kept whole."""
    command = [sys.executable, "-m", "harness.fuzz", "--json", "--minutes", minutes, "--seed", seed]
    command += ["--workers", workers, "--executor", executor]
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False, text=True)
    if not done.stdout:
        raise click.ClickException(f"the campaign with seed {seed} ended with {done.returncode}: {done.stderr[-500:]}")
    summary = json.loads(done.stdout)
    return {name: summary[name] for name in KEPT} | {"seed": seed, "findings": summary["findings"]}


def told(pieces: list[dict[str, Any]]) -> list[str]:
    """Totals: cases by subject and rung, findings by seed."""
    seeds = [one["seed"] for one in pieces]
    lines = [
        f"{counted(pieces)} cases in {len(pieces)} pieces, seeds {min(seeds)} to {max(seeds)}" if pieces else "nothing"
    ]
    rungs: dict[str, Counter[str]] = {}
    for one in pieces:
        for subject, passed in one["passed"].items():
            rungs.setdefault(subject, Counter()).update(passed)
    for subject, passed in rungs.items():
        told_rungs = ", ".join(f"rung {step} {passed[step]}" for step in sorted(passed))
        lines.append(f"{subject}: {sum(passed.values())} ({told_rungs})")
    for one in pieces:
        lines += [f"seed {one['seed']}: {found['finding']['message']}" for found in one["findings"]]
    return lines


if __name__ == "__main__":
    main()
