"""How much sooner a campaign gets to the end of a maze when its rounds draw near what few cases did.

The maze stands for a kernel: six branches, each behind the one before, each taken on a plain property of the case.
Nothing is compiled or run, so only the drawing is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from harness import campaign
from harness.campaign import NEAR, Campaign, Plan
from harness.case import Case
from harness.results import Result
from harness.subjects import declare

DOORS: tuple[Callable[[Case], bool], ...] = (
    lambda case: len(case.seqs) >= 3,
    lambda case: case.seqs[0].kv_len % case.block_size == 1,
    lambda case: case.seqs[-1].kv_len > 3 * case.block_size,
    lambda case: case.table_pad == "other",
    lambda case: case.extra_columns == 2,
    lambda case: case.placement == "interleaved",
)


@dataclass
class Maze:
    """Runs nothing: says which branches a case would take."""

    doors: tuple[Callable[[Case], bool], ...] = DOORS
    restarts: int = 0
    shown: int = 0
    ends: list[int] = field(default_factory=list)  # the numbers of the cases that went through every door

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:  # noqa: ARG002
        """Walk until a door stays shut."""
        self.shown += 1
        passed = next((number for number, door in enumerate(self.doors) if not door(case)), len(self.doors))
        taken = [f"maze.py:{number} branch taken" for number in range(passed)]
        shut = [f"maze.py:{passed} branch passed"] if passed < len(self.doors) else []
        self.ends += [] if shut else [self.shown]
        possible = [
            f"maze.py:{number} branch {way}" for number in range(len(self.doors)) for way in ("passed", "taken")
        ]
        return Result(case, subject, "gridsim", behaviours=(*taken, *shut), possible=tuple(possible))


def walk(seed: int, cases: int, steered: bool, doors: tuple[Callable[[Case], bool], ...] = DOORS) -> Maze:
    """One campaign through the maze."""
    ladder, maze = campaign.LADDER, Maze(doors)
    campaign.LADDER = ladder if steered else tuple(step for step in ladder if step != NEAR)
    try:
        Campaign(Plan({"maze": declare()}, "gridsim", 600.0, seed=seed, max_cases=cases), maze).run()
    finally:
        campaign.LADDER = ladder
    return maze


@click.command()
@click.option("--seeds", default=8, show_default=True)
@click.option("--cases", default=4000, show_default=True, help="Cases a campaign.")
def main(seeds: int, cases: int) -> None:
    """Print, with and without steering, the first case that got to the end, and how many did."""
    for steered in (True, False):
        walked = [walk(seed, cases, steered) for seed in range(seeds)]
        first = ", ".join(str(maze.ends[0]) if maze.ends else "never" for maze in walked)
        click.echo(f"{'steered' if steered else 'plain  '}: {sum(len(m.ends) for m in walked)} cases; first: {first}")


if __name__ == "__main__":
    main()
