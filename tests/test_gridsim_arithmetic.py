"""Elementwise operations under gridsim give what Triton's language promises, in every type."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from casting import to_numpy, to_torch
from patterns import SMALL, codes
from triton.language.extra import libdevice

from harness.executors import gridsim

SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
INTEGERS, FLOATS = (*SIGNED, *UNSIGNED), ("float16", "bfloat16", "float32", "float64")
N = 64


def table(rows, kind):
    """Room for the results of a kernel: [rows, N]."""
    return torch.zeros(rows, N, dtype=getattr(torch, kind))


def integers(kind, seed):
    info, random = np.iinfo(kind), np.random.default_rng(seed)
    edges = [0, 1, 2, 3, info.max, info.max - 1, info.min, info.min + 1]
    drawn = random.integers(info.min, info.max, N - len(edges), dtype=kind, endpoint=True)
    return random.permutation(np.concatenate([np.array(edges, kind), drawn]))


def floats(kind, seed):
    drawn = np.random.default_rng(seed).normal(size=N) * 4
    drawn[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-8, 300.0, 65504.0]
    return np.random.default_rng(seed + 1).permutation(drawn).astype(SMALL.get(kind, kind))


@triton.jit
def on_integers(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(z + at, a + b)
    tl.store(z + N + at, a - b)
    tl.store(z + 2 * N + at, a * b)
    tl.store(z + 3 * N + at, a & b)
    tl.store(z + 4 * N + at, a | b)
    tl.store(z + 5 * N + at, a ^ b)
    tl.store(z + 6 * N + at, ~a)
    tl.store(z + 7 * N + at, a << (b & 7).to(a.dtype))
    tl.store(z + 8 * N + at, a >> (b & 7).to(a.dtype))
    tl.store(z + 9 * N + at, tl.maximum(a, b))
    tl.store(z + 10 * N + at, tl.minimum(a, b))
    tl.store(z + 11 * N + at, tl.where(a > b, a, b))
    tl.store(z + 12 * N + at, tl.where((a < b) | (a == b), 1, 0).to(a.dtype))
    tl.store(z + 13 * N + at, tl.where((a >= b) & (a != b), 1, 0).to(a.dtype))


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_wrap_shift_and_compare_as_in_c(kind):
    a, b, out = integers(kind, 1), integers(kind, 2), table(14, kind)
    with gridsim.active():
        on_integers[(1,)](to_torch(a, "cpu"), to_torch(b, "cpu"), out, N=N)
    few = b & np.array(7, kind)
    with np.errstate(all="ignore"):
        want = [a + b, a - b, a * b, a & b, a | b, a ^ b, ~a, a << few, a >> few, np.maximum(a, b), np.minimum(a, b),
                np.maximum(a, b), (a <= b).astype(kind), (a > b).astype(kind)]  # fmt: skip
    np.testing.assert_array_equal(to_numpy(out), np.stack(want))


@triton.jit
def quotients(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(z + at, a // b)
    tl.store(z + N + at, a % b)
    tl.store(z + 2 * N + at, tl.cdiv(a, b))


@pytest.mark.parametrize("kind", INTEGERS)
def test_division_goes_towards_zero_and_the_remainder_has_the_dividends_sign(kind):
    a, b, out = integers(kind, 3), integers(kind, 4), table(3, kind)
    b[b == 0] = 1
    if kind in SIGNED:
        b[b == -1] = -2  # the smallest number has no negative
    with gridsim.active():
        quotients[(1,)](to_torch(a, "cpu"), to_torch(b, "cpu"), out, N=N)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    quotient = [abs(p) // abs(q) * (-1 if (p < 0) != (q < 0) else 1) for p, q in pairs]
    remainder = [p - q * r for p, q, r in zip(a.tolist(), quotient, b.tolist(), strict=True)]
    assert to_numpy(out)[0].tolist() == quotient
    assert to_numpy(out)[1].tolist() == remainder


@triton.jit
def on_floats(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(z + at, a + b)
    tl.store(z + N + at, a - b)
    tl.store(z + 2 * N + at, a * b)
    tl.store(z + 3 * N + at, a / b)
    tl.store(z + 4 * N + at, tl.where(a == 0, a, -a))  # Triton 3.6 subtracts from 0, so -0 is +0
    tl.store(z + 5 * N + at, tl.abs(a))
    tl.store(z + 6 * N + at, a % b)


@pytest.mark.parametrize("kind", FLOATS)
def test_float_arithmetic_rounds_once_as_torch_does(kind):
    a, b, out = to_torch(floats(kind, 5), "cpu"), to_torch(floats(kind, 6), "cpu"), table(7, kind)
    with gridsim.active():
        on_floats[(1,)](a, b, out, N=N)
    quotient = a / b if kind not in ("float16", "bfloat16") else (a.float() / b.float()).to(a.dtype)
    want = [
        a + b,
        a - b,
        a * b,
        quotient,
        torch.where(a == 0, a, -a),
        a.abs(),
        torch.fmod(a.double(), b.double()).to(a.dtype),
    ]
    for row, wanted in enumerate(want):
        np.testing.assert_array_equal(codes(to_numpy(out[row])), codes(to_numpy(wanted)), err_msg=f"row {row}")


@triton.jit
def comparisons(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(z + at, a == b)
    tl.store(z + N + at, a != b)
    tl.store(z + 2 * N + at, a < b)
    tl.store(z + 3 * N + at, a <= b)
    tl.store(z + 4 * N + at, a > b)
    tl.store(z + 5 * N + at, a >= b)
    tl.store(z + 6 * N + at, not (a < b))


@pytest.mark.parametrize("kind", FLOATS)
def test_every_comparison_with_nan_is_false_but_unequal(kind):
    a, b, out = floats(kind, 7), floats(kind, 8), torch.zeros(7, N, dtype=torch.bool)
    a[:3], b[:3], b[3] = a[3], a[3], np.nan
    with gridsim.active():
        comparisons[(1,)](to_torch(a, "cpu"), to_torch(b, "cpu"), out, N=N)
    words = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
    want = [[bool(word(p, q)) for p, q in zip(a.tolist(), b.tolist(), strict=True)] for word in words]
    assert out.tolist() == [*want, [not less for less in want[2]]]


@triton.jit
def extremes(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(z + at, tl.maximum(a, b))
    tl.store(z + N + at, tl.minimum(a, b))
    tl.store(z + 2 * N + at, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(z + 3 * N + at, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(z + 4 * N + at, tl.clamp(a, -2.0, 2.0))
    tl.store(z + 5 * N + at, tl.clamp(a, -2.0, 2.0, propagate_nan=tl.PropagateNan.ALL))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_extremes_drop_nan_unless_told_to_keep_it(kind):
    a, b, out = floats(kind, 9), floats(kind, 10), table(6, kind)
    with gridsim.active():
        extremes[(1,)](to_torch(a, "cpu"), to_torch(b, "cpu"), out, N=N)
    p, q = (x.astype(np.float64) for x in (a, b))
    # Without propagation a NaN is clamped to a bound, as max(low, NaN) is low.
    want = [np.fmax(p, q), np.fmin(p, q), np.maximum(p, q), np.minimum(p, q), np.fmin(np.fmax(p, -2), 2),
            np.minimum(np.maximum(p, -2), 2)]  # fmt: skip
    np.testing.assert_array_equal(to_numpy(out).astype(np.float64), np.stack(want))


@triton.jit
def functions(x, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    tl.store(z + at, tl.exp(a))
    tl.store(z + N + at, tl.exp2(a))
    tl.store(z + 2 * N + at, tl.log(a))
    tl.store(z + 3 * N + at, tl.log2(a))
    tl.store(z + 4 * N + at, tl.sin(a))
    tl.store(z + 5 * N + at, tl.cos(a))
    tl.store(z + 6 * N + at, tl.sqrt(a))
    tl.store(z + 7 * N + at, tl.rsqrt(a))
    tl.store(z + 8 * N + at, tl.erf(a))
    tl.store(z + 9 * N + at, tl.floor(a))
    tl.store(z + 10 * N + at, tl.ceil(a))
    tl.store(z + 11 * N + at, tl.fma(a, a, -a))
    tl.store(z + 12 * N + at, tl.sigmoid(a))


def test_mathematical_functions_are_within_two_units_of_float64():
    x, out = torch.rand(N) * 6 + 0.01, table(13, "float32")
    with gridsim.active():
        functions[(1,)](x, out, N=N)
    d = x.double()
    want = [d.exp(), d.exp2(), d.log(), d.log2(), d.sin(), d.cos(), d.sqrt(), d.rsqrt(), d.erf(), d.floor(), d.ceil(),
            d * d - d, d.sigmoid()]  # fmt: skip
    unit = 2.0**-23
    error = (out.double() - torch.stack(want)).abs() / torch.stack(want).abs().clamp_min(0.5)
    assert (error.amax(1) <= 2.5 * unit).all(), error.amax(1) / unit


@triton.jit
def exact(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(z + at, tl.div_rn(a, b))
    tl.store(z + N + at, tl.sqrt_rn(a))
    tl.store(z + 2 * N + at, tl.fma(a, b, a))
    tl.store(z + 3 * N + at, tl.fdiv(a, b, ieee_rounding=True))


def test_the_exact_functions_are_exact():
    x, y, out = torch.rand(N) + 0.5, torch.rand(N) + 0.5, table(4, "float32")
    with gridsim.active():
        exact[(1,)](x, y, out, N=N)
    assert torch.equal(out[0], x / y)
    assert torch.equal(out[3], x / y)
    assert torch.equal(out[1], x.double().sqrt().float())  # torch's own, in float32, is not always the nearest
    assert torch.equal(out[2], (x.double() * y.double() + x.double()).float())


LIBRARY = (
    "acos",
    "asin",
    "atan",
    "asinh",
    "atanh",
    "cbrt",
    "cosh",
    "sinh",
    "tanh",
    "tan",
    "expm1",
    "log1p",
    "log10",
    "log2",
    "exp2",
    "erf",
    "erfc",
    "trunc",
    "rint",
    "abs",
    "rsqrt",
    "exp10",
    "nearbyint",
    "floor",
    "ceil",
    "round",
)


@triton.jit
def library(x, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    tl.store(z + at, libdevice.acos(a))
    tl.store(z + N + at, libdevice.asin(a))
    tl.store(z + 2 * N + at, libdevice.atan(a))
    tl.store(z + 3 * N + at, libdevice.asinh(a))
    tl.store(z + 4 * N + at, libdevice.atanh(a))
    tl.store(z + 5 * N + at, libdevice.cbrt(a))
    tl.store(z + 6 * N + at, libdevice.cosh(a))
    tl.store(z + 7 * N + at, libdevice.sinh(a))
    tl.store(z + 8 * N + at, libdevice.tanh(a))
    tl.store(z + 9 * N + at, libdevice.tan(a))
    tl.store(z + 10 * N + at, libdevice.expm1(a))
    tl.store(z + 11 * N + at, libdevice.log1p(a))
    tl.store(z + 12 * N + at, libdevice.log10(a))
    tl.store(z + 13 * N + at, libdevice.log2(a))
    tl.store(z + 14 * N + at, libdevice.exp2(a))
    tl.store(z + 15 * N + at, libdevice.erf(a))
    tl.store(z + 16 * N + at, libdevice.erfc(a))
    tl.store(z + 17 * N + at, libdevice.trunc(a))
    tl.store(z + 18 * N + at, libdevice.rint(a))
    tl.store(z + 19 * N + at, libdevice.abs(a))
    tl.store(z + 20 * N + at, libdevice.rsqrt(a))
    tl.store(z + 21 * N + at, libdevice.exp10(a))
    tl.store(z + 22 * N + at, libdevice.nearbyint(a))
    tl.store(z + 23 * N + at, libdevice.floor(a))
    tl.store(z + 24 * N + at, libdevice.ceil(a))
    tl.store(z + 25 * N + at, libdevice.round(a))
    tl.store(z + 26 * N + at, libdevice.acosh(a + 1))


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_calls_of_libdevice_are_run(kind):
    x, out = (torch.rand(N) * 0.9 + 0.05).to(getattr(torch, kind)), table(len(LIBRARY) + 1, kind)
    with gridsim.active():
        library[(1,)](x, out, N=N)
    named = {"cbrt": np.cbrt, "rint": np.rint, "abs": np.abs, "exp10": lambda d: 10**d, "nearbyint": np.rint}
    for row, name in enumerate(LIBRARY):
        want = torch.as_tensor(named[name](x.double().numpy())) if name in named else getattr(x.double(), name)()
        torch.testing.assert_close(out[row].double(), want, rtol=1e-6, atol=1e-7, msg=name)
    torch.testing.assert_close(out[-1].double(), (x.double() + 1).acosh(), rtol=1e-5, atol=1e-7)


@triton.jit
def two_sided(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(z + at, libdevice.pow(a, b))
    tl.store(z + N + at, libdevice.fmod(a, b))
    tl.store(z + 2 * N + at, libdevice.hypot(a, b))
    tl.store(z + 3 * N + at, libdevice.atan2(a, b))
    tl.store(z + 4 * N + at, libdevice.copysign(a, -b))
    tl.store(z + 5 * N + at, libdevice.fma(a, b, a))
    tl.store(z + 6 * N + at, libdevice.isnan(a / 0.0 - b / 0.0).to(tl.float32))
    tl.store(z + 7 * N + at, libdevice.fast_dividef(a, b))
    tl.store(z + 8 * N + at, libdevice.div_rn(a, b))
    tl.store(z + 9 * N + at, libdevice.fast_expf(a))


def test_calls_of_libdevice_with_two_arguments_are_run():
    x, y, out = torch.rand(N) * 4 + 0.1, torch.rand(N) * 3 + 0.1, table(10, "float32")
    with gridsim.active():
        two_sided[(1,)](x, y, out, N=N)
    want = [x**y, torch.fmod(x, y), torch.hypot(x, y), torch.atan2(x, y), -x, x * y + x, torch.ones(N), x / y, x / y,
            x.exp()]  # fmt: skip
    torch.testing.assert_close(out, torch.stack(want), rtol=1e-5, atol=1e-6)


@triton.jit
def high(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + at, tl.umulhi(tl.load(x + at), tl.load(y + at)))


@pytest.mark.parametrize("kind", ["int32", "uint32", "int64", "uint64"])
def test_the_high_half_of_a_product_is_unsigned(kind):
    a, b, out = integers(kind, 11), integers(kind, 12), torch.zeros(N, dtype=getattr(torch, kind))
    with gridsim.active():
        high[(1,)](to_torch(a, "cpu"), to_torch(b, "cpu"), out, N=N)
    bits = np.iinfo(kind).bits
    want = [(p % 2**bits * (q % 2**bits)) >> bits for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    assert [got % 2**bits for got in to_numpy(out).tolist()] == want


@triton.jit
def recast(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    tl.store(y + at, a.to(y.dtype.element_ty, bitcast=True))
    tl.store(z + at, a.to(y.dtype.element_ty, bitcast=True).to(a.dtype, bitcast=True))


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int32"), ("float16", "int16"), ("bfloat16", "uint16"), ("int8", "float8_e4m3fn"),
     ("float64", "int64"), ("float16", "bfloat16"), ("uint8", "float8_e5m2")],
)  # fmt: skip
def test_a_bitcast_keeps_the_bits(source, target):
    size = getattr(torch, source).itemsize
    x = to_torch(integers(f"int{8 * size}", 13), "cpu").view(getattr(torch, source))
    y, z = torch.zeros(N, dtype=getattr(torch, target)), torch.zeros_like(x)
    with gridsim.active():
        recast[(1,)](x, y, z, N=N)
    whole = getattr(torch, f"int{8 * size}")
    assert torch.equal(y.view(whole), x.view(whole))
    assert torch.equal(z.view(whole), x.view(whole))


@triton.jit
def mixed(x, y, z, w, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + at, (tl.load(x + at) + tl.load(y + at)).to(z.dtype.element_ty))
    tl.store(w + at, (tl.load(x + at) * 2.5).to(w.dtype.element_ty))


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [("int8", "int32", "int32"), ("int32", "int64", "int64"), ("float16", "float32", "float32"),
     ("int32", "float16", "float16"), ("bfloat16", "float32", "float32"), ("int64", "float32", "float32")],
)  # fmt: skip
def test_mixed_types_are_promoted_before_the_sum(left, right, result):
    x, y = torch.arange(N).to(getattr(torch, left)), torch.arange(N, 2 * N).to(getattr(torch, right))
    z, w = torch.zeros(N, dtype=getattr(torch, result)), torch.zeros(N)
    with gridsim.active():
        mixed[(1,)](x, y, z, w, N=N)
    assert z.tolist() == (torch.arange(N) * 2 + N).tolist()
    scaled = torch.arange(N) * 2.5
    assert w.tolist() == (scaled.to(x.dtype) if x.is_floating_point() else scaled).tolist()


@triton.jit
def truths(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(z + at, a & b)
    tl.store(z + N + at, a | b)
    tl.store(z + 2 * N + at, a ^ b)
    tl.store(z + 3 * N + at, not a)
    tl.store(z + 4 * N + at, a.to(tl.int32) - 2 == -1)
    tl.store(z + 5 * N + at, (a.to(tl.float32) * 3).to(tl.int1))
    tl.store(z + 6 * N + at, a > b)


def test_truth_values_are_one_bit_and_count_as_one():
    x, y = torch.arange(N) % 2 == 1, torch.arange(N) % 4 > 1
    z = torch.zeros(7, N, dtype=torch.bool)
    with gridsim.active():
        truths[(1,)](x, y, z, N=N)
    assert torch.equal(z, torch.stack([x & y, x | y, x ^ y, ~x, x, x, x & ~y]))
