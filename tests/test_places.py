"""A forbidden place in the cache is told as what it is: wrapped, padding of the table, or a block too far."""

import numpy as np
import pytest

from harness.case import Case, Seq
from harness.executors.base import BadAccess
from harness.inputs import Materials, materialise
from harness.places import elsewhere, suggested

FAR = materialise(Case(seqs=(Seq(kv_len=40),), placement="far"))
FARTHER = materialise(Case(seqs=(Seq(kv_len=40),), placement="farther"))
NEAR = materialise(Case(seqs=(Seq(kv_len=40),)))
STRIDE = 16 * 16


def access(index: int | tuple[int, ...], tensor: str = "k_cache") -> BadAccess:
    return BadAccess("out of reach read", tensor, index, (0, 0, 0), "decode.py:1", 1)


def test_an_id_in_16_bits_is_named_with_the_block_that_was_meant() -> None:
    block = int(FAR.geometry.tables[0][1])
    assert suggested(FAR, access((block % 2**16, 3, 0, 0))) == (
        f"block {block % 2**16} stands for block {block}: a block id that is kept in 16 bits"
    )


@pytest.mark.parametrize(("materials", "sign"), [(FAR, -1), (FARTHER, -1), (FAR, 1)])
def test_an_offset_in_32_bits_is_named_with_the_block_that_was_meant(materials: Materials, sign: int) -> None:
    block = int(materials.geometry.tables[0][2])
    told = suggested(materials, access(block * STRIDE + 5 + sign * 2**32))
    assert told == f"it lies 4294967296 elements from block {block}: an offset that is kept in 32 bits"


def test_block_0_is_not_taken_for_an_id_in_16_bits_since_a_clamped_one_is_0_too() -> None:
    ids = FAR.geometry.used
    assert (ids % 2**16 != 0).all()
    assert suggested(FAR, access((0, 3, 0, 0))) == ""


@pytest.mark.parametrize("index", [0, -1, (3, 0, 0, 0), 3 * STRIDE])
def test_another_place_is_not_taken_for_one_that_wrapped(index: int | tuple[int, ...]) -> None:
    assert suggested(NEAR, access(index)) == ""


APART = materialise(Case(seqs=(Seq(kv_len=40),), num_q_heads=2, num_kv_heads=2, v_layout="padded"))


def test_a_place_of_the_other_caches_strides_is_told_as_such() -> None:
    k, v = APART.inputs.k_cache.strides, APART.inputs.v_cache.strides
    block, slot = int(APART.geometry.tables[0][2]), 7
    element = block * v[0] + slot * v[1] + v[2] + 3
    assert suggested(APART, access(element)) == f"K is read with the strides of V, {v}, but has its own, {k}"
    assert "V is read with the strides of K" in suggested(APART, access(block * k[0] + slot * k[1], "v_cache"))


def test_no_other_place_is_told_so_nor_a_write_nor_where_both_are_laid_out_alike() -> None:
    v = APART.inputs.v_cache.strides
    last = int(APART.geometry.tables[0][2]) * v[0] + 7 * v[1] + v[2]
    assert "strides" not in suggested(APART, access(last + v[1]))  # a slot behind the last token
    assert "strides" not in suggested(APART, BadAccess("out of reach write", "k_cache", last, (0, 0, 0), "k.py:1", 1))
    assert "strides" not in suggested(NEAR, access(2 * STRIDE))


def written(index: tuple[int, ...]) -> BadAccess:
    return BadAccess("out of reach write", "k_cache", index, (0, 0, 0), "cache_write.py:1", 1)


def test_a_write_to_slot_0_that_is_no_tokens_is_told_as_a_skipped_token_that_is_written() -> None:
    case = Case(op="cache_write", seqs=(Seq(kv_len=40),), placement="far", padding_rows=1)
    told = suggested(materialise(case), written((0, 0, 0, 0)))
    assert "a token to be skipped, whose slot is -1, is written all the same" in told


@pytest.mark.parametrize(("padding", "index"), [(0, (0, 0, 0, 0)), (1, (0, 1, 0, 0)), (1, (3, 0, 0, 0))])
def test_another_write_is_not_taken_for_a_skipped_token(padding: int, index: tuple[int, ...]) -> None:
    case = Case(op="cache_write", seqs=(Seq(kv_len=40),), placement="far", padding_rows=padding)
    assert "to be skipped" not in suggested(materialise(case), written(index))


def test_what_is_no_cache_has_no_blocks() -> None:
    assert suggested(FAR, access(0, "block_tables")) == ""


@pytest.mark.parametrize("pad", ["minus_one", "huge"])
def test_a_block_that_only_the_padding_names_is_told_so(pad: str) -> None:
    case = Case(seqs=(Seq(kv_len=40),), extra_columns=1, table_pad=pad)
    materials = materialise(case)
    block = int(materials.inputs.block_tables.view[0, -1])
    assert suggested(materials, access(block * STRIDE)) == (
        f"only the padding of the table names block {block}: one of its entries is read"
    )


def test_the_block_behind_a_block_is_told_where_the_table_has_another() -> None:
    materials = materialise(Case(seqs=(Seq(kv_len=40),), placement="reversed"))
    assert materials.geometry.tables[0].tolist() == [2, 1, 0]
    told = suggested(materials, access(3 * STRIDE))
    assert told.startswith("block 3 lies behind block 2, but column 1 of sequence 0 ")
    assert told.endswith("is block 1, as if blocks lay one after another")


TABLES = [np.array([0, 1, 2]), np.array([0, 3])]


def test_a_block_that_another_row_has_in_that_column_is_told_by_the_row() -> None:
    assert elsewhere(1, 1, TABLES) == "row 0 of the block table is read in place of row 1 in column 1"
    assert elsewhere(3, 0, TABLES) == "row 1 of the block table is read in place of row 0 in column 1"


@pytest.mark.parametrize("block", [0, 2, 3, 9])
def test_a_block_of_both_rows_of_a_column_that_is_not_there_or_of_none_is_not(block: int) -> None:
    assert elsewhere(block, 1, TABLES) == ""
