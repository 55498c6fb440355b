"""The table and the cache of a case, slot by slot."""

from attending import lens

from harness import blocks
from harness.blocks import layout
from harness.case import Case, Seq, States, replace
from harness.inputs import materialise

SHARED = Case(
    seqs=(Seq(kv_len=7), Seq(kv_len=6, tag=1, shares_prefix_with=0, shared_blocks=1), Seq(kv_len=0, tag=2)),
    block_size=4,
    spare_blocks=1,
    extra_columns=1,
)


def drawn(case, marks=None, columns=()):
    return layout(materialise(case), marks or {}, columns)


def test_every_slot_is_told_used_new_shared_dead_or_nobodys():
    pool = drawn(SHARED).pool
    assert [block.slots for block in pool.blocks] == ["ssss", "uund", "undd", "ffff"]
    assert [block.owners for block in pool.blocks] == [((0, 0), (1, 0)), ((0, 1),), ((1, 1),), ()]
    assert {block.marks for block in pool.blocks} == {"    "}


def test_new_tokens_that_come_in_rows_of_their_own_are_not_in_the_cache():
    chunk = Case(op="extend", seqs=(Seq(query_len=3, kv_len=7),), block_size=4)
    assert [block.slots for block in drawn(chunk).pool.blocks] == ["uuuu", "nnnd"]
    dense = replace(chunk, new_kv="dense")
    assert [block.slots for block in drawn(dense).pool.blocks] == ["uuuu"]


def test_a_gather_has_no_new_token():
    assert drawn(Case(op="gather", block_size=2)).pool.blocks[0].slots == "ud"


def test_the_table_parts_entries_in_use_from_padding_and_names_what_was_read():
    table = drawn(SHARED, columns={(1, 2), (2, 0)}).table
    assert [row.name for row in table] == ["a: sequence 0", "b: sequence 1", "c: sequence 2"]
    assert [row.used for row in table] == [(0, 1), (0, 2), ()]
    assert [row.padding for row in table] == [(-1,), (-1,), (-1, -1, -1)]
    assert [row.read for row in table] == [(), (2,), (0,)]
    padded = drawn(replace(SHARED, padding_rows=1)).table
    assert padded[3].name == "d: padding row"


def test_marks_lie_where_they_are_put_and_nowhere_else():
    pool = drawn(SHARED, {(1, 3): "r", (2, 0): "m"}).pool
    assert [block.marks for block in pool.blocks] == ["    ", "   r", "m   ", "    "]


def test_of_a_large_pool_marked_blocks_are_drawn_before_used_ones_and_that_is_said():
    case = Case(seqs=lens(1000), spare_blocks=10)
    seen = drawn(case, {(70, 1): "r"})
    numbers = [block.number for block in seen.pool.blocks]
    assert len(numbers) == blocks.MOST_BLOCKS
    assert numbers == [*range(23), 70]
    assert seen.notes == ("24 of 73 blocks are drawn, those with marks and in use first",)


def test_a_far_pool_shows_the_blocks_in_use():
    seen = drawn(Case(seqs=lens(20), placement="far"))
    assert [block.owners for block in seen.pool.blocks] in ([((0, 0),), ((0, 1),)], [((0, 1),), ((0, 0),)])


def test_of_a_large_batch_so_many_rows_and_columns_are_shown_and_that_is_said():
    seen = drawn(Case(seqs=(Seq(kv_len=40), *(Seq(tag=tag) for tag in range(1, 40))), block_size=1))
    assert len(seen.table) == blocks.MOST_ROWS
    assert seen.notes[0] == "16 of 40 rows of the block table are shown"
    assert (len(seen.table[0].used), seen.table[0].more) == (24, 16)


def test_a_merge_has_no_cache():
    seen = drawn(Case(op="merge", states=States(partition=(1, 2))))
    assert (seen.table, seen.pool) == ((), None)
    assert seen.notes == ("a merge takes partial states: there is no cache to draw",)
