"""Somebody's test suite, with rules and a Hypothesis profile of its own, for tests of `check` and `replay` in it."""

#: Warnings are errors, unknown marks as well.
INI = """
[pytest]
addopts = --strict-markers
markers =
    slow: theirs
filterwarnings = error
"""

CONFTEST = """
import torch
from hypothesis import settings

settings.register_profile("theirs", max_examples=7, derandomize=True, deadline=50, database=None)
settings.load_profile("theirs")
torch.set_default_dtype(torch.float64)
"""

TESTS = """
import random
import sys

import numpy
import pytest
import torch
from hypothesis import given, settings, strategies as st

from harness import check, replay
from kernels import right, wrong

drawn = []


def state():
    numbers = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    settled = torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    return settings.default, settings.default.max_examples, numbers, settled, sys.path[:], sys.unraisablehook


BEFORE = state()
test_corpus = replay("corpus", right)
test_slow_corpus = pytest.mark.slow(replay("corpus", right))


@pytest.mark.slow
def test_a_right_kernel():
    before = state()
    check(right, op="decode", cases=15, seed=1, executor="gridsim")
    assert state() == before


def test_a_wrong_kernel():
    with pytest.raises(AssertionError, match="FINDING 1"):
        check(wrong, op="decode", cases=15, seed=1, executor="gridsim")


@given(st.integers())
def test_their_own_drawing(x):
    drawn.append(x)
    assert settings.default.max_examples == 7


def test_what_was_drawn():
    assert len(drawn) <= 7


def test_nothing_has_moved():
    assert state() == BEFORE
"""
