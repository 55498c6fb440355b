"""Witnesses: each agrees, declines in words, or is not available; a disagreement is a fault with both values."""

from typing import Any

import numpy as np
import pytest
from attending import RAGGED

from harness import bounds, judge, witnesses
from harness.case import Case, Seq, replace
from harness.inputs import materialise
from harness.witnesses import hear

CHUNK = (Seq(query_len=3, kv_len=20), Seq(query_len=2, kv_len=2, tag=1))


def says(case: Case, name: str = "sdpa") -> str:
    return next(heard.says for heard in hear(materialise(case), "gridsim") if heard.witness == name)


@pytest.mark.parametrize(
    "case",
    [
        RAGGED,
        replace(RAGGED, kv_dtype="e4m3", k_scale=2.0, v_scale=0.5),
        replace(RAGGED, op="extend", seqs=CHUNK, causal=False, alibi=True),
        replace(RAGGED, op="extend", seqs=CHUNK, window=(2, 1), head_dim_v=32),
        replace(RAGGED, op="step", seqs=CHUNK),
        replace(RAGGED, op="step", seqs=CHUNK, head_dim=32, head_dim_v=16, v_is_k_prefix=True),
    ],
)
def test_sdpa_agrees_on_decodes_extends_and_steps(case: Case) -> None:
    assert says(case) == "agreed"


@pytest.mark.parametrize(("changes", "word"), [({"softcap": 2.0}, "softcap"), ({"sinks": True}, "sinks")])
def test_what_sdpa_has_not_it_declines_in_words(changes: dict[str, Any], word: str) -> None:
    assert says(replace(RAGGED, **changes)) == f"declined: scaled_dot_product_attention has no {word}"


def test_a_disagreement_is_a_fault_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "disagreement", lambda *_: "sdpa has 1, but float64 has 2")
    heard = next(heard for heard in hear(materialise(RAGGED), "gridsim") if heard.witness == "sdpa")
    assert (heard.says, heard.fault) == ("disagreed", "sdpa has 1, but float64 has 2")


EVERYTHING = {"softcap": 2.0, "sinks": True, "alibi": True, "window": (5, -1), "padding_rows": 1}


@pytest.mark.parametrize("changes", [{}, EVERYTHING, {"op": "extend", "seqs": CHUNK, "causal": False} | EVERYTHING])
def test_the_plain_reference_agrees_whatever_the_features_and_the_control_is_seen(changes: dict[str, Any]) -> None:
    case = replace(RAGGED, **changes)
    assert (says(case, "float64"), says(case, "control")) == ("agreed", "agreed")


def test_a_truth_that_is_wrong_where_sdpa_declines_is_contradicted(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = bounds.softcapped
    monkeypatch.setattr(
        bounds, "softcapped", lambda scores, errors, cap, where: forgotten(scores, errors, 2 * cap, where)
    )
    heard = {heard.witness: heard for heard in hear(materialise(replace(RAGGED, softcap=2.0)), "gridsim")}
    assert heard["sdpa"].says.startswith("declined")
    assert heard["float64"].fault.startswith("the plain float64 reference has ")
    assert " as out[" in heard["float64"].fault


@pytest.mark.parametrize(
    ("sees", "words"),
    [
        (lambda out, bound: np.zeros(out.shape, dtype=bool), "the comparison lets NaN pass as out["),
        (lambda out, bound: np.isnan(out), "the comparison lets infinity pass as out["),
        (lambda out, bound: ~np.isfinite(out), "the comparison lets 3 times the bound off pass as out["),
        (lambda out, bound: np.ones(out.shape, dtype=bool), "the comparison does not let the truth itself pass"),
    ],
)
def test_a_comparison_that_cannot_fail_or_only_fails_is_noticed(
    monkeypatch: pytest.MonkeyPatch, sees: Any, words: str
) -> None:
    monkeypatch.setattr(judge, "exceeds", sees)
    assert judge.blindness(materialise(RAGGED)).startswith(words)


def test_without_a_gpu_flash_attention_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "_flash_attn_missing", lambda: "not available: no GPU")
    assert says(RAGGED, "flash_attn") == "not available: no GPU"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"placement": "far"}, "far blocks are read elsewhere"),
        ({"op": "step"}, "the new tokens are not in the cache before the call"),
        ({"op": "extend", "seqs": CHUNK}, "a sequence has not just one query"),
        ({"op": "extend", "seqs": (Seq(query_len=0, kv_len=3),)}, "a sequence has not just one query"),
    ],
)
def test_flash_attention_is_not_shown_what_it_cannot_answer(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(witnesses, "_flash_attn_missing", lambda: None)
    assert says(replace(RAGGED, **changes), "flash_attn") == f"declined: {reason}"


@pytest.mark.parametrize(("reason", "told"), [("no sinks", "declined: no sinks"), (None, "agreed")])
def test_flash_attention_is_shown_tame_values_where_it_can_answer(
    monkeypatch: pytest.MonkeyPatch, reason: str | None, told: str
) -> None:
    shown = []
    monkeypatch.setattr(witnesses, "_flash_attn_missing", lambda: None)
    monkeypatch.setattr(witnesses, "_flash_attn_declines", lambda materials: shown.append(materials.case) or reason)
    monkeypatch.setattr(witnesses, "_flash_attn_fault", lambda materials, platform: "")
    assert says(RAGGED, "flash_attn") == told
    assert [(case.k_poison, case.v_poison, case.spare_poison) for case in shown] == [("zero",) * 3]
