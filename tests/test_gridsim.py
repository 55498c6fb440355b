"""gridsim runs Triton kernels right."""

from __future__ import annotations

import os
import re
import runpy

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from launched import attend, case, copy, launch, line_of
from triton import knobs

from harness.executors import gridsim
from harness.executors.gridsim.selftest import _double


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("softcap", "window"), [(0.0, 0), (5.0, 0), (0.0, 20)])
def test_a_paged_decode_agrees_with_float64(kind, softcap, window):
    given = case(kind, [1, 37, 64, 16, 50])
    with gridsim.active() as trace:
        out, lse = launch(*given, softcap, window)
    want, want_lse = attend(*given, given[0].shape[-1] ** -0.5, softcap, window)
    close = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[kind]
    np.testing.assert_allclose(out.double().numpy(), want, atol=close, rtol=close)
    np.testing.assert_allclose(lse.double().numpy(), want_lse, atol=1e-5)
    assert trace.accesses == ()
    assert [(run.name, run.grid) for run in trace.launches] == [("decode", (5, 4, 1))]
    assert any("loop many" in what for what in trace.behaviours)
    assert any("mask mixed" in what for what in trace.behaviours)


@triton.jit
def unary(x, y, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n)
    if OP == "exp":
        r = tl.exp(a.to(tl.float32))
    elif OP == "exp2":
        r = tl.exp2(a.to(tl.float32))
    elif OP == "log":
        r = tl.log(a.to(tl.float32))
    elif OP == "sqrt":
        r = tl.sqrt(a.to(tl.float32))
    elif OP == "erf":
        r = tl.erf(a.to(tl.float32))
    elif OP == "sigmoid":
        r = tl.sigmoid(a.to(tl.float32))
    elif OP == "square":
        r = a * a
    elif OP == "sum":
        r = a + tl.sum(a, 0)
    elif OP == "cumsum":
        r = tl.cumsum(a, 0)
    elif OP == "sort":
        r = tl.sort(a)
    elif OP == "argmax":
        r = tl.zeros_like(a) + tl.argmax(a, 0)
    elif OP == "flip":
        r = tl.flip(a, 0)
    elif OP == "softmax":
        r = tl.softmax(a.to(tl.float32))
    tl.store(y + at, r, mask=at < n)


OPERATIONS = {
    "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "sqrt": torch.sqrt, "erf": torch.erf,
    "sigmoid": torch.sigmoid, "square": lambda a: a * a, "sort": lambda a: a.sort()[0], "flip": lambda a: a.flip(0),
    "sum": lambda a: a + a.sum(), "cumsum": lambda a: a.cumsum(0), "argmax": lambda a: a * 0 + a.argmax(),
    "softmax": lambda a: a.softmax(0),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_agrees_with_torch(name):
    torch.manual_seed(1)
    x = torch.rand(64) * 4 + 0.01
    y = torch.empty(64)
    with gridsim.active():
        unary[(1,)](x, y, 64, OP=name, BLOCK=64)
    torch.testing.assert_close(y, OPERATIONS[name](x), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_sixteen_bit_arithmetic_rounds_after_every_operation(kind):
    x, y = (torch.rand(64) * 100).to(kind), torch.empty(64, dtype=kind)
    with gridsim.active():
        unary[(1,)](x, y, 64, OP="square", BLOCK=64)
    assert torch.equal(y, x * x)


@triton.jit
def cast(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n).to(y.dtype.element_ty), mask=at < n)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_bit_pattern_of_a_small_float_survives_the_way_to_float32_and_back(kind):
    bits = torch.int16 if kind.itemsize == 2 else torch.int8
    x = torch.arange(-(1 << 8 * kind.itemsize - 1), 1 << 8 * kind.itemsize - 1).to(bits).view(kind)
    middle, back = torch.empty(len(x)), torch.empty_like(x)
    with gridsim.active():
        cast[(triton.cdiv(len(x), 1024),)](x, middle, len(x), BLOCK=1024)
        cast[(triton.cdiv(len(x), 1024),)](middle, back, len(x), BLOCK=1024)
    assert torch.equal(middle.nan_to_num(7), x.float().nan_to_num(7))
    want = x.float().clamp(-torch.finfo(kind).max, torch.finfo(kind).max) if kind.itemsize == 1 else x.float()
    assert torch.equal(back.float().nan_to_num(7, 8, 9), want.nan_to_num(7, 8, 9))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_casts_round_to_nearest_even_and_fp8_saturates(kind):
    torch.manual_seed(2)
    top = torch.finfo(kind).max
    special = torch.tensor([0.0, -0.0, 1e-8, float("nan"), top, -top, top * 1.01, 1e6, -1e9, float("inf")])
    x = torch.cat([torch.randn(1000) * 10.0 ** torch.randint(-9, 3, (1000,)), special])
    y = torch.empty(len(x), dtype=kind)
    with gridsim.active():
        cast[(triton.cdiv(len(x), 256),)](x, y, len(x), BLOCK=256)
    want = (x.clamp(-top, top) if kind.itemsize == 1 else x).to(kind)
    assert torch.equal(y.float().nan_to_num(7, 8, 9), want.float().nan_to_num(7, 8, 9))


@triton.jit
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + n[None, :] * K + k[:, None])
    out = tl.dot(left, right, input_precision=PRECISION)
    tl.store(c + m[:, None] * N + n[None, :], out.to(c.dtype.element_ty))


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_dot_sums_in_float32(kind):
    torch.manual_seed(3)
    a, b = ((torch.randn(size, 32) * 4).to(kind) for size in (16, 64))
    c = torch.empty(16, 64, dtype=torch.int32 if kind == torch.int8 else torch.float32)
    with gridsim.active():
        matmul[(1,)](a, b, c, M=16, N=64, K=32, PRECISION="ieee")
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, rtol=1e-6, atol=1e-4)


