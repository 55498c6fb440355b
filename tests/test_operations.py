"""What each operation gives back, and the tile that a gather should."""

from typing import Any

import numpy as np
import pytest

from harness import values
from harness.case import Case, Op, Seq, Tile
from harness.executors.base import bits
from harness.inputs import materialise
from harness.operations import gathered_tile, output_shape
from harness.pipeline import run_case
from harness.subjects import load, operation

SEQS = (Seq(query_len=3, kv_len=20), Seq(query_len=2, kv_len=5, tag=1))


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("extend", (5, 4, 8)),
        ("step", (5, 4, 8)),
        ("merge", (5, 4, 8)),
        ("cache_write", None),
        ("gather", (2, 7, 2, 16)),
    ],
)
def test_an_operation_gives_back_this_shape(op: Op, shape: tuple[int, ...] | None) -> None:
    tile = Tile(start=5, end=12)
    assert output_shape(Case(op=op, seqs=SEQS, num_q_heads=4, num_kv_heads=2, head_dim_v=8, tile=tile)) == shape


def tile(start: int, end: int, **changes: object) -> np.ndarray:
    return gathered_tile(materialise(Case(op="gather", seqs=SEQS, tile=Tile(start=start, end=end), **changes)))


@pytest.mark.parametrize("placement", ["in_order", "reversed", "far"])
def test_a_tile_is_the_recipes_keys_in_logical_order_across_blocks(placement: str) -> None:
    case = Case(op="gather", seqs=SEQS[:1])
    seen = tile(5, 20, placement=placement)
    assert np.array_equal(bits(seen[0]), bits(values.cast(values.keys(case, SEQS[0])[5:20], "float32")))


def test_rows_behind_the_last_token_are_zero_whatever_the_cache_holds_there() -> None:
    seen = tile(3, 40)
    assert (bits(seen[0, 17:]) == 0).all()
    assert (bits(seen[1, 2:]) == 0).all()
    assert (seen[0, :17] != 0).all()


def test_a_tile_behind_every_token_is_zero_and_an_empty_one_is_empty() -> None:
    assert (tile(30, 35) == 0).all()
    assert tile(4, 4).shape == (2, 0, 1, 16)


def test_the_tile_of_an_fp8_cache_is_what_is_stored_not_what_it_means() -> None:
    assert tile(0, 4, kv_dtype="e4m3", k_scale=4.0).dtype == values.DTYPES["e4m3"]


@pytest.mark.parametrize("poison", ["nan", "inf", "huge", "random_bits"])
@pytest.mark.parametrize("name", ["ours.decode", "ours.split_decode", "ours.extend", "ours.step", "ours.cache_write"])
def test_ours_take_a_graphs_padding_rows_whatever_they_hold(name: str, poison: Any) -> None:
    seqs = (Seq(kv_len=20), Seq(kv_len=3, tag=1))
    lse = name != "ours.cache_write"
    case = Case(op=operation(name), seqs=seqs, padding_rows=3, row_poison=poison, table_pad="other", want_lse=lse)
    result = run_case(case, load(name), "gridsim", thorough=True)
    assert (result.declined, result.harness_fault, result.findings) == ("", "", ())


def test_an_output_has_a_row_for_each_padding_row() -> None:
    assert output_shape(Case(padding_rows=2, num_q_heads=3)) == (3, 3, 16)
    assert output_shape(Case(op="extend", seqs=(Seq(query_len=4, kv_len=9),), padding_rows=2)) == (6, 1, 16)
