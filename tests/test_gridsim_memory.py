"""An access outside a tensor or its live elements is recorded with tensor, index, program and line."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from launched import case, copy, decode, launch, line_of, lines

from harness.executors import gridsim


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


def test_all_rows_that_a_line_reads_wrongly_are_named_where_that_is_asked_for():
    q, k, v, lens, table = case(torch.float16, [20])
    state = np.full(k.numel(), 2, np.uint8)
    dead = {(int(table[0, 0]), 2, 1), (int(table[0, 1]), 3, 0)}
    for block, slot, head in dead:
        state[np.ravel_multi_index((block, slot, head, 0), k.shape) :][: k.shape[3]] = 1
    for most, named in ((0, set()), (1, {min(dead)}), (9, dead)):
        memory = gridsim.Memory()
        memory.most_rows = most
        memory.declare(k, name="k_cache", state=state)
        with gridsim.active(memory):
            launch(q, k, v, lens, table)
        (found,) = memory.accesses
        assert found.rows == named if most != 1 else found.rows <= dead
        assert found.count == 2 * 2 * k.shape[3]


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
def row_at(x, y, where, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH)
    tl.store(y + lane, tl.load(x + tl.load(where) + lane))


@pytest.mark.parametrize("first", [2**63 - 100, -(2**63) + 100, 2**61, 49])
def test_a_row_that_begins_near_the_end_of_all_addresses_is_out_of_bounds(first: int):
    x, y = torch.ones(64), torch.zeros(16)
    with gridsim.active() as trace:
        row_at[(1,)](x, y, torch.tensor([first]), WIDTH=16)
    assert [(found.kind, found.tensor, found.count) for found in trace.accesses] == [
        ("out of bounds read", "x", 1 if first == 49 else 16)
    ]
    assert int(y.isnan().sum()) == trace.accesses[0].count


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
    assert [(found.kind, found.index) for found in memory.accesses] == [
        ("overflow read", (0,)),
        ("out of reach read", (0,)),
    ]
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
def wild(x, y, address: tl.int64):  # where Python's heap lies low, Triton takes an address for 32 bits
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


@triton.jit
def scattered(x, counter, address, far, n):
    """Stores and atomics, at a garbage address and past the end, unless masked off."""
    keep = tl.program_id(0) < n
    tl.store(address.to(tl.pointer_type(tl.float32)), 1.0, mask=keep)
    tl.store(x + far, 1.0, mask=keep)
    tl.atomic_add(counter + far, 1, mask=keep)


def test_stores_and_atomics_outside_are_dropped_and_recorded_and_masked_ones_are_none():
    x, counter = torch.zeros(4), torch.zeros(4, dtype=torch.int32)
    with gridsim.active() as trace:
        scattered[(2,)](x, counter, 12345678901, 1 << 40, 1)
    lines_ = [line_of(scattered, text) for text in ("tl.store(address", "tl.store(x", "tl.atomic")]
    assert [(f.kind, f.tensor, f.line, f.program, f.count) for f in trace.accesses] == [
        ("out of bounds write", tensor, line, (0, 0, 0), 1)
        for tensor, line in zip(("null", "x", "counter"), lines_, strict=True)
    ]
    assert not x.any()
    assert not counter.any()
    with gridsim.active() as trace:
        scattered[(2,)](x, counter, 12345678901, 1 << 40, 0)
        scattered[(1,)](x, counter, x.data_ptr() + 8, 3, 1)
    assert trace.accesses == ()
    assert (x.tolist(), counter.tolist()) == ([0, 0, 1, 1], [0, 0, 0, 1])