def test_tf32_cuts_its_operands():
    a = torch.full((16, 16), 1 + 2.0**-10 + 2.0**-11 + 2.0**-12)
    b = torch.eye(16)
    c = torch.empty(16, 16)
    with gridsim.active():
        matmul[(1,)](a, b, c, M=16, N=16, K=16, PRECISION="tf32")
    assert (c == 1 + 2.0**-10).all()


@triton.jit
def walk(a, b, c, K, M: tl.constexpr, BLOCK: tl.constexpr):
    m, k = tl.arange(0, M), tl.arange(0, BLOCK)
    left = a + tl.program_id(0) * M * K + m[:, None] * K + k[None, :]
    right = b + k[:, None] * M + m[None, :]
    total = tl.zeros([M, M], tl.float32)
    for _ in range(0, K, BLOCK):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BLOCK
        right += BLOCK * M
    tl.store(c + tl.program_id(0) * M * M + m[:, None] * M + m[None, :], total)


def test_pointers_that_a_loop_moves_stay_where_they_should():
    torch.manual_seed(4)
    a, b, c = torch.randn(48, 64).half(), torch.randn(64, 16).half(), torch.empty(48, 16)
    with gridsim.active() as trace:
        walk[(3,)](a, b, c, 64, M=16, BLOCK=16)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-5, atol=1e-5)
    assert trace.accesses == ()


@triton.jit(noinline=True)
def twice(x, n):
    if n > 2:
        x *= 2.0
    return x


@triton.jit
def outside(x, y):
    i = tl.program_id(0)
    tl.store(y + i, twice(tl.load(x + i), i))


def test_a_function_that_is_not_inlined_is_called():
    x, y = torch.arange(5.0), torch.zeros(5)
    with gridsim.active():
        outside[(5,)](x, y)
    assert y.tolist() == [0, 1, 2, 6, 8]


@triton.jit
def pair_sum(a, b, c, d):
    return a + c, b * d


@triton.jit
def pairs(x, y, BLOCK: tl.constexpr):
    a = tl.load(x + tl.arange(0, BLOCK))
    total, product = tl.reduce((a, a), 0, pair_sum)
    sums, products = tl.associative_scan((a, a), 0, pair_sum, reverse=True)
    tl.store(y, total)
    tl.store(y + 1, product)
    tl.store(y + 2 + tl.arange(0, BLOCK), sums)
    tl.store(y + 2 + BLOCK + tl.arange(0, BLOCK), products)


def test_any_combine_function_folds_and_scans():
    x, y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(10)
    with gridsim.active():
        pairs[(1,)](x, y, BLOCK=4)
    assert y.tolist() == [10, 24, 10, 9, 7, 4, 24, 24, 12, 4]


@triton.jit
def helper(x, step):
    if x > 10:
        x -= step
    else:
        x += step
    return x


@triton.jit
def collatz(x, y, n):
    i = tl.program_id(0)
    if i >= n:
        return
    value = tl.load(x + i)
    steps = 0
    while value > 1:
        if value % 2 == 0:  # noqa: SIM108 - a branch is what is tested
            value = value // 2
        else:
            value = 3 * value + 1
        steps += 1
    for _ in range(i):
        steps = helper(steps, 1)
    tl.store(y + i, steps)


