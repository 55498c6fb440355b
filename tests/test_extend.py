"""Extend is right for every mix of new and cached tokens, reads nothing that no query sees, and refuses by name."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from unlaunched import asked_of_torch

from harness.arithmetic import Arithmetic
from harness.bounds import attention_bound, exceeds
from harness.case import Case, Seq, replace
from harness.executors import gridsim
from harness.executors.base import Placement, to_numpy
from harness.executors.cpu import declared
from harness.folders import load
from harness.inputs import Materials, gathered, materialise
from harness.platforms import platform
from harness.tensors import DEAD

extend = load("kernels", "extend")
attention = load("references", "float64").attention
paged_extend = extend.paged_extend


def seqs(*lens: tuple[int, int]) -> tuple[Seq, ...]:
    """Sequences of (query_len, kv_len)."""
    return tuple(Seq(query_len=new, kv_len=total, tag=tag) for tag, (new, total) in enumerate(lens))


#: A first token, a prefill, a chunk, more queries than a tile has, a decode, nobody, and a prefix-cache hit.
RAGGED = Case(
    op="extend",
    seqs=seqs((1, 1), (5, 5), (3, 20), (18, 50), (1, 33), (0, 7), (16, 32)),
    num_q_heads=2,
    num_kv_heads=1,
    want_lse=True,
)
EVERYTHING = replace(
    RAGGED, num_q_heads=4, num_kv_heads=2, window=(18, -1), softcap=2.0, alibi=True, sinks=True, scale=0.7
)


#: The same where the new tokens are not in the cache, and the table ends with the prefix.
DENSE = replace(RAGGED, new_kv="dense")


def attend(inputs: Any, **knobs: Any) -> tuple[Any, Any]:
    known = {"max_query_len": inputs.max_query_len, "return_lse": True, "k_new": inputs.k_new, "v_new": inputs.v_new}
    return paged_extend(
        inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.query_starts, inputs.kv_lens,
        scale=inputs.scale, causal=inputs.causal, window=inputs.window, softcap=inputs.softcap,
        alibi_slopes=inputs.alibi_slopes, sinks=inputs.sinks, k_scale=inputs.k_scale, v_scale=inputs.v_scale,
        out=inputs.out, **(known | knobs),
    )  # fmt: skip


def call(case: Case, materials: Materials | None = None, **knobs: Any) -> tuple[Any, Any]:
    """(out, lse); no read outside the live slots, the used table entries and the lengths."""
    materials = materials or materialise(case)
    placement = Placement(materials, "cpu")
    memory = declared(materials, placement)
    with gridsim.active(memory):
        out, lse = attend(placement.inputs, **knobs)
    assert not memory.accesses
    return to_numpy(out), to_numpy(lse)


def features(materials: Materials) -> dict[str, Any]:
    case, inputs = materials.case, materials.inputs
    return {
        "scale": case.softmax_scale,
        "causal": case.causal,
        "window": case.window,
        "softcap": case.softcap,
        "alibi_slopes": inputs.alibi_slopes.view if case.alibi else None,
        "sinks": inputs.sinks.view if case.sinks else None,
    }


def scaled(materials: Materials) -> dict[str, Any]:
    """That an FP8 cache has scales; K and V come dequantised."""
    return {} if materials.inputs.k_scale is None else {"k_scale": 2.0, "v_scale": 2.0}


def assert_within(
    out: Any, lse: Any, q: Any, k: Any, v: Any, tile_kv: int = 32, num_splits: int = 1, **wanted: Any
) -> None:
    """The judge's truth of one sequence, within the bound of this kernel's arithmetic on gridsim."""
    scales = {name: wanted.pop(name) for name in ("k_scale", "v_scale") if name in wanted}
    out_dtype = wanted.pop("out_dtype")
    splits = {"max_splits": num_splits, "divisions": 2 if num_splits > 1 else 1}
    arithmetic = Arithmetic(tensor_core=True, p_dtype=out_dtype, tile_kv=tile_kv, seams=1, **splits)
    bound = attention_bound(
        q, k, v, **wanted, **scales, arithmetic=arithmetic, platform=platform("gridsim"), out_dtype=out_dtype
    )
    truth, truth_lse = attention(q, k, v, **wanted)
    assert not exceeds(out, truth, bound.out, out_dtype).any()
    assert not exceeds(lse, truth_lse, bound.lse).any()


def assert_right(case: Case, tile_kv: int = 32, num_splits: int = 1, **knobs: Any) -> None:
    """Every sequence of the batch within its bound."""
    materials, shared = materialise(case), {"tile_kv": tile_kv, "num_splits": num_splits}
    out, lse = call(case, materials, **shared, **knobs)
    starts = materials.inputs.query_starts.view
    assert len(out) == len(lse) == starts[-1]
    for i in range(len(case.seqs)):
        rows = slice(starts[i], starts[i + 1])
        if case.seqs[i].query_len:
            wanted = features(materials) | scaled(materials) | {"out_dtype": case.dtype}
            assert_within(out[rows], lse[rows], *gathered(materials, i), **shared, **wanted)


# --- features ----------------------------------------------------------------------------------------------------

FEATURES: dict[str, dict[str, Any]] = {
    "ragged": {},
    "scale": {"scale": 0.3},
    "not causal": {"causal": False},
    "window of one key": {"window": (0, -1)},
    "window across blocks": {"window": (16, 3)},
    "window to the right, not causal": {"causal": False, "window": (-1, 2)},
    "window to both sides, not causal": {"causal": False, "window": (5, 3)},
    "window to the left, not causal": {"causal": False, "window": (7, -1)},
    "window wider than all": {"window": (1000, -1)},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": True},
    "alibi, keys ahead": {"alibi": True, "causal": False},
    "sinks": {"sinks": True},
    "shared kv heads": {"num_q_heads": 6, "num_kv_heads": 2},
    "out buffer with gaps": {"out_layout": "padded"},
    "64-bit tables": {"table_dtype": "int64", "table_pad": "huge", "extra_columns": 2},
    "padded keys, dense values": {"layout": "padded", "v_layout": "nhd"},
    "heads before slots, offset": {"layout": "hnd", "v_layout": "offset", "num_kv_heads": 2},
    "K and V of a block together": {"layout": "kv_interleaved"},
    "fused q": {"q_layout": "fused_qkv"},
    "head-major q": {"q_layout": "transposed_heads"},
    "shuffled blocks": {"placement": "shuffled", "table_pad": "other", "extra_columns": 1},
    "beyond 2^31 elements": {"placement": "far"},
    "narrower values": {"head_dim_v": 8},
    "wider values": {"head_dim_v": 40},
    "values are a prefix of the keys": {"head_dim": 40, "head_dim_v": 24, "v_is_k_prefix": True},
}


@pytest.mark.parametrize("changes", FEATURES.values(), ids=FEATURES)
def test_each_feature_agrees_with_the_judge(changes: dict[str, Any]) -> None:
    assert_right(replace(RAGGED, **changes))


FP8: dict[str, Any] = {"kv_dtype": "e4m3", "k_scale": 2.0, "v_scale": 0.25}


@pytest.mark.parametrize("changes", FEATURES.values(), ids=FEATURES)
def test_each_feature_agrees_where_the_new_tokens_are_dense(changes: dict[str, Any]) -> None:
    assert_right(replace(DENSE, **changes))


@pytest.mark.parametrize("changes", [{}, {"scale_granularity": "head"}, {"kv_dtype": "e5m2"}, {"dtype": "bfloat16"}])
@pytest.mark.parametrize("causal", [True, False])
def test_the_scales_of_an_fp8_cache_are_not_those_of_dense_tokens(changes: dict[str, Any], causal: bool) -> None:
    assert_right(replace(DENSE, num_q_heads=4, num_kv_heads=2, causal=causal, **(FP8 | changes)))


@pytest.mark.parametrize("window", [(-1, -1), (3, -1)])
@pytest.mark.parametrize("block_size", [1, 8, 24])
def test_prefixes_end_at_every_place_of_a_block_and_of_a_tile(block_size: int, window: tuple[int, int]) -> None:
    for cached in (0, 1, 15, 16, 17, 23, 24, 31, 32, 33):
        lens = seqs(*((new, cached + new) for new in (0, 1, 17, 33)))
        assert_right(replace(DENSE, seqs=lens, block_size=block_size, window=window))


def test_dense_new_tokens_give_what_the_same_tokens_give_in_the_cache() -> None:
    changes: dict[str, Any] = {"seqs": seqs((4, 36), (32, 32)), "block_size": 8}
    cases = (replace(case, **changes) for case in (DENSE, RAGGED))
    for dense, cached in zip(*(call(case, tile_kv=32) for case in cases), strict=True):  # the seam lies between tiles
        np.testing.assert_array_equal(dense, cached)


def test_of_more_queries_than_keys_the_first_dense_rows_are_not_read() -> None:
    case = replace(DENSE, seqs=seqs((20, 3), (3, 9)))
    materials = materialise(case)
    assert np.isnan(materials.inputs.k_new.view[:17]).all()
    assert_right(case)
    assert (call(case)[0][:17] == 0).all()


def test_the_cache_is_left_as_it_was_and_may_be_narrower_than_the_sequences() -> None:
    case = replace(DENSE, seqs=seqs((40, 40)))
    materials = materialise(case)
    assert materials.inputs.block_tables.shape == (1, 1)
    before = materials.inputs.k_cache.view.copy()
    assert_right(case)
    np.testing.assert_array_equal(materials.inputs.k_cache.view, before)


@pytest.mark.parametrize("poison", ["nan", "inf", "huge", "random_bits"])
@pytest.mark.parametrize("new_kv", ["in_cache", "dense"])
def test_graph_padding_rows_give_zero_and_leave_the_others_alone(poison: Any, new_kv: str) -> None:
    plain = replace(RAGGED, new_kv=new_kv)
    materials = materialise(replace(plain, padding_rows=2, row_poison=poison))
    placement = Placement(materials, "cpu")
    with gridsim.active(declared(materials, placement)):
        out, lse = (to_numpy(x) for x in attend(placement.inputs))
    np.testing.assert_array_equal(out[:-2], call(plain)[0])
    assert (out[-2:] == 0).all()
    assert (lse[-2:] == -np.inf).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_features_together_agree_in_every_dtype(dtype: Any) -> None:
    assert_right(replace(EVERYTHING, dtype=dtype))


@pytest.mark.parametrize(
    ("block_size", "head_dim"), [(1, 16), (8, 40), (16, 1), (24, 72), (48, 16), (256, 80), (16, 256)]
)
def test_sizes_need_not_be_powers_of_two(block_size: int, head_dim: int) -> None:
    edges = seqs((1, 1), (3, block_size), (2, block_size + 1), (17, 2 * block_size + 19))
    assert_right(replace(EVERYTHING, seqs=edges, block_size=block_size, head_dim=head_dim))


@pytest.mark.parametrize(("tile_q", "tile_kv"), [(16, 16), (32, 16), (16, 64), (64, 128)])
@pytest.mark.parametrize("window", [(-1, -1), (21, -1)])
def test_tiles_of_any_size_agree(tile_q: int, tile_kv: int, window: tuple[int, int]) -> None:
    assert_right(replace(RAGGED, block_size=24, window=window), tile_kv, tile_q=tile_q)


def test_heads_as_wide_as_absorbed_mla_get_smaller_tiles() -> None:
    case = replace(RAGGED, seqs=seqs((3, 40)), head_dim=576, head_dim_v=512, v_is_k_prefix=True)
    assert_right(case, tile_kv=16)
    np.testing.assert_array_equal(call(case)[0], call(case, tile_kv=16)[0])


@pytest.mark.parametrize("config", extend.CONFIGS, ids=str)
@pytest.mark.parametrize("window", [(-1, -1), (70, -1)])
@pytest.mark.parametrize("new_kv", ["in_cache", "dense"])
def test_each_config_agrees(config: dict[str, Any], window: tuple[int, int], new_kv: Any) -> None:
    long = seqs((1, 200), (90, 90), (5, 140), (40, 40))
    assert_right(replace(EVERYTHING, seqs=long, window=window, new_kv=new_kv), **({"tile_kv": 64} | config))


@pytest.mark.parametrize("block_size", [4, 16, 24, 64])
def test_a_tile_may_span_blocks_be_one_or_lie_in_one(block_size: int) -> None:
    case = replace(EVERYTHING, seqs=seqs((3, 130), (65, 65)), block_size=block_size, window=(50, -1))
    assert_right(case, tile_kv=16, tile_q=16)


ROWS = replace(EVERYTHING, seqs=seqs((3, 130), (65, 65)), block_size=64, head_dim=32, num_kv_heads=4)


@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"placement": "far"}, {"head_dim_v": 64}, FP8])
def test_tiles_loaded_as_rows_are_the_same_tiles(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case, made, rows_of = replace(ROWS, **changes), [], extend.rows_of
    monkeypatch.setattr(extend, "rows_of", lambda *caches: made.append(rows_of(*caches)) or made[-1])
    for rows, pointers in zip(call(case, tma=True, tile_kv=16), call(case, tile_kv=16), strict=True):
        np.testing.assert_array_equal(rows, pointers)
    assert all(made[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 24},
        {"head_dim": 40},
        {"layout": "hnd"},
        {"layout": "padded"},
        {"head_dim_v": 8, "dtype": "float16", "kv_dtype": "e4m3"},
        {"v_is_k_prefix": True, "num_kv_heads": 1, "head_dim_v": 16},
    ],
    ids=str,
)
def test_where_a_tile_is_no_whole_rows_pointers_are_taken(changes: dict[str, Any]) -> None:
    inputs = Placement(materialise(replace(ROWS, **changes)), "cpu").inputs
    launch = extend.launch_for(inputs.q, inputs.k_cache, inputs.v_cache, tile_kv=16)
    assert extend.rows_of(inputs.k_cache, inputs.v_cache, launch) == (None, None)
    assert_right(replace(ROWS, **changes), tile_kv=16, tma=True)


@pytest.mark.parametrize("window", [(-1, -1), (60, -1)])
def test_a_row_has_the_same_bits_in_another_batch(window: tuple[int, int]) -> None:
    alone = replace(EVERYTHING, seqs=seqs((5, 140)), window=window)
    among = replace(alone, seqs=(*alone.seqs, *(Seq(query_len=n, kv_len=n, tag=n) for n in (1, 90))))
    for one, several in zip(call(alone, tile_kv=16), call(among, tile_kv=16), strict=True):
        np.testing.assert_array_equal(one, several[:5])


def test_with_an_output_and_the_longest_chunk_nothing_is_allocated_and_nothing_waited_for() -> None:
    asked = partial(asked_of_torch, extend, "paged_extend_kernel", "paged_extend")
    assert asked(plain(out=torch.empty(7, 4, 16), max_query_len=4)) == set()
    assert asked(plain(max_query_len=4)) == {"aten.new_empty.default"}
    assert "aten._local_scalar_dense.default" in asked(plain())


# --- programs that share the keys of a tile of queries -----------------------------------------------------------

SPLITS = (2, 3, 7)
#: Around tiles of 16 keys, so that for each number of splits keys end in every split and at each of its ends.
EDGES = replace(
    RAGGED, seqs=seqs((1, 1), (3, 16), (2, 17), (5, 48), (20, 49), (7, 65), (4, 112), (0, 40)), block_size=4
)
shares_keys = pytest.mark.parametrize("num_splits", SPLITS)
wherever_new_tokens_are = pytest.mark.parametrize("new_kv", ["in_cache", "dense"])


def assert_shared(case: Case, num_splits: int, **knobs: Any) -> None:
    assert_right(case, tile_kv=16, tile_q=16, num_splits=num_splits, **knobs)


@shares_keys
@wherever_new_tokens_are
@pytest.mark.parametrize("causal", [True, False])
def test_keys_may_end_in_every_split_and_at_each_of_its_ends(num_splits: int, new_kv: Any, causal: bool) -> None:
    assert_shared(replace(EDGES, new_kv=new_kv, causal=causal), num_splits)


@shares_keys
@wherever_new_tokens_are
def test_a_window_may_start_in_every_split(num_splits: int, new_kv: Any) -> None:
    for left in (0, 1, 15, 16, 17, 31, 47, 111):
        assert_shared(replace(EDGES, window=(left, -1), new_kv=new_kv), num_splits)


@wherever_new_tokens_are
@pytest.mark.parametrize("changes", FEATURES.values(), ids=FEATURES)
def test_each_feature_agrees_where_its_keys_are_shared(changes: dict[str, Any], new_kv: Any) -> None:
    assert_shared(replace(RAGGED, new_kv=new_kv, **changes), num_splits=3)


@wherever_new_tokens_are
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_features_together_agree_where_keys_are_shared(dtype: Any, new_kv: Any) -> None:
    assert_shared(replace(EVERYTHING, seqs=EDGES.seqs, dtype=dtype, new_kv=new_kv), num_splits=3)


@pytest.mark.parametrize("changes", [{}, {"scale_granularity": "head"}, {"kv_dtype": "e5m2"}, {"dtype": "bfloat16"}])
def test_the_scale_of_cached_values_is_multiplied_in_once_by_each_split(changes: dict[str, Any]) -> None:
    for case in (DENSE, RAGGED):
        fp8 = replace(case, seqs=EDGES.seqs, num_q_heads=4, num_kv_heads=2, sinks=True, **(FP8 | changes))
        assert_shared(fp8, num_splits=3)


@shares_keys
@wherever_new_tokens_are
def test_a_sink_counts_once_and_a_row_without_keys_gives_zero(num_splits: int, new_kv: Any) -> None:
    case = replace(RAGGED, seqs=seqs((3, 0), (20, 3), (5, 60)), sinks=True, new_kv=new_kv)
    assert_shared(case, num_splits)
    out, lse = call(case, num_splits=num_splits)
    assert (out[:20] == 0).all()
    np.testing.assert_allclose(lse[:20], [materialise(case).inputs.sinks.view] * 20, rtol=1e-6)
    out, lse = call(replace(case, sinks=False), num_splits=num_splits)
    assert (out[:20] == 0).all()
    assert (lse[:20] == -np.inf).all()


@pytest.mark.parametrize("config", extend.CONFIGS, ids=str)
@wherever_new_tokens_are
def test_each_config_agrees_where_keys_are_shared(config: dict[str, Any], new_kv: Any) -> None:
    case = replace(EVERYTHING, seqs=seqs((1, 200), (5, 300)), window=(150, -1), new_kv=new_kv)
    assert_right(case, num_splits=3, **({"tile_kv": 64} | config))


@pytest.mark.parametrize(("heads", "kv_heads"), [(40, 2), (40, 1), (3, 3)])
def test_one_token_may_have_several_tiles_each_with_an_arrival_of_its_own(heads: int, kv_heads: int) -> None:
    case = replace(EVERYTHING, seqs=seqs((1, 70), (3, 40), (1, 1)), num_q_heads=heads, num_kv_heads=kv_heads)
    assert_shared(case, num_splits=3)


@shares_keys
def test_a_row_whose_keys_are_shared_has_the_same_bits_in_another_batch(num_splits: int) -> None:
    alone = replace(EVERYTHING, seqs=seqs((5, 140)), window=(60, -1))
    among = replace(alone, seqs=(*alone.seqs, *(Seq(query_len=n, kv_len=n, tag=n) for n in (1, 90))), extra_columns=3)
    pair = (call(case, tile_kv=16, num_splits=num_splits) for case in (alone, among))
    for one, several in zip(*pair, strict=True):
        np.testing.assert_array_equal(one, several[:5])


def workspace(case: Case, num_splits: int) -> Any:
    inputs = Placement(materialise(case), "cpu").inputs
    made = extend.split_workspace(inputs.q, inputs.v_cache, num_splits)
    made.outs.fill_(math.nan)
    made.lses.fill_(math.nan)
    return made


def test_an_empty_split_says_minus_infinity_and_writes_no_output() -> None:
    case = replace(RAGGED, seqs=seqs((2, 20), (1, 70), (1, 1)), num_q_heads=1)
    scratch = workspace(case, 4)
    out, _ = call(case, tile_kv=16, num_splits=4, workspace=scratch)
    empty = scratch.lses[:, 0] == -math.inf
    assert empty.tolist() == [
        [False, False, True, True], [False, False, True, True], [False, False, False, True], [False, True, True, True]
    ]  # fmt: skip
    assert scratch.outs[:, 0][empty].isnan().all()
    assert not scratch.outs[:, 0][~empty].isnan().any()
    assert np.isfinite(out).all()


def test_a_workspace_serves_one_call_after_the_other_and_is_left_counting_from_zero() -> None:
    long, short = (replace(DENSE, seqs=lens) for lens in (seqs((2, 100), (20, 64)), seqs((20, 20), (2, 3))))
    scratch = workspace(long, 4)
    for case in (long, short, long):
        pair = call(case, num_splits=4, workspace=scratch), call(case, num_splits=4)
        for shared, own in zip(*pair, strict=True):
            np.testing.assert_array_equal(shared, own)
        assert (scratch.arrived == 0).all()


def test_one_split_needs_no_workspace_and_is_what_a_cpu_gets() -> None:
    asked = partial(asked_of_torch, extend, "paged_extend_kernel", "paged_extend")
    for one in ({}, {"num_splits": 1}):
        assert asked(plain(max_query_len=4) | one) == {"aten.new_empty.default"}  # the output


def test_with_a_workspace_nothing_is_allocated_and_nothing_waited_for() -> None:
    asked = partial(asked_of_torch, extend, "paged_extend_kernel", "paged_extend")
    scratch = extend.split_workspace(plain()["q"], plain()["v_cache"], 3)
    given = {"out": torch.empty(7, 4, 16), "max_query_len": 4, "num_splits": 3}
    assert asked(plain(**given, workspace=scratch)) == set()
    assert asked(plain(**given)) == {"aten.new_empty.default", "aten.new_zeros.default"}


@pytest.mark.parametrize(
    ("programs", "most_tiles", "expected"),
    [(8, 512, 22), (8, 16, 4), (32, 512, 8), (200, 512, 1), (8, 1, 1), (0, 0, 1)],
)
def test_splits_fill_the_gpu_but_are_no_more_than_the_root_of_the_tiles(
    programs: int, most_tiles: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extend, "multiprocessors", lambda q: 132)
    assert extend.splits_for(torch.empty(1), programs, most_tiles, None) == expected
    assert extend.splits_for(torch.empty(1), programs, most_tiles, 5) == 5


@pytest.mark.parametrize(
    ("left", "right", "expected"), [(-1, None, 4096), (-1, 0, 4096), (100, None, 4096), (100, 3, 111), (5000, 0, 4096)]
)
def test_a_window_bounds_the_keys_that_are_shared(left: int, right: int | None, expected: int) -> None:
    assert extend.most_keys(torch.empty(1, 16, 2, 16), torch.empty(3, 256), left, right, max_query_len=8) == expected


# --- rows that see little ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_more_queries_than_keys_leave_the_first_rows_empty(causal: bool) -> None:
    case = replace(RAGGED, seqs=seqs((20, 3), (5, 2), (17, 1)), causal=causal, window=(4, 1))
    assert_right(case)
    out, lse = call(case)
    assert (out[:13] == 0).all()
    assert (lse[:13] == -np.inf).all()
    assert np.isfinite(lse[19]).all()


def test_a_sequence_without_keys_gives_zero_and_minus_infinity() -> None:
    case = replace(RAGGED, seqs=seqs((3, 0), (2, 9)))
    assert_right(case)
    out, lse = call(case)
    assert (out[:3] == 0).all()
    assert (lse[:3] == -np.inf).all()


def test_a_row_without_keys_gives_zero_and_its_sink() -> None:
    case = replace(RAGGED, seqs=seqs((3, 0), (5, 2)), sinks=True)
    out, lse = call(case)
    assert (out[:6] == 0).all()
    np.testing.assert_allclose(lse[:6], [materialise(case).inputs.sinks.view] * 6, rtol=1e-6)


def test_a_batch_without_a_single_new_token_gives_no_rows() -> None:
    out, lse = call(replace(RAGGED, seqs=seqs((0, 4), (0, 0))))
    assert out.shape == (0, 2, 16)
    assert lse.shape == (0, 2)


# --- what does not matter ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_query_len", [None, 19, 500])
def test_a_loose_longest_query_changes_no_bit(max_query_len: int | None) -> None:
    for loose, tight in zip(call(RAGGED, max_query_len=max_query_len), call(RAGGED), strict=True):
        np.testing.assert_array_equal(loose, tight)


@pytest.mark.parametrize("changes", [{"window": (-1, 0)}, {"window": (-1, 7)}, {"window": (50, -1)}])
def test_what_cannot_hide_a_key_changes_no_bit(changes: dict[str, Any]) -> None:
    np.testing.assert_array_equal(call(replace(RAGGED, **changes))[0], call(RAGGED)[0])


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_chunks_agree_with_the_whole_prompt(chunk: int) -> None:
    whole = replace(EVERYTHING, seqs=(Seq(query_len=45, kv_len=45),), window=(20, -1), block_size=8)
    materials = materialise(whole)
    ends = [min(start + chunk, 45) for start in range(0, 45, chunk)]
    cases = [replace(whole, seqs=(Seq(query_len=(end - 1) % chunk + 1, kv_len=end),)) for end in ends]
    out, lse = (np.concatenate(parts) for parts in zip(*map(call, cases), strict=True))
    assert_within(out, lse, *gathered(materials, 0), **features(materials), out_dtype="float32")
    assert_within(*call(whole), *gathered(materials, 0), **features(materials), out_dtype="float32")


def test_a_key_that_no_query_sees_is_not_read_nor_is_its_table_entry() -> None:
    case = replace(RAGGED, seqs=(Seq(query_len=3, kv_len=30),), block_size=4, causal=False, window=(5, 0))
    materials, first, width = materialise(case), 22, 4  # the first query stands at 27
    for cache in (materials.inputs.k_cache, materials.inputs.v_cache):
        blocks = materials.geometry.tables[0][np.arange(first) // width]
        cache.view[blocks, np.arange(first) % width] = np.nan
        cache.state[blocks, np.arange(first) % width] = DEAD
    materials.inputs.block_tables.state[0, : first // width] = DEAD
    out, _ = call(case, materials)
    np.testing.assert_array_equal(out, call(case)[0])


def test_what_lies_beyond_the_last_key_of_a_tile_does_not_touch_its_rows() -> None:
    case = replace(RAGGED, seqs=(Seq(query_len=10, kv_len=30),), block_size=4)
    materials, after = materialise(case), np.arange(28, 30)  # the last of 8 tokens with 2 heads each stands at 27
    materials.inputs.v_cache.view[materials.geometry.tables[0][after // 4], after % 4] = np.nan
    out, _ = call(case, materials, tile_q=16)
    np.testing.assert_array_equal(out[:8], call(case)[0][:8])
    assert np.isnan(out[8:]).all()


# --- plain tensors -----------------------------------------------------------------------------------------------


def plain(**changes: Any) -> dict[str, Any]:
    """Two sequences of 3 and 9 tokens in blocks of 4, of which 3 and 4 are new, with some arguments changed."""
    generator = torch.Generator().manual_seed(0)
    arguments = {
        "q": torch.randn(7, 4, 16, generator=generator),
        "k_cache": torch.randn(6, 4, 2, 16, generator=generator),
        "v_cache": torch.randn(6, 4, 2, 16, generator=generator),
        "block_tables": torch.tensor([[4, -1, -1], [2, 1, 5]], dtype=torch.int32),
        "query_starts": torch.tensor([0, 3, 7], dtype=torch.int32),
        "kv_lens": torch.tensor([3, 9], dtype=torch.int32),
    }
    return arguments | changes


def run(**changes: Any) -> Any:
    with gridsim.active(gridsim.Memory()) as trace:
        returned = paged_extend(**plain(**changes))
    assert not trace.accesses
    return returned


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with every stride doubled, the last one too."""
    wide = torch.full([2 * n for n in tensor.shape], 77, dtype=tensor.dtype)
    return wide[(slice(None, None, 2),) * tensor.dim()].copy_(tensor)


