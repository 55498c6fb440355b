"""The planted faults themselves are sound: each text is there once, compiles, and declares what ours declares."""

import ast
from pathlib import Path

import pytest
from planted import PLANTED, Planted, mutated, plant
from planted_operations import PLANTED_OPERATIONS

from harness import ours
from harness.case import Case, replace
from harness.folders import folder
from harness.subjects import load

ALL = (*PLANTED, *PLANTED_OPERATIONS)
every_fault = pytest.mark.parametrize("planted", ALL, ids=lambda planted: planted.name)


@every_fault
def test_every_old_text_occurs_exactly_once(planted: Planted) -> None:
    assert (folder("kernels") / planted.file).read_text().count(planted.old) == 1


@every_fault
def test_every_mutated_file_compiles_and_differs(planted: Planted) -> None:
    tree = ast.parse(mutated(planted))
    assert ast.dump(tree) != ast.dump(ast.parse((folder("kernels") / planted.file).read_text()))


@every_fault
def test_a_planted_subject_declares_what_ours_declares(planted: Planted, tmp_path: Path) -> None:
    subject = load(plant(planted, tmp_path))
    original = getattr(ours, planted.subject)
    declared = original.__kvetch__
    assert subject.declaration == (replace(declared, dtypes=planted.dtypes) if planted.dtypes else declared)
    assert (subject.validate is None) == (getattr(original, "validate", None) is None)


@every_fault
def test_the_minimal_case_is_a_case_that_the_subject_takes(planted: Planted, tmp_path: Path) -> None:
    op = getattr(ours, planted.subject).__kvetch__.op
    assert load(plant(planted, tmp_path)).declines(Case(**{"op": op} | planted.minimal)) is None


def test_names_are_told_apart() -> None:
    assert len({planted.name for planted in ALL}) == len(ALL)
