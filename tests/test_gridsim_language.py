"""Control flow, calls, configurations, descriptors and atomics of Triton's language under gridsim."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from harness.executors import gridsim


@triton.jit
def where(M: tl.constexpr, N: tl.constexpr):
    return tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]


@triton.jit
def flows(x, z, n, UNROLLED: tl.constexpr, WAY: tl.constexpr):
    i = tl.program_id(0)
    value = tl.load(x + i)
    total = 0
    for k in tl.static_range(UNROLLED):
        total += k * value
    for k in range(n):
        if k % 2 == 0:
            for _ in range(k):
                total += 1
        elif k == 3:
            total *= 2
        else:
            while total > 50:
                total -= 7
    if WAY == 0:
        total += 1000
    else:
        total += 2000
    for k in range(10, 0, -3):
        total += k
    tl.store(z + i, total if i != 2 else -total)


def flown(i, value, n, unrolled, way):
    total = sum(k * value for k in range(unrolled))
    for k in range(n):
        if k % 2 == 0:
            total += k
        elif k == 3:
            total *= 2
        else:
            while total > 50:
                total -= 7
    total += (1000, 2000)[way] + sum(range(10, 0, -3))
    return total if i != 2 else -total


@pytest.mark.parametrize("way", [0, 1])
def test_loops_and_branches_nest(way):
    x, z = torch.arange(3, 40, 5, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    with gridsim.active():
        flows[(8,)](x, z, 8, UNROLLED=4, WAY=way)
    assert z.tolist() == [flown(i, value, 8, 4, way) for i, value in enumerate(x.tolist())]


@triton.jit
def early(x, z, n):
    i = tl.program_id(0)
    if i >= n:
        return
    value = tl.load(x + i)
    if value < 0:
        tl.store(z + i, -1.0)
        return
    tl.store(z + i, value * 2)


def test_programs_return_early():
    x, z = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0]), torch.zeros(5)
    with gridsim.active() as trace:
        early[(7,)](x, z, 4)
    assert z.tolist() == [2, -1, 6, -1, 0]
    assert trace.accesses == ()


@triton.jit
def shortened(x, z, n):
    i = tl.program_id(0)
    if i < n and tl.load(x + i) > 0:
        tl.store(z + i, 1.0)
    keep = (i < n) or (i == 6)
    tl.store(z + 8 + i, 2.0, mask=keep)


def test_and_or_work_on_run_time_values():
    x, z = torch.tensor([1.0, -1.0, 1.0, 1.0] + [1.0] * 4), torch.zeros(16)
    with gridsim.active():
        shortened[(8,)](x, z, 3)
    assert z.tolist() == [1, 0, 1, 0, 0, 0, 0, 0, 2, 2, 2, 0, 0, 0, 2, 0]


@triton.jit(noinline=True)
def apart(x, y, n):
    total = 0.0
    for k in range(n):
        total += x * k + y
    return total, n + 1


@triton.jit
def inner(x):
    return x + 1, (x * 2, x * 3)


@triton.jit
def outer(x):
    a, more = inner(x)
    return a + more[0] - more[1]


@triton.jit
def calls(x, z, n, SCALE: tl.constexpr = 3):
    i = tl.program_id(0)
    value = tl.load(x + i)
    total, count = apart(value, 1.0, n + i)
    tl.store(z + i, total + count)
    tl.store(z + 4 + i, outer(value) * SCALE)


def test_functions_call_functions_inlined_or_not():
    x, z = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(8)
    with gridsim.active():
        calls[lambda meta: (meta["SCALE"] + 1,)](x, z, 2, SCALE=3)
        first = z.clone()
        calls[(4,)](x, z, 2)
    want = [sum(v * k + 1 for k in range(2 + i)) + 3 + i for i, v in enumerate(x.tolist())]
    assert first.tolist() == z.tolist() == [*want, *[3 * (v + 1 + 2 * v - 3 * v) for v in x.tolist()]]


@triton.jit
def tuples(pair, z, numbers, NAMES: tl.constexpr):
    x, y = pair
    total = 0.0
    for k in tl.static_range(len(numbers)):
        total += numbers[k]
    both = (tl.load(x), tl.load(y))
    swapped = (both[1], both[0])
    tl.store(z, swapped[0] - swapped[1])
    tl.store(z + 1, total + NAMES[1])


def test_tuples_of_pointers_numbers_and_constants_are_taken_apart():
    x, y, z = torch.tensor([2.0]), torch.tensor([5.0]), torch.zeros(2)
    with gridsim.active():
        tuples[(1,)]((x, y), z, (1, 2.5, 3), NAMES=(7, 8))
    assert z.tolist() == [3, 14.5]


@triton.jit
def grids(z):
    x, y, w = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (w * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(z + at, 100 * w + 10 * y + x)


def test_a_grid_has_three_axes():
    z = torch.zeros(2, 3, 4, dtype=torch.int32)
    with gridsim.active():
        grids[(4, 3, 2)](z)
    assert z.tolist() == [[[100 * w + 10 * y + x for x in range(4)] for y in range(3)] for w in range(2)]


@triton.autotune([triton.Config({"BLOCK": 16}, num_warps=2), triton.Config({"BLOCK": 32})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(z, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.store(z + tl.program_id(0), BLOCK + EVEN)


def test_an_autotuned_kernel_runs_its_first_config_and_heuristics_see_it():
    z = torch.zeros(3, dtype=torch.int32)
    with gridsim.active() as trace:
        tuned[lambda meta: (triton.cdiv(48, meta["BLOCK"]),)](z, 48)
    assert z.tolist() == [17, 17, 17]
    assert len(trace.launches) == 1


@triton.jit
def atomics(counts, floats, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    at = i * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts, 1)
    tl.atomic_max(counts + 1, i * 3 % 7)
    tl.atomic_min(counts + 2, 5 - i)
    tl.atomic_and(counts + 3, ~(1 << i))
    tl.atomic_or(counts + 4, 1 << i)
    tl.atomic_xor(counts + 5, 3 << i)
    old = tl.atomic_xchg(counts + 6, i + 1)
    tl.store(z + i, old)
    tl.atomic_add(floats + at % 4, 0.5, mask=at < n)
    tl.atomic_max(floats + 4, i * 1.5 - 3)
    tl.atomic_min(floats + 5, i * 1.5 - 3)
    tl.atomic_cas(counts + 7, i, i + 1, sem="acq_rel", scope="gpu")


def test_atomics_of_every_kind_lose_nothing():
    n = 6
    counts = torch.tensor([0, -9, 9, -1, 0, 0, 0, 0], dtype=torch.int32)
    floats, z = torch.tensor([0.0, 0, 0, 0, -99, 99]), torch.zeros(n, dtype=torch.int32)
    with gridsim.active() as trace:
        atomics[(n,)](counts, floats, z, 90, BLOCK=16)
    crossed = 0
    for i in range(n):
        crossed ^= 3 << i
    assert counts.tolist() == [n, max(i * 3 % 7 for i in range(n)), 0, -1 & ~63, 63, crossed, n, n]
    assert floats.tolist() == [11.5, 11.5, 11, 11, 4.5, -3]
    assert z.tolist() == [0, 1, 2, 3, 4, 5]
    assert trace.accesses == ()


@triton.jit
def small_atomics(x, z, BLOCK: tl.constexpr):
    tl.atomic_add(z + tl.arange(0, BLOCK) % 2, tl.load(x + tl.arange(0, BLOCK)))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int64"])
def test_atomic_sums_in_other_types(kind):
    x, z = torch.arange(32).to(getattr(torch, kind)), torch.zeros(2, dtype=getattr(torch, kind))
    with gridsim.active():
        small_atomics[(1,)](x, z, BLOCK=32)
    assert z.tolist() == [240, 256]


@triton.jit
def described(x, z, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(z, [rows, columns], [columns, 1], [M, N])
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    target.store(at, source.load(at) + 1)


def test_descriptors_made_in_the_kernel():
    x, z = torch.randn(20, 24), torch.zeros(20, 24)
    with gridsim.active() as trace:
        described[(3, 3)](x, z, 20, 24, M=8, N=8)
    assert torch.equal(z, x + 1)
    assert trace.accesses == ()


@triton.jit
def handed(source, target, M: tl.constexpr, N: tl.constexpr):
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    target.store(at, source.load(at).to(target.dtype))


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_descriptors_made_by_the_caller(kind):
    x, z = torch.randint(0, 100, (20, 32)).to(getattr(torch, kind)), torch.zeros(20, 32, dtype=getattr(torch, kind))
    source, target = (TensorDescriptor.from_tensor(t, [8, 16]) for t in (x, z))
    with gridsim.active() as trace:
        handed[(3, 2)](source, target, M=8, N=16)
    assert torch.equal(z, x)
    assert trace.accesses == ()


@triton.jit
def rows_apart(source, target, index, z, N: tl.constexpr):
    row = tl.load(index + tl.arange(0, 8))
    found = source.gather(row, 8)
    tl.store(z + where(8, N), found)
    target.scatter(found, row, 8)


def test_descriptors_gather_and_scatter_rows():
    x, z, w = torch.randn(32, 24), torch.zeros(8, 16), torch.zeros(32, 24)
    index = torch.tensor([3, 0, 31, 7, 7, 40, 2, 1], dtype=torch.int32)
    source, target = (TensorDescriptor.from_tensor(t, [1, 16]) for t in (x, w))
    with gridsim.active() as trace:
        rows_apart[(1,)](source, target, index, z, N=16)
    for place, row in enumerate(index.tolist()):
        want = x[row, 8:24] if row < 32 else torch.zeros(16)  # a row outside is 0 and is not written
        assert torch.equal(z[place], want)
        assert row > 31 or torch.equal(w[row, 8:24], want)
    assert not w[:, :8].any()
    assert trace.accesses == ()


@triton.jit
def reduced(target, x, M: tl.constexpr, N: tl.constexpr, KIND: tl.constexpr):
    value = tl.load(x + where(M, N))
    if KIND == "add":
        target.atomic_add([4, 0], value)
    elif KIND == "max":
        target.atomic_max([4, 0], value)
    elif KIND == "min":
        target.atomic_min([4, 0], value)
    elif KIND == "and":
        target.atomic_and([4, 0], value)
    elif KIND == "or":
        target.atomic_or([4, 0], value)
    else:
        target.atomic_xor([4, 0], value)


@pytest.mark.parametrize(
    ("kind", "combine"),
    [("add", torch.add), ("max", torch.maximum), ("min", torch.minimum), ("and", torch.bitwise_and),
     ("or", torch.bitwise_or), ("xor", torch.bitwise_xor)],
)  # fmt: skip
def test_descriptors_reduce_into_memory(kind, combine):
    x, z = (torch.randint(0, 99, shape, dtype=torch.int32) for shape in ((8, 16), (10, 16)))
    want = z.clone()
    want[4:] = combine(z[4:], x[:6])
    with gridsim.active():
        reduced[(1,)](TensorDescriptor.from_tensor(z, [8, 16]), x, M=8, N=16, KIND=kind)
    assert torch.equal(z, want)


@triton.jit
def block_pointers(x, z, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_block_ptr(x, (rows, columns), (columns, 1), (0, 0), (M, N), (1, 0))
    target = tl.make_block_ptr(z, (rows, columns), (columns, 1), (0, 0), (M, N), (1, 0))
    for _ in range(tl.cdiv(columns, N)):
        value = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, value + 1, boundary_check=(0, 1))
        source, target = tl.advance(source, (0, N)), tl.advance(target, (0, N))


@pytest.mark.skipif(triton.__version__ >= "3.8", reason="this Triton has no block pointers")
def test_block_pointers_advance():
    x, z = torch.randn(6, 20), torch.zeros(6, 20)
    with gridsim.active() as trace:
        block_pointers[(1,)](x, z, 6, 20, M=8, N=8)
    assert torch.equal(z, x + 1)
    assert trace.accesses == ()


@triton.jit(debug=True)
def checked(x, z, n, BLOCK: tl.constexpr):
    value = tl.load(x + tl.program_id(0))
    tl.device_assert(value < n, "too large, or: not")
    values = tl.load(x + tl.arange(0, BLOCK))
    tl.device_assert(values < n, "some", mask=values < 2)
    tl.store(z + tl.program_id(0), value * n)


def test_an_assertion_that_fails_stops_the_kernel_and_one_that_holds_does_not():
    x, z = torch.arange(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    with gridsim.active():
        checked[(4,)](x, z, 4, BLOCK=4)
        assert z.tolist() == [0, 4, 8, 12]
        line = checked.starting_line_number + 2
        said = rf"'too large, or: not' fails in program \(3, 0, 0\) \({__file__}:{line + 1}\)"
        with pytest.raises(AssertionError, match=said):
            checked[(4,)](x, z, 3, BLOCK=4)


def test_debugging_finds_a_product_that_wraps():
    x, z = torch.full((4,), 1 << 30, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    with gridsim.active(), pytest.raises(AssertionError, match="overflow"):
        checked[(1,)](x, z, (1 << 31) - 1, BLOCK=4)


@triton.jit
def asserted(x, z, n):
    value = tl.load(x + tl.program_id(0))
    tl.device_assert(value < n, "too large")
    tl.static_assert(True)
    tl.device_print("value: ", value)
    tl.assume(n > 0)
    tl.debug_barrier()
    tl.store(z + tl.program_id(0), value)


def test_prints_assertions_and_barriers_do_no_harm():
    x, z = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    with gridsim.active():
        asserted[(4,)](x, z, 4)
    assert z.tolist() == [0, 1, 2, 3]


@triton.jit
def limits(z, FLAG: tl.constexpr, N: tl.constexpr):
    size: tl.constexpr = N * 2 if FLAG else N
    at = tl.arange(0, size)
    tl.store(
        z + at, tl.full([size], 3, tl.float32) + tl.zeros([size], tl.float32) + tl.max_constancy(at, 1).to(tl.float32)
    )
    tl.store(z + size, tl.constexpr(float("inf")))
    tl.store(z + size + 1, 2**31 - 1 - tl.program_id(0))


def test_constants_are_computed_while_compiling():
    z = torch.zeros(10)
    with gridsim.active():
        limits[(1,)](z, FLAG=True, N=4)
    assert z.tolist() == [*range(3, 11), float("inf"), 2.0**31]


@triton.jit
def volatile(x, z, n, BLOCK: tl.constexpr):
    at = tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK), 16), 16)
    value = tl.load(x + at, mask=at < n, other=0, cache_modifier=".cg", eviction_policy="evict_last", volatile=True)
    tl.store(z + at, value, mask=at < n, cache_modifier=".wb", eviction_policy="evict_first")


def test_hints_for_the_cache_change_nothing():
    x, z = torch.arange(16.0), torch.zeros(16)
    with gridsim.active():
        volatile[(1,)](x, z, 12, BLOCK=16)
    assert z.tolist() == [*range(12), 0, 0, 0, 0]


@triton.jit
def random_numbers(z, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + at, tl.rand(seed, at))
    tl.store(z + N + at, tl.randn(seed, at))
    tl.store(z + 2 * N + at, tl.randint(seed, at).to(tl.float32))


def test_random_numbers_of_the_library_are_random():
    z = torch.zeros(3, 1024)
    with gridsim.active():
        random_numbers[(1,)](z, 42, N=1024)
    assert 0.45 < z[0].mean() < 0.55
    assert 0 <= z[0].min() < z[0].max() < 1
    assert 0.9 < z[1].std() < 1.1
    assert len(set(z[0].tolist())) > 1000


@triton.jit
def optional(x, y, z):
    value = tl.load(x)
    if y is not None:
        value += tl.load(y)
    tl.store(z, value)


def test_an_argument_may_be_none_or_one():
    x, y, z = torch.tensor([1.0]), torch.tensor([2.0]), torch.zeros(1)
    with gridsim.active():
        optional[(1,)](x, None, z)
        assert z.item() == 1
        optional[(1,)](x, y, z)
    assert z.item() == 3


@triton.jit
def annotated(z, a: tl.int64, b: tl.uint8, c: tl.float32, d):
    tl.store(z, a * 4)
    tl.store(z + 1, (b + 250).to(tl.int64))
    tl.store(z + 2, (c * 10).to(tl.int64))
    tl.store(z + 3, d)


def test_scalars_have_the_types_that_the_kernel_says():
    z = torch.zeros(4, dtype=torch.int64)
    with gridsim.active():
        annotated[(1,)](z, 1 << 30, 10, 0.75, -(1 << 40))
    assert z.tolist() == [1 << 32, (10 + 250) % 256, 7, -(1 << 40)]


@triton.jit
def ordered(flag, z):
    i = tl.program_id(0)
    seen = tl.atomic_load(flag, sem="acquire")
    tl.atomic_store(flag + 1 + i, seen + i, sem="release")
    tl.store(z + i, tl.fdiv(seen.to(tl.float32), 3.0, approx=True))


@pytest.mark.skipif(not hasattr(tl, "atomic_load"), reason="this Triton has no atomic loads")
def test_atomic_loads_and_stores_touch_memory():
    flag, z = torch.tensor([5, 0, 0, 0], dtype=torch.int32), torch.zeros(3)
    with gridsim.active() as trace:
        ordered[(3,)](flag, z)
    assert flag.tolist() == [5, 5, 6, 7]
    assert z.tolist() == [torch.tensor(5 / 3).item()] * 3
    assert trace.accesses == ()
