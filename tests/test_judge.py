"""The judge and its witness agree on every drawn case; where they do not, the harness says so with both values."""

import re
from typing import Any

import numpy as np
import pytest
from attending import RAGGED, lens
from hypothesis import HealthCheck, Phase, given, settings

from harness import ours, values
from harness.arithmetic import Arithmetic
from harness.bounds import exceeds
from harness.case import Case, Seq, Slots, States, replace
from harness.folders import load
from harness.inputs import gathered, materialise
from harness.judge import blindness, contradiction, disagreement, features, judge
from harness.pipeline import run_case
from harness.platforms import platform
from harness.profiles import Profile
from harness.strategies import cases
from harness.subjects import from_function

sdpa, float64 = load("references", "sdpa"), load("references", "float64")
DRAWN = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
NEAR = Profile(placements=("in_order", "reversed", "shuffled", "interleaved"), max_kv_len=150)


@DRAWN
@given(cases(NEAR))
def test_the_witnesses_agree_on_drawn_cases(case: Case) -> None:
    materials = materialise(case)
    assert disagreement(materials) is None
    assert (contradiction(materials), blindness(materials)) == ("", "")


DENSE = Profile(
    op="extend", new_kv=("dense",), features=("window", "alibi", "sinks", "non_causal", "head_dim_v", "padding_rows"),
    kv_dtypes=("same", "e4m3"), placements=("in_order", "shuffled"), max_kv_len=100,
)  # fmt: skip


@DRAWN
@given(cases(DENSE))
def test_the_witness_agrees_on_dense_new_tokens_and_padding_rows(case: Case) -> None:
    assert disagreement(materialise(case)) is None
    assert contradiction(materialise(case)) == ""


@DRAWN
@given(cases(DENSE))
def test_dense_new_tokens_are_judged_as_the_same_tokens_in_the_cache(case: Case) -> None:
    if case.kv_dtype != "same":
        return
    seqs = tuple(Seq(query_len=seq.query_len, kv_len=seq.kv_len, tag=seq.tag) for seq in case.seqs)
    dense, cached = (
        judge(materialise(replace(case, seqs=seqs, new_kv=new_kv)), Arithmetic(), platform("gridsim"))
        for new_kv in ("dense", "in_cache")
    )
    assert np.array_equal(dense.truth, cached.truth)
    assert np.array_equal(dense.out, cached.out)


@pytest.mark.parametrize("poison", ["nan", "inf", "huge", "random_bits"])
def test_a_padding_row_should_be_exactly_zero_and_its_lse_minus_infinity(poison: Any) -> None:
    case = replace(RAGGED, padding_rows=2, row_poison=poison, dtype="float16")
    bound = judge(materialise(case), Arithmetic(), platform("gridsim"))
    assert (bound.truth[-2:] == 0).all()
    assert (bound.out[-2:] == 0).all()
    assert np.isneginf(bound.truth_lse[-2:]).all()


@DRAWN
@given(cases(NEAR))
def test_the_truth_of_the_bound_is_the_reference(case: Case) -> None:
    materials = materialise(case)
    bound = judge(materials, Arithmetic.float64(), platform("float64"), out_dtype="float64")
    wanted = features(materials)
    for i in range(len(case.seqs)):
        out, lse = float64.attention(*gathered(materials, i), **wanted)
        assert not exceeds(out[0], bound.truth[i], bound.out[i]).any()
        assert not exceeds(lse[0], bound.truth_lse[i], bound.lse[i]).any()