def test_programs_that_part_in_branches_and_loops_each_go_their_own_way():
    x, y = torch.arange(1, 41, dtype=torch.int32), torch.full((50,), -1, dtype=torch.int32)

    def want(i, value):
        steps = 0
        while value > 1:
            value = value // 2 if value % 2 == 0 else 3 * value + 1
            steps += 1
        for _ in range(i):
            steps += -1 if steps > 10 else 1
        return steps

    with gridsim.active() as trace:
        collatz[(50,)](x, y, 40)
    assert y.tolist() == [want(i, i + 1) for i in range(40)] + [-1] * 10
    assert trace.accesses == ()
    early, loop = line_of(collatz, "if i >= n"), line_of(collatz, "for _")
    assert {f"{early} branch taken", f"{early} branch passed"} <= trace.behaviours
    assert {f"{loop} loop never", f"{loop} loop once", f"{loop} loop many"} <= trace.behaviours


@triton.jit
def divide(x, y, quotient, remainder, wrapped, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(quotient + at, a // b)
    tl.store(remainder + at, a % b)
    tl.store(wrapped + at, a * 1000003 + b)


def test_integers_divide_towards_zero_and_wrap():
    x = torch.tensor([7, -7, 7, -7, 2**31 - 1, -(2**31), 0, 5], dtype=torch.int32)
    y = torch.tensor([2, 2, -2, -2, 3, 3, 5, 5], dtype=torch.int32)
    out = [torch.empty(8, dtype=torch.int32) for _ in range(3)]
    with gridsim.active():
        divide[(1,)](x, y, *out, BLOCK=8)
    assert out[0].tolist() == torch.div(x, y, rounding_mode="trunc").tolist()
    assert out[1].tolist() == torch.fmod(x, y).tolist()
    assert out[2].tolist() == (x * 1000003 + y).tolist()


@triton.jit
def nans(x, y, BLOCK: tl.constexpr):
    a = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y, tl.max(a, 0))
    tl.store(y + 1, tl.maximum(tl.load(x), 1.0))
    tl.store(y + 2, tl.maximum(tl.load(x), 1.0, propagate_nan=tl.PropagateNan.ALL))


def test_a_maximum_ignores_nan_unless_told_to_propagate_it():
    x, y = torch.tensor([float("nan"), 2.0, 3.0, -1.0]), torch.zeros(3)
    with gridsim.active():
        nans[(1,)](x, y, BLOCK=4)
    assert y[:2].tolist() == [3.0, 1.0]
    assert y[2].isnan()


@triton.jit
def shuffle(x, y, pair, scale: tl.constexpr = 2):
    a = tl.load(x + tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :])
    left, right = tl.split(tl.join(a, tl.trans(a)))
    mixed = tl.reshape(tl.permute(tl.reshape(left + right * scale, [2, 2, 4]), [1, 0, 2]), [4, 4])
    out = mixed + pair[0] * pair[1]
    tl.store(y + tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :], out)


def test_shapes_and_tuples_and_defaults_work_as_far_as_triton_binds_them():
    x, y = torch.arange(16.0).reshape(4, 4), torch.zeros(4, 4)
    with gridsim.active():
        shuffle[lambda meta: (1,)](x, y, (3, 0.5))
    want = (x + 2 * x.T).reshape(2, 2, 4).permute(1, 0, 2).reshape(4, 4) + 1.5
    assert torch.equal(y, want)


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(x, y, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + BLOCK + EVEN, mask=at < n)


def test_autotune_runs_its_first_config_once():
    x, y = torch.zeros(40), torch.zeros(40)
    with gridsim.active() as trace:
        tuned[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, y, 40)
    assert y.tolist() == [16.0] * 40
    assert [run.grid for run in trace.launches] == [(3, 1, 1)]


def test_a_config_that_is_named_runs_and_the_last_stands_for_those_beyond():
    for config, block in ((0, 16), (1, 32), (2, 32)):
        x, y = torch.zeros(40), torch.zeros(40)
        with gridsim.active(config=config):
            tuned[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, y, 40)
        assert y.tolist() == [block] * 40


@triton.jit
def block_copy(x, y, z, rows, columns):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [4, 8], padding_option="nan")
    target = tl.make_tensor_descriptor(y, [rows, columns], [columns, 1], [4, 8])
    block = source.load([tl.program_id(0) * 4, 0])
    target.store([tl.program_id(0) * 4, 0], block + 1)
    tl.store(z + tl.program_id(0), tl.sum(tl.sum(tl.where(block != block, 1.0, 0.0), 0), 0))


