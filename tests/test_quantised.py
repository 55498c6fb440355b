"""Wrong numbers of a written FP8 cache are told by what they have in common."""

import ml_dtypes
import numpy as np
import pytest

from harness.case import Case, Seq
from harness.executors.base import Written
from harness.quantised import quantised
from harness.values import DTYPES

CASE = Case(op="cache_write", seqs=(Seq(),), num_q_heads=2, num_kv_heads=2, kv_dtype="e4m3", k_scale=0.5, v_scale=4.0,
            scale_granularity="head")  # fmt: skip
#: Some sound numbers of e4m3, then the largest, then a subnormal one.
SOUND, LARGEST, SUBNORMAL = np.array([1.5, -3.25, 20.0]), 448.0, 2.0**-8


def told(got, wanted, tensor="v_cache", head=1, case=CASE):
    pairs = tuple(zip(np.atleast_1d(got).tolist(), np.atleast_1d(wanted).tolist(), strict=True))
    return quantised(case, Written(tensor, (0, 0, head, 0), *pairs[0], len(pairs), pairs))


@pytest.mark.parametrize(
    ("got", "wanted", "words"),
    [
        (SOUND * 16, SOUND, "V is multiplied by the scale, 4, where it should be divided by it"),
        (SOUND * 4, SOUND, "V is not divided by its scale, 4"),
        (SOUND / 4, SOUND, "V is divided by its scale, 4, twice"),
        (SOUND * 2, SOUND, "V is divided by the scale of head 0"),
        (np.nan, LARGEST, "what is beyond the largest number of e4m3, 448, does not saturate: it is stored as nan"),
        ([240.0, -240.0], [448.0, -256.0], "what is beyond 240, the largest number of e4m3fnuz, is stored as that"),
        (0.0, SUBNORMAL, "subnormal numbers of e4m3, below 0.01562, are stored as 0"),
    ],
)
def test_scale_and_range_are_named(got, wanted, words):
    assert words in told(got, wanted)


def test_bytes_of_the_other_format_are_named():
    bytes_of_e5m2 = SOUND.astype(DTYPES["e5m2"]).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert told(bytes_of_e5m2, SOUND) == "the bytes are those of e5m2, in a cache of e4m3"


def test_what_has_nothing_in_common_or_is_no_fp8_is_not_explained():
    assert told(SOUND[::-1], SOUND) == ""
    assert told([np.nan, 1.0], [LARGEST, 2.5]) == ""
    assert told(SOUND * 4, SOUND, case=Case(op="cache_write", seqs=(Seq(),))) == ""
