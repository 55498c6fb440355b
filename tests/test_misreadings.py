"""Mistakes in the naive kernel are named by the step that is wrong and its line; of a right one nothing is said."""

from pathlib import Path

import pytest
from mistaken import ACC, DIVIDE, SUM, TABLE, K, V, line_of, mistaken

from harness.case import Case, Seq, replace
from harness.pipeline import run_case
from harness.subjects import load
from harness.verdicts import told

TWO_BLOCKS = Case(seqs=(Seq(kv_len=20),), placement="reversed", spare_blocks=1)
GROUPED = Case(seqs=(Seq(kv_len=16),), num_q_heads=4, num_kv_heads=2)
#: What is put for what, on which case, what is said of it, and the part of the line that is named.
MISTAKES: dict[str, tuple[str, str, Case, str, str]] = {
    "column 0": (
        TABLE, "block = tl.load(table_ptr + seq * columns).to(tl.int64)", TWO_BLOCKS,
        "column 0 of the block table is read for every column; the block table is read at", "block = ",
    ),
    "a column too far": (
        TABLE, "block = tl.load(table_ptr + seq * columns + column + 1).to(tl.int64)",
        replace(TWO_BLOCKS, extra_columns=1, table_pad="zero"),
        "the column behind the right one is read of the block table; the block table is read at", "block = ",
    ),
    "no table": (
        TABLE, "block = (seq * columns + column).to(tl.int64)", TWO_BLOCKS,
        "the number of a column is taken for its block: the block table is not asked; K is read at", " k = tl.load",
    ),
    "no table, blocks in order": (
        TABLE, "block = (seq * columns + column).to(tl.int64)", Case(),
        "with its blocks elsewhere: sequence 0, head 0: the number of a column is taken for its block", " k = tl.load",
    ),
    "another row": (
        TABLE, "block = tl.load(table_ptr + column).to(tl.int64)", Case(seqs=(Seq(kv_len=3), Seq(kv_len=5, tag=1))),
        "the block table is not asked, or row 0 of the block table is read in place of row 1; the block table is",
        "block = ",
    ),
    "a block's stride": (
        K, K.replace("block * stride_k_block", "block * BLOCK_SIZE"), replace(TWO_BLOCKS, placement="in_order"),
        "K read with the strides of blocks that lie block_size elements apart; K is read at", " k = tl.load",
    ),
    "a slot's stride": (
        K, K.replace("slot * stride_k_slot", "slot * HEAD_DIM"), GROUPED,
        "K read with the strides of slots that lie head_dim apart; K is read at", " k = tl.load",
    ),
    "a slot's stride of V": (
        V, V.replace("slot * stride_v_slot", "slot * HEAD_DIM"), GROUPED,
        "V is read with the strides of slots that lie head_dim apart", " v = tl.load",
    ),
    "slots for heads": (
        K, "k_offset = block * stride_k_block + kv_head * stride_k_slot + slot * stride_k_head + dim",
        replace(GROUPED, layout="padded"),
        "K read with the strides of slots and heads that are taken for each other; K is read at", " k = tl.load",
    ),
    "no slot": (
        K, K.replace(" + slot * stride_k_slot", " + 0 * slot"), replace(GROUPED, num_kv_heads=4),
        "K whose slots are all read in one place; K is read at", " k = tl.load",
    ),
    "the query's head of K": (
        K, K.replace("kv_head", "head"), replace(GROUPED, num_q_heads=2, num_kv_heads=1),
        "K read where head 1 would lie, that of the query, and not its KV head 0; K is read at", " k = tl.load",
    ),
    "the query's head of V": (
        V, V.replace("kv_head", "head"), replace(GROUPED, num_q_heads=2, num_kv_heads=1),
        "V is read where head 1 would lie, that of the query, and not its KV head 0; V is read at", " v = tl.load",
    ),
    "a normaliser that is not rescaled": (
        SUM, "l = l + tl.sum(p)", TWO_BLOCKS, "the normaliser is summed at", SUM,
    ),
    "an output that is not rescaled": (
        ACC, ACC.replace("acc * rescale", "acc"), TWO_BLOCKS,
        "not rescaled when the maximum moves; the output is summed at", ACC,
    ),
    "a normaliser of the last tile": (
        SUM, "l = tl.sum(p)", TWO_BLOCKS,
        "the normaliser is that of the last tile of 16 keys alone, what was summed before it is lost; the normaliser",
        SUM,
    ),
    "an output of the last tile": (
        ACC, ACC.replace("acc * rescale + ", ""), TWO_BLOCKS,
        "only the last tile of 16 keys counts, what was summed before it is lost; the output is summed at", ACC,
    ),
    "no maximum kept": (
        "        m = m_new\n", "", TWO_BLOCKS, "only the last tile of 16 keys counts", ACC,
    ),
    "no division": (
        DIVIDE, "acc = acc / tl.where(l > 0, 1.0, 1.0)", TWO_BLOCKS,
        "so that the largest is 1: the output is not divided by the normaliser; the output is summed at", ACC,
    ),
    "K for V": (
        ACC, ACC.replace("p * v", "p * k"), GROUPED,
        "it is the mean of K, in place of V; the output is summed at", ACC,
    ),
    "scores for weights": (
        ACC, ACC.replace("p * v", "scores * v"), GROUPED, "what V is multiplied by is no exponential of a score", ACC,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    old, new, case, words, part = MISTAKES[name]
    result = run_case(case, load(mistaken(tmp_path, old, new)), "gridsim", thorough=True, explain=True)
    said = told(result.findings)
    assert words in said, said
    assert f"my_kernel.py:{line_of(part)}" in said, said


@pytest.mark.parametrize("v_layout", ["same", "padded", "offset"])
def test_an_output_of_zeros_is_no_misreading_of_v(tmp_path: Path, v_layout: str) -> None:
    subject = load(mistaken(tmp_path, DIVIDE, "acc = acc * 0.0"))
    for case in (replace(GROUPED, v_layout=v_layout), replace(TWO_BLOCKS, v_layout=v_layout)):
        said = told(run_case(case, subject, "gridsim", thorough=True, explain=True).findings)
        assert "V is read" not in said, said


def test_nothing_is_said_of_the_kernel_without_a_mistake(tmp_path: Path) -> None:
    subject = load(mistaken(tmp_path, DIVIDE, DIVIDE))
    for name, (_, _, case, _, _) in MISTAKES.items():
        assert (name, run_case(case, subject, "gridsim", thorough=True, explain=True).findings) == (name, ())
