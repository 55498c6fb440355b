"""Translations that adapters share, on the three tokens and on a batch worked out by hand."""

import torch
from three_tokens import SLOTS, attending, caches, tokens

from harness.adapters.translate import dense, lengths, page_lists, spread, starts_of, token_places, token_slots

#: Sequences of 5, 0 and 4 tokens in blocks of 4.
TABLE = torch.tensor([[7, 2, -1], [-1, -1, -1], [3, -1, -1]], dtype=torch.int32)
LENS = torch.tensor([5, 0, 4], dtype=torch.int32)
STARTS = torch.tensor([0, 2, 2, 3], dtype=torch.int32)


def test_lengths_and_starts_are_each_others_inverse() -> None:
    assert lengths(STARTS).tolist() == [2, 0, 1]
    assert starts_of(lengths(STARTS)).tolist() == STARTS.tolist()
    assert starts_of(LENS).dtype == torch.int32


def test_each_packed_row_has_its_sequence_and_its_place_in_it() -> None:
    owners, places = token_places(STARTS)
    assert (owners.tolist(), places.tolist()) == ([0, 0, 2], [0, 1, 0])


def test_packed_rows_are_spread_with_zeros_behind_them() -> None:
    rows = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)
    assert spread(rows, STARTS, 2).flatten().tolist() == [1, 2, 0, 0, 3, 0]


def test_pages_are_listed_with_the_tokens_in_the_last_one() -> None:
    starts, pages, last = page_lists(TABLE, LENS, 4)
    assert starts.tolist() == [0, 2, 2, 3]
    assert pages.tolist() == [7, 2, 3]
    assert [last[0].item(), last[2].item()] == [1, 4]  # that of an empty sequence means nothing
    assert {starts.dtype, pages.dtype, last.dtype} == {torch.int32}


def test_tokens_are_listed_by_their_slots() -> None:
    starts, slots = token_slots(TABLE, 4, LENS)
    assert starts.tolist() == [0, 5, 5, 9]
    assert slots.tolist() == [28, 29, 30, 31, 8, 12, 13, 14, 15]


def test_the_three_tokens_are_gathered() -> None:
    inputs = attending(1)
    _, slots = token_slots(inputs.block_tables, 2, inputs.kv_lens)
    assert slots.tolist() == list(SLOTS)
    k_cache, v_cache = caches(torch.float16, 16)
    k, v = tokens(torch.float16, 16)
    assert torch.equal(dense(k_cache, slots), k)
    assert torch.equal(dense(v_cache, slots), v)
