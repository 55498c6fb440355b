"""A wrong copy says what it holds instead: the rows of a gathered tile, the cells of a written cache."""

from typing import Any

import pytest
import torch
from attending import lens, torch_subject

from harness.case import Case, Seq, Slots, Tile
from harness.inputs import materialise
from harness.pipeline import run_case
from harness.results import Result

TILES = Case(op="gather", seqs=lens(40, 21), num_q_heads=2, num_kv_heads=2, placement="shuffled", tile=Tile(end=24))
WRITES = Case(op="cache_write", seqs=(Seq(query_len=3, kv_len=18),), num_q_heads=2, num_kv_heads=2)


def tiles(inputs: Any) -> torch.Tensor:
    """A right gather."""
    at, size = torch.arange(inputs.tile_start, inputs.tile_end), inputs.k_cache.shape[1]
    rows = []
    for table, kv_len in zip(inputs.block_tables, inputs.kv_lens.tolist(), strict=True):
        there = at[at < kv_len]
        tile = torch.zeros(len(at), *inputs.k_cache.shape[2:], dtype=inputs.k_cache.dtype)
        tile[: len(there)] = inputs.k_cache[table[there // size].long(), there % size]
        rows.append(tile)
    return torch.stack(rows)


def judged(case: Case, run: Any) -> Result:
    return run_case(case, torch_subject(run, op=case.op), "gridsim", thorough=True)


def explained(case: Case, run: Any) -> tuple[str, ...]:
    return tuple(words for finding in judged(case, run).findings for words in finding.explains)


def test_rows_that_were_not_loaded_are_told_as_one_run() -> None:
    def run(inputs: Any) -> torch.Tensor:
        out = tiles(inputs)
        out[0, 16:] = 0
        return out

    block = materialise(TILES).geometry.tables[0][1]
    assert explained(TILES, run) == (
        f"sequence 0: rows 16-23 (tokens 16-23, block {block} offset 0 on) hold zeros: nothing was loaded",
    )


def test_v_in_a_row_of_k_is_named() -> None:
    def run(inputs: Any) -> torch.Tensor:
        out = tiles(inputs)
        out[0, 3] = inputs.v_cache[inputs.block_tables[0, 0], 5]
        return out

    block = materialise(TILES).geometry.tables[0][0]
    (told,) = explained(TILES, run)
    assert told.endswith(f"holds V of block {block} offset 5 (token 5 of sequence 0)")


def test_a_row_of_another_token_head_or_sequence_is_named() -> None:
    def run(inputs: Any) -> torch.Tensor:
        out = tiles(inputs)
        out[0, 3], out[0, 5], out[1, 2] = out[0, 4].clone(), out[0, 5].flip(0), out[0, 7].clone()
        return out

    (first, mine), (second, _) = ((int(table[0]), table) for table in materialise(TILES).geometry.tables)
    shifted, swapped, foreign = explained(TILES, run)[0], explained(TILES, run)[1], explained(TILES, run)[-1]
    assert len(mine) == 3
    assert f"row 3 (token 3, block {first} offset 3) holds block {first} offset 4 (token 4 of sequence 0)" in shifted
    assert f"holds block {first} offset 5 (token 5 of sequence 0, KV head 1)" in swapped
    assert f"(token 2, block {second} offset 2) holds block {first} offset 7 (token 7 of sequence 0)" in foreign


def test_a_row_that_no_slot_holds_is_told_so() -> None:
    assert all("what no slot holds" in words for words in explained(TILES, lambda inputs: tiles(inputs) + 1)[:1])


def test_a_right_copy_is_said_nothing_of() -> None:
    assert judged(TILES, tiles).findings == ()
    assert judged(WRITES, write).findings == ()


# --- writes ------------------------------------------------------------------------------------------------------


def write(inputs: Any, shift: int = 0, skipped: int = 0) -> None:
    """A right cache write; all slots `shift` further on, and skipped rows written to slot 0, where asked for."""
    for row, slot in enumerate(inputs.slot_mapping.tolist()):
        at = slot + shift if slot >= 0 else 0
        if slot >= 0 or skipped:
            block, offset = divmod(at, inputs.k_cache.shape[1])
            inputs.k_cache[block, offset], inputs.v_cache[block, offset] = inputs.k_new[row], inputs.v_new[row]


def test_a_token_in_the_next_slot_is_named_where_it_stands_and_where_it_is_missing() -> None:
    told = explained(WRITES, lambda inputs: write(inputs, shift=1))
    assert told[0] == "no K was written there: it still holds what it held before"
    part = Case(op="cache_write", seqs=(Seq(query_len=3, kv_len=18), Seq(kv_len=9, tag=1)), num_kv_heads=1)
    shifted = explained(part, lambda inputs: write(inputs, shift=1) if not write(inputs) else None)
    assert any("it is K of the token for block " in words and "the slot or the strides" in words for words in shifted)


@pytest.mark.parametrize("name", ["K", "V"])
def test_a_skipped_token_that_is_written_is_named(name: str) -> None:
    case = Case(op="cache_write", seqs=(Seq(query_len=3, kv_len=18),), slots=Slots(tail_padding=1))
    told = explained(case, lambda inputs: write(inputs, skipped=1))
    assert f"it is {name} of a token to be skipped, whose slot is -1: such a token is written all the same" in told


def test_a_row_that_is_read_wrongly_is_told_by_the_token_that_should_be_there() -> None:
    def doubled(inputs: Any) -> None:
        write(inputs)
        block, offset = divmod(int(inputs.slot_mapping[0]), inputs.k_cache.shape[1])
        inputs.k_cache[block, offset] = inputs.k_new[0] + 1

    assert explained(WRITES, doubled) == (
        "it should be K of the token for block 0 offset 15: the row or the strides that it is read with are wrong",
    )


def test_what_is_cleared_beside_the_new_tokens_is_told_by_who_lay_there() -> None:
    def clears(inputs: Any) -> None:
        inputs.k_cache[0] = 0.0
        write(inputs)

    told = "no new token belongs there (token 0 of sequence 0 lay there), and what was written is none's"
    assert explained(WRITES, clears) == (told,)
    fresh = Case(op="cache_write")
    assert "(nobody's slot)" in explained(fresh, clears)[0]
    shared = Case(
        op="step", seqs=(Seq(kv_len=18), Seq(kv_len=18, tag=1, shares_prefix_with=0, shared_blocks=1))
    )  # a block of two sequences
    words = next(w for f in judged(shared, clears).findings for w in f.explains if f.kind == "wrong cache")
    assert "(token 0 of sequence 0 and token 0 of sequence 1 lay there)" in words
