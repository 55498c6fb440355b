"""A cache write changes the mapped slots, each to the bit, and nothing else."""

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from test_decode import spread
from unlaunched import asked_of_torch

from harness.executors import gridsim
from harness.folders import load
from harness.tensors import reserve

cache_write = load("kernels", "cache_write")
paged_cache_write = cache_write.paged_cache_write

FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
NUMPY = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
BLOCKS, BLOCK_SIZE, HEADS = 4, 5, 3
SLOTS = torch.tensor([7, -1, 0, 19, -1000, 4, 5], dtype=torch.int32)

# --- what should be stored ---------------------------------------------------------------------------------------


def encode(x: Any, dtype: str) -> Any:
    """The bits of float32 numbers in the type of a cache."""
    if dtype in FP8:
        return encode_fp8(x, dtype)
    with np.errstate(over="ignore"):
        stored = x.astype(NUMPY[dtype])
    return stored.view(f"u{stored.itemsize}")


def encode_fp8(x: Any, dtype: str) -> Any:
    """The nearest of all positive FP8 numbers, by search; of two the even one; beyond the largest there is none."""
    positive = np.arange(128, dtype=np.uint8).view(NUMPY[dtype]).astype(np.float64)
    positive = positive[np.isfinite(positive)]
    size = np.minimum(np.nan_to_num(np.abs(x.astype(np.float64))), positive[-1])
    above = np.searchsorted(positive, size)
    below = np.maximum(above - 1, 0)
    to_below, to_above = size - positive[below], positive[above] - size
    code = np.where((to_below < to_above) | ((to_below == to_above) & (below % 2 == 0)), below, above)
    code |= np.where(np.signbit(x), 0x80, 0)
    return np.where(np.isnan(x), 0x7F, code).astype(np.uint8)


