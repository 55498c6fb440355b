"""A number that wraps in 32 bits is found where it becomes an address, and nowhere else."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from launched import line_of

from harness.executors import gridsim


@triton.jit
def strided(x, y, stride, n):
    at = tl.program_id(0) * 2 + tl.arange(0, 2)
    value = tl.load(x + at[:, None] * stride + tl.arange(0, 4)[None, :], mask=(at < n)[:, None], other=0.0)
    hashed = at * 1640531527 * 31
    tl.store(y + at, tl.sum(value, 1) + (hashed % 2).to(tl.float32) * 0.0)


def test_a_product_that_wraps_is_told_with_its_numbers_and_only_where_a_lane_uses_it():
    with gridsim.active() as trace:
        strided[(2,)](torch.zeros(64), torch.zeros(4), 1 << 30, 4)
    found = next(f for f in trace.accesses if f.kind == "overflow read")
    where = line_of(strided, "value = ")
    assert (found.tensor, found.line, found.program, found.count) == ("x", where, (1, 0, 0), 8)
    assert found.story == f"2 * 1073741824 = 2147483648 does not fit in 32 bits, and is the address at {where}"
    assert found.index == -(1 << 31)
    with gridsim.active() as trace:
        strided[(2,)](torch.zeros(64), torch.zeros(4), 1 << 30, 0)  # the wrapped lanes are masked off
        strided[(2,)](torch.zeros(64), torch.zeros(4), 16, 4)  # what wraps is a hash
    assert trace.accesses == ()


@triton.jit
def back_again(x, y, big):
    program = tl.program_id(0)
    tl.store(y + program, tl.load(x + (program + big + big - big - big)))


def test_a_sum_that_wraps_on_the_way_and_is_right_in_the_end_is_right():
    with gridsim.active() as trace:
        back_again[(4,)](torch.zeros(4), torch.zeros(4), (1 << 31) - 1)
    assert trace.accesses == ()


@triton.jit
def parted(x, y, lens, stride):
    """The wrapped offset is made before a loop in which the programs part, and moves on in it."""
    row = tl.program_id(0)
    start = x + row * stride
    total = 0.0
    for i in range(tl.load(lens + row)):
        if row % 2 == 1:
            start += 1
        total += tl.load(start + i)
    tl.store(y + row, total)


def test_a_wrapped_offset_is_followed_through_branches_and_loops():
    lens = torch.tensor([3, 0, 1, 4], dtype=torch.int32)
    with gridsim.active() as trace:
        parted[(4,)](torch.zeros(64), torch.zeros(4), lens, 1 << 30)
    found = [f for f in trace.accesses if f.kind == "overflow read"]
    assert [(f.line, f.count, f.program) for f in found] == [(line_of(parted, "start = "), 5, (2, 0, 0))]
    assert found[0].story.startswith("2 * 1073741824 = 2147483648 does not fit")
    with gridsim.active() as trace:
        parted[(4,)](torch.zeros(64), torch.zeros(4), lens, 8)
    assert trace.accesses == ()


@triton.jit
def chosen(x, y, stride, n):
    row = tl.program_id(0)
    offset = tl.where(row < n, row * stride, 0)
    tl.store(y + row, tl.load(x + offset))


def test_a_wrapped_offset_that_is_not_chosen_is_none():
    with gridsim.active() as trace:
        chosen[(4,)](torch.zeros(4), torch.zeros(4), 1 << 30, 1)
    assert trace.accesses == ()
    with gridsim.active() as trace:
        chosen[(4,)](torch.zeros(4), torch.zeros(4), 1 << 30, 4)
    assert "overflow read" in {f.kind for f in trace.accesses}


@triton.jit(noinline=True)
def get(x, row, stride):
    return tl.load(x + row * stride)


@triton.jit(noinline=True)
def place(row, stride):
    return row * stride


@triton.jit
def called(x, y, stride):
    row = tl.program_id(0)
    tl.store(y + row, get(x, row, stride) + tl.load(x + place(row, stride)))


def test_a_wrapped_offset_is_followed_into_and_out_of_functions_that_are_not_inlined():
    with gridsim.active() as trace:
        called[(4,)](torch.zeros(4), torch.zeros(4), 1 << 30)
    found = {(f.line, f.count, f.program) for f in trace.accesses if f.kind == "overflow read"}
    assert found == {(line_of(get, "row * stride"), 2, (2, 0, 0)), (line_of(place, "row * stride"), 2, (2, 0, 0))}
    with gridsim.active() as trace:
        called[(4,)](torch.zeros(4), torch.zeros(4), 1)
    assert trace.accesses == ()