def test_a_tensor_descriptor_reads_and_writes_inside_its_shape_only():
    x, y, z = torch.arange(48.0).reshape(6, 8), torch.zeros(8, 8), torch.zeros(2)
    with gridsim.active() as trace:
        block_copy[(2,)](x, y, z, 6, 8)
    assert torch.equal(y[:6], x + 1)
    assert z.tolist() == [0, 16]  # two rows of the second block lie outside
    assert not y[6:].any()
    assert trace.accesses == ()


@triton.jit
def machine(x, y):
    out = tl.inline_asm_elementwise("shl.b32 $0, $1, 3;", "=r,r", [tl.load(x)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y, out)


def test_what_is_not_supported_is_named_with_its_line():
    x = torch.zeros(1, dtype=torch.int32)
    with gridsim.active(), pytest.raises(gridsim.Unsupported, match=r"tt\.elementwise_inline_asm") as raised:
        machine[(1,)](x, x)
    assert f"{__file__}:{line_of(machine, 'out = ').split(':')[1]}" in str(raised.value)
    with gridsim.active(), pytest.raises(gridsim.Unsupported):
        machine[(1,)](x, x)


def test_active_nests_and_leaves_triton_as_it_was():
    before = triton.runtime.driver._active, triton.knobs.runtime.add_stages_inspection_hook
    x, y = torch.ones(4), torch.zeros(4)
    with gridsim.active() as outer:
        with gridsim.active() as inner:
            copy[(1,)](x, y, 4, BLOCK=4)
        copy[(1,)](x, y, 4, BLOCK=4)
        copy[(1,)](x, y, 4, BLOCK=4)
    assert (len(outer.launches), len(inner.launches)) == (2, 1)
    assert (triton.runtime.driver._active, triton.knobs.runtime.add_stages_inspection_hook) == before
    with pytest.raises((RuntimeError, ValueError)):  # no GPU, or none that can touch the CPU's memory
        copy[(1,)](x, y, 4, BLOCK=4)


def test_a_forked_process_can_run_kernels():
    x, y = torch.ones(4).share_memory_(), torch.zeros(4).share_memory_()
    child = os.fork()
    if not child:
        with gridsim.active():
            copy[(1,)](x, y, 4, BLOCK=4)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert y.tolist() == [1] * 4


def test_a_grid_that_is_too_wide_for_one_pass_runs_in_chunks(monkeypatch):
    monkeypatch.setattr("harness.executors.gridsim.launch.WIDEST", 8 * 64 * 3)
    given = case(torch.float32, [30, 40])
    with gridsim.active():
        out, _ = launch(*given)
    np.testing.assert_allclose(out.numpy(), attend(*given, 0.125)[0], atol=2e-6)


def test_the_self_test_passes_on_this_triton():
    assert gridsim.self_test() is None


def test_what_gridsim_compiles_stays_out_of_the_cache_of_gpu_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    with gridsim.active():
        inside = knobs.cache.dir
        with gridsim.active():
            assert knobs.cache.dir != str(tmp_path)
    assert inside != str(tmp_path)
    assert knobs.cache.dir == str(tmp_path)


@pytest.mark.parametrize(("name", "block"), [("TRITON_CACHE_DIR", 128), ("TRITON_HOME", 256)])
def test_an_empty_variable_puts_no_cache_into_the_current_directory(name, block, tmp_path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv(name, "")
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    x, y = torch.ones(5), torch.zeros(5)
    with knobs.cache.scope():
        knobs.cache.reset()  # to what the environment says
        with gridsim.active():
            _double[(1,)](x, y, 5, 2, BLOCK=block)
    assert y.tolist() == [2.0] * 5
    assert not list(here.iterdir())
    assert list(elsewhere.rglob("*.cubin"))
    assert not list(elsewhere.rglob(f"{os.getpid()} *"))


HELPER = """
import triton

@triton.jit
def double(x):
    return x * 2
"""
CALLER = """
import importlib.util
import pathlib
import triton
import triton.language as tl

spec = importlib.util.spec_from_file_location("helper", pathlib.Path(__file__).with_name("helper.py"))
helper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)
double = helper.double

@triton.jit
def twice(x, y):
    tl.store(y, double(tl.load(x)))
"""


def test_a_copied_kernel_is_not_named_by_the_file_that_was_compiled_first(tmp_path, monkeypatch):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "cache"))
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "helper.py").write_text(HELPER)
        (folder / "caller.py").write_text(CALLER)
        with gridsim.active() as trace:
            runpy.run_path(str(folder / "caller.py"))["twice"][(1,)](torch.ones(1), torch.zeros(1))
        (launch,) = trace.launches
        assert set(re.findall(rf"{tmp_path}/(\w+)/(\w+)\.py", launch.ttir)) == {(name, "caller"), (name, "helper")}
