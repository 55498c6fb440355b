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


def told(case, out):
    materials = materialise(case)
    return explain(case, materials, out, judge(materials, Arithmetic(), judging("gridsim")))


def outputs(case, change=lambda question: question):
    materials = materialise(case)
    return _outputs([_question(materials, i) for i in range(len(case.batch))], change).astype(np.float32)


@pytest.mark.parametrize("case", [TWO, FP8, FEATURES, replace(FEATURES, window=(4, 2), causal=False)])
def test_what_is_computed_without_a_change_is_right_and_nothing_is_said_of_it(case):
    materials = materialise(case)
    truth = judge(materials, Arithmetic(), judging("gridsim")).truth
    np.testing.assert_allclose(outputs(case), truth, rtol=1e-6, atol=1e-7)
    assert told(case, outputs(case)) == ""


@pytest.mark.parametrize("case", [TWO, FP8, FEATURES], ids=["plain", "FP8", "features"])
def test_every_supposition_that_makes_a_difference_is_told_for_what_it_is(case):
    right, known = outputs(case), 0
    for words, change in suppositions.suppositions(case):
        wrong = outputs(case, change)
        if np.nanmax(np.abs(wrong - right)) > 1e-3 and np.isfinite(wrong).all():
            known += told(case, wrong) == words
    assert known >= 3


def test_an_error_that_no_supposition_makes_is_not_explained():
    out = outputs(FEATURES)
    out[0, 0] += 1.0
    assert told(FEATURES, out) == ""
