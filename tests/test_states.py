"""Partial states: as many as the case names, each with its share, and nothing to read in an empty one."""

import numpy as np
import pytest

from harness.case import Case, InvalidCase, QLayout, Seq, States, replace
from harness.inputs import materialise
from harness.states import count, partial_states
from harness.tensors import DEAD, LIVE, contiguous

CASE = Case(
    op="merge",
    seqs=(Seq(), Seq(tag=1)),
    num_q_heads=3,
    head_dim_v=8,
    states=States(partition=(1, 1, 64)),
    want_lse=True,
)


def test_there_are_two_states_unless_the_case_names_more_or_fewer() -> None:
    assert count(Case(op="merge")) == 2
    assert [count(replace(CASE, states=States(partition=(1,) * n))) for n in (1, 3, 5)] == [1, 3, 5]


def test_states_are_of_every_token_and_query_head() -> None:
    outs, lses = partial_states(CASE)
    assert outs.shape == (3, 2, 3, 8)
    assert lses.shape == (3, 2, 3)
    assert len(np.unique(outs)) > 0.99 * outs.size
    assert len(np.unique(lses)) == lses.size


def test_a_share_moves_the_lse_of_its_state_alone() -> None:
    _, plain = partial_states(replace(CASE, states=States(partition=(1, 1, 1))))
    _, shared = partial_states(CASE)
    assert np.array_equal(shared[:2], plain[:2])
    assert shared[2] == pytest.approx(plain[2] + 6)


@pytest.mark.parametrize("empty", [(0,), (1, 2), (0, 1, 2)])
def test_an_empty_state_has_lse_minus_infinity_and_an_output_that_nobody_may_read(empty: tuple[int, ...]) -> None:
    inputs = materialise(replace(CASE, states=States(partition=(1, 1, 64), empty=empty))).inputs
    full = [i for i in range(3) if i not in empty]
    assert np.isneginf(inputs.state_lses.view[list(empty)]).all()
    assert np.isfinite(inputs.state_lses.view[full]).all()
    assert np.isnan(inputs.state_outs.view[list(empty)]).all()
    assert (inputs.state_outs.state[list(empty)] == DEAD).all()
    assert (inputs.state_outs.state[full] == LIVE).all()
    assert (inputs.state_lses.state == LIVE).all()


@pytest.mark.parametrize("layout", ["fused_qkv", "transposed_heads"])
def test_states_may_be_slices_or_have_heads_before_tokens_with_the_same_numbers_in_them(layout: QLayout) -> None:
    dense, strided = (materialise(replace(CASE, q_layout=name)).inputs for name in ("contiguous", layout))
    for name in ("state_outs", "state_lses"):
        before, after = getattr(dense, name), getattr(strided, name)
        assert np.array_equal(before.view, after.view)
        assert before.strides == contiguous(before.shape)
        assert after.strides[1:] != before.strides[1:]
        assert (after.state == LIVE).all()
        assert len(np.unique(after.view)) == after.view.size


def test_an_empty_state_that_is_not_there_is_a_contradiction() -> None:
    with pytest.raises(InvalidCase, match=r"states.empty is \[3\], but there are 3 states"):
        replace(CASE, states=States(partition=(1, 1, 1), empty=(3,)))


def test_no_other_operation_has_states() -> None:
    inputs = materialise(Case()).inputs
    assert (inputs.state_outs, inputs.state_lses) == (None, None)


def test_peaked_and_large_states_are_drawn_far_apart() -> None:
    assert np.ptp(partial_states(replace(CASE, values="peaked"))[1]) > 5 * np.ptp(partial_states(CASE)[1])
    assert np.abs(partial_states(replace(CASE, values="large"))[0]).max() > 500
