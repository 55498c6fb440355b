"""Our inputs as other projects take them, by hand on small cases."""

import torch

from harness import views
from harness.case import Case, Seq, replace
from harness.executors.base import Placement
from harness.inputs import materialise

THREE = Case(
    op="extend",
    seqs=(Seq(query_len=2, kv_len=5), Seq(query_len=0, kv_len=0, tag=1), Seq(query_len=1, kv_len=4, tag=2)),
    block_size=4,
    placement="reversed",
    extra_columns=1,
)


def inputs(case: Case):
    return Placement(materialise(case), "cpu").inputs


def test_lists_of_blocks_and_slots_are_the_table_in_another_form():
    given = inputs(THREE)
    first, second, last = (int(block) for block in (*given.block_tables[0, :2], given.block_tables[2, 0]))
    assert views.block_starts(given).tolist() == [0, 2, 2, 3]
    assert views.block_ids(given).tolist() == [first, second, last]
    assert views.last_block_lens(given).tolist() == [1, 0, 4]
    assert views.slot_starts(given).tolist() == [0, 5, 5, 9]
    slots = [*range(4 * first, 4 * first + 4), 4 * second, *range(4 * last, 4 * last + 4)]
    assert views.slot_ids(given).tolist() == slots
    assert views.slot_tables(given)[2, :4].tolist() == slots[5:]


def test_lengths_of_what_is_new_and_of_what_was_there():
    given = inputs(THREE)
    assert views.query_lens(given).tolist() == [2, 0, 1]
    assert views.prefix_lens(given).tolist() == [3, 0, 3]
    assert views.starts(given.kv_lens).tolist() == [0, 5, 5, 9]


def test_a_dense_cache_by_slots_is_the_same_memory():
    given = inputs(replace(THREE, num_q_heads=2, num_kv_heads=2))
    flat = views.slots(given.k_cache)
    assert flat.data_ptr() == given.k_cache.data_ptr()
    assert torch.equal(flat[4 * 1 + 3].nan_to_num(), given.k_cache[1, 3].nan_to_num())


def test_both_caches_in_one_tensor_are_the_same_memory():
    for layout, joined, halves in (
        ("kv_stacked", views.stacked, lambda both: (both[0], both[1])),
        ("kv_interleaved", views.interleaved, lambda both: (both[:, 0], both[:, 1])),
    ):
        given = inputs(replace(THREE, layout=layout))
        for half, cache in zip(halves(joined(given)), (given.k_cache, given.v_cache), strict=True):
            assert (half.data_ptr(), half.shape, half.stride()) == (cache.data_ptr(), cache.shape, cache.stride())
