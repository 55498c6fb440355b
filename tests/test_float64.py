"""The judge is judged: by hand, by mpmath and by the conventions of its docstring."""

import hashlib

import ml_dtypes
import mpmath
import numpy as np
import pytest

from harness.folders import load

float64 = load("references", "float64")


def inputs(query_len, kv_len, heads=2, kv_heads=1, dim=4, dim_v=3, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    shapes = ((query_len, heads, dim), (kv_len, kv_heads, dim), (kv_len, kv_heads, dim_v))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def by_mpmath(q, k, v, scale, causal, window, softcap, slopes, sinks):
    """The definition once more, in 60 digits and plain loops."""
    group, (left, right) = q.shape[1] // k.shape[1], window
    out = np.zeros((*q.shape[:2], v.shape[2]))
    lse = np.full(q.shape[:2], -np.inf)
    for i in range(q.shape[0]):
        position = len(k) - len(q) + i
        for h in range(q.shape[1]):
            weights = {}
            for j in range(len(k)):
                if (causal and j > position) or (0 <= left < position - j) or (0 <= right < j - position):
                    continue
                s = mpmath.mpf(scale) * mpmath.fsum(
                    mpmath.mpf(float(a)) * mpmath.mpf(float(b)) for a, b in zip(q[i, h], k[j, h // group], strict=True)
                )
                s = softcap * mpmath.tanh(s / softcap) if softcap else s
                weights[j] = mpmath.exp(s - (float(slopes[h]) * abs(position - j) if slopes is not None else 0))
            total = mpmath.fsum(weights.values()) + (mpmath.exp(float(sinks[h])) if sinks is not None else 0)
            if total:
                lse[i, h] = float(mpmath.log(total))
                for d in range(v.shape[2]):
                    terms = (w * float(v[j, h // group, d]) for j, w in weights.items())
                    out[i, h, d] = float(mpmath.fsum(terms) / total)
    return out, lse


FEATURES = [
    {},
    {"causal": False},
    {"window": (2, 0)},
    {"causal": False, "window": (1, 1)},
    {"softcap": 2.0},
    {"slopes": np.float32([0.5, 0.25])},
    {"sinks": np.float32([1.5, -30.0])},
    {"softcap": 1.0, "slopes": np.float32([2.0, 0.1]), "sinks": np.float32([0.0, 5.0]), "window": (3, -1)},
]


@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "+".join(features) or "plain")
@pytest.mark.parametrize(("query_len", "kv_len"), [(1, 7), (4, 6), (3, 3), (5, 2)])
def test_agrees_with_mpmath(features, query_len, kv_len):
    causal, window, softcap, slopes, sinks = (
        {"causal": True, "window": (-1, -1), "softcap": 0.0, "slopes": None, "sinks": None} | features
    ).values()
    q, k, v = inputs(query_len, kv_len)
    with mpmath.workdps(60):
        out, lse = by_mpmath(q, k, v, 0.7, causal, window, softcap, slopes, sinks)
    seen = float64.attention(
        q, k, v, scale=0.7, causal=causal, window=window, softcap=softcap, alibi_slopes=slopes, sinks=sinks
    )
    np.testing.assert_allclose(seen[0], out, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(seen[1], lse, rtol=1e-13, atol=1e-14)


def test_three_tokens_by_hand():
    q = np.array([[[1.0]], [[2.0]]])
    k = np.array([[[0.0]], [[np.log(2)]], [[np.log(3)]]])
    v = np.array([[[1.0]], [[10.0]], [[100.0]]])
    out, lse = float64.attention(q, k, v, scale=1.0)
    # Query 0 stands at key 1 and weighs 1 : 2; query 1 stands at key 2 and weighs 1 : 4 : 9.
    np.testing.assert_allclose(out.ravel(), [21 / 3, 941 / 14], rtol=1e-15)
    np.testing.assert_allclose(lse.ravel(), np.log([3, 14]), rtol=1e-15)


def test_queries_are_aligned_bottom_right():
    assert float64.positions(2, 5).tolist() == [3, 4]
    assert float64.visible(2, 3, True, (-1, -1)).tolist() == [[True, True, False], [True, True, True]]
    assert float64.visible(3, 2, True, (-1, -1)).tolist() == [[False, False], [True, False], [True, True]]


def test_a_window_counts_inclusively_and_causal_overrides_its_right():
    assert float64.visible(1, 4, True, (1, 5)).tolist() == [[False, False, True, True]]
    assert float64.visible(3, 3, False, (0, 1)).tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert float64.visible(1, 3, True, (0, 0)).tolist() == [[False, False, True]]


@pytest.mark.parametrize("kv_len", [0, 1])
def test_a_row_without_keys_is_zero_and_minus_infinity_or_its_sink(kv_len):
    q, k, v = inputs(2, kv_len)
    out, lse = float64.attention(q, k, v, scale=1.0)
    assert np.all(out[0] == 0)
    assert np.all(np.isneginf(lse[0]))
    out, lse = float64.attention(q, k, v, scale=1.0, sinks=np.array([3.0, -4.0]))
    assert np.all(out[0] == 0)
    assert lse[0].tolist() == [3.0, -4.0]


def test_keys_that_nobody_sees_may_be_nan():
    q, k, v = inputs(2, 6)
    expected = float64.attention(q, k, v, scale=1.0, window=(1, 0))
    k[:3], v[:3] = np.nan, np.inf
    for seen, wanted in zip(float64.attention(q, k, v, scale=1.0, window=(1, 0)), expected, strict=True):
        np.testing.assert_array_equal(seen, wanted)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_any_type_is_widened_before_anything_is_computed(dtype):
    arrays = inputs(3, 5, dtype=dtype)
    wide = float64.attention(*(x.astype(np.float64) for x in arrays), scale=0.5)
    for seen, wanted in zip(float64.attention(*arrays, scale=0.5), wide, strict=True):
        np.testing.assert_array_equal(seen, wanted)


def test_arguments_are_not_written_to():
    arrays = [*inputs(3, 5), np.float32([0.5, 1.0]), np.float32([1.0, 2.0])]
    before = [hashlib.sha256(x.tobytes()).digest() for x in arrays]
    q, k, v, slopes, sinks = arrays
    float64.attention(q, k, v, scale=1.0, window=(1, 0), softcap=3.0, alibi_slopes=slopes, sinks=sinks)
    assert [hashlib.sha256(x.tobytes()).digest() for x in arrays] == before


def test_large_scores_do_not_overflow():
    q, k, v = inputs(2, 4)
    out, lse = float64.attention(q * 1e18, k * 1e18, v, scale=1.0)
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()
