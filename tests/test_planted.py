"""Every planted fault is found by drawing, shrunk to a case that is minimal in the obvious sense, and named."""

from pathlib import Path

import pytest
from hunting import MUTANTS, SECONDS, hunted, marked
from smallest import SEQUENCES, SMALLEST

from harness.case import Case
from harness.hunt import ALONE
from harness.mutants import Mutant
from harness.verdicts import told

MOST_TRAITS, MOST_SEQUENCES = 3, 2
#: What the first faults need: a few tiles of the textbook kernel, elsewhere no more than a second block of 16.
TOKENS_OF_DECODE, TOKENS = 64, 17


@pytest.mark.parametrize("mutant", marked([mutant for mutant in MUTANTS if not mutant.unfound]))
def test_it_is_found_shrunk_and_named_within_two_minutes(mutant: Mutant, tmp_path: Path) -> None:
    summary, seconds = hunted(mutant, tmp_path)
    assert seconds < SECONDS + 10
    assert summary.findings, f"nothing found in {summary.cases} cases"
    found = summary.findings[0]
    assert mutant.means(found.finding), found.finding
    assert found.again.removesuffix(ALONE) == "3 of 3"
    said = told((found.finding, *found.others))
    assert all(words in said for words in mutant.says), said
    assert len(found.needs) <= MOST_TRAITS, found.needs
    assert len(found.case.seqs) <= MOST_SEQUENCES, found.case
    if mutant.name in SMALLEST:
        hold_minimal(found.case, mutant)


def hold_minimal(case: Case, mutant: Mutant) -> None:
    for name, value in SMALLEST[mutant.name].items():
        assert getattr(case, name) == value, f"{name} in {case}"
    assert len(case.seqs) == SEQUENCES.get(mutant.name, 1), case
    most = TOKENS_OF_DECODE if mutant.subject == "ours.decode" else TOKENS
    assert max(seq.kv_len for seq in case.seqs) <= most, case
    assert case.slots.holes + case.slots.tail_padding <= 1, case
