"""Every case of the corpus is right for every subject of ours that supports it, run in a worker that may die."""

from collections.abc import Iterator

import pytest

from harness.commands import default_executor
from harness.corpus import Corpus, Entry
from harness.folders import folder
from harness.pool import Worker
from harness.subjects import SUBJECTS, load

SECONDS = 120.0


def supported() -> Iterator[object]:
    """Each case with each subject that does not decline it."""
    for path, entry in Corpus(folder("corpus")).entries():
        for name in SUBJECTS:
            if load(name).declines(entry.case) is None:
                yield pytest.param(entry, name, id=f"{path.stem}-{name}")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(default_executor()) as there:
        yield there


@pytest.mark.parametrize(("entry", "subject"), list(supported()))
def test_a_kept_case_is_right(worker: Worker, entry: Entry, subject: str) -> None:
    result = worker.run(entry.case, subject, SECONDS, thorough=True)
    assert not result.harness_fault, result.harness_fault
    assert not result.findings, "; ".join(finding.message for finding in result.findings)
