"""An access that a kernel should not make is recorded with tensor, index, program and line; right ones are silent."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from launched import case, copy, decode, launch, line_of, lines

from harness.executors import gridsim

# --- bounds and states -------------------------------------------------------------------------------------------


def test_a_table_entry_past_the_cache_is_read_as_poison_and_recorded():
    q, k, v, lens, table = case(torch.float32, [40, 20])
    table[0, 1] = 1000
    memory = gridsim.Memory()
    memory.declare(k, name="k_cache")
    with gridsim.active(memory):
        out, _ = launch(q, k, v, lens, table)
    assert out[0].isnan().all()
    assert not out[1].isnan().any()
    where = line_of(decode, " k = tl.load(k_cache")
    found = next(found for found in memory.accesses if found.tensor == "k_cache")
    assert (found.kind, found.line, found.program) == ("out of bounds read", where, (0, 0, 0))
    assert found.count == 4 * 16 * 64
    assert found.index == 1000 * k.stride(0)
    assert found.path == decode.fn.__code__.co_filename


def test_a_dead_element_is_seen_where_it_is_read_and_nowhere_else():
    q, k, v, lens, table = case(torch.float16, [20])
    state = np.full(k.numel(), 2, np.uint8)
    dead = (int(table[0, 1]), 3, 1, 7)
    state[np.ravel_multi_index(dead, k.shape)] = 1
    state[np.ravel_multi_index((int(table[0, 1]), 4, 0, 0), k.shape)] = 1  # slot 20: nobody reads that
    memory = gridsim.Memory()
    memory.declare(k, name="k_cache", state=state)
    with gridsim.active(memory):
        launch(q, k, v, lens, table)
    (found,) = memory.accesses
    assert (found.kind, found.tensor, found.index, found.count) == ("dead read", "k_cache", dead, 2)
    assert found.program == (0, 2, 0)


def test_a_write_past_the_output_is_dropped_and_one_between_its_strides_is_performed():
    x, whole = torch.ones(64), torch.zeros(128)
    view = whole[8:40]
    memory = gridsim.Memory()
    memory.declare(view, name="out")
    with gridsim.active(memory):
        copy[(4,)](x, view, 64, BLOCK=32)
    assert (whole[:8] == 0).all()
    assert (whole[8:] != 0).all()  # what was read out of bounds is poison
    assert lines(memory.accesses) == {
        ("out of bounds read", "x", line_of(copy, "tl.store")),
        ("out of reach write", "out", line_of(copy, "tl.store")),
        ("out of bounds write", "out", line_of(copy, "tl.store")),
    }
    counts = {found.kind: found.count for found in memory.accesses}
    assert counts == {"out of bounds read": 64, "out of reach write": 88, "out of bounds write": 8}


def test_a_strided_view_reaches_its_own_elements_only():
    whole = torch.arange(64.0).reshape(8, 8)
    with gridsim.active() as trace:
        copy[(1,)](whole[2:4, ::2], torch.zeros(16), 16, BLOCK=16)
    (found,) = trace.accesses
    assert (found.kind, found.count, found.index) == ("out of reach read", 8, 1)


@triton.jit
def far(x, y, stride, block):
    at = block * stride
    tl.store(y, tl.load(x + at))
    tl.store(y + 1, tl.load(x + block.to(tl.int64) * stride))


def test_a_product_that_wraps_in_32_bits_reads_out_of_bounds_and_a_64_bit_one_reads_far():
    size, flags = 5 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE: pages exist once touched
    x = torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)
    shadow = np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)
    x[1 << 32], shadow[1 << 32] = 7, 2
    y, memory = torch.zeros(2, dtype=torch.uint8), gridsim.Memory()
    memory.declare(x, name="far", state=shadow)
    with gridsim.active(memory):
        far[(1,)](x, y, 1 << 17, 1 << 15)
    assert y.tolist() == [0, 7]  # the wrapped product is 0, which is in bounds: out of reach as declared
    assert [(found.kind, found.index) for found in memory.accesses] == [("overflow", (0,)), ("out of reach read", (0,))]
    with gridsim.active(memory):
        far[(1,)](x, y, (1 << 17) + 1, (1 << 15) - 1)
    assert ("out of bounds read", "far", line_of(far, "tl.store(y, ")) in lines(memory.accesses)


def test_two_views_of_one_storage_keep_apart():
    both = torch.arange(64.0)
    k, v = both[:32], both[32:]
    memory = gridsim.Memory()
    memory.declare(k, name="k")
    memory.declare(v, name="v")
    with gridsim.active(memory):
        copy[(1,)](k, torch.zeros(64), 64, BLOCK=64)
    assert {(f.kind, f.tensor) for f in memory.accesses} == {("out of reach read", "k")}


@triton.jit
def wild(x, y, address):
    tl.store(y, tl.load(address.to(tl.pointer_type(tl.float32))))
    tl.store(y + 1, tl.load((address + 8).to(tl.pointer_type(tl.float32))))


def test_a_garbage_address_is_poison_and_a_real_one_finds_its_tensor():
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(2)
    with gridsim.active() as trace:
        wild[(1,)](x, y, x.data_ptr())
        assert y.tolist() == [1.0, 3.0]
        assert trace.accesses == ()
        wild[(1,)](x, y, 12345678901)
    assert y.isnan().all()
    assert {(f.kind, f.tensor) for f in trace.accesses} == {("out of bounds read", "null")}


@triton.jit
def tally(counts, last, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + at % 3, 1, mask=at < n)
    ticket = tl.atomic_add(last, 1)
    if ticket == tl.num_programs(0) - 1:
        tl.store(out, tl.sum(tl.load(counts + tl.arange(0, 4))))
    tl.atomic_max(last + 1, tl.program_id(0))
    tl.atomic_cas(last + 2, 0, tl.program_id(0) + 5)


def test_atomics_lose_no_update_and_the_last_program_sees_all():
    counts, last, out = (torch.zeros(size, dtype=torch.int32) for size in (4, 3, 1))
    with gridsim.active():
        tally[(7,)](counts, last, out, 100, BLOCK=16)
    assert (counts.tolist(), last.tolist(), out.tolist()) == ([34, 33, 33, 0], [7, 6, 5], [100])


@triton.jit
def either(x, y, z, flag):
    source = x
    if tl.load(flag + tl.program_id(0)) > 0:
        source = y + 1
    tl.store(z + tl.program_id(0), tl.load(source + tl.program_id(0)))


def test_a_pointer_chosen_by_a_branch_keeps_its_tensor():
    x, y, z = torch.arange(4.0), torch.arange(10.0, 14.0), torch.zeros(4)
    with gridsim.active() as trace:
        either[(4,)](x, y, z, torch.tensor([0, 1, 0, 1], dtype=torch.int32))
    assert z[:3].tolist() == [0, 12, 2]
    assert z[3].isnan()
    assert [(f.tensor, f.index, f.program) for f in trace.accesses] == [("y", 4, (3, 0, 0))]


@triton.jit
def shifted(x, y, shift):
    at = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(y + at, tl.load(x + at + shift))


@pytest.mark.parametrize(
    ("shift", "index", "program", "story"),
    [(1, 8, (1, 0, 0), "past its end"), (-1, -1, (0, 0, 0), "before its start"), (0, None, None, "")],
)
def test_an_element_before_the_start_or_past_the_end_is_named_and_what_lies_between_is_not(
    shift, index, program, story
):
    x, y = torch.arange(8.0), torch.zeros(8)
    with gridsim.active() as trace:
        shifted[(2,)](x, y, shift)
    wanted = [("out of bounds read", "x", index, program, line_of(shifted, "tl.load"), story)] if shift else []
    assert [(f.kind, f.tensor, f.index, f.program, f.line, f.story) for f in trace.accesses] == wanted


@triton.jit
def walk_row(table, out, columns, width):
    row = tl.program_id(0)
    total = 0
    for i in range(columns):
        total += tl.load(table + row * width + i)
    tl.store(out + row, total)


@pytest.mark.parametrize("columns", [3, 2])
def test_an_entry_past_a_row_is_told_in_the_words_that_were_declared(columns):
    table, out = torch.ones(2, 4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    state = np.array([2, 2, 2, 1, 2, 2, 1, 1], np.uint8)
    memory = gridsim.Memory()
    memory.declare(table, name="table", state=state, dead="past the end of row {0}")
    with gridsim.active(memory):
        walk_row[(2,)](table, out, columns, 4)
    found = [(f.kind, f.index, f.program, f.story, f.line) for f in memory.accesses]
    line = line_of(walk_row, "tl.load")
    assert found == ([("dead read", (1, 2), (1, 0, 0), "past the end of row 1", line)] if columns == 3 else [])


# --- what nobody has written -------------------------------------------------------------------------------------


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
    "relu in place": lambda scratch: torch.nn.functional.relu(scratch, inplace=True),
}


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_what_torch_writes_between_launches_counts_as_written(fill):
    assert summed(MAKERS["empty"], 13, fill) == ()


@pytest.mark.parametrize("make", [torch.zeros, lambda n: torch.full((n,), 2.0), torch.ones], ids=["zeros", "full", "1"])
def test_memory_that_comes_filled_is_written(make):
    assert summed(lambda x: make(16), 13) == ()


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


# --- races -------------------------------------------------------------------------------------------------------


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


# --- 32 bits -----------------------------------------------------------------------------------------------------


@triton.jit
def strided(x, y, stride, n):
    at = tl.program_id(0) * 2 + tl.arange(0, 2)
    value = tl.load(x + at[:, None] * stride + tl.arange(0, 4)[None, :], mask=(at < n)[:, None], other=0.0)
    hashed = at * 1640531527 * 31
    tl.store(y + at, tl.sum(value, 1) + (hashed % 2).to(tl.float32) * 0.0)


def test_a_product_that_wraps_is_told_with_its_numbers_and_only_where_a_lane_uses_it():
    with gridsim.active() as trace:
        strided[(2,)](torch.zeros(64), torch.zeros(4), 1 << 30, 4)
    found = next(f for f in trace.accesses if f.kind == "overflow")
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
    found = [f for f in trace.accesses if f.kind == "overflow"]
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
    assert "overflow" in {f.kind for f in trace.accesses}