def test_strides_do_not_matter_in_any_dimension_of_any_tensor() -> None:
    vectors = {"alibi_slopes": torch.rand(4), "sinks": torch.rand(4), "k_scale": torch.rand(2)}
    dense = plain(**vectors, v_scale=torch.rand(2))
    out = spread(torch.zeros(7, 4, 16))
    assert run(**{name: spread(tensor) for name, tensor in dense.items()}, out=out) is out
    assert torch.equal(out, run(**dense))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("q_dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("k_scale", "v_scale"), [(None, None), ([0.3], [2.7]), ([0.25, 1.7], [3.1, 0.6]), ([1.3], [0.9, 2.2])]
)
def test_an_fp8_cache_is_read_with_its_scales(dtype: Any, q_dtype: Any, k_scale: Any, v_scale: Any) -> None:
    scales = {name: torch.tensor(x) for name, x in (("k_scale", k_scale), ("v_scale", v_scale)) if x}
    arguments = plain()
    caches = {name: poisoned(arguments[name].to(dtype), arguments) for name in ("k_cache", "v_cache")}
    given = plain(**caches, **scales, q=arguments["q"].to(q_dtype))
    out, lse = run(**given, return_lse=True)
    for i, (start, end) in enumerate([(0, 3), (3, 7)]):
        q = given["q"][start:end].double().numpy()
        k = tokens(given, "k_cache", i) * scales.get("k_scale", torch.ones(1)).double().numpy()[:, None]
        v = tokens(given, "v_cache", i) * scales.get("v_scale", torch.ones(1)).double().numpy()[:, None]
        assert_within(
            to_numpy(out[start:end]), lse[start:end].numpy(), q, k, v, scale=0.25, causal=True, window=(-1, -1),
            softcap=0.0, alibi_slopes=None, sinks=None, out_dtype=str(q_dtype).removeprefix("torch."),
            **{name: scale.numpy() for name, scale in scales.items()},
        )  # fmt: skip


