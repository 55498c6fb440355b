"""New tokens: which slot each one has, what is skipped, and what a right write leaves in the cache."""

import numpy as np
import pytest

from harness import values
from harness.case import Case, InvalidCase, Seq, Slots, replace
from harness.executors.base import bits
from harness.geometry import lay_out
from harness.writes import NewTokens, apply, dense_tokens, new_tokens

#: Two chunks behind what is cached, of which the first crosses a block boundary.
CHUNKS = Case(op="cache_write", seqs=(Seq(query_len=3, kv_len=18), Seq(query_len=2, kv_len=2, tag=1)), num_kv_heads=1)


def fresh(case: Case) -> NewTokens:
    return new_tokens(case, lay_out(case, 2**20))


def test_only_an_operation_that_writes_has_fewer_tokens_in_the_cache_than_it_attends_to() -> None:
    seq = Seq(query_len=3, kv_len=18)
    assert [Case(op=op, seqs=(seq,)).cached_len(seq) for op in ("cache_write", "step", "extend")] == [15, 15, 18]
    assert Case(op="extend", new_kv="dense", seqs=(seq,)).cached_len(seq) == 15


def test_the_last_tokens_of_each_sequence_have_the_slots_of_their_blocks() -> None:
    assert fresh(CHUNKS).slots.tolist() == [15, 16, 17, 32, 33]
    assert fresh(replace(CHUNKS, placement="reversed")).slots.tolist() == [47, 16, 17, 0, 1]


def test_k_and_v_of_a_new_token_are_the_recipes() -> None:
    new, seq = fresh(CHUNKS), CHUNKS.seqs[0]
    assert np.array_equal(new.k[:3], values.keys(CHUNKS, seq)[15:])
    assert np.array_equal(new.v[:3], values.values(CHUNKS, seq)[15:])


def test_a_hole_and_the_padding_have_slot_minus_one_and_nothing_to_read() -> None:
    new = fresh(replace(CHUNKS, slots=Slots(holes=2, tail_padding=3)))
    assert (new.slots == -1).sum() == 5
    assert new.slots[-3:].tolist() == [-1, -1, -1]
    assert np.array_equal(np.isnan(new.k).all(axis=(1, 2)), new.slots < 0)
    assert np.array_equal(np.isnan(new.v).all(axis=(1, 2)), new.slots < 0)


def test_more_holes_than_tokens_skip_them_all() -> None:
    new = fresh(replace(CHUNKS, slots=Slots(holes=99)))
    assert (new.slots == -1).all()
    assert len(new.stored.blocks) == 0


def test_a_step_attends_to_every_new_token_so_it_has_no_holes() -> None:
    with pytest.raises(InvalidCase, match=r"slots.holes is 1, but a step attends to every new token"):
        replace(CHUNKS, op="step", slots=Slots(holes=1))


def test_shuffled_tokens_keep_their_slots() -> None:
    case = replace(CHUNKS, geometry_seed=3)
    plain, mixed = fresh(case), fresh(replace(case, slots=Slots(order="shuffled")))
    assert plain.slots.tolist() != mixed.slots.tolist()
    order = np.argsort(mixed.slots)
    assert np.array_equal(mixed.k[order], plain.k[np.argsort(plain.slots)])
    assert np.array_equal(np.sort(mixed.slots), np.sort(plain.slots))


def test_a_new_token_before_the_first_position_is_a_padding_row() -> None:
    new = fresh(replace(CHUNKS, seqs=(Seq(query_len=3, kv_len=2),)))
    assert new.slots.tolist() == [-1, 0, 1]
    assert np.isnan(new.k[0]).all()


def test_the_rows_of_a_graphs_padding_come_behind_all_others_and_are_skipped() -> None:
    new = fresh(replace(CHUNKS, padding_rows=2, slots=Slots(order="shuffled", tail_padding=1)))
    assert (new.slots[:5] >= 0).all()
    assert new.slots[5:].tolist() == [-1, -1, -1]
    assert np.isnan(new.k[5:]).all()


def test_dense_tokens_are_packed_as_the_queries_are() -> None:
    seqs = (Seq(query_len=3, kv_len=18), Seq(query_len=0, kv_len=4, tag=1), Seq(query_len=3, kv_len=2, tag=2))
    case = Case(op="extend", new_kv="dense", seqs=seqs, padding_rows=1, head_dim_v=8)
    k, v = dense_tokens(case)
    assert (k.shape, v.shape) == ((7, 1, 16), (7, 1, 8))
    assert np.array_equal(k[:3], values.keys(case, seqs[0])[15:])
    assert np.array_equal(v[4:6], values.values(case, seqs[2]))
    assert np.isnan(k[[3, 6]]).all()  # before the first position, and the padding row
    assert not np.isnan(k[[0, 1, 2, 4, 5]]).any()


def test_what_is_stored_goes_through_q_s_type_and_is_divided_by_the_scale() -> None:
    case = replace(CHUNKS, dtype="float16", kv_dtype="e4m3", k_scale=2.0, v_scale=0.5)
    new = fresh(case)
    dense = values.cast(new.k, "float16").astype(np.float64)
    assert np.array_equal(bits(new.stored.k), bits(values.cast(dense / 2.0, "e4m3")))
    assert new.stored.v.dtype == values.DTYPES["e4m3"]
    assert not np.array_equal(bits(new.stored.k), bits(values.cast(dense, "e4m3")))


def test_applying_changes_the_cells_and_nothing_else_and_leaves_the_cache_as_it_was() -> None:
    stored = fresh(CHUNKS).stored
    before = np.full((3, 16, 1, 16), 7.0, dtype=np.float32)
    after = apply(stored, "k_cache", before)
    assert (before == 7.0).all()
    differs = [tuple(place) for place in np.argwhere((after != before).any(axis=(2, 3))).tolist()]
    assert differs == sorted(zip(stored.blocks.tolist(), stored.offsets.tolist(), strict=True))
    assert np.array_equal(after[stored.blocks, stored.offsets], stored.k)
    assert np.array_equal(apply(stored, "v_cache", before)[stored.blocks, stored.offsets], stored.v)


def test_of_a_pool_of_which_only_some_blocks_were_copied_the_right_rows_change() -> None:
    stored = fresh(CHUNKS).stored
    some = apply(stored, "k_cache", np.zeros((3, 16, 1, 16), np.float32), rows={0: 2, 1: 0, 2: 1})
    whole = apply(stored, "k_cache", np.zeros((3, 16, 1, 16), np.float32))
    assert np.array_equal(some[[2, 0, 1]], whole)
