"""Every fault planted in the other operations is found by drawing and shrunk to a case that is minimal."""

import pytest
from planted import SECONDS, hunted, marked
from planted_operations import PLANTED_OPERATIONS

#: Found in seconds, and of five kinds: rows, masks, writes, states, new tokens that are not in the cache.
IN_CI = {
    "rows-behind-a-block-lost",
    "causal-top-left",
    "slot-minus-one-written",
    "all-states-empty-nan",
    "prefix-read-over",
}

#: A fault needs a second block of 16, no more.
MOST_TRAITS, MOST_TOKENS = 3, 17


@pytest.mark.parametrize("planted", marked(PLANTED_OPERATIONS, IN_CI))
def test_it_is_found_and_shrunk_within_two_minutes(planted, tmp_path):
    summary, seconds = hunted(planted, tmp_path)
    assert seconds < SECONDS
    assert summary.findings, f"nothing found in {summary.cases} cases"
    found = summary.findings[0]
    assert found.finding.family == planted.expects
    assert found.again == "3 of 3"
    for name, value in planted.minimal.items():
        assert getattr(found.case, name) == value, f"{name} in {found.case}"
    assert len(found.case.seqs) == planted.sequences, found.case
    assert len(found.needs) <= MOST_TRAITS, found.needs
    assert max(seq.kv_len for seq in found.case.seqs) <= MOST_TOKENS, found.case
    assert found.case.slots.holes + found.case.slots.tail_padding <= 1, found.case
