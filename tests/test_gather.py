"""The tile loader, as an operation: any range of any sequence comes out bit by bit, and nothing else is read."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.case import Case, Seq, replace
from harness.executors import gridsim
from harness.executors.base import Placement, bits, to_numpy
from harness.executors.cpu import declared
from harness.folders import load
from harness.inputs import Materials, gathered, materialise
from harness.tensors import LIVE, random_poison

gather = load("kernels", "gather")
paged_gather = gather.paged_gather


def seqs(*kv_lens: int) -> tuple[Seq, ...]:
    return tuple(Seq(kv_len=kv_len, tag=tag) for tag, kv_len in enumerate(kv_lens))


RAGGED = Case(op="gather", seqs=seqs(0, 1, 15, 16, 17, 70), num_q_heads=2, num_kv_heads=2)


def of_random_bits(case: Case) -> Materials:
    """Keys of any bits whatever: payloads of NaN, negative zeros, infinities and subnormals among them."""
    materials = materialise(case)
    cache = materials.inputs.k_cache
    live = np.argwhere(cache.state[materials.geometry.used] == LIVE)
    where = (materials.geometry.used[live[:, 0]], *live[:, 1:].T)
    cache.view[where] = random_poison(7, np.arange(len(live)), case.cache_dtype)
    return materials


def wanted(materials: Materials, start: int, end: int) -> Any:
    """The rows in logical order, 0 beyond a sequence."""
    case = materials.case
    cache = materials.inputs.k_cache.view
    rows = np.zeros((len(case.seqs), end - start, *cache.shape[2:]), dtype=cache.dtype)
    for i in range(len(case.seqs)):
        keys = gathered(materials, i)[1][start:end]
        rows[i, : len(keys)] = keys
    return rows


def assert_gathers(case: Case, start: int, end: int, tile_kv: int = 32) -> None:
    """Every bit is right; no read outside the live slots, the used table entries and the lengths."""
    materials = of_random_bits(case)
    placement = Placement(materials, "cpu")
    memory, inputs = declared(materials, placement), placement.inputs
    with gridsim.active(memory):
        out = paged_gather(inputs.k_cache, inputs.block_tables, inputs.kv_lens, start, end, tile_kv=tile_kv)
    assert not memory.accesses
    np.testing.assert_array_equal(bits(to_numpy(out)), bits(wanted(materials, start, end)))


def test_a_range_that_starts_inside_a_block_and_ends_in_the_next_is_whole() -> None:
    """A loader that masks by the slots of its first block loses rows 11 to 14 of these."""
    assert_gathers(replace(RAGGED, seqs=seqs(40), block_size=16), 5, 20, tile_kv=32)


RANGES = [(0, 1), (0, 16), (0, 70), (5, 20), (15, 17), (16, 48), (23, 25), (31, 64), (47, 70), (69, 75), (70, 90)]


@pytest.mark.parametrize("tile_kv", [1, 8, 32, 128])
@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 48, 100])
def test_blocks_and_tiles_and_ranges_need_not_fit(block_size: int, tile_kv: int) -> None:
    case = replace(RAGGED, block_size=block_size, placement="shuffled")
    for start, end in RANGES:
        assert_gathers(case, start, end, tile_kv)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float16"},
        {"dtype": "bfloat16"},
        {"head_dim": 1},
        {"head_dim": 72},
        {"layout": "padded"},
        {"layout": "hnd"},
        {"layout": "offset"},
        {"layout": "kv_interleaved"},
        {"placement": "far"},
        {"placement": "reversed", "table_pad": "other", "extra_columns": 2},
        {"table_dtype": "int64", "table_pad": "huge", "extra_columns": 1},
        {"num_q_heads": 3, "num_kv_heads": 3},
    ],
    ids=str,
)
def test_types_and_layouts_do_not_matter(changes: dict[str, Any]) -> None:
    for start, end in [(0, 70), (5, 20)]:
        assert_gathers(replace(RAGGED, **changes), start, end)


# --- plain tensors -----------------------------------------------------------------------------------------------


def plain(**changes: Any) -> dict[str, Any]:
    """Two sequences of 3 and 9 tokens in blocks of 4, with some arguments changed."""
    arguments = {
        "cache": torch.randn(6, 4, 2, 16, generator=torch.Generator().manual_seed(0)),
        "block_tables": torch.tensor([[4, -1, -1], [2, 1, 5]], dtype=torch.int32),
        "kv_lens": torch.tensor([3, 9], dtype=torch.int32),
        "start": 1,
        "end": 8,
    }
    return arguments | changes


def run(**changes: Any) -> torch.Tensor:
    with gridsim.active(gridsim.Memory()) as trace:
        out = paged_gather(**plain(**changes))
    assert not trace.accesses
    return out


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with every stride doubled, the last one too."""
    wide = torch.zeros([2 * n for n in tensor.shape], dtype=tensor.dtype)
    return wide[(slice(None, None, 2),) * tensor.dim()].copy_(tensor)


