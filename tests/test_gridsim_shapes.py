"""Operations that reshape, fold, sort and multiply tensors under gridsim."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from harness.executors import gridsim

ROWS, COLUMNS = 8, 32


@triton.jit
def where(M: tl.constexpr, N: tl.constexpr):
    return tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def folds(x, z, AXIS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    a = tl.load(x + where(M, N))
    size: tl.constexpr = N if AXIS == 0 else M
    at = tl.arange(0, size)
    tl.store(z + at, tl.sum(a, AXIS))
    tl.store(z + size + at, tl.max(a, AXIS))
    tl.store(z + 2 * size + at, tl.min(a, AXIS))
    tl.store(z + 3 * size + at, tl.argmax(a, AXIS).to(a.dtype))
    tl.store(z + 4 * size + at, tl.argmin(a, AXIS).to(a.dtype))
    tl.store(z + 5 * size + at, tl.argmax(a, AXIS, tie_break_left=False).to(a.dtype))
    tl.store(z + 6 * size + at, tl.reduce(a, AXIS, larger))
    best, place = tl.max(a, AXIS, return_indices=True)
    tl.store(z + 7 * size + at, best + place.to(a.dtype))
    kept = tl.sum(a, AXIS, keep_dims=True)
    tl.store(z + 8 * size + at, tl.reshape(kept, [size]))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["float32", "float16", "int32", "int64"])
def test_folds_along_each_axis(kind, axis):
    torch.manual_seed(1)
    x = torch.randint(-9, 9, (ROWS, COLUMNS)).to(getattr(torch, kind))  # ties, and sums that are exact
    x[0, 5], x[3, 7] = 11, -12
    z = torch.zeros(9, x.shape[1 - axis], dtype=x.dtype)
    with gridsim.active():
        folds[(1,)](x, z, AXIS=axis, M=ROWS, N=COLUMNS)
    d = x.double().numpy()
    first, last = d.argmax(axis), d.shape[axis] - 1 - np.flip(d, axis).argmax(axis)
    want = [d.sum(axis), d.max(axis), d.min(axis), first, d.argmin(axis), None, d.max(axis), d.max(axis) + first,
            d.sum(axis)]  # fmt: skip
    for row, wanted in enumerate(want):
        if wanted is not None:
            assert z[row].tolist() == wanted.tolist(), f"row {row}"
    tied = z[5].numpy().astype(int)  # without a rule for ties, any of the largest will do
    assert (np.take_along_axis(d, np.expand_dims(tied, axis), axis).squeeze(axis) == d.max(axis)).all()
    assert ((first <= tied) & (tied <= last)).all()


@triton.jit
def odd_folds(x, z, M: tl.constexpr, N: tl.constexpr):
    a = tl.load(x + where(M, N))
    tl.store(z, tl.sum(a))
    tl.store(z + 1, tl.max(a))
    tl.store(z + 2, tl.xor_sum(tl.reshape(a, [M * N]), 0))
    tl.store(z + 3, tl.reduce_or(tl.reshape(a, [M * N]), 0))
    tl.store(z + 4, tl.sum(tl.sum(a, 0), 0))
    tl.store(z + 5, tl.min(tl.ravel(a), 0))


def test_folds_of_everything_and_of_bits():
    x, z = torch.randint(0, 1 << 20, (ROWS, COLUMNS), dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
    with gridsim.active():
        odd_folds[(1,)](x, z, M=ROWS, N=COLUMNS)
    flat = x.numpy().ravel()
    want = [flat.sum(), flat.max(), np.bitwise_xor.reduce(flat), np.bitwise_or.reduce(flat), flat.sum(), flat.min()]
    assert z.tolist() == [int(one) for one in want]


@triton.jit
def nan_folds(x, z, N: tl.constexpr):
    a = tl.load(x + tl.arange(0, N))
    tl.store(z, tl.max(a, 0))
    tl.store(z + 1, tl.min(a, 0))
    tl.store(z + 2, tl.sum(a, 0))
    tl.store(z + 3, tl.sum((a > 0).to(tl.int32), 0))


def test_a_fold_drops_nan_from_extremes_and_keeps_it_in_sums():
    x, z = torch.tensor([2.0, float("nan"), -3.0, 1.0]), torch.zeros(4)
    with gridsim.active():
        nan_folds[(1,)](x, z, N=4)
    assert z[:2].tolist() == [2, -3]
    assert z[2].isnan()
    assert z[3] == 2


@triton.jit
def small_sums(x, z, N: tl.constexpr):
    a = tl.load(x + tl.arange(0, N))
    tl.store(z, tl.sum(a, 0))
    tl.store(z + 1, tl.sum(a, 0, dtype=tl.float32))
    tl.store(z + 2, tl.reduce(a, 0, add))


def test_sums_of_narrow_integers_are_wide_and_a_reduce_of_sixteen_bits_rounds_each_step():
    x, z = torch.full((64,), 100, dtype=torch.int8), torch.zeros(3, dtype=torch.int32)
    with gridsim.active():
        small_sums[(1,)](x, z, N=64)
    assert z.tolist() == [6400, 6400, 6400 % 256]
    y, w = torch.full((4096,), 1.0, dtype=torch.bfloat16), torch.zeros(3)
    y[0] = 257.0
    with gridsim.active():
        small_sums[(1,)](y, w, N=4096)
    assert w[1] == 4095 + 256  # 257 is no bfloat16
    assert w[2] == torch.tensor(4095.0 + 256).bfloat16()


@triton.jit
def scans(x, z, AXIS: tl.constexpr, REVERSE: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    a = tl.load(x + where(M, N))
    tl.store(z + where(M, N), tl.cumsum(a, AXIS, reverse=REVERSE))
    tl.store(z + M * N + where(M, N), tl.cumprod(a % 2 + 1, AXIS, reverse=REVERSE))
    tl.store(z + 2 * M * N + where(M, N), tl.associative_scan(a, AXIS, larger, reverse=REVERSE))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_scans_along_each_axis_and_backwards(kind, reverse, axis):
    x = torch.randint(0, 9, (ROWS, COLUMNS)).to(getattr(torch, kind))
    z = torch.zeros(3, ROWS, COLUMNS, dtype=x.dtype)
    with gridsim.active():
        scans[(1,)](x, z, AXIS=axis, REVERSE=reverse, M=ROWS, N=COLUMNS)
    turned = x.double().numpy()
    turned = np.flip(turned, axis) if reverse else turned
    want = np.stack([turned.cumsum(axis), np.cumprod(turned % 2 + 1, axis), np.maximum.accumulate(turned, axis)])
    want = np.flip(want, axis + 1) if reverse else want
    np.testing.assert_array_equal(z.double().numpy() % 2**20, want % 2**20)


@triton.jit
def first_of_each(value, run, value2, run2):
    return tl.where(run == run2, value + value2, value2), run2


@triton.jit
def segments(x, runs, z, N: tl.constexpr):
    at = tl.arange(0, N)
    total, _ = tl.associative_scan((tl.load(x + at), tl.load(runs + at)), 0, first_of_each)
    tl.store(z + at, total)


def test_a_scan_of_pairs_is_done_in_order():
    x, runs, z = torch.ones(32), torch.arange(32) // 5, torch.zeros(32)
    with gridsim.active():
        segments[(1,)](x, runs, z, N=32)
    assert z.tolist() == [i % 5 + 1 for i in range(32)]


@triton.jit
def moves(x, y, z, N: tl.constexpr):
    a = tl.load(x + where(N, N))
    b = tl.load(y + where(N, N))
    size: tl.constexpr = N * N
    tl.store(z + where(N, N), tl.trans(a))
    tl.store(z + size + where(N, N), tl.permute(a, (1, 0)))
    tl.store(z + 2 * size + where(N, N), tl.reshape(tl.ravel(a), [N, N]))
    tl.store(z + 3 * size + where(N, 2 * N), tl.interleave(a, b))
    both = tl.join(a, b)
    left, right = tl.split(both)
    tl.store(z + 5 * size + where(N, N), left - right)
    tl.store(z + 6 * size + where(N, N), tl.flip(a, 1))
    cube = tl.permute(tl.reshape(a, [N // 2, 2, N]), (2, 0, 1))
    tl.store(z + 7 * size + where(N, N), tl.reshape(cube, [N, N]))
    tl.store(z + 8 * size + where(N, N), tl.broadcast_to(tl.sum(a, 1)[:, None], [N, N]))
    tl.store(z + 9 * size + tl.arange(0, 2 * size), tl.cat(tl.ravel(a), tl.ravel(b), can_reorder=True))
    tl.store(z + 11 * size + where(N, N), tl.swizzle2d(tl.arange(0, N)[:, None], tl.arange(0, N)[None, :], N, N, 2)[0])


def test_tensors_are_moved_as_torch_moves_them():
    n = 16
    x, y, z = torch.randn(n, n), torch.randn(n, n), torch.zeros(12, n, n)
    with gridsim.active():
        moves[(1,)](x, y, z, N=n)
    assert torch.equal(z[0], x.T)
    assert torch.equal(z[1], x.T)
    assert torch.equal(z[2], x)
    assert torch.equal(z[3:5].reshape(n, n, 2), torch.stack([x, y], -1))
    assert torch.equal(z[5], x - y)
    assert torch.equal(z[6], x.flip(1))
    assert torch.equal(z[7], x.reshape(n // 2, 2, n).permute(2, 0, 1).reshape(n, n))
    torch.testing.assert_close(z[8], x.sum(1, keepdim=True).expand(n, n))
    assert torch.equal(z[9:11].ravel().sort()[0], torch.cat([x.ravel(), y.ravel()]).sort()[0])
    assert (z[11] >= 0).all()


@triton.jit
def sorts(x, z, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    a = tl.load(x + where(M, N))
    tl.store(z + where(M, N), tl.sort(a, 1))
    tl.store(z + M * N + where(M, N), tl.sort(a, 1, descending=True))
    tl.store(z + 2 * M * N + where(M, K), tl.topk(a, K, 1))


@pytest.mark.parametrize("kind", ["float32", "int32", "float16"])
def test_sort_and_topk(kind):
    x, k = torch.randperm(ROWS * COLUMNS).reshape(ROWS, COLUMNS).to(getattr(torch, kind)), 4
    z = torch.zeros(3, ROWS, COLUMNS, dtype=x.dtype)
    with gridsim.active():
        sorts[(1,)](x, z, K=k, M=ROWS, N=COLUMNS)
    down = x.sort(1, descending=True)[0]
    assert torch.equal(z[0], x.sort(1)[0])
    assert torch.equal(z[1], down)
    assert torch.equal(z[2].ravel()[: ROWS * k].reshape(ROWS, k), down[:, :k])


@triton.jit
def counts(x, z, w, N: tl.constexpr, BINS: tl.constexpr):
    a = tl.load(x + tl.arange(0, N))
    tl.store(z + tl.arange(0, BINS), tl.histogram(a, BINS))
    tl.store(w + tl.arange(0, BINS), tl.histogram(a, BINS, mask=tl.arange(0, N) < N // 2))


def test_a_histogram_counts():
    x = torch.randint(0, 8, (64,), dtype=torch.int32)
    z, w = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    with gridsim.active():
        counts[(1,)](x, z, w, N=64, BINS=8)
    assert z.tolist() == x.bincount(minlength=8).tolist()
    assert w.tolist() == x[:32].bincount(minlength=8).tolist()


@triton.jit
def picks(x, index, z, AXIS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    tl.store(z + where(M, N), tl.gather(tl.load(x + where(M, N)), tl.load(index + where(M, N)), AXIS))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_gather_picks_along_an_axis(axis):
    x, z = torch.randn(ROWS, COLUMNS), torch.zeros(ROWS, COLUMNS)
    index = torch.randint(0, x.shape[axis], x.shape, dtype=torch.int32)
    with gridsim.active():
        picks[(1,)](x, index, z, AXIS=axis, M=ROWS, N=COLUMNS)
    assert torch.equal(z, x.gather(axis, index.long()))


@triton.jit
def slices(x, z, M: tl.constexpr, N: tl.constexpr):
    row, column = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + row[:, None] * N + column[None, :])
    cube = a[:, None, :] + row[None, :, None] * 100
    tl.store(z + (row[:, None, None] * M + row[None, :, None]) * N + column[None, None, :], cube)
    tl.store(z + M * M * N + row, tl.sum(a, 1)[:, None].reshape(M))


def test_none_in_a_slice_adds_an_axis():
    x, z = torch.arange(32.0).reshape(4, 8), torch.zeros(4 * 4 * 8 + 4)
    with gridsim.active():
        slices[(1,)](x, z, M=4, N=8)
    assert torch.equal(z[:128].reshape(4, 4, 8), x[:, None] + torch.arange(4.0)[None, :, None] * 100)
    assert torch.equal(z[128:132], x.sum(1))


@triton.jit
def masked(x, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, mask=at < n, other=-1.0), mask=at < n + 3)
    tl.store(z + 64 + at, tl.load(x + at, mask=(at < n) & (at % 2 == 0), other=7), mask=at < n)


def test_a_masked_load_gives_other_and_a_masked_store_leaves_the_rest():
    x, z = torch.arange(40.0), torch.full((128,), 5.0)
    with gridsim.active() as trace:
        masked[(3,)](x, z, 37, BLOCK=16)
    assert z[:64].tolist() == [*range(37), -1, -1, -1, *[5] * 24]
    assert z[64:].tolist() == [*[i if i % 2 == 0 else 7 for i in range(37)], *[5] * 27]
    assert trace.accesses == ()


@triton.jit
def product(
    a, b, c, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, TRANS: tl.constexpr
):
    left = tl.load(a + where(M, K))
    right = tl.trans(tl.load(b + where(N, K))) if TRANS else tl.load(b + where(K, N))
    tl.store(z + where(M, N), tl.dot(left, right, tl.load(c + where(M, N)), input_precision=PRECISION))


#: Worst error of a product in units of the sum of absolute products: sums, operands cut, the last rounding.
UNITS = {"ieee": 0.0, "tf32": 2 * 2.0**-10, "tf32x3": 2.0**-20, "bf16x3": 2.0**-14, "bf16x6": 2.0**-20}


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("trans", [False, True])
def test_a_product_with_an_accumulator_lies_within_its_bound(kind, precision, trans):
    torch.manual_seed(5)
    a, b = (torch.randn(16, 64) * 3).to(getattr(torch, kind)), torch.randn(64, 32).to(getattr(torch, kind))
    c, z = torch.randn(16, 32), torch.zeros(16, 32)
    given = b.float().T.contiguous().to(b.dtype) if trans else b
    with gridsim.active():
        product[(1,)](a, given, c, z, M=16, N=32, K=64, PRECISION=precision, TRANS=trans)
    a, b = a.double(), b.double()
    operand = UNITS[precision] if kind == "float32" else 0.0
    bound = ((64 + 2) * 2.0**-24 + operand) * (a.abs() @ b.abs() + c.abs())
    error = (z.double() - (a @ b + c.double())).abs()
    assert (error <= bound).all(), (error / bound).max()
    if kind == "float32" and precision == "tf32":
        assert (error > 66 * 2.0**-24 * (a.abs() @ b.abs() + c.abs())).any()  # the operands were indeed cut


@triton.jit
def outer(a, b, z, OUT: tl.constexpr):
    tl.store(z + where(32, 32), tl.dot(tl.load(a + where(32, 32)), tl.load(b + where(32, 32)), out_dtype=OUT))


def test_a_product_of_sixteen_bits_may_be_summed_in_them_and_one_of_integers_is_exact():
    a, b, z = torch.randn(32, 32).half(), torch.randn(32, 32).half(), torch.zeros(32, 32).half()
    p, q, r = (torch.randint(-128, 127, (32, 32), dtype=torch.int8) for _ in range(3))
    r = r.int()
    with gridsim.active():
        outer[(1,)](a, b, z, OUT=tl.float16)
        outer[(1,)](p, q, r, OUT=tl.int32)
    torch.testing.assert_close(z.double(), a.double() @ b.double(), atol=2e-2, rtol=2e-3)
    assert torch.equal(r, p.int() @ q.int())


@triton.jit
def batched(a, b, z):
    at = tl.arange(0, 2)[:, None, None] * 256 + where(16, 16)[None, :, :]
    tl.store(z + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision="ieee"))


def test_products_come_in_batches():
    a, b, z = torch.randn(2, 16, 16), torch.randn(2, 16, 16), torch.zeros(2, 16, 16)
    with gridsim.active():
        batched[(1,)](a, b, z)
    torch.testing.assert_close(z, a @ b, rtol=1e-5, atol=1e-5)


@triton.jit
def mapped(x, y, z, w, N: tl.constexpr):
    at = tl.arange(0, N)
    total, product_ = tl.map_elementwise(both_ways, tl.load(x + at), tl.load(y + at))
    tl.store(z + at, total)
    tl.store(w + at, product_)


@triton.jit
def both_ways(a, b):
    if a > b:
        return a + b, a * b
    return a - b, b


@pytest.mark.skipif(not hasattr(tl, "map_elementwise"), reason="this Triton has no tl.map_elementwise")
def test_a_scalar_function_is_mapped_over_elements():
    x, y = torch.randn(32), torch.randn(32)
    z, w = torch.zeros(32), torch.zeros(32)
    with gridsim.active():
        mapped[(1,)](x, y, z, w, N=32)
    assert torch.equal(z, torch.where(x > y, x + y, x - y))
    assert torch.equal(w, torch.where(x > y, x * y, y))


@triton.jit
def swap(a, b):
    return b, a


@triton.jit
def in_pairs(x, z, N: tl.constexpr):
    at = tl.arange(0, N)
    found = tl.map_elementwise(swap, tl.load(x + at), pack=2)
    tl.store(z + at, found[0])


def test_a_function_mapped_over_pairs_sees_neighbours():
    x, z = torch.arange(32.0), torch.zeros(2, 32)
    with gridsim.active():
        in_pairs[(2,)](x, z, N=32)
    assert z[0].tolist() == x.reshape(16, 2).flip(1).ravel().tolist()


@triton.jit
def scaled(a, a_scale, b, b_scale, z, LEFT: tl.constexpr, RIGHT: tl.constexpr, P: tl.constexpr, Q: tl.constexpr):
    k: tl.constexpr = 64
    left, right = tl.load(a + where(16, k // P)), tl.load(b + where(k // Q, 32))
    if b_scale is None:
        out = tl.dot_scaled(left, tl.load(a_scale + where(16, 2)), LEFT, right, None, RIGHT)
    else:
        out = tl.dot_scaled(left, tl.load(a_scale + where(16, 2)), LEFT, right, tl.load(b_scale + where(32, 2)), RIGHT)
    tl.store(z + where(16, 32), out)


FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def microscaled(form, rows, axis):
    """Operands of 64 numbers a row: as stored, and in float64."""
    if form == "e2m1":
        nibbles = torch.randint(0, 16, (rows, 64))
        packed = (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).to(torch.uint8)
        return (packed, FOUR_BITS[nibbles]) if axis == 1 else (packed.T.contiguous(), FOUR_BITS[nibbles].T)
    kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}[form]
    drawn = torch.randn(rows, 64).to(kind)
    return (drawn, drawn.double()) if axis == 1 else (drawn.float().T.contiguous().to(kind), drawn.double().T)


@pytest.mark.parametrize(("left", "right"), [("e2m1", "e2m1"), ("e4m3", "e5m2"), ("e2m1", "e4m3"), ("e5m2", "bf16")])
def test_microscaled_operands_are_decoded_and_scaled(left, right):
    torch.manual_seed(8)
    (a, p), (b, q) = microscaled(left, 16, 1), microscaled(right, 32, 0)
    u, v = (torch.randint(120, 135, (rows, 2), dtype=torch.uint8) for rows in (16, 32))
    z = torch.zeros(16, 32)
    with gridsim.active():
        scaled[(1,)](a, u, b, None if right == "bf16" else v, z, LEFT=left, RIGHT=right, P=1 + (left == "e2m1"),
                     Q=1 + (right == "e2m1"))  # fmt: skip
    p = p * (2.0 ** (u.double() - 127)).repeat_interleave(32, 1)
    q = q if right == "bf16" else q * (2.0 ** (v.double() - 127)).repeat_interleave(32, 1).T
    assert ((z.double() - p @ q).abs() <= 66 * 2.0**-24 * (p.abs() @ q.abs())).all()


def test_a_scale_of_all_ones_is_nan():
    a, b = torch.ones(16, 64).to(torch.float8_e4m3fn), torch.ones(64, 32).to(torch.float8_e4m3fn)
    u, v, z = (
        torch.full((16, 2), 127, dtype=torch.uint8),
        torch.full((32, 2), 127, dtype=torch.uint8),
        torch.zeros(16, 32),
    )
    u[3, 1] = 255
    with gridsim.active():
        scaled[(1,)](a, u, b, v, z, LEFT="e4m3", RIGHT="e4m3", P=1, Q=1)
    assert z[3].isnan().all()
    assert (z[:3] == 64).all()
