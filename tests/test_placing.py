"""What a block table says: what is shared, in which order blocks lie, what fills the padding."""

import numpy as np
import pytest

from harness.placing import Shared, owned, padding, placement, shared_prefixes, twice


def ids(*numbers):
    return np.array(numbers, np.int64)


def test_a_common_prefix_is_shared_with_the_earlier_sequence_that_has_most_of_it():
    tables = (ids(4, 5, 6), ids(4, 9), ids(4, 5, 7), ids(8))
    assert shared_prefixes(tables, (3, 2, 3, 1)) == (None, Shared(0, 1), Shared(0, 2), None)


def test_only_whole_blocks_that_both_have_are_shared():
    assert shared_prefixes((ids(4, 5), ids(4, 5)), (1, 2)) == (None, Shared(0, 1))
    assert shared_prefixes((ids(4), ids(4)), (0, 0)) == (None, None)
    assert shared_prefixes((ids(), ids(4)), (0, 1)) == (None, None)


def test_blocks_in_another_place_are_not_shared():
    assert shared_prefixes((ids(4, 5), ids(5, 4)), (2, 2)) == (None, None)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ((ids(3, 5), ids(6)), "in_order"),
        ((ids(6, 5), ids(3)), "reversed"),
        ((ids(0, 2), ids(1, 3)), "interleaved"),
        ((ids(0, 3), ids(1, 2)), "shuffled"),
        ((ids(), ids()), "in_order"),
    ],
)
def test_the_order_of_blocks_is_told_whatever_the_gaps(tables, expected):
    assert placement(owned(tables, (None,) * len(tables))) == expected


def test_a_shared_block_is_owned_once_and_a_block_in_two_places_is_told():
    tables = (ids(4, 5), ids(4, 7))
    assert owned(tables, (None, Shared(0, 1))).tolist() == [[4, 0, 0], [5, 0, 1], [7, 1, 1]]
    assert twice(ids(4, 5, 7)) == []
    assert twice(ids(4, 4, 4, 5, 7, 7)) == [4, 7]
    assert twice(ids()) == []


@pytest.mark.parametrize(
    ("behind", "expected"),
    [(-1, "minus_one"), (0, "zero"), (9, "huge"), (3, "other"), (-2, "other")],
)
def test_padding_is_told_by_what_is_behind_the_entries_in_use(behind, expected):
    table = np.array([[1, behind, behind], [2, 3, behind]], np.int64)
    assert padding(table, (1, 2), num_blocks=9) == expected


def test_where_all_entries_are_in_use_nothing_is_said_of_padding():
    assert padding(np.array([[1, 2]], np.int64), (2,), num_blocks=9) is None
