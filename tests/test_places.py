"""An access of a place that nobody has is told as what it is where an id or an offset has wrapped."""

import pytest

from harness.case import Case, Seq
from harness.executors.base import BadAccess
from harness.inputs import Materials, materialise
from harness.wraps import wrap

FAR = materialise(Case(seqs=(Seq(kv_len=40),), placement="far"))
FARTHER = materialise(Case(seqs=(Seq(kv_len=40),), placement="farther"))
NEAR = materialise(Case(seqs=(Seq(kv_len=40),)))
STRIDE = 16 * 16


def access(index: int | tuple[int, ...], tensor: str = "k_cache") -> BadAccess:
    return BadAccess("out of reach read", tensor, index, (0, 0, 0), "decode.py:1", 1)


def test_an_id_in_16_bits_is_named_with_the_block_that_was_meant() -> None:
    block = int(FAR.geometry.tables[0][1])
    assert wrap(FAR, access((block % 2**16, 3, 0, 0))) == (
        f"block {block % 2**16} stands for block {block}: a block id that is kept in 16 bits"
    )


@pytest.mark.parametrize(("materials", "sign"), [(FAR, -1), (FARTHER, -1), (FAR, 1)])
def test_an_offset_in_32_bits_is_named_with_the_block_that_was_meant(materials: Materials, sign: int) -> None:
    block = int(materials.geometry.tables[0][2])
    told = wrap(materials, access(block * STRIDE + 5 + sign * 2**32))
    assert told == f"it lies 4294967296 elements from block {block}: an offset that is kept in 32 bits"


@pytest.mark.parametrize("index", [0, -1, (3, 0, 0, 0), 3 * STRIDE])
def test_another_place_is_not_taken_for_one_that_wrapped(index: int | tuple[int, ...]) -> None:
    assert wrap(NEAR, access(index)) == ""


def test_what_is_no_cache_has_no_blocks() -> None:
    assert wrap(FAR, access(0, "block_tables")) == ""
