"""Finding a planted fault by drawing, for tests: what the campaign says, and how long it took."""

import time
from pathlib import Path
from typing import Any

import pytest

from harness.campaign import Campaign, Plan
from harness.folders import folder as shipped
from harness.mutants import Mutant, plant, read
from harness.pool import Worker
from harness.subjects import operation
from harness.summary import Summary

#: Every planted fault.
MUTANTS = read(shipped("mutants"))
#: What finding and shrinking one may take.
SECONDS = 120.0


def changed(file: str, old: str, new: str, subject: str = "decode") -> Mutant:
    """A fault that only a test knows."""
    return Mutant(name="mutant", file=f"kernels/{file}", old=old, new=new, story="", subject=f"ours.{subject}")


def hunted(mutant: Mutant, folder: Path) -> tuple[Summary, float]:
    """Draw until the fault is found and shrunk; what the campaign says and how many seconds it took."""
    name = plant(mutant, folder)
    with Worker("gridsim") as worker:
        declared = {name: worker.describe(name, operation(mutant.subject))}
        began = time.monotonic()
        plan = Plan(declared, "gridsim", SECONDS, seed=len(mutant.name), stop_at_first=True)
        return Campaign(plan, worker).run(), time.monotonic() - began


def marked(mutants: list[Mutant]) -> list[Any]:
    """A parameter per fault; all but the strongest run nightly."""
    nightly = (pytest.mark.nightly,)
    return [pytest.param(mutant, id=mutant.name, marks=() if mutant.strongest else nightly) for mutant in mutants]
