"""Every planted fault is found by drawing, and shrunk to a case that is minimal in the obvious sense."""

import pytest
from planted import PLANTED, SECONDS, hunted, marked

#: Found in seconds, and of five kinds: values, strides, memory, rows of a graph, a dead process.
IN_CI = {"last-token-dropped", "k-strides-for-v", "offset-in-32-bits", "one-scale-for-all-rows", "dies"}

MOST_TRAITS = 3


@pytest.mark.parametrize("planted", marked(PLANTED, IN_CI))
def test_it_is_found_and_shrunk_within_two_minutes(planted, tmp_path):
    summary, seconds = hunted(planted, tmp_path)
    assert seconds < SECONDS + 10
    assert summary.findings, f"nothing found in {summary.cases} cases"
    found = summary.findings[0]
    assert found.finding.family.split()[0] == planted.expects.split()[0]
    assert found.again == "3 of 3"
    for name, value in planted.minimal.items():
        assert getattr(found.case, name) == value, f"{name} in {found.case}"
    assert len(found.case.seqs) == 1, found.case
    assert len(found.needs) <= MOST_TRAITS, found.needs
    assert found.case.seqs[0].kv_len <= 64