def test_strides_do_not_matter_in_any_dimension_of_any_tensor() -> None:
    tensors = {name: spread(x) for name, x in plain().items() if isinstance(x, torch.Tensor)}
    out = spread(torch.ones(2, 7, 2, 16))
    assert run(**tensors, out=out) is out
    assert torch.equal(out, run())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.float64, torch.int64])
def test_what_the_bits_mean_does_not_matter(dtype: torch.dtype) -> None:
    size = torch.empty(0, dtype=dtype).element_size()
    cache = torch.randint(0, 256, (6, 4, 2, 16 * size), dtype=torch.uint8).view(dtype)
    out = run(cache=cache)
    assert out.dtype == dtype
    rows = torch.cat([cache[2], cache[1]])[1:8]
    assert torch.equal(out[1].view(torch.uint8), rows.view(torch.uint8))
    assert not out[0, 2:].view(torch.uint8).any()


def test_nothing_asked_for_is_nothing_given() -> None:
    assert run(start=5, end=5).shape == (2, 0, 2, 16)
    assert run(block_tables=torch.zeros(0, 3).int(), kv_lens=torch.zeros(0).int()).shape == (0, 7, 2, 16)


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache": torch.zeros(6, 4, 16)}, r"cache has shape \[6, 4, 16\], but expected \[num_blocks, block_size"),
        ({"cache": torch.zeros(6, 0, 2, 16)}, r"cache has shape \[6, 0, 2, 16\], but expected at least 1"),
        ({"cache": torch.zeros(6, 4, 2, 16).cfloat().to(torch.complex128)}, "cache has dtype torch.complex128"),
        ({"block_tables": torch.zeros(2).int()}, r"block_tables has shape \[2\], but expected \[num_seqs, columns\]"),
        ({"block_tables": torch.zeros(2, 3)}, "block_tables has dtype torch.float32"),
        ({"kv_lens": torch.zeros(3).int()}, r"kv_lens has shape \[3\], but expected \[2\]"),
        ({"kv_lens": torch.zeros(2).short()}, "kv_lens has dtype torch.int16"),
        ({"kv_lens": torch.zeros(2, device="meta").int()}, r"shape \[2\] is on meta, but expected cache's cpu"),
        ({"start": -1}, "start and end are -1 and 8, but expected 0 <= start <= end"),
        ({"end": 0}, "start and end are 1 and 0"),
        ({"tile_kv": 24}, "tile_kv is 24, but expected a power of two"),
        ({"out": torch.zeros(2, 6, 2, 16)}, r"out has shape \[2, 6, 2, 16\], but expected \[2, 7, 2, 16\]"),
        ({"out": torch.zeros(2, 7, 2, 16).half()}, "out has dtype torch.float16, but expected torch.float32"),
    ],
)
def test_the_wrapper_refuses_and_names_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**changes)


@pytest.mark.parametrize(
    ("kv_lens", "message"),
    [
        ([3, 13], r"kv_lens\[1\] is 13, but expected 0 to the 12 slots of a table row"),
        ([5, 9], r"block_tables\[0, 1\] is -1, but expected a block from 0 to 5"),
    ],
)
def test_validate_refuses_what_points_outside(kv_lens: list[int], message: str) -> None:
    arguments = plain(kv_lens=torch.tensor(kv_lens))
    with pytest.raises(ValueError, match=message):
        gather.validate(SimpleNamespace(k_cache=arguments["cache"], **arguments))