class Pool:
    """A cache with these strides in a storage of random bits, and the bits that should be there after the write."""

    def __init__(self, dim: int, strides: tuple[int, ...], dtype: str, offset: int = 3) -> None:
        shape, self.dtype = (BLOCKS, BLOCK_SIZE, HEADS, dim), dtype
        size = offset + 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 8
        item = np.dtype(NUMPY[dtype]).itemsize
        raw = torch.randint(256, (size * item,), dtype=torch.uint8, generator=torch.Generator().manual_seed(dim))
        self.flat = raw.view((FLOATS | FP8)[dtype])
        self.cache = self.flat.as_strided(shape, strides, offset)
        self.want = self.bits().copy()
        in_bytes = [stride * item for stride in strides]
        self._slots = np.lib.stride_tricks.as_strided(self.want[offset:], shape, in_bytes)

    def bits(self) -> Any:
        return self.flat.view(torch.uint8).numpy().view(f"u{self.flat.element_size()}")

    def expect(self, x: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor | None) -> None:
        scale = np.ones(1, np.float32) if scale is None else scale.reshape(-1).numpy()
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                scaled = x[token].float().numpy() / scale[:, None]
                self._slots[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = encode(scaled, self.dtype)

    def check(self) -> None:
        np.testing.assert_array_equal(self.bits(), self.want)


def new_tokens(dim: int, dtype: str, slots: torch.Tensor = SLOTS) -> torch.Tensor:
    """Random tokens; one that is not to be written is NaN."""
    x = 3 * torch.randn(len(slots), HEADS, dim, generator=torch.Generator().manual_seed(dim))
    x[slots < 0] = torch.nan
    return x.to(FLOATS[dtype])


def write(*args: Any, **scales: Any) -> None:
    memory = gridsim.Memory()
    with gridsim.active(memory):
        assert paged_cache_write(*args, **scales) is None
    assert not memory.accesses


LAYOUTS = {
    "slots before heads": lambda dim: (BLOCK_SIZE * HEADS * dim, HEADS * dim, dim, 1),
    "heads before slots": lambda dim: (BLOCK_SIZE * HEADS * dim, dim, BLOCK_SIZE * dim, 1),
    "padded": lambda dim: (BLOCK_SIZE * (HEADS * (dim + 5) + 2) + 7, HEADS * (dim + 5) + 2, dim + 5, 1),
    "dims first": lambda dim: (BLOCK_SIZE * HEADS, HEADS, 1, BLOCKS * BLOCK_SIZE * HEADS),
}


def check_write(
    layouts: tuple[str, str] = ("slots before heads", "padded"),
    dims: tuple[int, int] = (16, 16),
    dtype: str = "float32",
    cache: str = "float32",
    slots: torch.Tensor = SLOTS,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    arrange: Any = lambda x: x,
) -> None:
    """Write K and V, then compare both storages, gaps and ends too."""
    tokens = [new_tokens(dim, dtype, slots) for dim in dims]
    pools = [Pool(dim, LAYOUTS[layout](dim), cache) for dim, layout in zip(dims, layouts, strict=True)]
    for pool, x, scale in zip(pools, tokens, (k_scale, v_scale), strict=True):
        pool.expect(x, slots, scale)
    k, v = (arrange(x) for x in tokens)
    write(k, v, pools[0].cache, pools[1].cache, slots, k_scale=k_scale, v_scale=v_scale)
    for pool in pools:
        pool.check()


# --- where it is stored ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v_layout", LAYOUTS)
@pytest.mark.parametrize("k_layout", LAYOUTS)
def test_k_and_v_may_each_have_any_strides(k_layout: str, v_layout: str) -> None:
    check_write(layouts=(k_layout, v_layout))


@pytest.mark.parametrize("dims", [(1, 1), (20, 20), (24, 8), (8, 24), (72, 64)])
def test_dims_need_not_be_equal_nor_powers_of_two(dims: tuple[int, int]) -> None:
    check_write(dims=dims)


ARRANGEMENTS = {
    "heads before tokens": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "gaps in every dimension": spread,
    "a slice of q, k and v": lambda x: torch.cat([x, x + 1, x + 2], dim=1)[:, :HEADS],
}


@pytest.mark.parametrize("arrange", ARRANGEMENTS.values(), ids=ARRANGEMENTS)
def test_new_tokens_may_have_any_strides(arrange: Any) -> None:
    check_write(arrange=arrange)


MAPPINGS = {
    "64 bits": SLOTS.long(),
    "every second entry": torch.stack([SLOTS, SLOTS - 1], dim=1)[:, 0],
    "all skipped": torch.full((3,), -1),
    "no tokens": torch.zeros(0, dtype=torch.int64),
    "all slots backwards": torch.arange(BLOCKS * BLOCK_SIZE).flip(0),
}


@pytest.mark.parametrize("slots", MAPPINGS.values(), ids=MAPPINGS)
def test_slot_mappings_of_every_kind(slots: torch.Tensor) -> None:
    check_write(slots=slots)


@pytest.mark.parametrize("dims", [(300, 300), (700, 16), (16, 1400), (2000, 2000)])
def test_wide_rows_are_written_fewer_at_once(dims: tuple[int, int]) -> None:
    check_write(dims=dims)


@pytest.mark.parametrize(
    ("k_numbers", "v_numbers", "tokens"),
    [(16, 1, 16), (256, 256, 16), (1024, 1024, 4), (1024, 512, 4), (576, 1, 4), (100, 4096, 1), (9000, 9000, 1)],
)
def test_a_program_takes_as_many_tokens_as_make_a_tile(k_numbers: int, v_numbers: int, tokens: int) -> None:
    assert cache_write.launch_for(k_numbers, v_numbers)["TOKENS"] == tokens


def test_nothing_is_allocated_and_nothing_waited_for() -> None:
    k, cache, slots = torch.zeros(3, 2, 16), torch.zeros(4, 8, 2, 16), torch.tensor([3, -1, 5])
    given = {"k": k, "v": k, "k_cache": cache, "v_cache": cache, "slot_mapping": slots}
    assert asked_of_torch(cache_write, "paged_cache_write_kernel", "paged_cache_write", given) == set()


def test_without_v_only_k_is_written() -> None:
    pool, k = Pool(40, LAYOUTS["padded"](40), "float16"), new_tokens(40, "float16")
    pool.expect(k, SLOTS, None)
    write(k, None, pool.cache, None, SLOTS)
    pool.check()


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64])
def test_a_block_may_lie_beyond_2_to_the_31_elements(slot_dtype: torch.dtype) -> None:
    stride = 2**30 + 8  # fits 32 bits, as the number of a block does; their product does not
    flat = torch.from_numpy(reserve(3 * stride, "float16").data)
    cache = flat.as_strided((3, BLOCK_SIZE, HEADS, 16), (stride, HEADS * 16, 16, 1))
    slots = torch.tensor([2 * BLOCK_SIZE + 2, 1], dtype=slot_dtype)
    k = new_tokens(16, "float16", slots)
    write(k, None, cache, None, slots)
    assert torch.equal(cache[2, 2], k[0])
    assert torch.equal(cache[0, 1], k[1])
    assert not cache[:, 3:].any()


