"""What gridsim sees of a faulty kernel's accesses becomes a finding in an author's words; right ones are silent."""

import re
from pathlib import Path
from typing import Any

import pytest
from attending import lens
from hunting import changed

from harness import subjects
from harness.case import Case, Hints, Seq, Slots, replace
from harness.folders import folder as shipped
from harness.mutants import plant
from harness.ours import split_decode
from harness.pipeline import run_case
from harness.results import SEVERITY, Finding, Result

SPLIT = Case(seqs=lens(20, 7), num_q_heads=2, num_kv_heads=1, hints=Hints(num_splits=4))
PLAIN = Case(seqs=lens(20, 40), num_q_heads=2, num_kv_heads=1, extra_columns=1, spare_blocks=1)


def mutant(folder: Path, file: str, subject: str, *changes: tuple[str, str]) -> subjects.Subject:
    """Our kernel with some lines changed, the first in a file of ours and so on."""
    name = plant(changed(file, *changes[0], subject=subject), folder)
    for old, new in changes[1:]:
        source = (folder / file).read_text()
        assert source.count(old) == 1
        (folder / file).write_text(source.replace(old, new))
    return subjects.load(name)


def judged(case: Case, subject: subjects.Subject) -> Result:
    result = run_case(case, subject, "gridsim", thorough=True)
    assert (result.declined, result.harness_fault) == ("", "")
    return result


def line_of(folder: Path, file: str, text: str) -> str:
    lines = (folder / file).read_text().splitlines()
    return f"{file}:{1 + next(i for i, line in enumerate(lines) if text in line)}"


def headline(result: Result) -> Finding:
    assert result.headline is not None
    return result.headline


# --- races -------------------------------------------------------------------------------------------------------


def test_two_heads_that_write_one_row_are_a_race_named_with_both_programs(tmp_path: Path) -> None:
    change = ("head * stride_out_head + dim_v", "kv_head * stride_out_head + dim_v")
    finding = headline(judged(PLAIN, mutant(tmp_path, "decode.py", "decode", change)))
    line = line_of(tmp_path, "decode.py", "tl.store(out_ptr")
    assert (finding.kind, finding.family, finding.line) == ("race", "race", line)
    both = f"program [0, 0, 0] at {line}, program [0, 1, 0] wrote it too"
    assert re.fullmatch(rf"race for out_ptr \[0, 0, \d+\]: {re.escape(both)}, \d+ elements in all", finding.message)
    assert finding.accuses == "two programs without an order"
    assert judged(replace(PLAIN, num_q_heads=1), mutant(tmp_path, "decode.py", "decode", change)).findings == ()


def test_a_race_or_a_stray_row_beside_a_sequence_without_new_tokens_is_told_with_it(tmp_path: Path) -> None:
    change = (
        "    # The grid is as long as the longest sequence, or longer.\n",
        "    query_len = tl.maximum(query_len, 1)\n",
    )
    subject = mutant(tmp_path, "extend.py", "extend", change)
    idle = Seq(query_len=0, kv_len=20)
    for seqs, kind in (((idle, Seq(kv_len=20, tag=1)), "race"), ((idle,), "bad write")):
        case = Case(op="extend", seqs=seqs, max_len_slack=1)
        accused = [found.accuses for found in judged(case, subject).findings if found.kind == kind]
        assert any(words.endswith("sequence 0 has no new token, and a program of it has no row") for words in accused)


# --- 32 bits -----------------------------------------------------------------------------------------------------

NARROW = ("block * stride_table_column).to(tl.int64)", "block * stride_table_column)")
FAR = replace(PLAIN, placement="far", num_q_heads=1)


def test_a_block_id_that_is_multiplied_in_32_bits_is_told_with_its_numbers(tmp_path: Path) -> None:
    changes = (
        NARROW,
        ("k_offset = block_id * stride_k_block + slot", "k_offset = block_id * stride_k_block.to(tl.int32) + slot"),
    )
    subject = mutant(tmp_path, "decode.py", "decode", *changes)
    finding = headline(judged(FAR, subject))
    line = line_of(tmp_path, "decode.py", "k_offset = block_id")
    assert (finding.kind, finding.family, finding.line, finding.detail) == (
        "overflow read", "wrong output", line, "k_cache",
    )  # fmt: skip
    found = re.match(
        rf"at {line} (\d+) \* (\d+) = (\d+) does not fit in 32 bits, and is the address at", finding.message
    )
    assert found is not None
    assert int(found[1]) * int(found[2]) == int(found[3]) >= 2**31
    assert finding.message.count("of a read of k_cache by program [0, 0, 0]") == 1
    assert judged(PLAIN, subject).findings == ()


