"""A read of what nobody has written is found, and whatever torch or a kernel writes counts as written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from launched import line_of

from harness.executors import gridsim


@triton.jit
def halves(x, scratch, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(scratch + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def total(scratch, out, BLOCK: tl.constexpr):
    tl.store(out, tl.sum(tl.load(scratch + tl.arange(0, BLOCK)), 0))


def summed(make, n, fill=lambda scratch: None):
    x, out = torch.ones(16), torch.zeros(1)
    with gridsim.active() as trace:
        scratch = make(x)
        fill(scratch)
        halves[(2,)](x, scratch, n, BLOCK=8)
        total[(1,)](scratch, out, BLOCK=16)
    return trace.accesses


MAKERS = {
    "empty": lambda x: torch.empty(16),
    "new_empty": lambda x: x.new_empty(4, 4),
    "empty_like": torch.empty_like,
    "a view of empty": lambda x: torch.empty(32).view(2, 16)[0],
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_scratch_that_nobody_wrote_is_found_where_it_is_read(make):
    (found,) = summed(make, 13)
    assert (found.kind, found.tensor, found.count) == ("uninitialised read", "scratch", 3)
    assert (found.program, found.line) == ((0, 0, 0), line_of(total, "tl.store"))
    assert found.index in ((13,), (3, 1))
    assert summed(make, 16) == ()


FILLS = {
    "zero_": lambda scratch: scratch.zero_(),
    "an item": lambda scratch: scratch.__setitem__(slice(13, 16), 0.0),
    "a view": lambda scratch: scratch[13:].fill_(1.0),
    "out=": lambda scratch: torch.neg(torch.ones(16), out=scratch),
    "copy_": lambda scratch: scratch.copy_(torch.ones(16)),
    "NumPy": lambda scratch: scratch.numpy().fill(3.0),
    "the same bits as before": lambda scratch: scratch.fill_(float("nan")),
    "an operator of torch's library": lambda scratch: torch.ops.aten.fill_(scratch, 1.0),
    "resize_": lambda scratch: scratch.resize_(1 << 20).fill_(1.0),
    "relu in place": lambda scratch: torch.nn.functional.relu(scratch, inplace=True),
}


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_what_torch_writes_between_launches_counts_as_written(fill):
    assert summed(MAKERS["empty"], 13, fill) == ()


@pytest.mark.parametrize("make", [torch.zeros, lambda n: torch.full((n,), 2.0), torch.ones], ids=["zeros", "full", "1"])
def test_memory_that_comes_filled_is_written(make):
    assert summed(lambda x: make(16), 13) == ()


def test_memory_that_torch_has_given_to_another_tensor_is_forgotten():
    memory = gridsim.Memory()
    with gridsim.active(memory):
        scratch = torch.empty(16)
        place = scratch.untyped_storage().data_ptr()
        torch.Tensor.resize_(scratch, (1 << 16,))
        assert memory.scratch.at(place) is None


def test_a_copy_that_torch_makes_does_not_write():
    (found,) = summed(MAKERS["empty"], 13, lambda scratch: scratch.clone())
    assert found.kind == "uninitialised read"


def test_memory_that_is_written_behind_torch_shows_by_its_bits():
    def poke(scratch):
        array = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 16).from_address(scratch.data_ptr()))
        array[:] = 5.0

    assert summed(MAKERS["empty"], 13, poke) == ()


def test_a_tensor_that_is_declared_unwritten_must_be_written_before_it_is_read():
    out, memory = torch.zeros(16), gridsim.Memory()
    memory.declare(out, name="out")
    memory.unwritten(out)
    with gridsim.active(memory):
        total[(1,)](out, torch.zeros(1), BLOCK=16)
    assert [(f.kind, f.tensor, f.index, f.count) for f in memory.accesses] == [("uninitialised read", "out", (0,), 16)]


@triton.jit
def count_up(counter, n):
    tl.atomic_add(counter + tl.arange(0, 4), 1, mask=tl.arange(0, 4) < n)


def test_an_atomic_on_scratch_that_nobody_wrote_is_found_and_a_masked_lane_is_no_access():
    with gridsim.active() as trace:
        count_up[(1,)](torch.empty(4, dtype=torch.int32), 3)
        count_up[(1,)](torch.zeros(4, dtype=torch.int32), 3)
        count_up[(1,)](torch.empty(4, dtype=torch.int32), 0)
    assert [(f.kind, f.count, f.index) for f in trace.accesses] == [("uninitialised read", 3, (0,))]
