"""What the bound promises, one property at a time; its soundness and power have files of their own."""

import hashlib
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from harness.arithmetic import Arithmetic, rounding
from harness.bounds import attention_bound, exceeds, margin, state_bound, uniform_bound
from harness.folders import load
from harness.platforms import PLATFORMS, flushing, platform

float64 = load("references", "float64")
PLAIN = {"scale": 0.3, "causal": True, "window": (-1, -1), "softcap": 0.0, "alibi_slopes": None, "sinks": None}
FEATURES = [
    {},
    {"causal": False},
    {"window": (2, 0)},
    {"causal": False, "window": (1, 1)},
    {"softcap": 2.0},
    {"alibi_slopes": np.float32([0.5, 0.25, 1.0, 0.0])},
    {"sinks": np.float32([1.5, -30.0, 90.0, 0.0])},
]


def arrays(query_len=3, kv_len=7, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((query_len, 4, 8), (kv_len, 2, 8), (kv_len, 2, 5))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def bound_of(q, k, v, arithmetic=None, where="gridsim", out_dtype="float32", **features):
    return attention_bound(
        q,
        k,
        v,
        **PLAIN | features,
        arithmetic=arithmetic or Arithmetic(),
        platform=platform(where),
        out_dtype=out_dtype,
    )


@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "+".join(features) or "plain")
@pytest.mark.parametrize(("query_len", "kv_len"), [(1, 7), (4, 6), (3, 3), (5, 2), (2, 0), (0, 3)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_truth_is_the_judges(features, query_len, kv_len, dtype):
    q, k, v = arrays(query_len, kv_len, dtype)
    out, lse = float64.attention(q, k, v, **PLAIN | features)
    bound = bound_of(q, k, v, **features)
    np.testing.assert_allclose(bound.truth, out, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(bound.truth_lse, lse, rtol=1e-12, atol=1e-12)
    assert not exceeds(out, bound, dtype="float32").any()
    assert not exceeds(lse, bound.truth_lse, bound.lse).any()


@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "+".join(features) or "plain")
@pytest.mark.parametrize("where", PLATFORMS)
def test_terms_are_not_negative_and_sum_to_the_bound(features, where):
    for arithmetic in (Arithmetic(), Arithmetic.widest("float32"), Arithmetic.widest("bfloat16")):
        bound = bound_of(*arrays(), arithmetic, where, **features)
        assert all((term >= 0).all() for term in bound.terms.values())
        np.testing.assert_allclose(sum(bound.terms.values()), bound.out, rtol=1e-14)
        assert np.isfinite(bound.out).all()
        assert np.isfinite(bound.lse).all()


def test_the_dominating_term_is_named_with_its_share():
    bound = bound_of(*arrays(), Arithmetic(p_dtype="bfloat16"), out_dtype="float32")
    name, share = bound.dominating((2, 0, 0))
    assert name == "p cast"
    assert 0.9 < share < 1
    assert bound_of(*arrays(3, 2)).dominating((0, 0, 0))[1] == 0


def test_nan_and_a_wrong_infinity_fail():
    bound = bound_of(*arrays())
    for wrong in (np.nan, np.inf, -np.inf, np.finfo(np.float32).max):
        y = bound.truth.astype(np.float32)
        y[1, 2, 3] = wrong
        assert np.argwhere(exceeds(y, bound)).tolist() == [[1, 2, 3]]
        assert margin(y, bound)[1, 2, 3] > 1e30


def test_an_overflow_is_right_only_with_the_right_sign_and_only_beyond_the_range():
    q, k, v = arrays(1, 4)
    bound = bound_of(q, k, np.full_like(v, -1e5), out_dtype="float16")
    for value, wrong in (
        (-np.inf, False),
        (np.inf, True),
        (-65504, False),
        (65504, True),
        (-65000, True),
        (np.nan, True),
    ):
        y = np.full(bound.truth.shape, value, dtype=np.float16)
        assert exceeds(y, bound).all() == wrong == exceeds(y, bound).any()
    assert exceeds(np.full(bound.truth.shape, -np.inf), bound, dtype="float32").all()
    within = bound_of(q, k, np.full_like(v, -60000), out_dtype="float16")
    assert exceeds(np.full(bound.truth.shape, -np.inf, dtype=np.float16), within).all()


def test_an_empty_row_is_compared_exactly():
    bound = bound_of(*arrays(3, 2))
    assert (bound.out[0] == 0).all()
    assert (bound.lse[0] == 0).all()
    y, lse = bound.truth.copy(), bound.truth_lse.copy()
    assert not exceeds(y, bound).any()
    assert not exceeds(lse, bound.truth_lse, bound.lse).any()
    y[0, 0, 0], lse[0, 0] = 1e-300, -1e300
    assert exceeds(y, bound).sum() == 1
    assert exceeds(lse, bound.truth_lse, bound.lse, "float32").sum() == 1


def test_margin_is_one_at_the_bound():
    bound = bound_of(*arrays())
    np.testing.assert_allclose(margin(bound.truth + bound.out, bound), 1.0, rtol=1e-6)
    assert (margin(bound.truth, bound) == 0).all()
    assert exceeds(bound.truth + 1.001 * bound.out, bound).all()


def test_errors_of_scores_cancel_for_a_constant_v_and_for_one_key():
    q, k, v = arrays(1, 50)
    constant = bound_of(1e6 * q, k, np.broadcast_to(v[:1], v.shape))
    single = bound_of(1e6 * q, k[:1], v[:1])
    varied = bound_of(1e6 * q, k, v)
    for bound in (constant, single):
        assert (bound.terms["scores"] == 0).all()
        assert (bound.out <= 2e-5 * np.abs(bound.truth)).all()
    assert (varied.terms["scores"] > 1e-2).any()


def test_the_bound_never_leaves_the_hull_of_v():
    q, k, v = arrays(2, 40)
    bound = bound_of(1e15 * q, 1e15 * k, v, Arithmetic.widest("float32"), "sm90", causal=False)
    reach = np.float64(v.max(axis=0)) - v.min(axis=0)
    assert (bound.terms["scores"] <= np.repeat(reach, 2, axis=0) * (1 + 1e-12)).all()
    assert np.isfinite(bound.out).all()


def test_less_exact_arithmetic_has_a_larger_bound():
    careful = Arithmetic(tile_kv=16)
    out = bound_of(*arrays(2, 60), careful).out
    changes = (
        {"dot": "tf32"}, {"dot": "tf32x3"}, {"qk_accumulator": "float16"}, {"qk_product": "float16"},
        {"p_dtype": "e4m3"},
        {"pv_accumulator": "bfloat16"}, {"pv_product": "float16"}, {"scaled_q_dtype": "float16"}, {"tile_kv": 1},
        {"score_dtype": "float16"}, {"sum_accumulator": "float16"}, {"max_splits": 4}, {"divisions": 2},
        {"p_dtype": "float16", "normalised_p": True}, {"max_splits": 4, "partial_dtype": "float16"},
    )  # fmt: skip
    for change in changes:
        assert (bound_of(*arrays(2, 60), replace(careful, **change)).out > out).all(), change


def test_an_unknown_normaliser_allows_for_either():
    unknown, cast, uncast = (
        bound_of(*arrays(), Arithmetic(p_dtype="bfloat16", normaliser=kind)) for kind in ("unknown", "cast", "uncast")
    )
    np.testing.assert_array_equal(unknown.out, np.maximum(cast.out, uncast.out))
    np.testing.assert_array_equal(unknown.lse, np.maximum(cast.lse, uncast.lse))


def test_scales_and_keys_that_nobody_sees():
    q, k, v = arrays(2, 6)
    plain = bound_of(q, k, v, window=(1, 0))
    k[:3], v[:3] = np.nan, np.inf
    np.testing.assert_array_equal(bound_of(q, k, v, window=(1, 0)).out, plain.out)
    k[:3] = v[:3] = 0
    scaled = attention_bound(
        q, k, v, **PLAIN | {"window": (1, 0)}, arithmetic=Arithmetic(dequant_dtype="float16"),
        platform=platform("gridsim"), out_dtype="float32", k_scale=2.0, v_scale=np.ones(2) * 3,
    )  # fmt: skip
    assert (scaled.out > plain.out).all()


def test_arguments_are_not_written_to():
    inputs = [*arrays(), np.float32([0.5, 1.0, 0.1, 0.2]), np.float32([1.0, 2.0, 3.0, 4.0])]
    before = [hashlib.sha256(x.tobytes()).digest() for x in inputs]
    q, k, v, slopes, sinks = inputs
    bound = bound_of(q, k, v, alibi_slopes=slopes, sinks=sinks, softcap=3.0, window=(1, 0))
    exceeds(bound.truth, bound)
    assert [hashlib.sha256(x.tobytes()).digest() for x in inputs] == before


def test_a_merge_of_states_is_attention_over_their_union():
    q, k, v = arrays(1, 9)
    parts = [float64.attention(q, k[a:b], v[a:b], scale=0.3, causal=False) for a, b in ((0, 4), (4, 4), (4, 9))]
    outs, lses = (np.stack(x) for x in zip(*parts, strict=True))
    bound = state_bound(outs, lses, arithmetic=Arithmetic(), platform=platform("sm90"), out_dtype="float32")
    out, lse = float64.attention(q, k, v, scale=0.3, causal=False)
    np.testing.assert_allclose(bound.truth, out, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(bound.truth_lse, lse, rtol=1e-13)
    assert (bound.out < 3e-6 * np.abs(v).max()).all()
    nothing = state_bound(outs[1:2], lses[1:2], arithmetic=Arithmetic(), platform=platform("sm90"), out_dtype="float32")
    assert (nothing.truth == 0).all()
    assert (nothing.out == 0).all()
    assert np.isneginf(nothing.truth_lse).all()


def test_uniform_is_a_few_ulps_wide():
    truth, keys = np.array([1 / 3, 0.5, 0.0]), np.array([3, 4, 5])
    tight = uniform_bound(truth, keys, arithmetic=Arithmetic(), platform=platform("sm90"), out_dtype="float32")
    assert (tight[:2] <= 4 * 2.0**-23 * truth[:2]).all()
    assert (tight[:2] >= 2.5 * 2.0**-23 * truth[:2]).all()
    assert tight[2] < 1e-40
    widest = uniform_bound(
        truth, keys, arithmetic=Arithmetic.widest("float32"), platform=platform("sm90"), out_dtype="float32"
    )
    assert (widest[:2] > tight[:2]).all()


def test_errors_name_what_is_known():
    with pytest.raises(ValueError, match=r"unknown platform 'sm70': known are .*sm90"):
        platform("sm70")
    with pytest.raises(ValueError, match=r"no rounding error is known for 'int8': known are .*bfloat16"):
        rounding("int8", platform("sm90"))


@pytest.mark.parametrize(("above", "allowed"), [(90.0, True), (80.0, False)])
def test_a_weight_that_a_gpu_may_flush_may_be_lost_on_gridsim_too(above, allowed):
    """A kernel whose maximum leaves the sink out divides by exp(90), which is infinite in float32."""
    q, v, lost = np.zeros((1, 1, 8), np.float32), np.ones((1, 1, 8), np.float32), np.zeros((1, 1, 8), np.float32)
    given = {**PLAIN, "sinks": np.float32([above]), "arithmetic": Arithmetic(), "out_dtype": "float32"}
    kept, flushed = (
        attention_bound(q, q, v, **given, platform=where)
        for where in (platform("gridsim"), flushing(platform("gridsim")))
    )
    assert exceeds(lost, kept).all()
    assert exceeds(lost, flushed).any() != allowed


@pytest.mark.parametrize("size", [100, 1000, 10000])
def test_a_weight_of_nothing_may_be_half_where_scores_err_by_hundreds(size):
    q, rounded = (np.float32([1.0, second]).reshape(1, 1, 2) for second in (1.1, 1.0))  # 1.1 in e5m2 is 1
    k, v = np.zeros((2, 1, 2), dtype=np.float32), np.float32([1.0, -1.0]).reshape(2, 1, 1)
    k[1] = size, -size
    lost, _ = float64.attention(rounded, k, v, **PLAIN | {"scale": 1.0})
    assert lost.item() == 0.0
    assert not exceeds(np.float32(lost), bound_of(q, k, v, Arithmetic(scaled_q_dtype="e5m2"), scale=1.0)).any()
    assert exceeds(np.float32(lost), bound_of(q, k, v, scale=1.0)).any()


@pytest.mark.parametrize("scale", [0.25, 4.0])
def test_a_q_that_fp8_cannot_tell_from_nothing_is_allowed_for_at_any_scale(scale):
    q, k, v = (np.full((2, 1, 8), value, dtype=np.float32) for value in (2.0**-10, 1.0, 1.0))
    k[1], v[1] = 0.0, -1.0  # the second key's score stays 0, the first's is lost with q
    bound = bound_of(q, k, v, Arithmetic(scaled_q_dtype="e4m3"), scale=scale)
    lost, _ = float64.attention(np.zeros_like(q), k, v, **PLAIN | {"scale": scale})
    assert not exceeds(np.float32(lost), bound).any()
    assert exceeds(np.float32(lost), bound_of(q, k, v, scale=scale)).any()


def test_a_platform_decides_how_a_cast_errs():
    assert rounding("bfloat16", platform("sm90"))[0] == 2.0**-8
    assert rounding("bfloat16", platform("interpreter"))[0] == 2.0**-7
    assert rounding("e4m3", platform("interpreter"))[0] == 0.5


def test_an_arithmetic_describes_itself():
    assert "tf32 dots on matrix units" in Arithmetic.widest("float32").describe()
    assert "no splits" in Arithmetic().describe()
    assert "bfloat16" in Arithmetic(p_dtype="bfloat16").describe()


def test_a_seam_between_tiles_allows_for_one_more_rescaling_and_for_no_more():
    q, k, v = arrays(kv_len=40)
    whole, cut, finer = (bound_of(q, k, v, Arithmetic(tile_kv=16, seams=seams)).out for seams in (0, 1, 2))
    assert (whole < cut).all()
    assert np.allclose(finer - cut, cut - whole, rtol=0.1)
    one = arrays(query_len=1, kv_len=1)
    assert np.array_equal(bound_of(*one, Arithmetic(seams=1)).out, bound_of(*one, Arithmetic()).out)