# --- scratch -----------------------------------------------------------------------------------------------------

LSE = "tl.store(lses_ptr + split, m + tl.log2(l), mask=live)"


def test_a_part_of_the_scratch_that_nobody_writes_is_named_where_it_is_read(tmp_path: Path) -> None:
    subject = mutant(tmp_path, "splits.py", "split_decode", (LSE, LSE[:-1] + " & (l > 0.0))"))
    result = judged(SPLIT, subject)
    line = line_of(tmp_path, "splits.py", "lse = tl.load(lses_ptr")
    (finding,) = [finding for finding in result.findings if finding.kind == "uninitialised read"]
    assert (finding.line, finding.family) == (line, "wrong output")
    assert finding.accuses.startswith(f"uninitialised read of lses_ptr [0, 0, 1] by program [0, 3, 0] at {line}")
    assert "moved when memory that nobody had written held something else" in finding.message
    assert headline(result).line == line
    full = replace(SPLIT, seqs=lens(256, 256))
    assert judged(full, subject).findings == ()


def test_a_read_of_unwritten_scratch_that_is_not_used_is_legal(tmp_path: Path) -> None:
    load = "out = tl.load(outs_ptr + split * HEAD_DIM_V, mask={mask} & in_head, other=0.0)"
    old, new = load.format(mask="seen[:, None]"), load.format(mask="live[:, None]")
    new = f"{new}\n        out = tl.where(seen[:, None], out, 0.0)"
    result = judged(SPLIT, mutant(tmp_path, "splits.py", "split_decode", (old, new)))
    assert result.findings == ()
    assert result.runs == judged(SPLIT, subjects.from_function(split_decode)).runs + 1  # with the scratch refilled


# --- undefined lanes ---------------------------------------------------------------------------------------------

V_LOAD = "tl.load(v_cache_ptr + v_offset, mask=in_tile, other=0.0)"


def test_lanes_that_a_masked_load_without_other_leaves_undefined_are_found_and_named(tmp_path: Path) -> None:
    subject = mutant(tmp_path, "decode.py", "decode", (V_LOAD, V_LOAD.replace(", other=0.0", "")))
    finding = headline(judged(PLAIN, subject))
    line = line_of(tmp_path, "decode.py", "v = tl.load")
    assert (finding.kind, finding.family, finding.line) == ("uninitialised read", "wrong output", line)
    words = f"the load at {line} (of v_cache): lanes that its mask shuts out are undefined without `other`"
    assert finding.accuses == words
    assert judged(replace(PLAIN, seqs=lens(16, 32)), subject).findings == ()  # no lane is shut out


def test_undefined_lanes_that_are_masked_later_are_legal(tmp_path: Path) -> None:
    k_load = V_LOAD.replace("v", "k")
    changes = ((k_load, "tl.load(k_cache_ptr + k_offset, mask=in_tile)"),)
    assert (shipped("kernels") / "decode.py").read_text().count(k_load) == 1
    result = judged(PLAIN, mutant(tmp_path, "decode.py", "decode", *changes))  # hidden scores are replaced
    assert result.findings == ()
    assert result.runs == judged(PLAIN, subjects.load("ours.decode")).runs + 1  # with the lanes refilled


# --- what is written, and what is not ----------------------------------------------------------------------------


