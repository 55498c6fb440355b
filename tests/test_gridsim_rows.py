"""Loads of rows: offsets that count along the last axis are added up once a row, and give what single elements give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from harness.executors import gridsim
from harness.executors.gridsim.ir import parse
from harness.executors.gridsim.spans import Spans


@triton.jit
def rows(x, y, count, width, stride, FILL: tl.constexpr, R: tl.constexpr, N: tl.constexpr):
    row, lane = tl.arange(0, R).to(tl.int64), tl.arange(0, N).to(tl.int64)
    row += tl.program_id(0) * R
    inside = (row < count)[:, None] & (lane < width)[None, :]
    offset = row[:, None] * stride + lane[None, :]
    tl.store(y + row[:, None] * N + lane[None, :], tl.load(x + offset, mask=inside, other=FILL))


@triton.jit
def ragged(x, y, N: tl.constexpr):
    row, lane = tl.arange(0, N).to(tl.int64), tl.arange(0, N).to(tl.int64)
    offset = row[:, None] * N + lane[None, :]
    tl.store(y + offset, tl.load(x + offset, mask=lane[None, :] <= row[:, None], other=-1.0))


@triton.jit
def narrow(x, y, first, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(y + lane, tl.load(x + (first + lane).to(tl.int64), mask=lane >= 0, other=0.0))


def ran(x, count, width, fill, memory=None):
    y = torch.full((8, 16), -7.0)
    with gridsim.active(memory) as trace:
        rows[(2,)](x, y, count, width, x.stride(0), FILL=fill, R=4, N=16)
    return y, trace


@pytest.mark.parametrize("fill", [0.0, 3.0])
@pytest.mark.parametrize(("count", "width"), [(8, 16), (8, 11), (5, 16), (5, 11), (1, 1), (0, 11), (5, 0)])
def test_what_the_mask_lets_through_is_loaded_and_the_rest_is_other(count, width, fill):
    x = torch.arange(8 * 20.0).reshape(8, 20)
    expected = torch.full((8, 16), fill)
    expected[:count, :width] = x[:count, :width]
    assert torch.equal(ran(x, count, width, fill)[0], expected)


def test_a_mask_with_another_reach_in_each_row_is_followed():
    x, y = torch.arange(256.0).reshape(16, 16), torch.empty(16, 16)
    with gridsim.active():
        ragged[(1,)](x, y, N=16)
    assert torch.equal(y, torch.where(torch.ones(16, 16).tril() > 0, x, -1.0))


def test_only_dead_elements_that_the_mask_lets_through_are_recorded():
    x = torch.arange(8 * 20.0).reshape(8, 20)
    for dead, seen in (((2, 5), True), ((2, 11), False), ((6, 5), False)):
        state = np.full((8, 20), 2, np.uint8)
        state[dead] = 1
        memory = gridsim.Memory()
        memory.declare(x, name="x", state=state.reshape(-1))
        ran(x, 5, 11, 0.0, memory)
        assert [(a.kind, a.index, a.count) for a in memory.accesses] == ([("dead read", dead, 1)] if seen else [])


def test_a_row_that_leaves_the_storage_is_recorded_lane_by_lane():
    x = torch.arange(8 * 16.0).reshape(8, 16)[:7, :10]
    y, trace = ran(x, 8, 10, 0.0)
    assert torch.equal(y[:7, :10], x)
    (found,) = trace.accesses
    assert (found.kind, found.count, found.program) == ("out of reach read", 10, (1, 0, 0))


def test_offsets_of_64_bits_are_led_by_their_first_lane_and_narrow_ones_are_not():
    def led(kernel, *args, **constants):
        with gridsim.active() as trace:
            kernel[(1,)](*args, **constants)
        function = parse(trace.launches[0].ttir)
        spans = Spans.of(function)
        loads = [op for op in function.body[0].ops if op.name == "tt.load"]
        return [op.operands[0] in spans.led for op in loads]

    x, y = torch.zeros(8, 20), torch.zeros(8, 16)
    assert led(rows, x, y, 5, 11, 20, FILL=0.0, R=4, N=16) == [True]
    assert led(ragged, torch.zeros(16, 16), torch.zeros(16, 16), N=16) == [True]
    assert led(narrow, x, y, 3, N=16) == [False]


def test_a_narrow_offset_that_wraps_inside_a_row_is_followed_lane_by_lane():
    memory = gridsim.Memory()
    with gridsim.active(memory):
        narrow[(1,)](torch.zeros(8), torch.zeros(16), 2**31 - 4, N=16)
    kinds = {found.kind: found.count for found in memory.accesses}
    assert kinds == {"out of bounds read": 16, "overflow read": 12}