def poisoned(cache: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
    """NaN in every slot that holds no token."""
    poison = torch.full(cache.shape, torch.nan).to(cache.dtype)
    for table, kv_len in zip(arguments["block_tables"], arguments["kv_lens"], strict=True):
        for position in range(int(kv_len)):
            block, slot = int(table[position // 4]), position % 4
            poison[block, slot] = cache[block, slot]
    return poison


def tokens(arguments: dict[str, Any], name: str, i: int) -> Any:
    """One sequence of a cache in logical order, float64."""
    position = torch.arange(int(arguments["kv_lens"][i]))
    blocks = arguments["block_tables"][i, position // 4].long()
    return arguments[name].to(torch.float64)[blocks, position % 4].numpy()


# --- refusals ----------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"q": torch.zeros(7, 16)}, r"q has shape \[7, 16\], but expected \[tokens, num_q_heads, head_dim\]"),
    ({"q": torch.zeros(7, 4, 32)}, r"k_cache has shape \[6, 4, 2, 16\], but expected \[6, 4, 2, 32\]"),
    ({"q": torch.zeros(7, 5, 16)}, "q has 5 heads, but expected a multiple of k_cache's 2"),
    ({"q": torch.zeros(7, 4, 16).double()}, "q has dtype torch.float64, but expected torch.float32 or"),
    ({"k_cache": torch.zeros(6, 4, 16)}, r"k_cache has shape \[6, 4, 16\], but expected \[num_blocks"),
    ({"k_cache": torch.zeros(6, 0, 2, 16), "v_cache": torch.zeros(6, 0, 2, 16)}, "expected at least 1"),
    ({"k_cache": torch.zeros(6, 4, 2, 16).half()}, "k_cache has dtype torch.float16, but expected torch.float32"),
    ({"v_cache": torch.zeros(6, 4, 1, 16)}, r"v_cache has shape \[6, 4, 1, 16\], but expected \[6, 4, 2, 16\]"),
    ({"v_cache": torch.zeros(6, 4, 2, 0)}, r"v_cache has shape \[6, 4, 2, 0\], but expected at least 1"),
    ({"v_cache": torch.zeros(6, 4, 2, 16).bfloat16()}, "v_cache has dtype torch.bfloat16"),
    ({"block_tables": torch.zeros(3, 2).int()}, r"query_starts has shape \[3\], but expected \[4\]"),
    ({"block_tables": torch.zeros(2, 2)}, "block_tables has dtype torch.float32, but expected torch.int32 or"),
    ({"query_starts": torch.zeros(2).int()}, r"query_starts has shape \[2\], but expected \[3\]"),
    ({"query_starts": torch.zeros(3)}, "query_starts has dtype torch.float32"),
    ({"kv_lens": torch.zeros(3).int()}, r"kv_lens has shape \[3\], but expected \[2\]"),
    ({"kv_lens": torch.zeros(2).short()}, "kv_lens has dtype torch.int16"),
    ({"kv_lens": torch.zeros(2, device="meta").int()}, r"shape \[2\] is on meta, but expected q's cpu"),
    ({"alibi_slopes": torch.zeros(2)}, r"alibi_slopes has shape \[2\], but expected \[4\]"),
    ({"sinks": torch.zeros(4).int()}, "sinks has dtype torch.int32"),
    ({"k_scale": torch.zeros(3)}, r"k_scale has shape \[3\], but expected"),
    ({"v_scale": torch.zeros(2).half()}, "v_scale has dtype torch.float16, but expected torch.float32"),
    ({"out": torch.zeros(7, 4, 8)}, r"out has shape \[7, 4, 8\], but expected \[7, 4, 16\]"),
    ({"out": torch.zeros(7, 4, 16).half()}, "out has dtype torch.float16, but expected torch.float32"),
    ({"k_new": torch.zeros(7, 2, 16)}, "v_new is None, but expected a tensor as k_new is one"),
    ({"v_new": torch.zeros(7, 2, 16)}, "k_new is None, but expected a tensor as v_new is one"),
    ({"k_new": torch.zeros(6, 2, 16), "v_new": torch.zeros(7, 2, 16)}, r"k_new has shape \[6, 2, 16\], but expected"),
    ({"k_new": torch.zeros(7, 2, 16), "v_new": torch.zeros(7, 4, 16)}, r"v_new has shape \[7, 4, 16\], but expected"),
    (
        {"k_new": torch.zeros(7, 2, 16), "v_new": torch.zeros(7, 2, 16).half()},
        "v_new has dtype torch.float16, but expected torch.float32",
    ),
    ({"window": (-2, 0)}, r"window is \(-2, 0\)"),
    ({"softcap": math.nan}, "softcap is nan"),
    ({"tile_q": 8}, "tile_q is 8, but expected a power of two from 16"),
    ({"tile_kv": 48}, "tile_kv is 48, but expected a power of two from 16"),
    ({"num_splits": 0}, "num_splits is 0, but expected a whole number from 1"),
    ({"num_splits": 2.0}, r"num_splits is 2\.0, but expected a whole number from 1"),
    (
        {"num_splits": 2, "workspace": extend.split_workspace(torch.zeros(7, 4, 16), torch.zeros(1, 4, 2, 16), 3)},
        r"workspace.outs has shape \[7, 4, 3, 16\], but expected \[7, 4, 2, 16\], as split_workspace makes it",
    ),
    (
        {"num_splits": 3, "workspace": extend.split_workspace(torch.zeros(5, 4, 16), torch.zeros(1, 4, 2, 16), 3)},
        r"workspace.outs has shape \[5, 4, 3, 16\], but expected \[7, 4, 3, 16\]",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_the_wrapper_refuses_and_names_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**changes)


def values(**changes: Any) -> SimpleNamespace:
    """All that `validate` reads."""
    return SimpleNamespace(**({"max_query_len": 4, "k_new": None, "window": (-1, -1)} | plain(**changes)))


NEW = torch.zeros(7, 2, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_starts": torch.tensor([1, 3, 7])}, "query_starts go from 1 to 7, but expected 0 to q's 7 tokens"),
        ({"query_starts": torch.tensor([0, 3, 6])}, "query_starts go from 0 to 6, but expected 0 to q's 7 tokens"),
        ({"query_starts": torch.tensor([0, 8, 7]), "max_query_len": 8}, r"query_starts\[2\] is 7, but expected at"),
        ({"query_starts": torch.tensor([0, 2, 7])}, "max_query_len is 4, but sequence 1 has 5 new tokens"),
        ({"kv_lens": torch.tensor([3, 13])}, r"kv_lens\[1\] is 13, but expected 0 to the 12 slots of a table row"),
        ({"kv_lens": torch.tensor([5, 9])}, r"block_tables\[0, 1\] is -1, but expected a block from 0 to 5"),
        ({"k_new": NEW, "kv_lens": torch.tensor([8, 9])}, r"block_tables\[0, 1\] is -1, but expected a block from 0"),
        ({"k_new": NEW, "kv_lens": torch.tensor([3, 17])}, r"kv_lens\[1\] is 13, but expected 0 to the 12 slots"),
        ({"k_new": NEW, "kv_lens": torch.tensor([-1, 9])}, r"kv_lens\[0\] is -1, but expected 0 to the 12 slots"),
    ],
)
def test_validate_refuses_what_contradicts_itself(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extend.validate(values(**changes))


def test_validate_does_not_judge_entries_that_nobody_reads() -> None:
    extend.validate(values())
    extend.validate(values(window=(1, -1), block_tables=torch.tensor([[4, -1, -1], [-1, 1, 5]])))
    extend.validate(values(k_new=NEW, kv_lens=torch.tensor([7, 9])))
    extend.validate(values(k_new=NEW, kv_lens=torch.tensor([0, 9])))  # a padding row has a query and no key