# --- what is stored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", NUMPY)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_type_is_converted_to_every_type(dtype: str, cache: str) -> None:
    check_write(dtype=dtype, cache=cache)


SCALES = {
    "per tensor": (torch.tensor([0.37]), torch.tensor(2.5)),
    "per head": (torch.tensor([0.37, 3.0, 0.01]), torch.tensor([2.5, 0.11, 7.0])),
    "spread": (torch.tensor([0.37, 9.0, 3.0, 9.0, 0.01])[::2], torch.tensor([2.5])),
    "only K": (torch.tensor([0.37, 3.0, 0.01]), None),
    "only V": (None, torch.tensor([2.5, 0.11, 7.0])),
}


@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("cache", ["e4m3", "e5m2", "bfloat16"])
def test_what_is_stored_is_divided_by_the_scale(cache: str, scales: Any) -> None:
    check_write(dtype="bfloat16", cache=cache, dims=(40, 16), k_scale=scales[0], v_scale=scales[1])


def corners(dtype: str) -> Any:
    """Every FP8 number, the middle of each two, the float32 numbers next to those, and what is beyond the largest."""
    exact = np.arange(128, dtype=np.uint8).view(NUMPY[dtype]).astype(np.float32)
    exact = exact[np.isfinite(exact)]
    middle = (exact[1:] + exact[:-1]) / 2
    near = [np.nextafter(middle, np.float32(way)) for way in (0, np.inf)]
    beyond = exact[-1] * np.array([1.0, 1.03, 1.04, 1.07, 1.2, 1e30, np.inf], np.float32)
    tiny = np.array([1e-45, 1e-38, exact[1] / 2], np.float32)
    positive = np.concatenate([exact, middle, *near, beyond, tiny])
    return np.concatenate([positive, -positive])


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_is_rounded_to_nearest_even_and_saturates(dtype: str) -> None:
    x = corners(dtype)
    cache = torch.zeros(1, len(x), 1, 1, dtype=FP8[dtype])
    write(torch.from_numpy(x)[:, None, None], None, cache, None, torch.arange(len(x)))
    np.testing.assert_array_equal(cache.view(torch.uint8).flatten().numpy(), encode_fp8(x, dtype))


@pytest.mark.parametrize("dtype", FP8 | FLOATS)
def test_nan_stays_nan(dtype: str) -> None:
    cache = torch.zeros(1, 1, 1, 16, dtype=(FLOATS | FP8)[dtype])
    write(torch.full((1, 1, 16), torch.nan), None, cache, None, torch.tensor([0]), k_scale=torch.tensor([2.0]))
    assert cache.float().isnan().all()


