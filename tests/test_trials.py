"""Other projects' recipes on a mutant: found or missed, and what is not the fault's doing is told apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hunting import MUTANTS

from harness import trials as module
from harness.case import replace
from harness.mutants import Mutant
from harness.pool import Worker
from harness.trials import Trial, trials

#: A merge in torch; the tests change what it does before it returns.
MINE = """
import os
import time
import torch
from harness import subject

@subject(op="merge", lse=True)
def mine(inputs):
    lse = inputs.state_lses.logsumexp(0)
    shares = torch.exp(inputs.state_lses - lse)[..., None]
    out = (shares * inputs.state_outs).sum(0).to(inputs.state_outs.dtype)
    pass
    return out, lse
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("gridsim") as shared:
        yield shared


def named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def only(worker: Worker, mutant: Mutant, folder: Path, op: str = "merge", seconds: float = 60.0) -> Trial:
    """The one trial of an operation that has one recipe, or none."""
    planted = folder / "planted"
    planted.mkdir()
    (found,) = trials(worker, mutant, op, planted, seconds)
    return found


def mine(folder: Path, instead: str, source: str = MINE) -> Mutant:
    """A fault in the merge above."""
    (folder / "mine.py").write_text(source)
    subject = f"{folder / 'mine.py'}:mine"
    return Mutant(name="m", file="mine.py", old="    pass\n", new=f"    {instead}\n", story="", subject=subject)


def test_a_fault_that_the_suite_sees_is_found_at_the_first_case_that_fails(worker: Worker, tmp_path: Path) -> None:
    found = only(worker, named("merged-in-base-two"), tmp_path)
    assert (found.recipe, found.outcome, found.cases) == ("vLLM merge", "found", 1)
    assert "elements differ" in found.message
    assert 0 < found.seconds < 60


def test_a_fault_that_the_suite_does_not_reach_is_missed_after_all_cases(worker: Worker, tmp_path: Path) -> None:
    missed = only(worker, named("at-most-four-states"), tmp_path)  # the suite merges two
    assert (missed.outcome, missed.cases, missed.message) == ("missed", 3, "")


def test_a_dtype_of_our_own_hunt_narrows_no_recipe(worker: Worker, tmp_path: Path) -> None:
    found = only(worker, replace(named("merged-in-base-two"), dtypes=("bfloat16",)), tmp_path)
    assert (found.outcome, found.cases) == ("found", 1)  # in float32


def test_an_operation_without_a_recipe_is_told(worker: Worker, tmp_path: Path) -> None:
    assert only(worker, named("gathered-lanes-undefined"), tmp_path, "gather") == Trial(recipe="", outcome="no recipe")


def test_what_the_subject_declines_throughout_is_declined(worker: Worker, tmp_path: Path) -> None:
    mutant = mine(tmp_path, "out = out * 2", MINE.replace("lse=True", "lse=False"))
    declined = only(worker, mutant, tmp_path)
    assert (declined.outcome, declined.cases) == ("declined", 0)
    assert "lse" in declined.message


def test_a_case_that_fails_without_the_fault_as_well_finds_nothing(worker: Worker, tmp_path: Path) -> None:
    wrong = only(worker, mine(tmp_path, "out = out * 2", MINE.replace("shares *", "3 * shares *")), tmp_path)
    assert (wrong.outcome, wrong.cases) == ("fails as it is", 1)


def test_a_worker_that_dies_has_found_the_fault(worker: Worker, tmp_path: Path) -> None:
    found = only(worker, mine(tmp_path, "os.abort()"), tmp_path)
    assert (found.outcome, found.cases) == ("found", 1)
    assert found.message.startswith("crash: ")


def test_a_hang_is_found_unless_the_case_is_slow_without_the_fault(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CASE_SECONDS", 3.0)
    found = only(worker, mine(tmp_path, "time.sleep(60)"), tmp_path)
    assert (found.outcome, found.message.startswith("hang: ")) == ("found", True)
    monkeypatch.setattr(module, "USUAL_SECONDS", 3.0)
    (tmp_path / "slow").mkdir()
    slow = mine(tmp_path / "slow", "out = out * 2", MINE.replace("    lse = ", "    time.sleep(60)\n    lse = "))
    assert only(worker, slow, tmp_path / "slow").outcome == "out of time"


def test_no_case_begins_when_time_is_over(worker: Worker, tmp_path: Path) -> None:
    late = only(worker, named("merged-in-base-two"), tmp_path, seconds=0.0)
    assert (late.outcome, late.cases) == ("out of time", 0)
