"""A planted fault is named, in words that its kernel's author would use, by the finding on its case in the corpus."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hunting import MUTANTS

from harness.corpus import Corpus, Entry
from harness.folders import folder
from harness.mutants import Mutant, plant
from harness.pool import Worker
from harness.subjects import operation
from harness.verdicts import told

#: Seconds for what hangs, and for everything else.
HANGS, SECONDS = 2.0, 60.0


def smallest(mutant: Mutant) -> Entry | None:
    """What a campaign shrank the fault to, where the corpus keeps it."""
    slug = mutant.subject.replace(".", "-").replace("_", "-")
    entries = Corpus(folder("corpus") / operation(mutant.subject)).entries()
    return next((entry for path, entry in entries if path.name.startswith(f"{slug}-{mutant.name}-")), None)


KEPT = {mutant.name: (mutant, entry) for mutant in MUTANTS if (entry := smallest(mutant))}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("gridsim") as shared:
        yield shared


@pytest.mark.parametrize("name", KEPT)
def test_the_finding_names_the_fault(name: str, worker: Worker, tmp_path: Path) -> None:
    mutant, entry = KEPT[name]
    limit = HANGS if "hang" in mutant.finds else SECONDS
    result = worker.run(entry.case, plant(mutant, tmp_path), limit, thorough=True, explain=True)
    assert (result.harness_fault, result.declined) == ("", "")
    assert result.headline is not None
    assert mutant.means(result.headline)
    for words in mutant.says:
        assert words in told(result.findings), told(result.findings)


def test_a_right_kernel_is_said_nothing_of_on_the_same_cases(worker: Worker) -> None:
    for mutant, entry in KEPT.values():
        result = worker.run(entry.case, mutant.subject, SECONDS, thorough=True, explain=True)
        assert (mutant.name, result.findings) == (mutant.name, ())


def test_the_corpus_keeps_the_smallest_case_of_the_first_faults() -> None:
    assert len(KEPT) >= 31