def test_the_batch_is_judged_in_order_and_whole() -> None:
    case = replace(RAGGED, seqs=lens(3, 0, 17), num_q_heads=4, num_kv_heads=2)
    bound = judge(materialise(case), Arithmetic(), platform("gridsim"))
    assert bound.truth.shape == bound.out.shape == (3, 4, 16)
    assert bound.truth_lse.shape == bound.lse.shape == (3, 4)
    assert all(term.shape == (3, 4, 16) for term in bound.terms.values())
    assert (bound.truth[1] == 0).all()
    assert np.isneginf(bound.truth_lse[1]).all()
    alone = judge(materialise(replace(case, seqs=case.seqs[2:])), Arithmetic(), platform("gridsim"))
    assert (alone.truth[0] == bound.truth[2]).all()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A witness that doubles one element."""
    attention = sdpa.attention

    def doubling(*args: Any, **kwargs: Any) -> Any:
        out = attention(*args, **kwargs)
        out[0, 1, 3] *= 2
        return out

    monkeypatch.setattr(sdpa, "attention", doubling)


@pytest.mark.usefixtures("broken")
def test_a_broken_witness_is_reported_with_both_values_and_the_case() -> None:
    message = disagreement(materialise(RAGGED))
    assert message is not None
    found = re.match(r"sdpa has (\S+) at \[0, 1, 3\], but float64 has (\S+) ± (\S+), on \{", message)
    assert found is not None, message
    seen, truth, tolerance = (float(number) for number in found.groups())
    assert seen == pytest.approx(2 * truth)
    assert 0 < tolerance < 1e-12  # the witness's own, not that of a float32 output
    assert '"kv_len": 20' in message


@pytest.mark.usefixtures("broken")
def test_a_broken_witness_is_a_fault_of_the_harness_and_no_finding() -> None:
    result = run_case(RAGGED, from_function(ours.decode), "gridsim", thorough=True)
    assert result.harness_fault.startswith("sdpa has ")
    assert result.findings == ()


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("changes", [{"softcap": 2.0}, {"sinks": True}])
def test_what_the_witness_declines_is_no_disagreement(changes: dict[str, Any]) -> None:
    assert disagreement(materialise(replace(RAGGED, **changes))) is None


def test_a_witness_of_nan_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = sdpa.attention
    monkeypatch.setattr(sdpa, "attention", lambda *args, **kwargs: attention(*args, **kwargs) * np.nan)
    assert str(disagreement(materialise(RAGGED))).startswith("sdpa has nan at [0, 0, 0], but float64 has ")


# --- operations and caches ---------------------------------------------------------------------------------------

CHUNK = (Seq(query_len=3, kv_len=20), Seq(query_len=2, kv_len=2, tag=1))
EXACT = (Arithmetic.float64(), platform("float64"), "float64")


@DRAWN
@given(cases(replace(NEAR, op="extend", features=("window", "alibi", "non_causal", "head_dim_v", "mla"))))
def test_the_witness_agrees_on_drawn_extends(case: Case) -> None:
    assert disagreement(materialise(case)) is None


@DRAWN
@given(cases(replace(NEAR, op="step", features=("window", "alibi", "mla"), kv_dtypes=("same", "e4m3", "e5m2"))))
def test_the_witness_agrees_on_drawn_steps_with_any_cache(case: Case) -> None:
    assert disagreement(materialise(case)) is None


def test_an_fp8_cache_is_judged_by_what_its_bits_mean() -> None:
    case = replace(RAGGED, kv_dtype="e4m3", k_scale=0.5, v_scale=2.0, num_q_heads=4, num_kv_heads=2)
    materials = materialise(replace(case, scale_granularity="head"))
    _, k, v = gathered(materials, 0)
    stored = materials.inputs.v_cache.view[materials.geometry.tables[0][0], :16].astype(np.float64)
    assert np.array_equal(v[:16], stored * np.array([1.0, 2.0])[:, None])
    near = values.keys(materials.case, materials.case.seqs[0])
    assert np.abs(k - near).max() <= 2**-4 * np.abs(near).max()


def test_each_scale_changes_the_truth() -> None:
    plain = replace(RAGGED, kv_dtype="e4m3", k_scale=0.5, v_scale=0.5)
    truths = [judge(materialise(replace(plain, **s)), *EXACT).truth for s in ({}, {"v_scale": 1.0}, {"k_scale": 4.0})]
    assert len({truth.tobytes() for truth in truths}) == 3


def test_a_step_is_judged_on_what_should_have_been_written() -> None:
    step = Case(op="step", seqs=CHUNK, num_q_heads=2, slots=Slots(tail_padding=2))
    extend = replace(step, op="extend", slots=Slots())
    truth, wanted = (judge(materialise(case), *EXACT).truth for case in (step, extend))
    assert np.isnan(materialise(step).inputs.k_cache.view[materialise(step).geometry.tables[0][1], 1:4]).all()
    assert truth.shape == (5, 2, 16)
    assert np.array_equal(truth, wanted)


def test_a_merge_is_judged_as_attention_over_its_states() -> None:
    case = Case(op="merge", num_q_heads=2, states=States(partition=(1, 4, 9), empty=(1,)), want_lse=True)
    materials = materialise(case)
    bound = judge(materials, Arithmetic(), platform("gridsim"))
    outs, lses = (x.view[[0, 2]].astype(np.float64) for x in (materials.inputs.state_outs, materials.inputs.state_lses))
    weights = np.exp(lses) / np.exp(lses).sum(axis=0)
    assert np.allclose(bound.truth, (weights[..., None] * outs).sum(axis=0), rtol=1e-12)
    assert np.allclose(bound.truth_lse, np.log(np.exp(lses).sum(axis=0)), rtol=1e-12)


def test_a_merge_of_empty_states_is_zero_and_minus_infinity() -> None:
    bound = judge(materialise(Case(op="merge", states=States(empty=(0, 1)))), Arithmetic(), platform("gridsim"))
    assert (bound.truth == 0).all()
    assert np.isneginf(bound.truth_lse).all()
