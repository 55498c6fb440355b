"""Claims about where blocks lie."""

import numpy as np
import pytest
from hypothesis import given, settings

from harness.case import Case, Seq, replace
from harness.geometry import lay_out
from harness.profiles import Profile
from harness.strategies import cases

CASE = Case(seqs=(Seq(kv_len=40), Seq(kv_len=33, tag=1)), spare_blocks=2)


@settings(max_examples=100, database=None, deadline=None)
@given(cases(Profile()))
def test_no_two_owners_share_a_block_and_all_lie_in_the_pool(case):
    geometry = lay_out(case, 1024)
    owned = [table[seq.shared_blocks :] for table, seq in zip(geometry.tables, case.seqs, strict=True)]
    ids = np.concatenate(owned)
    assert len(np.unique(ids)) == len(ids)
    assert all(0 <= block < geometry.num_blocks for block in ids)
    assert [len(table) for table in geometry.tables] == [case.blocks_of(seq) for seq in case.seqs]


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("in_order", [[0, 1, 2], [3, 4, 5]]),
        ("reversed", [[7, 6, 5], [4, 3, 2]]),
        ("interleaved", [[0, 2, 4], [1, 3, 5]]),
    ],
)
def test_each_placement_is_what_its_name_says(placement, expected):
    geometry = lay_out(replace(CASE, placement=placement), 1024)
    assert [table.tolist() for table in geometry.tables] == expected


def test_shuffled_blocks_change_with_the_geometry_seed():
    tables = {str(lay_out(replace(CASE, placement="shuffled", geometry_seed=s), 1024).tables) for s in range(8)}
    assert len(tables) > 4


def test_every_far_block_is_beyond_32_bits():
    stride = 1000
    geometry = lay_out(replace(CASE, placement="far"), stride)
    assert min(table.min() for table in geometry.tables) * stride >= 2**31
    assert (min(table.min() for table in geometry.tables) - 1) * stride < 2**31


def test_every_farther_block_is_beyond_32_bits_without_a_sign():
    stride = 1000
    geometry = lay_out(replace(CASE, placement="farther"), stride)
    assert min(table.min() for table in geometry.tables) * stride >= 2**32
    assert geometry.num_blocks > max(table.max() for table in geometry.tables)


def test_a_shared_block_is_the_owners():
    case = Case(seqs=(Seq(kv_len=40), Seq(kv_len=33, tag=1, shares_prefix_with=0, shared_blocks=2)))
    first, second = lay_out(case, 1024).tables
    assert first[:2].tolist() == second[:2].tolist()
    assert first[2] != second[2]
