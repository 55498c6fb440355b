"""The table of what was drawn: every option of the profile has its cell, and one that was not drawn shows 0."""

import json
from typing import Any

from harness.campaign import Campaign, Plan
from harness.case import Case, Hints, Seq
from harness.coverage import count, lines, undrawn
from harness.ours import decode, extend, merge, split_decode, step
from harness.results import Result
from harness.subjects import Declaration, declare

FIELDS = {
    "op", "dtype", "kv_dtype", "block_size", "head_dim", "heads", "layout", "v_layout", "q_layout", "out_layout",
    "placement", "table_pad", "table_dtype", "values", "k_poison", "v_poison", "spare_poison", "features", "new_kv",
    "config",
}  # fmt: skip
SMALL = declare(
    dtypes=("float32", "float16"),
    head_dims=(16, 64),
    block_sizes=(16, 32),
    groups=(1,),
    layouts=("nhd", "hnd"),
    q_layouts=("contiguous",),
    window=True,
    out=True,
)


class Right:
    """A runner that judges nothing: every case is right, or declined."""

    restarts = 0

    def __init__(self, declined: str = "") -> None:
        self.declined = declined

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        return Result(case=case, subject=subject, executor="gridsim", declined=self.declined, runs=1)


def drawn(declared: Declaration, cases: int, declined: str = "", seconds: float = 60.0) -> dict[str, dict[str, int]]:
    plan = Plan({"mine": declared}, "gridsim", seconds, seed=5, max_cases=cases)
    return Campaign(plan, Right(declined)).run().drawn


def test_every_field_has_its_row_before_anything_is_drawn_and_every_cell_is_0() -> None:
    table = undrawn([decode.__kvetch__])
    assert set(table) == FIELDS
    assert {number for row in table.values() for number in row.values()} == {0}
    assert set(table["block_size"]) == {"16", "1", "8", "24", "32", "48", "64", "128", "256"}
    assert set(table["kv_dtype"]) == {"same", "e4m3", "e5m2"}
    assert {"mla", "head_dim_v", "non_causal"} <= set(table["features"])


def test_only_what_the_profile_could_draw_has_a_cell() -> None:
    table = undrawn([SMALL])
    assert table["heads"].keys() == {"1/1", "2/2", "8/8", "32/32"}
    assert table["features"].keys() == {"window", "out"}
    assert table["out_layout"].keys() == {"allocated", "given", "padded"}
    assert undrawn([declare(layouts=("kv_stacked",))])["v_layout"].keys() == {"same"}
    assert undrawn([declare()])["out_layout"].keys() == {"allocated"}


def test_several_subjects_share_one_table() -> None:
    table = undrawn([split_decode.__kvetch__, merge.__kvetch__])
    assert table["op"] == {"decode": 0, "merge": 0}
    assert "splits" in table["features"]


def test_a_case_counts_once_in_every_field_and_once_for_each_feature_that_is_on() -> None:
    table = undrawn([SMALL])
    case = Case(num_q_heads=8, num_kv_heads=2, window=(3, -1), hints=Hints(num_splits=2), seqs=(Seq(kv_len=3),))
    count(table, case)
    count(table, case)
    assert table["heads"] == {"1/1": 0, "2/2": 0, "8/8": 0, "32/32": 0, "8/2": 2}
    assert table["features"] == {"window": 2, "out": 0, "splits": 2}
    assert all(sum(row.values()) == 2 for field, row in table.items() if field != "features")


def test_lengths_of_chunks_are_counted_in_bins_that_part_at_the_edges_of_tiles() -> None:
    table = undrawn([extend.__kvetch__])
    lens = (0, 1, 14, 15, 16, 17, 18, 30, 31, 32, 33, 34, 62, 63, 64, 65, 66, 500)
    for query_len in lens:
        count(table, Case(op="extend", seqs=(Seq(query_len=query_len, kv_len=500),)))
    twice = {"18-30", "34-62", "66+"}
    assert table["query_len"] == {name: 2 if name in twice else 1 for name in table["query_len"]}
    assert next(line for line in lines(table) if line.startswith("query_len")).startswith("query_len: 0 1, 1 1, 2-14 1")


def test_a_case_counts_once_for_each_bin_that_its_chunks_are_in() -> None:
    table = undrawn([extend.__kvetch__])
    count(table, Case(op="extend", seqs=tuple(Seq(query_len=n, kv_len=40, tag=n) for n in (1, 20, 21))))
    assert {name for name, number in table["query_len"].items() if number == 1} == {"1", "18-30"}


def test_only_chunks_that_can_be_drawn_have_a_bin() -> None:
    assert "0" not in undrawn([step.__kvetch__])["query_len"]
    assert "query_len" not in undrawn([decode.__kvetch__])
    short = undrawn([declare(op="extend", max_kv_len=20, empty_rows=False)])
    assert list(short["query_len"]) == ["1", "2-14", "15", "16", "17", "18-30"]


def test_a_minute_of_extend_reaches_every_bin_and_dense_new_tokens() -> None:
    """In so many cases as the slowest of three minutes had; see docs/measured.md."""
    table = drawn(extend.__kvetch__, 900)
    assert [name for name, number in table["query_len"].items() if number < 3] == []
    assert table["new_kv"]["dense"] > 30
    assert table["features"]["padding_rows"] > 10


def test_an_option_that_was_not_drawn_shows_0() -> None:
    table = drawn(decode.__kvetch__, 12)
    assert 0 in table["block_size"].values()
    assert " 0" in next(line for line in lines(table) if line.startswith("block_size: 1 "))


def test_after_enough_cases_of_a_small_profile_no_cell_is_empty() -> None:
    table = drawn(SMALL, 500)
    assert [(field, value) for field, row in table.items() for value, number in row.items() if not number] == []
    assert sum(table["dtype"].values()) == 500


def test_what_is_declined_is_not_counted() -> None:
    table = drawn(SMALL, 10, declined="no", seconds=0.3)
    assert {number for row in table.values() for number in row.values()} == {0}


def test_the_table_is_json() -> None:
    assert json.loads(json.dumps(undrawn([SMALL]))) == undrawn([SMALL])
