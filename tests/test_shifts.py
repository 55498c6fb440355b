"""How accuracy moved: errors in units of the last place, and a sign test that needs no tolerance."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from harness.case import Case, Hints
from harness.outcome import Shift
from harness.results import Finding, Result
from harness.settings import Accepted
from harness.shifts import accepted, configuration, is_coarser, judged, shifts, upper_tail
from harness.ulps import bits, errors


def run(out, truth, lse=None):
    return SimpleNamespace(observed=SimpleNamespace(out=out, lse=lse), bound=SimpleNamespace(truth=truth))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_errors_are_in_units_of_the_last_place_of_the_row(dtype):
    ulp = float(ml_dtypes.finfo(dtype).eps)
    truth = np.array([[[1.0, 0.25, 0.0, 0.0]], [[4.0, 0.0, 0.0, 0.0]]])
    out = (truth + np.array([[[2 * ulp, 0, 0, 0]], [[4 * ulp, 0, 0, 0]]])).astype(dtype)
    median, most, worst = errors(run(out, truth))
    assert (median, worst) == (0.0, 2.0)
    assert 1 < most <= 2


def test_a_correctly_rounded_output_is_half_a_unit_off_at_most():
    truth = np.random.default_rng(0).normal(size=(50, 4, 64))
    median, _, worst = errors(run(truth.astype(np.float16), truth))
    assert 0 < median <= 0.25
    assert 0.4 < worst <= 0.5


def test_a_row_of_zeros_and_infinities_have_units_too_and_no_truth_has_no_errors():
    assert errors(run(np.zeros((1, 1, 4), np.float32), np.zeros((1, 1, 4)))) == (0.0, 0.0, 0.0)
    assert errors(run(np.full((1, 1, 1), np.inf, np.float32), np.full((1, 1, 1), np.inf))) == ()
    assert errors(SimpleNamespace(observed=SimpleNamespace(out=np.ones(3)), bound=None)) == ()


def test_other_bits_are_seen_in_out_and_in_lse():
    one, other = np.zeros((1, 1, 2), np.float32), np.array([[[0.0, -0.0]]], np.float32)
    assert bits(run(one, one)) == bits(run(one.copy(), one)) != bits(run(other, one))
    assert bits(run(one, one, np.zeros(1))) != bits(run(one, one, np.ones(1)))
    assert bits(run(None, one)) == ""


# --- a configuration ----------------------------------------------------------------------------------------------


def result(errors, margin=0.5, bits="x", **fields):
    return Result(case=Case(), subject="s", executor="e", errors=errors, margin=margin, bits=bits, **fields)


def pairs(count, now, before):
    return [(Case(data_seed=i), (result(now, bits="y"), result(before))) for i in range(count)]


def test_types_and_splits_make_a_configuration():
    case = Case(dtype="bfloat16", kv_dtype="e4m3", hints=Hints(num_splits=4))
    assert configuration(case) == "bfloat16, e4m3 cache, splits"
    assert configuration(Case()) == "float32"


def test_twice_as_inaccurate_is_a_loss_and_a_little_more_or_less_is_none():
    (shift,) = shifts("s", pairs(30, (2.1, 4.0, 5.0), (1.0, 2.0, 2.5)))
    assert (shift.cases, shift.changed, shift.coarser, shift.lost) == (30, 30, 30, True)
    assert (shift.errors_before, shift.errors_now) == ((1.0, 2.0, 2.5), (2.1, 4.0, 5.0))
    for now in ((1.9, 4.0, 5.0), (0.5, 1.0, 2.0)):
        assert not shifts("s", pairs(30, now, (1.0, 2.0, 2.5)))[0].lost


def test_what_is_as_good_as_correct_rounding_is_no_loss_whatever_it_was():
    assert not is_coarser((0.25, 1.0, 1.0), (0.0, 0.0, 0.0))
    assert is_coarser((0.26, 1.0, 1.0), (0.0, 0.0, 0.0))
    assert not is_coarser((), ())


def test_a_few_cases_are_no_evidence_and_doubt_is_shared_out():
    assert not shifts("s", pairs(19, (3.0, 3.0, 3.0), (1.0, 1.0, 1.0)))[0].lost
    moved = Shift(
        subject="s", configuration="c", cases=20, changed=20, errors_before=(), errors_now=(), margin_before=0,
        margin_now=0, coarser=20,
    )  # fmt: skip
    assert judged(moved, 1).lost
    assert not judged(moved, 2).lost


def test_the_same_accuracy_with_other_bits_is_hardly_ever_called_a_loss():
    """Errors that scatter by a factor of 10 either way: every other case looks worse, and none is called a loss."""
    drawn = np.random.default_rng(1)
    for _ in range(200):
        rows = 10.0 ** drawn.uniform(-1, 1, size=(60, 2))
        both = [(Case(), (result((a, a, a)), result((b, b, b)))) for a, b in rows]
        assert not shifts("s", both)[0].lost


def test_the_tail_is_that_of_a_fair_coin():
    assert upper_tail(0, 5) == 1
    assert upper_tail(5, 5) == 2**-5
    assert upper_tail(4, 5) == 6 / 32


def test_what_is_wrong_or_declined_on_either_side_is_not_compared():
    wrong = result((9.0, 9.0, 9.0), findings=(Finding(kind="accuracy", message="m"),))
    good = result((1.0, 1.0, 1.0))
    for pair in ((wrong, good), (good, wrong), (result((), bits="", declined="no"), good), (good, None)):
        assert shifts("s", [(Case(), pair)]) == ()


def test_a_loss_is_acknowledged_as_accuracy():
    (shift,) = shifts("s", pairs(30, (3.0, 3.0, 3.0), (1.0, 1.0, 1.0)))
    assert accepted(shift, (Accepted(subject="s", field="accuracy", reason="p is cast"),)).accepted == "p is cast"
    assert accepted(shift, (Accepted(subject="s", field="dtypes", reason="p is cast"),)).accepted == ""