@pytest.mark.parametrize("dtype", FP8)
def test_the_search_for_the_nearest_agrees_with_torch_where_that_does_not_overflow(dtype: str) -> None:
    x = corners(dtype)
    x = x[np.abs(x) <= torch.finfo(FP8[dtype]).max]
    np.testing.assert_array_equal(torch.from_numpy(x).to(FP8[dtype]).view(torch.uint8).numpy(), encode_fp8(x, dtype))


# --- what is refused ---------------------------------------------------------------------------------------------

RIGHT: dict[str, Any] = {
    "k": torch.zeros(2, 3, 16),
    "v": torch.zeros(2, 3, 8),
    "k_cache": torch.zeros(4, 5, 3, 16),
    "v_cache": torch.zeros(4, 5, 3, 8),
    "slot_mapping": torch.zeros(2).int(),
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"k": torch.zeros(2, 48)}, r"k has shape \[2, 48\], but expected \[tokens, num_kv_heads, head_dim\]"),
    ({"v": torch.zeros(2, 24)}, r"v has shape \[2, 24\], but expected \[tokens, num_kv_heads, head_dim\]"),
    ({"k": torch.zeros(2, 2, 16)}, r"k_cache has shape \[4, 5, 3, 16\], but expected \[4, 5, 2, 16\]"),
    ({"v": torch.zeros(1, 3, 8)}, r"v has shape \[1, 3, 8\], but expected \[2, 3, 8\]"),
    ({"v": torch.zeros(2, 3, 16)}, r"v_cache has shape \[4, 5, 3, 8\], but expected \[4, 5, 3, 16\]"),
    ({"k": RIGHT["k"].double()}, "k has dtype torch.float64, but expected torch.float32 or"),
    ({"k_cache": RIGHT["k_cache"].char()}, "k_cache has dtype torch.int8"),
    ({"k_cache": torch.zeros(4, 0, 3, 16)}, "expected at least 1 in all but num_blocks"),
    ({"v_cache": torch.zeros(5, 5, 3, 8)}, r"v_cache has shape \[5, 5, 3, 8\], but expected \[4, 5, 3, 8\]"),
    ({"v": None}, "v is None, but expected a tensor as v_cache is one"),
    ({"v_cache": None}, "v_cache is None, but expected a tensor as v is one"),
    ({"slot_mapping": torch.zeros(3).int()}, r"slot_mapping has shape \[3\], but expected \[2\]"),
    ({"slot_mapping": torch.zeros(2)}, "slot_mapping has dtype torch.float32"),
    ({"slot_mapping": torch.zeros(2, device="meta").int()}, "is on meta, but expected"),
    ({"k_scale": torch.ones(2)}, r"k_scale has shape \[2\], but expected one number or one for each of 3 KV heads"),
    ({"v_scale": torch.ones(3).half()}, "v_scale has dtype torch.float16, but expected torch.float32"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_the_wrapper_refuses_and_names_the_value(changes: dict[str, Any], message: str) -> None:
    with gridsim.active(gridsim.Memory()), pytest.raises(ValueError, match=message):
        paged_cache_write(**(RIGHT | changes))


def mapping(*slots: int) -> SimpleNamespace:
    """All that `validate` reads: twenty slots."""
    return SimpleNamespace(k_cache=RIGHT["k_cache"], slot_mapping=torch.tensor(slots))


def test_validate_refuses_slots_outside_and_slots_written_twice() -> None:
    with pytest.raises(ValueError, match=r"slot_mapping\[1\] is 20, but expected a slot below 20"):
        cache_write.validate(mapping(19, 20))
    with pytest.raises(ValueError, match=r"slot_mapping\[2\] is 7, but token 0 is written there already"):
        cache_write.validate(mapping(7, 3, 7))


def test_validate_takes_any_number_of_negative_slots() -> None:
    cache_write.validate(mapping(-1, 0, -1, -7, 19))
