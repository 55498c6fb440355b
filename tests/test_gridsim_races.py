"""Programs of one launch that touch one place without an order are found with both names; what is ordered is silent."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from launched import line_of

from harness.executors import gridsim


@triton.jit
def same_place(x, y, stride):
    program = tl.program_id(0)
    tl.store(y + program // 2, tl.load(x + program * stride))


def test_two_programs_that_write_different_bits_to_one_place_race_and_the_same_bits_do_not():
    x = torch.arange(4.0)
    with gridsim.active() as trace:
        same_place[(4,)](x, torch.zeros(2), 1)
    (found,) = trace.accesses
    assert (found.kind, found.tensor, found.index, found.count) == ("race", "y", (0,), 2)
    assert (found.program, found.story) == ((0, 0, 0), "program [1, 0, 0] wrote it too")
    assert found.line == line_of(same_place, "tl.store")
    with gridsim.active() as trace:
        same_place[(4,)](x, torch.zeros(2), 0)
        same_place[(1,)](x, torch.zeros(2), 1)
    assert trace.accesses == ()


@triton.jit
def two_stores(x, y, n):
    program = tl.program_id(0)
    if program < n:
        tl.store(y + program, tl.load(x + program))
    else:
        tl.store(y + program - n, tl.load(x + program))


def test_two_lines_that_write_one_place_race_as_well():
    with gridsim.active() as trace:
        two_stores[(4,)](torch.arange(4.0), torch.zeros(2), 2)
        two_stores[(4,)](torch.ones(4), torch.zeros(2), 2)
    (found,) = trace.accesses
    assert (found.kind, found.program, found.count) == ("race", (2, 0, 0), 2)
    assert found.story == "program [0, 0, 0] wrote it too"


@triton.jit
def neighbour(x, y, step, n):
    program = tl.program_id(0)
    tl.store(x + program, program * 1.0 + 1.0)
    tl.store(y + program, tl.load(x + (program + step) % n))


def test_reading_what_another_program_wrote_is_a_race_and_reading_ones_own_is_none():
    with gridsim.active() as trace:
        neighbour[(4,)](torch.zeros(4), torch.zeros(4), 1, 4)
    (found,) = trace.accesses
    assert (found.kind, found.tensor, found.index, found.program) == ("race", "x", (1,), (0, 0, 0))
    assert (found.story, found.line) == ("program [1, 0, 0] wrote it too", line_of(neighbour, "tl.store(y"))
    with gridsim.active() as trace:
        neighbour[(4,)](torch.zeros(4), torch.zeros(4), 0, 4)
    assert trace.accesses == ()


@triton.jit
def in_place(x, step, n):
    program = tl.program_id(0)
    value = tl.load(x + (program + step) % n)
    tl.store(x + program, value + 1.0)


def test_writing_what_another_program_has_read_is_a_race_and_working_in_place_is_none():
    with gridsim.active() as trace:
        in_place[(4,)](torch.arange(4.0), 1, 4)
    (found,) = trace.accesses
    assert (found.kind, found.index, found.program) == ("race", (0,), (0, 0, 0))
    assert found.story == "program [3, 0, 0] read it too"
    with gridsim.active() as trace:
        in_place[(4,)](torch.arange(4.0), 0, 4)
    assert trace.accesses == ()


@triton.jit
def shared_write(x, cache, y):
    """Every head of a group writes the new token into the cache, and then reads it."""
    token = tl.load(x)
    tl.store(cache, token)
    tl.store(y + tl.program_id(0), tl.load(cache))


def test_programs_that_write_the_same_bits_and_read_them_do_not_race():
    with gridsim.active() as trace:
        shared_write[(4,)](torch.ones(1), torch.zeros(1), torch.zeros(4))
    assert trace.accesses == ()


@triton.jit
def combine(x, parts, count, out, FIRST: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr, N: tl.constexpr):
    """Each program leaves a part; the last one to finish adds them up, and sets the counter back."""
    row, split = tl.program_id(1), tl.program_id(0)
    tl.store(parts + row * N + split, tl.load(x + row * N + split) * 2.0)
    ticket = tl.atomic_add(count + row, 1, sem=SEM, scope=SCOPE)
    if ticket == (0 if FIRST else N - 1):
        tl.store(out + row, tl.sum(tl.load(parts + row * N + tl.arange(0, N)), 0))
        tl.store(count + row, 0)


def combined(order=None, **changes):
    x, parts, out = torch.arange(8.0), torch.zeros(8), torch.zeros(2)
    options = {"FIRST": False, "SEM": "acq_rel", "SCOPE": "gpu"} | changes
    with gridsim.active(order=order) as trace:
        combine[(4, 2)](x, parts, torch.zeros(2, dtype=torch.int32), out, N=4, **options)
    return out.tolist(), [(f.kind, f.tensor, f.line) for f in trace.accesses]


@pytest.mark.parametrize("order", [None, 0, 1, 2])
@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_a_combine_by_the_last_program_is_no_race(order, scope):
    assert combined(order, SCOPE=scope) == ([12.0, 44.0], [])


@pytest.mark.parametrize("changes", [{"SEM": "relaxed"}, {"SEM": "release"}, {"SCOPE": "cta"}, {"FIRST": True}])
def test_a_combine_that_nothing_orders_is_a_race(changes):
    assert ("race", "parts", line_of(combine, "tl.load(parts")) in combined(**changes)[1]


def test_the_order_of_programs_can_be_shuffled_and_a_race_then_moves_the_output():
    outs = []
    for order in (None, 0, 1, 2):
        y = torch.zeros(1)
        with gridsim.active(order=order):
            same_place[(2,)](torch.arange(2.0), y, 1)
        outs.append(y.item())
    assert set(outs) == {0.0, 1.0}
    reads = set()
    for order in (None, 0, 1, 2):
        y = torch.zeros(4)
        with gridsim.active(order=order):
            neighbour[(4,)](torch.zeros(4), y, 1, 4)
        reads.add(tuple(y.tolist()))
    assert (2.0, 3.0, 4.0, 1.0) in reads  # all have written before anyone reads
    assert len(reads) > 1


def test_a_grid_without_programs_does_nothing_in_any_order():
    with gridsim.active(order=0) as trace:
        same_place[(0,)](torch.zeros(0), torch.zeros(0), 1)
    assert trace.accesses == ()


def test_a_race_among_many_programs_is_found_without_following_their_order():
    with gridsim.active() as trace:
        same_place[(5000,)](torch.arange(5000.0), torch.zeros(2500), 1)
    assert [(f.kind, f.count) for f in trace.accesses] == [("race", 2500)]


@triton.jit
def wait(flag, out):
    if tl.program_id(0) == 0:
        while tl.atomic_add(flag, 0) == 0:
            pass
        tl.store(out, 1.0)
    else:
        tl.atomic_xchg(flag, 1)


def test_waiting_for_another_program_is_declined_by_name(monkeypatch):
    monkeypatch.setattr("harness.executors.gridsim.control.SPIN", 100)
    with gridsim.active(), pytest.raises(gridsim.Unsupported, match="waiting for another program is not modelled"):
        wait[(2,)](torch.zeros(1, dtype=torch.int32), torch.zeros(1))


@triton.jit
def barrier(x, y, flag, n):
    program = tl.program_id(0)
    tl.store(x + program, program * 1.0)
    tl.atomic_add(flag, 1)
    while tl.atomic_add(flag, 0) < n:
        pass
    tl.store(y + program, tl.load(x + (program + 1) % n))


@pytest.mark.parametrize("order", [None, 3])
def test_programs_that_wait_for_all_others_run_together_and_do_not_race(order, monkeypatch):
    monkeypatch.setattr("harness.executors.gridsim.control.SPIN", 100)
    y = torch.zeros(4)
    with gridsim.active(order=order) as trace:
        barrier[(4,)](torch.zeros(4), y, torch.zeros(1, dtype=torch.int32), 4)
    assert y.tolist() == [1, 2, 3, 0]
    assert trace.accesses == ()


@triton.jit(noinline=True)
def put(y, value):
    tl.store(y, value)


@triton.jit
def through_a_call(x, y, stride):
    program = tl.program_id(0)
    put(y + program // 2, tl.load(x + program * stride))


def test_a_store_in_a_function_that_is_not_inlined_races_as_well():
    with gridsim.active() as trace:
        through_a_call[(4,)](torch.arange(4.0), torch.zeros(2), 1)
    assert [(f.kind, f.tensor, f.line) for f in trace.accesses] == [("race", "y", line_of(put, "tl.store"))]
    with gridsim.active() as trace:
        through_a_call[(4,)](torch.arange(4.0), torch.zeros(2), 0)
    assert trace.accesses == ()
