"""The clock: on a GPU simple kernels take what they are known to take; the ceilings, by a told clock anywhere."""

import pytest
import torch
import triton
import triton.language as tl
from clocks import Told

from harness.ceilings import ceilings
from harness.speeds import AS_GRAPH, COPY, MATMUL, NOTHING, ONE_BY_ONE, READ
from harness.timing import calls_of_a_turn


def test_ceilings_count_what_is_moved_and_computed():
    found = {each.name: each for each in ceilings(Told(2.0), 3, "cpu", buffer=1 << 12, side=8)}
    assert {name: each.amount for name, each in found.items()} == {
        COPY: 2 << 12, READ: 1 << 12, MATMUL: 2 * 8**3, NOTHING: 0,
    }  # fmt: skip
    assert found[COPY].rate == pytest.approx((2 << 12) / 2e-3)
    assert all(each.repeats == (2.0, 2.0, 2.0) for each in found.values())


def test_a_turn_is_filled_and_a_slow_call_does_not_make_it_endless():
    assert [calls_of_a_turn(ms, 50.0) for ms in (0.2, 1.0, 20.0, 90.0, 2000.0)] == [250, 50, 5, 5, 1]
    assert calls_of_a_turn(0.0, 50.0) == 500


@triton.jit
def _copy(
    source_ptr,  # [size]
    target_ptr,  # [size]
    size,
    TILE: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)  # [TILE]
    inside = at < size
    tl.store(target_ptr + at, tl.load(source_ptr + at, mask=inside, other=0.0), mask=inside)


def copying(mebibytes: int):
    """A call that copies, and the bytes that it moves."""
    source = torch.ones(mebibytes << 18, device="cuda")
    target = torch.empty_like(source)
    grid = (triton.cdiv(source.numel(), 4096),)
    return lambda: _copy[grid](source, target, source.numel(), TILE=4096), 2 * source.nbytes


@pytest.fixture(scope="module")
def clock():
    from harness.timing import GpuClock

    return GpuClock(10.0)


@pytest.fixture(scope="module")
def reached(clock):
    return {each.name: each for each in ceilings(clock, 3, "cuda")}


def milliseconds(clock, call) -> float:
    return sorted(clock.repeats(clock.ready(call), 3))[1]


@pytest.mark.gpu
def test_a_copy_kernel_reaches_at_least_half_of_the_copy_ceiling(clock, reached):
    call, moved = copying(512)
    assert 0.5 < moved / (milliseconds(clock, call) * 1e-3) / reached[COPY].rate < 1.2


@pytest.mark.gpu
def test_a_time_grows_with_the_size(clock):
    small, large = (milliseconds(clock, copying(size)[0]) for size in (128, 1024))
    assert 5 < large / small < 11


@pytest.mark.gpu
def test_what_fits_in_the_cache_is_read_cold(clock, reached):
    call, moved = copying(4)
    assert moved / (milliseconds(clock, call) * 1e-3) < 1.2 * reached[READ].rate


@pytest.mark.gpu
def test_the_ceilings_are_in_order(reached):
    assert 0.7 < reached[READ].rate / reached[COPY].rate < 1.5
    assert reached[MATMUL].rate > 1e13
    assert 0 < reached[NOTHING].milliseconds < 0.05


@pytest.mark.gpu
def test_what_waits_for_the_device_is_launched_one_by_one_and_says_so(clock):
    x = torch.ones(8, device="cuda")
    assert clock.ready(lambda: x.sum().item()).how == ONE_BY_ONE
    captured = clock.ready(lambda: x + 1)
    assert captured.how == AS_GRAPH
    captured.returned.zero_()
    captured.run()
    assert captured.returned.tolist() == [2.0] * 8
