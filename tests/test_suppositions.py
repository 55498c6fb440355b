"""A wrong output is told by what it is right for: numbers read otherwise, features in another order."""

import numpy as np
import pytest

from harness import suppositions
from harness.arithmetic import Arithmetic
from harness.case import Case, Seq, replace
from harness.inputs import materialise
from harness.judge import judge
from harness.platforms import judging
from harness.probe import plain
from harness.suppositions import _outputs, _question, explain

TWO = plain(Case(op="extend", seqs=(Seq(query_len=3, kv_len=20, tag=1), Seq(query_len=1, kv_len=9)), num_q_heads=4,
                 num_kv_heads=2))  # fmt: skip
FP8 = replace(TWO, kv_dtype="e4m3", k_scale=0.5, v_scale=4.0, scale_granularity="head", new_kv="dense", values="edges")
FEATURES = replace(TWO, softcap=5.0, alibi=True, sinks=True, new_kv="dense", values="peaked")


def told(case, out, lse=None):
    materials = materialise(case)
    return explain(case, materials, out, judge(materials, Arithmetic(), judging("gridsim")), lse)


def outputs(case, change=lambda question: question):
    materials = materialise(case)
    found = _outputs([_question(materials, i) for i in range(len(case.batch))], change)
    return tuple(output.astype(np.float32) for output in found)


@pytest.mark.parametrize("case", [TWO, FP8, FEATURES, replace(FEATURES, window=(4, 2), causal=False)])
def test_what_is_computed_without_a_change_is_right_and_nothing_is_said_of_it(case):
    materials = materialise(case)
    bound = judge(materials, Arithmetic(), judging("gridsim"))
    out, lse = outputs(case)
    np.testing.assert_allclose(out, bound.truth, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(lse, bound.truth_lse, rtol=1e-6, atol=1e-7)
    assert told(case, out, lse) == ""


@pytest.mark.parametrize("case", [TWO, FP8, FEATURES], ids=["plain", "FP8", "features"])
def test_every_supposition_that_makes_a_difference_is_told_for_what_it_is(case):
    (right, _), known = outputs(case), 0
    for words, change in suppositions.suppositions(case):
        wrong, lse = outputs(case, change)
        if np.nanmax(np.abs(wrong - right)) > 1e-3 and np.isfinite(wrong).all():
            known += told(case, wrong) == words == told(case, wrong, lse)
    assert known >= 3


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (replace(TWO, window=(1, -1)), "the window reaches as far ahead as it does back"),
        (replace(TWO, window=(0, 1), causal=False), "the window reaches as far ahead as it does back"),
        (replace(TWO, window=(4, 0), causal=False), "the window reaches as far back as it does ahead"),
        (replace(TWO, window=(4, 1), causal=False), "the window reaches as far back as it should ahead, "
                                                    "and the other way round"),
    ],
)  # fmt: skip
def test_another_window_is_told_by_its_reaches(case, words):
    out, lse = outputs(case, dict(suppositions.suppositions(case))[words])
    assert told(case, out, lse) == words


def test_nothing_is_supposed_of_a_window_that_is_not_there():
    assert not any("window" in words for words, _ in suppositions.suppositions(TWO))


ONE = replace(FEATURES, seqs=(Seq(query_len=1, kv_len=1),), alibi=False, sinks=False, want_lse=True)


def test_an_lse_that_is_wrong_alone_is_told_by_what_it_is_right_for():
    changes = dict(suppositions.suppositions(ONE))
    words = "the softcap is missing on the new tokens"
    out, lse = outputs(ONE, changes[words])
    assert (out == outputs(ONE)[0]).all()
    assert (lse != outputs(ONE)[1]).any()
    assert told(ONE, out, lse) == words
    assert told(ONE, out) == ""


def test_a_supposition_that_would_move_what_is_right_is_not_told():
    words = "the softcap is missing on the new tokens"
    _, lse = outputs(FEATURES, dict(suppositions.suppositions(FEATURES))[words])
    assert told(FEATURES, outputs(FEATURES)[0], lse) == ""


def test_an_error_that_no_supposition_makes_is_not_explained():
    out, lse = outputs(FEATURES)
    out[0, 0] += 1.0
    assert told(FEATURES, out, lse) == ""
