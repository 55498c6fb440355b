"""`python benchmarks/compiled.py`: kernels that a campaign on a GPU would compile, per 100 cases, without a GPU.

Cases are drawn as for a GPU, and each subject is called once on the CPU; a launch is noted as what Triton would compile
for sm_90, and not run. What a repeated call of the base set would compile is the same. Far cases are left out.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import click
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from harness import campaign
from harness.campaign import Campaign, Plan
from harness.case import Case
from harness.commands import Verb, one_line_errors
from harness.executors.base import Placement
from harness.executors.tuning import tuned
from harness.inputs import materialise
from harness.results import Result
from harness.specialisations import Notes, Specialisation
from harness.subjects import SUBJECTS, Subject, load

TARGET = "sm_90"
#: Parts of a campaign that are told apart, since its beginning compiles most.
PARTS = 4


@dataclass
class Drawer:
    """A runner that notes what the launches of each case would compile; every case passes."""

    restarts: int = 0
    notes: Notes = field(default_factory=lambda: Notes((TARGET,)))
    drawn: list[tuple[str, Case, list[Specialisation]]] = field(default_factory=list)  # and what came anew with it

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:  # noqa: ARG002
        """Note the launches."""
        tested, known = loaded(subject, case.op), len(self.notes.found)
        if tested.declines(case) or case.is_far:
            return Result(case=case, subject=subject, executor="gpu", declined="cannot be noted")
        self.notes.begin(len(self.drawn))
        launch(tested, case, self.notes)
        self.drawn.append((subject, case, list(self.notes.found.values())[known:]))
        return Result(case=case, subject=subject, executor="gpu")


@cache
def loaded(name: str, op: str) -> Subject:
    """The subject of this name."""
    return load(name, op)


def launch(tested: Subject, case: Case, notes: Notes) -> None:
    """Call the subject on the CPU with launches that are noted and not run; what it raises is no matter here."""
    run = JITFunction.run
    JITFunction.run = lambda self, *args, **kwargs: notes.take(self, args, kwargs)
    try:
        with suppress(ValueError), tuned(case.hints, tested.declaration.configs):
            tested.run(Placement(materialise(case), "cpu").inputs)
    finally:
        JITFunction.run = run


@click.command(cls=Verb)
@click.option("--cases", type=click.IntRange(min=PARTS), default=4000, show_default=True, help="So many are drawn.")
@click.option("--seed", type=int, default=5, show_default=True, help="Of the campaign.")
@click.option("--stays", type=click.IntRange(min=1), multiple=True, help="Rounds of one pool; as on a GPU by default.")
@click.option("--frames/--free", default=True, show_default=True, help="Whether pools keep what is compiled in.")
@one_line_errors
def main(cases: int, seed: int, stays: tuple[int, ...], frames: bool) -> int:
    """Draw cases, and print how many kernels are new per 100 of them."""
    if not frames:
        campaign.framed = lambda options, _: options
    for rounds in stays or (campaign.STAYS["gpu"],):
        campaign.STAYS["gpu"] = rounds
        runner = Drawer()
        subjects = {name: load(name).declaration for name in SUBJECTS}
        Campaign(Plan(subjects, "gpu", 1e9, seed=seed, max_cases=cases), runner).run()
        click.echo("\n".join((f"pools that stay for {rounds} rounds", *lines(runner))))
    return 0


def lines(runner: Drawer) -> Iterator[str]:
    """New kernels per 100 cases, part by part and subject by subject."""
    size = -(-len(runner.drawn) // PARTS)
    parts = [runner.drawn[start : start + size] for start in range(0, len(runner.drawn), size)]
    yield f"  in {PARTS} parts of {size} cases: {', '.join(f'{share(part):.1f}' for part in parts)} per 100"
    for name in SUBJECTS:
        own = [drawn for drawn in runner.drawn if drawn[0] == name]
        yield f"  {name}: {share(own):.1f} per 100 of {len(own)}"


def share(drawn: list[tuple[str, Case, list[Specialisation]]]) -> float:
    """New kernels per 100 cases."""
    return 100 * sum(len(new) for _, _, new in drawn) / max(len(drawn), 1)


if __name__ == "__main__":
    main()