def test_rows_of_an_allocated_output_that_no_program_writes_are_counted_and_placed(tmp_path: Path) -> None:
    rows = 'max_query_len * launch["GROUP"]'
    short = (f'triton.cdiv({rows}, launch["TILE_Q"])', f'{rows} // launch["TILE_Q"]')
    case = Case(op="extend", seqs=(Seq(query_len=34, kv_len=34),), num_q_heads=2)
    result = run_case(case, mutant(tmp_path, "extend.py", "extend", short), "gridsim", thorough=True, explain=True)
    finding = headline(result)
    assert (finding.kind, finding.family, finding.where) == ("unwritten output", "wrong output", (0, 32, 0, 0))
    assert finding.message == (
        "64 of 1088 elements of out were never written, first out[sequence 0, token 32, head 0, dim 0]"
    )
    assert finding.explains == ()  # what is not there has no weights
    whole = replace(case, seqs=(Seq(query_len=32, kv_len=34),))
    assert judged(whole, mutant(tmp_path, "extend.py", "extend", short)).findings == ()


def test_a_write_before_the_cache_is_told_with_the_token_that_it_writes(tmp_path: Path) -> None:
    truncated = (
        "    written = slot >= 0  # [TOKENS]\n",
        "    written = (slot // block_size >= 0) & (token < tokens)  # [TOKENS]\n",
    )
    case = Case(op="cache_write", slots=Slots(tail_padding=1))
    finding = headline(judged(case, mutant(tmp_path, "cache_write.py", "cache_write", truncated)))
    assert (finding.kind, finding.detail) == ("bad write", "k_cache")
    assert finding.explains == (
        "it is K of a token to be skipped, whose slot is -1: such a token is written all the same",
    )
    assert judged(Case(op="cache_write"), mutant(tmp_path, "cache_write.py", "cache_write", truncated)).findings == ()


# --- what is not the program's -----------------------------------------------------------------------------------


def test_a_wrong_row_of_the_table_is_explained_by_whose_it_is(tmp_path: Path) -> None:
    change = ("block_tables_ptr + seq * stride_table_seq", "block_tables_ptr + (seq // 2) * stride_table_seq")
    case = replace(PLAIN, seqs=lens(20, 20))
    finding = headline(judged(case, mutant(tmp_path, "decode.py", "decode", change)))
    line = line_of(tmp_path, "decode.py", "block_id = tl.load")
    assert (finding.kind, finding.line) == ("accuracy", line)
    story = "that of sequence 0, but the program has asked for sequence 1"
    assert finding.accuses.startswith(f"foreign read of block_tables [0, 0] ({story}) by program [1, 0, 0] at {line}")


def test_a_padding_row_that_is_walked_is_explained_by_whose_table_it_reads(tmp_path: Path) -> None:
    change = ("tl.load(kv_lens_ptr + seq * stride_lens_seq)", "tl.load(kv_lens_ptr)")
    case = replace(PLAIN, seqs=lens(20), padding_rows=1)
    accused = [f.accuses for f in judged(case, mutant(tmp_path, "decode.py", "decode", change)).findings]
    assert any("that of sequence 1, but the program has asked for sequence 0" in words for words in accused), accused


def test_an_entry_past_the_end_of_its_row_is_told_so(tmp_path: Path) -> None:
    changes = (
        ("tl.cdiv(kv_len, block_size)):", "tl.cdiv(kv_len, block_size) + 1):"),
        ("& (position < kv_len)  # [TILE_KV]", "# [TILE_KV]"),
    )
    subject = mutant(tmp_path, "decode.py", "decode", *changes)
    result = judged(replace(PLAIN, table_pad="zero", seqs=lens(32, 48)), subject)
    accused = {finding.accuses for finding in result.findings if finding.kind in ("accuracy", "not finite")}
    line = line_of(tmp_path, "decode.py", "block_id = tl.load")
    assert any(f"(past the end of row 0) by program [0, 0, 0] at {line}" in accuses for accuses in accused), accused


# --- right kernels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"out_layout": "given"}, {"want_lse": True}, {"placement": "far"}])
def test_a_right_kernel_with_scratch_is_silent(changes: dict[str, Any]) -> None:
    assert judged(replace(SPLIT, **changes), subjects.from_function(split_decode)).findings == ()


def test_every_kind_has_its_place_among_the_others() -> None:
    assert {"race", "overflow read", "overflow write", "uninitialised read"} <= set(SEVERITY)
    assert SEVERITY.index("overflow read") < SEVERITY.index("bad read") < SEVERITY.index("accuracy")
