"""`python benchmarks/drawn.py`: CPU seconds of cases as a campaign draws them, on gridsim in this process.

The first pass is cold: nothing is compiled, and the cache is an empty folder. The second is warm. CPU seconds of one
process compare better than the clock does where a machine is shared.
"""

import os
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from harness.campaign import Campaign, Plan
from harness.case import Case
from harness.commands import Verb, one_line_errors
from harness.results import Result
from harness.subjects import SUBJECTS, load
from harness.worker import preload, set_environment


class Recorder:
    """A runner that runs nothing: every case passes."""

    restarts = 0

    def __init__(self) -> None:
        self.drawn: list[tuple[str, Case]] = []

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:  # noqa: ARG002
        """Keep the case."""
        self.drawn.append((subject, case))
        return Result(case=case, subject=subject, executor="gridsim")


@click.command(cls=Verb)
@click.option("--cases", type=click.IntRange(min=1), default=400, show_default=True, help="So many are drawn.")
@click.option("--seed", type=int, default=5, show_default=True, help="Of the campaign.")
@one_line_errors
def main(cases: int, seed: int) -> int:
    """Draw cases, run them twice, and print cases per CPU second of each pass."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        set_environment("gridsim", None, os.environ)
        preload("gridsim")
        drawn = draw(cases, seed)
        for name in ("cold", "warm"):
            click.echo(f"{name}: {len(drawn) / seconds(drawn):.1f} cases per CPU second")
    return 0


def draw(cases: int, seed: int) -> list[tuple[str, Case]]:
    """Cases of all our subjects."""
    subjects = {name: load(name).declaration for name in SUBJECTS}
    runner = Recorder()
    Campaign(Plan(subjects, "gridsim", 1e9, seed=seed, max_cases=cases), runner).run()
    return runner.drawn


def seconds(drawn: list[tuple[str, Case]]) -> float:
    """CPU seconds of all of them."""
    from harness.pipeline import run_case

    loaded = cache(load)
    began = time.process_time()
    for subject, case in drawn:
        run_case(case, loaded(subject, case.op), "gridsim")
    return time.process_time() - began


if __name__ == "__main__":
    main()
