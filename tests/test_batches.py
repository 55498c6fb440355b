"""Sequences of a recorded call: lengths, padding rows, what slid out, and what slots alone tell."""

import numpy as np
import pytest
import torch
from recordings import like

from harness.batches import SPARE, Pool, from_slots
from harness.calls import Inexpressible
from harness.case import Case, Seq, Slots

TWO = (Seq(kv_len=40), Seq(kv_len=20, tag=1))
DECODE = Case(seqs=TWO)
EXTEND = Case(op="extend", seqs=(Seq(query_len=3, kv_len=40), Seq(query_len=20, kv_len=20, tag=1)))
STEP = Case(op="step", seqs=EXTEND.seqs)
INT = torch.int32


@pytest.mark.parametrize(
    ("case", "changes", "told"),
    [
        (DECODE, {"kv_lens": torch.tensor([40])}, "kv_lens has 1 entries, but there are 2 sequences"),
        (DECODE, {"kv_lens": torch.tensor([40, -2])}, "kv_lens holds -2, but a length is never negative"),
        (DECODE, {"kv_lens": torch.tensor([40, 70])}, "row 1 of block_tables has 3 columns, but its tokens take 5"),
        (DECODE, {"block_tables": torch.zeros(1, 3, dtype=INT)}, "block_tables has 1 rows, but there are 2 sequences"),
        (DECODE, {"block_tables": torch.zeros(3, dtype=INT)}, r"block_tables has shape \[3\], but should be"),
        (
            DECODE,
            {"block_tables": torch.tensor([[0, 1, 2], [3, -1, -1]], dtype=INT)},
            r"block_tables\[1, 1\] is -1, where tokens are, but there are 5 blocks",
        ),
        (DECODE, {"block_tables": torch.full((2, 3), 5, dtype=INT)}, r"block_tables\[0, 0\] is 5, where tokens are"),
        (EXTEND, {"query_starts": torch.tensor([0, 3, 2])}, "should ascend from 0 to at most 23"),
        (EXTEND, {"query_starts": torch.tensor([0, 3, 24])}, "should ascend from 0 to at most 23"),
    ],
)
def test_what_does_not_fit_together_is_told_with_its_place(case, changes, told):
    with pytest.raises(Inexpressible, match=told):
        like(case, **changes)


def test_starts_may_leave_out_the_end():
    assert like(EXTEND, query_starts=torch.tensor([0, 3])).case.seqs == EXTEND.seqs


def test_queries_of_one_length_come_without_starts():
    case = Case(op="extend", seqs=(Seq(query_len=2, kv_len=40), Seq(query_len=2, kv_len=20, tag=1)))
    found = like(case, q=torch.zeros(2, 2, 1, 16), query_starts=None)
    assert (found.case.op, found.case.seqs) == ("extend", case.seqs)
    assert like(DECODE, q=torch.zeros(2, 1, 1, 16)).case.op == "decode"


def test_rows_of_a_graph_are_padding_rows_and_empty_sequences_elsewhere_are_sequences():
    case = Case(seqs=(Seq(kv_len=0), Seq(kv_len=20, tag=1)), padding_rows=3)
    assert (like(case).case.padding_rows, like(case).case.seqs) == (3, case.seqs)
    nothing = like(Case(seqs=(Seq(kv_len=0), Seq(kv_len=0, tag=1)))).case
    assert (len(nothing.seqs), nothing.padding_rows) == (1, 1)


@pytest.mark.parametrize("pad", ["minus_one", "zero", "huge"])
def test_blocks_before_the_window_that_are_gone_are_seen(pad):
    case = Case(seqs=(Seq(kv_len=90), Seq(kv_len=20, tag=1)), window=(17, 0), slid_out=True, table_pad=pad)
    assert (like(case).case.slid_out, like(case).case.table_pad) == (True, pad)


def test_blocks_before_the_window_that_are_there_are_not_gone():
    assert not like(Case(seqs=(Seq(kv_len=90), Seq(kv_len=20, tag=1)), window=(17, 0))).case.slid_out


