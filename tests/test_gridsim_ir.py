"""gridsim's parser makes a tree of TTIR in which names, types, regions and lines can be relied on."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from harness.executors import gridsim
from harness.executors.gridsim.ir import Type, parse_type

TEXT = """
#loc = loc("/k/decode.py":7:1)
#loc1 = loc(unknown)
#loc5 = loc("/k/decode.py":12:9)
#loc6 = loc("/v/triton/language/standard.py":287:12)
#loc7 = loc("/k/helper.py":3:5)
#loc8 = loc("s"(#loc5))
#loc9 = loc(callsite(#loc6 at #loc8))
#loc10 = loc(callsite(#loc7 at #loc5))
module {
  tt.func public @decode(%q: !tt.ptr<f16> {tt.x = 16 : i32} loc("q"(#loc)), %n: i32 loc("n"(#loc))) attributes {} {
    %c0_i32 = arith.constant 0 : i32 loc(#loc1)
    %cst = arith.constant dense<0xFF800000> : tensor<16xf32> loc(#loc1)
    %0 = arith.cmpi eq, %n, %c0_i32 : i32 loc(#loc5)
    cf.cond_br %0, ^bb1, ^bb2(%n : i32) loc(#loc5)
  ^bb1:  // pred: ^bb0
    tt.return loc(#loc5)
  ^bb2(%k: i32 loc("k"(#loc5))):  // pred: ^bb0
    %s:2 = scf.for %i = %c0_i32 to %k step %n iter_args(%m = %cst, %j = %c0_i32) -> (tensor<16xf32>, i32)  : i32 {
      %x = tt.splat %q : !tt.ptr<f16> -> tensor<16x!tt.ptr<f16>> loc(#loc10)
      %y = tt.load %x {isVolatile = true} : tensor<16x!tt.ptr<f16>> loc(#loc10)
      %z = "tt.reduce"(%y) <{axis = 0 : i32}> ({
      ^bb0(%a: f16 loc(callsite(#loc1 at #loc8)), %b: f16 loc(callsite(#loc1 at #loc8))):
        %1 = arith.addf %a, %b : f16 loc(#loc9)
        tt.reduce.return %1 : f16 loc(#loc9)
      }) : (tensor<16xf16>) -> f16 loc(#loc9)
      %2 = scf.if %0 -> (i32) {
        %1 = arith.addi %j, %i : i32 loc(#loc5)
        scf.yield %1 : i32 loc(#loc5)
      } else {
        scf.yield %j : i32 loc(#loc5)
      } loc(#loc5)
      scf.yield %m, %2 : tensor<16xf32>, i32 loc(#loc5)
    } {tt.num_stages = 2 : i32} loc(#loc8)
    tt.print " a: { -> \\" " {hex = false, isSigned = array<i32: 1>} : %s#1 : i32 loc(#loc5)
    tt.return loc(#loc5)
  } loc(#loc)
} loc(#loc)
"""


def walk(blocks):
    for block in blocks:
        for op in block.ops:
            yield op
            for region in op.regions:
                yield from walk(region)


@pytest.fixture(scope="module")
def function():
    return gridsim.parse(TEXT)


def test_a_function_has_its_arguments_and_blocks(function):
    assert (function.name, function.args) == ("decode", ("%q", "%n"))
    assert function.arg_types == (Type("f16", (), "pointer"), Type("i32"))
    assert [block.label for block in function.body] == ["entry", "bb1", "bb2"]
    assert [block.args for block in function.body] == [("%q", "%n"), (), ("%k",)]


def test_a_branch_names_its_targets_and_what_it_hands_them(function):
    branch = function.body[0].ops[-1]
    assert (branch.name, branch.operands) == ("cf.cond_br", ("%0",))
    assert [(target.label, target.operands) for target in branch.targets] == [("bb1", ()), ("bb2", ("%n",))]


def test_a_loop_has_bounds_initial_values_and_block_arguments(function):
    loop = function.body[2].ops[0]
    assert loop.operands == ("%c0_i32", "%k", "%n", "%cst", "%c0_i32")
    assert loop.results == ("%s#0", "%s#1")
    assert loop.result_types == (Type("f32", (16,)), Type("i32"))
    assert loop.regions[0][0].args == ("%i", "%m", "%j")
    assert loop.attributes["tt.num_stages"] == 2


def test_every_name_stands_for_one_value(function):
    names = [name for op in walk(function.body) for name in op.results]
    assert len(names) == len(set(names))
    ends = [op.operands for op in walk(function.body) if op.name in ("scf.yield", "tt.reduce.return")]
    assert ends[:2] == [("%1",), ("%1.2",)]


def test_lines_are_the_callees_but_the_callers_where_triton_is_called(function):
    lines = {op.name: str(op.line) for op in walk(function.body)}
    assert lines["tt.load"] == "helper.py:3"
    assert lines["tt.reduce"] == "decode.py:12"
    assert next(op for op in walk(function.body) if op.name == "tt.load").line.path == "/k/helper.py"


def test_words_attributes_and_strings_are_kept(function):
    found = {op.name: op for op in walk(function.body)}
    assert found["arith.cmpi"].words == ("eq",)
    assert found["tt.load"].attributes["isVolatile"] is True
    assert found["tt.print"].attributes["isSigned"] == (1,)
    assert found["tt.print"].operands == ("%s#1",)
    assert found["tt.reduce"].number("axis") == 0


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("f32", Type("f32")),
        ("tensor<16x64x!tt.ptr<bf16>>", Type("bf16", (16, 64), "pointer")),
        ("!tt.tensordesc<16x16xf32>", Type("f32", (16, 16), "descriptor")),
        ("!tt.tensordesc<tensor<16x16xf32>>", Type("f32", (16, 16), "descriptor")),
        ("!tt.ptr<!tt.ptr<f16>>", Type("!tt.ptr<f16>", (), "pointer")),
    ],
)
def test_types_read_as_triton_prints_them(text, want):
    assert parse_type(text) == want


@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)


def test_what_a_trace_keeps_can_be_parsed():
    with gridsim.active() as trace:
        add[(1,)](torch.zeros(4), torch.zeros(4), 4, BLOCK=4)
    function = gridsim.parse(trace.launches[0].ttir)
    assert function.args == ("%x", "%y", "%n")
    stores = [op for op in walk(function.body) if op.name == "tt.store"]
    assert [op.line.path for op in stores] == [__file__]
