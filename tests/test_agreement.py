"""The comparison of two executors sees a difference that should not be, and stays silent where there is none."""

from __future__ import annotations

import os

import numpy as np
import pytest
from agreement import Aside, Row, added, compared, drawn, grouped, observed, table

from harness.case import Case, Seq, replace

CASE = Case(seqs=(Seq(kv_len=16),), head_dim=16, values="uniform", scale=0.25)


@pytest.mark.parametrize(
    ("values", "dtype", "bits"), [("uniform", "float32", np.uint32), ("gather", "float16", np.uint16)]
)
def test_one_bit_of_an_exact_output_is_seen(values, dtype, bits):
    case = replace(CASE, values=values, dtype=dtype)
    first = observed("gridsim", "decode", [case])
    (silent,) = compared("decode", [case], first, "gridsim")
    assert silent.right
    assert silent.exact == silent.elements == 16
    first[0]["out"].view(bits)[0, 0, 3] ^= 1
    (row,) = compared("decode", [case], first, "gridsim")
    assert (row.differ, row.differ_where_exact) == (1, 1)
    assert "at [0, 0, 3]" in row.wrong[0]


def test_a_hot_key_in_float32_is_not_held_to_its_bits():
    case = replace(CASE, values="gather")
    (row,) = compared("decode", [case], observed("gridsim", "decode", [case]), "gridsim")
    assert (row.exact, row.right) == (0, True)


def test_an_output_beyond_its_bound_is_seen_and_one_within_it_is_not():
    case = replace(CASE, values="normal", want_lse=True)
    first = observed("gridsim", "decode", [case])
    first[0]["out"].view(np.uint32)[0, 0, 3] ^= 1
    (row,) = compared("decode", [case], first, "gridsim")
    assert row.right
    assert row.differ == 1
    first[0]["lse"] += 1e-2
    (row,) = compared("decode", [case], first, "gridsim")
    assert row.beyond == 1
    assert row.worst > 1


def test_sixteen_keys_are_exact_and_fifteen_are_not():
    case = replace(CASE, seqs=(Seq(kv_len=15),))
    (row,) = compared("decode", [case], observed("gridsim", "decode", [case]), "gridsim")
    assert row.exact == 0
    assert row.right


def test_what_one_side_complains_of_is_wrong():
    case = replace(CASE, op="cache_write", seqs=(Seq(kv_len=16, query_len=2),), values="normal")
    first = observed("gridsim", "cache_write", [case])
    assert compared("cache_write", [case], first, "gridsim")[0].right
    first[0]["wrong"].append("k_cache was written")
    (row,) = compared("cache_write", [case], first, "gridsim")
    assert not row.right


def test_cases_are_drawn_again_as_they_were_and_grouped_by_their_constants():
    found = drawn("extend", 30)
    assert found == drawn("extend", 30)
    assert len(found) == 30
    assert len({case.values for case in found}) > 4
    assert sum(len(group) for group in grouped(found)) == len(found)
    assert len(grouped(found)) < len(found)


def test_rows_of_one_kind_are_added():
    rows = [
        Row("decode", "float32", "same", "ties", cases=1, worst=0.5),
        Row("decode", "float32", "same", "ties", cases=2),
    ]
    (row,) = added(rows)
    assert (row.cases, row.worst) == (3, 0.5)


def test_processes_on_both_sides_agree_with_themselves():
    rows = table(4, "gridsim", "gridsim", 1, subjects=("decode", "gather"))
    assert {row.subject for row in rows} == {"decode", "gather"}
    assert all(row.right and row.differ == 0 for row in rows)


@pytest.mark.parametrize("subject", ["decode", "split_decode", "extend", "step"])
def test_some_drawn_cases_are_exact(subject):
    found = drawn(subject, 12)[:3]
    rows = compared(subject, found, observed("gridsim", subject, found), "gridsim")
    assert all(row.right for row in rows)
    assert sum(row.exact for row in rows) > 0


def test_a_process_that_dies_is_told_and_the_next_question_is_answered():
    aside = Aside()
    assert "died" in aside.ask(os.abort)
    assert aside.ask(abs, -3) == 3
    aside.close()
