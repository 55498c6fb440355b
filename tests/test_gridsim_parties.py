"""A read of what another sequence owns is recorded with both, where the program has asked for one."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from launched import line_of

from harness.executors import gridsim


@triton.jit
def lookup(lens, table, cache, out, row_stride, shift, ASK: tl.constexpr):
    row = tl.program_id(0)
    length = tl.load(lens + row) if ASK else 1
    block = tl.load(table + row * row_stride + shift)
    tl.store(out + row, tl.load(cache + block * 4) * length)


def looked_up(shift, ask=True, shared=False):
    lens, cache, out = torch.ones(2, dtype=torch.int32), torch.ones(3, 4), torch.zeros(2)
    table = torch.tensor([[0, 1], [2, 0]], dtype=torch.int32)
    owners = np.array([[True, shared], [True, False], [False, True]])
    memory = gridsim.Memory()
    for name, tensor, rows in (("lens", lens, np.eye(2, dtype=bool)), ("table", table, np.eye(2, dtype=bool)),
                               ("cache", cache, owners)):  # fmt: skip
        memory.declare(tensor, name=name)
        memory.own(tensor, rows, asks=name == "lens")
    with gridsim.active(memory):
        lookup[(2,)](lens, table, cache, out, 2, shift, ASK=ask)
    return [(f.kind, f.tensor, f.index, f.program, f.line, f.story) for f in memory.accesses]


def test_a_block_that_another_sequence_owns_is_named_with_both():
    line, story = line_of(lookup, "tl.load(cache"), "that of sequence 0, but the program has asked for sequence 1"
    assert looked_up(1) == [("foreign read", "cache", (0, 0), (1, 0, 0), line, story)]
    assert looked_up(0) == []
    assert looked_up(1, shared=True) == []
    assert looked_up(1, ask=False) == []


def test_an_entry_of_another_row_is_named():
    found = [f for f in looked_up(2) if f[1] == "table"]
    line, story = line_of(lookup, "tl.load(table"), "that of sequence 1, but the program has asked for sequence 0"
    assert found[0] == ("foreign read", "table", (1, 0), (0, 0, 0), line, story)
