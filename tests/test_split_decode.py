"""The fast decode is right wherever keys are split and tiles are cut, in any batch, and with a workspace used again."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from test_decode import (
    EVERYTHING,
    FEATURES,
    FP8,
    RAGGED,
    REFUSED,
    SCALES,
    arguments,
    assert_within_bound,
    attend,
    call,
    call_on_fp8,
    lens,
)
from unlaunched import asked_of_torch

from harness.arithmetic import Arithmetic
from harness.case import Case, Seq, replace
from harness.folders import load
from harness.inputs import gathered, materialise

split_decode = load("kernels", "split_decode")
paged_split_decode = split_decode.paged_split_decode
SPLITS = (1, 2, 3, 4, 7)
TILE = 16
# Around tiles of 16, so that for each number of splits keys end in every split and at each of its ends.
EDGES = Case(seqs=lens(0, 1, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65, 80, 81, 112), block_size=4, want_lse=True)


def subject(num_splits: int | None, **knobs: Any) -> Any:
    """The kernel in tiles of 16 keys, called with the inputs of a case."""
    given = {"num_splits": num_splits, "tile_kv": TILE} | knobs

    def run(inputs: Any) -> Any:
        return paged_split_decode(
            inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.kv_lens, scale=inputs.scale,
            window=inputs.window, causal=inputs.causal, softcap=inputs.softcap, alibi_slopes=inputs.alibi_slopes,
            sinks=inputs.sinks, out=inputs.out, return_lse=inputs.want_lse, **given,
        )  # fmt: skip

    return run


def split_arithmetic(num_splits: int, dtype: str) -> Arithmetic:
    return Arithmetic(max_splits=num_splits, divisions=2, tensor_core=True, p_dtype=dtype)


def assert_right(case: Case, num_splits: int, **knobs: Any) -> None:
    case = replace(case, want_lse=True)
    out, lse = call(case, subject(num_splits, **knobs))
    materials = materialise(case)
    rows = [gathered(materials, row) for row in range(len(case.seqs))]
    assert_within_bound(out, lse, rows, case, split_arithmetic(num_splits, case.dtype))


@pytest.mark.parametrize("num_splits", SPLITS)
def test_keys_may_end_in_every_split_and_at_each_of_its_ends(num_splits: int) -> None:
    assert_right(EDGES, num_splits)


@pytest.mark.parametrize("num_splits", SPLITS)
def test_a_window_may_start_in_every_split(num_splits: int) -> None:
    for left in (0, 1, 14, 15, 16, 17, 31, 47, 63, 79, 111):
        assert_right(replace(EDGES, window=(left, -1)), num_splits)


@pytest.mark.parametrize("changes", FEATURES.values(), ids=FEATURES)
def test_each_feature_agrees_with_the_reference(changes: dict[str, Any]) -> None:
    assert_right(replace(RAGGED, **changes), num_splits=2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_features_together_agree_in_every_dtype(dtype: Any) -> None:
    assert_right(replace(EVERYTHING, dtype=dtype), num_splits=3)


@pytest.mark.parametrize("fp8", FP8)
def test_an_fp8_cache_is_read_with_its_scales(fp8: str) -> None:
    case = replace(EVERYTHING, head_dim_v=24)
    out, lse, rows = call_on_fp8(case, paged_split_decode, fp8, *SCALES["per head"], num_splits=3, tile_kv=TILE)
    assert_within_bound(out, lse, rows, case, split_arithmetic(3, case.dtype), k_scale=0.5, v_scale=0.5)


@pytest.mark.parametrize("num_splits", SPLITS)
def test_a_row_without_keys_gives_zero_and_minus_infinity(num_splits: int) -> None:
    out, lse = call(replace(RAGGED, seqs=lens(0, 3)), subject(num_splits))
    assert (out[0] == 0).all()
    assert (lse[0] == -np.inf).all()


@pytest.mark.parametrize("num_splits", SPLITS)
def test_a_sink_counts_once(num_splits: int) -> None:
    case = replace(EDGES, sinks=True)
    assert_right(case, num_splits)
    out, lse = call(case, subject(num_splits))
    assert (out[0] == 0).all()
    np.testing.assert_allclose(lse[0], materialise(case).inputs.sinks.view, rtol=1e-6)


@pytest.mark.parametrize("block_size", [1, 4, 16, 24, 32, 64])
def test_a_tile_may_span_blocks_be_one_or_lie_in_one(block_size: int) -> None:
    assert_right(replace(EDGES, block_size=block_size, window=(40, -1)), num_splits=2)


@pytest.mark.parametrize("config", split_decode.CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_config_agrees(config: dict[str, Any], dtype: Any) -> None:
    case = replace(EVERYTHING, seqs=lens(0, 100, 256, 300), window=(200, -1), dtype=dtype)
    assert_right(case, 2, **({"tile_kv": None} | config))


@pytest.mark.parametrize("heads", [1, 3, 16, 20, 40])
def test_more_heads_than_a_tile_has_rows_are_several_tiles(heads: int) -> None:
    wide = replace(RAGGED, head_dim=576, head_dim_v=512, v_is_k_prefix=True, num_q_heads=heads, seqs=lens(5, 40))
    assert_right(wide, num_splits=2)


def test_one_split_needs_no_workspace() -> None:
    assert_right(EVERYTHING, num_splits=1, workspace="not looked at")
    asked = asked_of_torch(
        split_decode, "paged_split_decode_kernel", "paged_split_decode", arguments() | {"num_splits": 1}
    )
    assert asked == {"aten.new_empty.default"}  # the output


# --- the workspace -----------------------------------------------------------------------------------------------


def workspace(num_seqs: int, num_splits: int, num_q_heads: int = 1, head_dim_v: int = 16) -> Any:
    q, v_cache = torch.empty(num_seqs, num_q_heads, 16), torch.empty(1, 16, 1, head_dim_v)
    made = split_decode.split_workspace(q, v_cache, num_splits)
    made.outs.fill_(math.nan)
    made.lses.fill_(math.nan)
    return made


def test_an_empty_split_says_minus_infinity_and_writes_no_output() -> None:
    scratch = workspace(3, 4)
    out, _ = call(replace(RAGGED, seqs=lens(0, 20, 33)), subject(4, workspace=scratch))
    empty = scratch.lses == -math.inf
    assert empty[:, 0].tolist() == [[True] * 4, [False, False, True, True], [False, False, False, True]]
    assert scratch.outs[empty].isnan().all()
    assert not scratch.outs[~empty].isnan().any()
    assert np.isfinite(out).all()


def test_a_workspace_serves_one_call_after_the_other() -> None:
    long, short = replace(RAGGED, seqs=lens(100, 64, 33)), replace(RAGGED, seqs=lens(3, 0, 20))
    scratch = workspace(3, 4)
    for case in (long, short, long):
        for shared, own in zip(call(case, subject(4, workspace=scratch)), call(case, subject(4)), strict=True):
            np.testing.assert_array_equal(shared, own)
        assert (scratch.arrived == 0).all()


WRONG_SCRATCH: list[tuple[dict[str, Any], str]] = [
    ({"outs": torch.zeros(2, 4, 4, 16)}, r"workspace.outs has shape \[2, 4, 4, 16\], but expected \[2, 4, 3, 16\]"),
    ({"outs": torch.zeros(2, 4, 3, 16).half()}, "workspace.outs has dtype torch.float16, but expected torch.float32"),
    ({"lses": torch.zeros(2, 4)}, r"workspace.lses has shape \[2, 4\], but expected \[2, 4, 3\]"),
    ({"lses": torch.zeros(2, 4, 3).double()}, "workspace.lses has dtype torch.float64, but expected torch.float32"),
    ({"lses": torch.zeros(2, 3, 4).mT}, r"workspace.lses has strides \[12, 1, 4\], but expected it to be contiguous"),
    ({"arrived": torch.zeros(2, 2).int()}, r"workspace.arrived has shape \[2, 2\], but expected \[2, 4\]"),
    ({"arrived": torch.zeros(2, 4)}, "workspace.arrived has dtype torch.float32, but expected torch.int32"),
    ({"arrived": torch.zeros(2, 4, device="meta").int()}, r"shape \[2, 4\] is on meta, but expected q's cpu"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG_SCRATCH)
def test_a_wrong_workspace_is_refused_by_the_name_of_its_part(wrong: dict[str, Any], message: str) -> None:
    given = workspace(2, 3, num_q_heads=4)._replace(**wrong)
    with pytest.raises(ValueError, match=message):
        attend(kernel=paged_split_decode, num_splits=3, workspace=given)


# --- how many splits, whatever the lengths -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_seqs", "num_kv_heads", "columns", "expected"),
    [
        (1, 8, 512, 33),
        (8, 8, 512, 4),
        (32, 8, 512, 1),
        (1, 8, 64, 8),
        (1, 1, 4, 1),
        (0, 8, 512, 64),
        (64, 8, 1024, 6),
        (64, 8, 128, 1),
        (128, 8, 64, 1),
        (1000, 8, 4096, 1),
    ],
)
def test_splits_fill_the_gpu_or_even_out_lengths_but_leave_each_program_some_tiles(
    num_seqs: int, num_kv_heads: int, columns: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_decode, "multiprocessors", lambda q: 132)
    q, table = torch.empty(num_seqs, 32, 16), torch.empty(num_seqs, columns)
    k_cache = torch.empty(1, 16, num_kv_heads, 16)
    assert split_decode.splits_for(q, k_cache, table, 64, None, None) == expected


@pytest.mark.parametrize(("tiles_per_split", "expected"), [(1, 8), (3, 3), (8, 1), (100, 1)])
def test_splits_of_a_fixed_size_cover_the_table(tiles_per_split: int, expected: int) -> None:
    q, table, k_cache = torch.empty(2, 4, 16), torch.empty(2, 32), torch.empty(1, 16, 2, 16)
    assert split_decode.splits_for(q, k_cache, table, 64, 5, tiles_per_split) == expected


@pytest.mark.parametrize("tiles_per_split", [1, 2, 5])
@pytest.mark.parametrize("window", [(-1, -1), (50, -1)])
def test_splits_of_a_fixed_size_give_the_same_bits_in_another_batch(
    tiles_per_split: int, window: tuple[int, int]
) -> None:
    fixed = subject(None, tiles_per_split=tiles_per_split)
    alone = replace(EVERYTHING, seqs=lens(100), window=window)
    among = replace(
        alone, seqs=(*alone.seqs, *(Seq(kv_len=kv_len, tag=kv_len) for kv_len in (1, 3, 300))), extra_columns=3
    )
    for one, several in zip(call(alone, fixed), call(among, fixed), strict=True):
        np.testing.assert_array_equal(one, several[:1])
    assert_right(among, num_splits=19, tiles_per_split=tiles_per_split)


# --- what a CUDA graph asks for ----------------------------------------------------------------------------------


def test_with_a_workspace_and_an_output_nothing_is_allocated_and_nothing_waited_for() -> None:
    given = {"num_splits": 3, "out": torch.empty(2, 4, 16), "workspace": workspace(2, 3, num_q_heads=4)}
    asked = partial(asked_of_torch, split_decode, "paged_split_decode_kernel", "paged_split_decode")
    assert asked(arguments() | given) == set()
    assert asked(arguments() | {"num_splits": 3}) == {"aten.new_empty.default", "aten.new_zeros.default"}


SPLIT_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"num_splits": 0}, "num_splits is 0, but expected a whole number from 1"),
    ({"num_splits": 2.0}, r"num_splits is 2\.0, but expected a whole number from 1"),
    ({"tiles_per_split": 0}, "tiles_per_split is 0, but expected a whole number from 1"),
    ({"tile_kv": 8}, "tile_kv is 8, but expected a power of two from 16"),
    ({"tile_kv": 48}, "tile_kv is 48, but expected a power of two from 16"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED + SPLIT_REFUSED)
def test_the_wrapper_refuses_and_names_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(kernel=paged_split_decode, **changes)
