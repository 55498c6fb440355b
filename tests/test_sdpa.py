"""The witness agrees with the judge within the bound of float64 arithmetic, and declines what it has not."""

import numpy as np
import pytest
import torch

from harness.arithmetic import Arithmetic
from harness.bounds import attention_bound, exceeds, margin
from harness.folders import load
from harness.platforms import platform

sdpa = load("references", "sdpa")


def problem(query_len, kv_len, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((query_len, 4, 8), (kv_len, 2, 8), (kv_len, 2, 6))]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [(-1, -1), (2, 0), (1, 2)])
@pytest.mark.parametrize("slopes", [None, np.float32([0.5, 0.25, 2.0, 0.0])], ids=["plain", "alibi"])
@pytest.mark.parametrize(("query_len", "kv_len"), [(1, 9), (4, 7), (3, 3), (6, 4), (2, 0)])
def test_agrees_with_the_judge(causal, window, slopes, query_len, kv_len):
    arrays = problem(query_len, kv_len)
    options = {"scale": 0.4, "causal": causal, "window": window, "alibi_slopes": slopes}
    bound = attention_bound(
        *arrays, **options, softcap=0.0, sinks=None, arithmetic=Arithmetic.float64(), platform=platform("float64"),
        out_dtype="float64",
    )  # fmt: skip
    seen = sdpa.attention(*(torch.from_numpy(x) for x in arrays), **options).numpy()
    assert not exceeds(seen, bound).any(), margin(seen, bound).max()
    assert bound.out.max() < 1e-12


def test_a_wrong_witness_is_found():
    arrays = problem(2, 9)
    bound = attention_bound(
        *arrays, scale=0.4, causal=True, window=(-1, -1), softcap=0.0, alibi_slopes=None, sinks=None,
        arithmetic=Arithmetic.float64(), platform=platform("float64"), out_dtype="float64",
    )  # fmt: skip
    seen = sdpa.attention(*arrays, scale=0.4 * (1 + 1e-10), causal=True, window=(-1, -1)).numpy()
    assert exceeds(seen, bound).any()


def test_keys_that_nobody_sees_may_be_nan():
    q, k, v = problem(2, 6)
    expected = sdpa.attention(q, k, v, scale=1.0, window=(1, 0))
    k[:3], v[:3] = np.nan, np.nan
    assert torch.equal(sdpa.attention(q, k, v, scale=1.0, window=(1, 0)), expected)


def test_declines_in_words_what_it_has_not():
    assert "softcap" in sdpa.declines(softcap=30.0)
    assert "sinks" in sdpa.declines(sinks=torch.zeros(2))
    assert "lse" in sdpa.declines(want_lse=True)
    assert sdpa.declines(softcap=0.0, sinks=None, want_lse=False, causal=True) is None
