"""Tokens that slid out of a window: whatever lies in their slots and table entries by now, nobody may read it."""

from typing import Any

import numpy as np
import pytest
import torch
from attending import lens, right, torch_subject
from hypothesis import HealthCheck, given, settings

from harness import ours, subjects
from harness.case import Case, InvalidCase, Seq, replace
from harness.inputs import gathered, materialise
from harness.pipeline import run_case
from harness.profiles import whole_profile
from harness.strategies import cases
from harness.subjects import declare
from harness.tensors import DEAD, LIVE

#: The window begins with token 33 of the first sequence, inside a block, and with token 16 of the second.
SLID = Case(seqs=lens(40, 23), window=(6, -1), slid_out=True, spare_blocks=1)
CHUNK = Case(op="extend", seqs=(Seq(query_len=3, kv_len=40),), window=(2, -1), slid_out=True)


def test_only_what_is_still_seen_is_live() -> None:
    inputs, tables = materialise(SLID).inputs, materialise(SLID).geometry.tables
    for cache in (inputs.k_cache, inputs.v_cache):
        assert (cache.state[tables[0][:2]] == DEAD).all()
        assert (cache.state[tables[0][2], :1] == DEAD).all()
        assert (cache.state[tables[0][2], 1:8] == LIVE).all()
        assert np.isnan(cache.view[tables[0][1]]).all()
    assert inputs.block_tables.state.tolist() == [[DEAD, DEAD, LIVE], [DEAD, LIVE, DEAD]]
    assert inputs.block_tables.view[0].tolist() == [-1, -1, tables[0][2]]


@pytest.mark.parametrize(
    ("case", "slid"), [(SLID, [33, 16]), (CHUNK, [35]), (replace(SLID, slid_out=False), [0, 0])], ids=str
)
def test_tokens_before_the_first_query_s_window_are_gone(case: Case, slid: list[int]) -> None:
    assert [case.slid(seq) for seq in case.seqs] == slid


def test_what_is_gone_is_0_for_the_references() -> None:
    _, k, v = gathered(materialise(SLID), 0)
    assert not k[:33].any()
    assert not v[:33].any()
    assert np.isfinite(k).all()
    assert k[33:].any()


def test_a_block_that_slid_out_of_one_window_and_is_seen_by_another_stays() -> None:
    seqs = (Seq(kv_len=20, tag=0), Seq(kv_len=40, tag=1, shares_prefix_with=0, shared_blocks=1))
    materials = materialise(Case(seqs=seqs, window=(18, -1), slid_out=True))
    assert (materials.inputs.k_cache.state[materials.geometry.tables[1][0]] == LIVE).sum() == 15 * 16
    assert materials.inputs.block_tables.state.tolist() == [[LIVE, LIVE, DEAD], [DEAD, LIVE, LIVE]]


def test_nothing_slides_out_of_an_unlimited_window() -> None:
    with pytest.raises(InvalidCase, match="slid_out is True, but window is"):
        Case(slid_out=True)


# --- faults, and right kernels ------------------------------------------------------------------------------------


def test_a_kernel_that_masks_scores_only_is_found_and_told_what_it_reads() -> None:
    """Its weights before the window are 0, and 0 times NaN is NaN."""
    before, behind = (
        run_case(case, torch_subject(right, slid_out=True), "gridsim", thorough=True, explain=True)
        for case in (SLID, replace(SLID, slid_out=False))
    )
    assert any(
        "V of tokens that slid out, before the window, is finite" in w for f in before.findings for w in f.explains
    )
    assert behind.findings == ()


def test_a_kernel_that_looks_up_what_slid_out_is_found_by_other_table_entries() -> None:
    def run(inputs: Any) -> Any:
        return cleaned(inputs) + inputs.block_tables.clamp(min=0)[:, :1, None] / 2**10

    case = replace(SLID, k_poison="zero", v_poison="zero", spare_poison="zero")
    told = [f.message for f in run_case(case, torch_subject(run, slid_out=True), "gridsim", thorough=True).findings]
    assert any("table entries that are not in use were changed" in words for words in told)


def cleaned(inputs: Any) -> Any:
    """Right for what slid out, too: no V that is not finite is multiplied."""
    v_cache = torch.nan_to_num(inputs.v_cache, 0.0, 0.0, 0.0)
    return right(type(inputs)(**{**vars(inputs), "v_cache": v_cache}))


OTHERS: dict[str, dict[str, Any]] = {
    "NaN": {},
    "somebody else's block": {"table_pad": "other", "v_poison": "huge"},
    "a block that is not there": {"table_pad": "huge", "k_poison": "inf"},
    "a window of whole blocks": {"window": (15, -1), "seqs": lens(48, 33)},
    "an empty sequence": {"seqs": lens(0, 40), "padding_rows": 1},
    "FP8": {"kv_dtype": "e4m3", "k_scale": 2.0, "v_scale": 0.5},
    "far": {"placement": "far"},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("name", ["decode", "split_decode", "extend", "step"])
def test_our_kernels_do_not_depend_on_what_slid_out(name: str, changes: dict[str, Any]) -> None:
    subject = subjects.load(f"ours.{name}")
    if name not in ("decode", "split_decode"):
        changes = {"op": name, **changes}
    result = run_case(replace(SLID, **changes), subject, "gridsim", thorough=True)
    assert (result.findings, result.declined, result.harness_fault) == ((), "", "")


@pytest.mark.parametrize("changes", [{}, {"new_kv": "dense"}, {"causal": False}, {"table_pad": "other"}])
def test_a_chunk_sees_what_its_first_query_sees(changes: dict[str, Any]) -> None:
    result = run_case(replace(CHUNK, **changes), subjects.from_function(ours.extend), "gridsim", thorough=True)
    assert (result.findings, result.declined, result.harness_fault) == ((), "", "")


# --- drawing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("declared", "drawn"), [({}, {True, False}), ({"slid_out": False}, {False})])
def test_it_is_drawn_for_who_declares_it(declared: dict[str, Any], drawn: set[bool]) -> None:
    options = whole_profile(declare(**({"window": True, "slid_out": True} | declared)))
    seen: set[bool] = set()

    @settings(max_examples=150, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(options))
    def draw(case: Case) -> None:
        seen.add(case.slid_out)
        assert case.window[0] >= 0 or not case.slid_out

    draw()
    assert seen == drawn