def test_far_blocks_are_far_and_their_offset_is_told():
    found = like(Case(seqs=TWO, placement="far", head_dim=64))
    assert found.case.placement == "far"
    assert any("elements into the cache: all blocks of the case lie as far" in words for words in found.lost)
    assert like(Case(seqs=TWO, placement="farther", head_dim=64)).case.placement == "farther"
    assert like(Case(seqs=TWO, placement="shuffled", head_dim=64, spare_blocks=30)).case.placement == "shuffled"


def test_a_pool_keeps_a_few_spare_blocks_and_tells_how_many_there_were():
    assert like(Case(seqs=TWO, spare_blocks=3)).case.spare_blocks == 3
    found = like(Case(seqs=TWO, spare_blocks=30))
    assert found.case.spare_blocks == SPARE
    assert found.lost == ("30 of the 35 blocks are spare: the case has 8",)


def test_a_shared_block_that_is_not_full_and_a_block_in_two_places_are_told():
    lens = torch.tensor([20, 20], dtype=INT)
    same = like(DECODE, kv_lens=lens, block_tables=torch.tensor([[0, 1, -1], [0, 1, -1]], dtype=INT))
    assert same.case.seqs[1] == Seq(kv_len=20, tag=1, shares_prefix_with=0, shared_blocks=1)
    assert "0 and 1 share a block that is not full: each has one of its own" in " ".join(same.lost)
    swapped = like(DECODE, kv_lens=lens, block_tables=torch.tensor([[0, 1, -1], [1, 0, -1]], dtype=INT))
    assert swapped.case.seqs[1].shared_blocks == 0
    assert "2 blocks such as 0 are in several places beyond a common prefix: each has one of its own" in swapped.lost


def test_a_table_of_other_strides_or_types_is_told():
    wide = torch.tensor([[0, 1, 2, 9, 9], [3, 4, -1, 9, 9]], dtype=torch.int16)[:, :3]
    assert set(like(DECODE, block_tables=wide).lost) == {
        "block_tables has strides [5, 1]: that of the case is contiguous",
        "block_tables is int16: that of the case is int32",
    }
    assert like(DECODE).lost == ()


def test_rows_beyond_the_batch_are_told():
    table = torch.tensor([[0, 1, 2], [3, 4, -1], [0, 0, 0]], dtype=INT)
    lens = torch.tensor([40, 20, 7], dtype=INT)
    assert like(DECODE, block_tables=table, kv_lens=lens).lost == (
        "block_tables has 3 rows for 2 sequences: that of the case has no more",
        "kv_lens has 3 rows for 2 sequences: that of the case has no more",
    )
    rows = like(EXTEND, q=torch.zeros(25, 1, 16)).lost
    assert rows == ("q has 25 rows for 23 tokens: that of the case has no more",)


def test_slots_that_disagree_with_the_table_are_told():
    assert like(STEP).lost == ()
    slots = torch.arange(23, dtype=INT)
    assert "slots are not where block_tables has the token" in " ".join(like(STEP, slot_mapping=slots).lost)


def test_skipped_rows_behind_the_tokens_of_a_step_are_held():
    case = Case(op="step", seqs=EXTEND.seqs, slots=Slots(tail_padding=2))
    assert like(case).case.slots == Slots(tail_padding=2)


# --- what only slots tell ----------------------------------------------------------------------------------------


def slots(*numbers):
    return from_slots(np.array(numbers, np.int64), Pool(num_blocks=9, block_size=4, stride=1)).fields


def test_runs_of_slots_are_sequences_that_begin_where_their_block_was_filled_to():
    assert slots(6, 7, 0, 1)["seqs"] == (Seq(query_len=4, kv_len=6),)
    assert slots(6, 20, 29)["seqs"] == (Seq(kv_len=3), Seq(kv_len=1, tag=1), Seq(kv_len=2, tag=2))
    assert slots(6, 20, 29)["placement"] == "in_order"
    assert slots(29, 20, 6)["placement"] == "reversed"


def test_skipped_tokens_are_holes_or_padding():
    assert slots(6, -1, 8, -1, -1)["slots"] == Slots(holes=1, tail_padding=2)


def test_slots_that_no_case_has_are_told():
    with pytest.raises(Inexpressible, match="slot_mapping holds 36, but there are 36 slots"):
        slots(3, 36)
    with pytest.raises(Inexpressible, match="skips every token"):
        slots(-1, -1)
