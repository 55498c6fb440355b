"""The stopwatch: phases that nest share out the time between them, and none of it is counted twice."""

import time

import pytest

from harness.stopwatch import COMPILING, Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved on."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_an_inner_phase_is_not_counted_for_the_outer_one_as_well(clock):
    watch = Stopwatch()
    with watch.phase("outer"):
        clock(1)
        with watch.phase("inner"):
            clock(10)
        clock(2)
    clock(50)  # no phase runs
    assert watch.taken() == {"outer": 3, "inner": 10}
    assert watch.taken() == {}


def test_a_decorated_function_is_counted_each_time(clock):
    watch = Stopwatch()

    @watch.phase("called")
    def call():
        clock(2)

    call()
    call()
    assert watch.taken() == {"called": 4}


def test_a_whole_phase_takes_the_time_of_those_inside_but_not_what_is_moved(clock):
    watch = Stopwatch()
    with watch.phase("looks", whole=True):
        with watch.phase("inner"):
            clock(5)
            watch.move(COMPILING, 3)
        clock(1)
    with watch.phase("inner"):
        clock(7)
    assert watch.taken() == {"looks": 3, COMPILING: 3, "inner": 7}


def test_an_exception_ends_its_phases(clock):
    watch = Stopwatch()

    @watch.phase("inner", whole=True)
    def wrong():
        clock(1)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"), watch.phase("outer"):
        wrong()
    clock(4)
    with watch.phase("next"):
        clock(2)
    assert watch.taken() == {"outer": 0, "inner": 1, "next": 2}
