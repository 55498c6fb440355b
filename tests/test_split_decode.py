"""The split decode is right wherever the keys are split, and an empty split weighs nothing."""

import math
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
    assert_within_bound,
    attend,
    call,
    call_on_fp8,
    lens,
)

from harness.arithmetic import Arithmetic
from harness.case import Case, replace
from harness.executors.base import empty_is_nan
from harness.folders import load
from harness.inputs import gathered, materialise

split_decode = load("kernels", "split_decode")
paged_split_decode = split_decode.paged_split_decode
SPLITS = (1, 2, 3, 4, 7)
# Around every block of 4, so that for each number of splits keys end in every split and at each of its ends.
EDGES = Case(seqs=lens(0, 1, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 21, 29), block_size=4, want_lse=True)


def subject(num_splits: int) -> Any:
    """The kernel, called with the inputs of a case."""

    def run(inputs: Any) -> Any:
        return paged_split_decode(
            inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.kv_lens, scale=inputs.scale,
            window=inputs.window, causal=inputs.causal, softcap=inputs.softcap, alibi_slopes=inputs.alibi_slopes,
            sinks=inputs.sinks, num_splits=num_splits, out=inputs.out, return_lse=inputs.want_lse,
        )  # fmt: skip

    return run


def split_arithmetic(num_splits: int) -> Arithmetic:
    return Arithmetic(max_splits=num_splits, divisions=2)


def assert_right(case: Case, num_splits: int) -> None:
    case = replace(case, want_lse=True)
    out, lse = call(case, subject(num_splits))
    materials = materialise(case)
    rows = [gathered(materials, row) for row in range(len(case.seqs))]
    assert_within_bound(out, lse, rows, case, split_arithmetic(num_splits))


@pytest.mark.parametrize("num_splits", SPLITS)
def test_keys_may_end_in_every_split_and_at_each_of_its_ends(num_splits: int) -> None:
    assert_right(EDGES, num_splits)


@pytest.mark.parametrize("num_splits", SPLITS)
def test_a_window_may_start_in_every_split(num_splits: int) -> None:
    for left in range(0, 29, 2):
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
    out, lse, rows = call_on_fp8(case, paged_split_decode, fp8, *SCALES["per head"], num_splits=3)
    assert_within_bound(out, lse, rows, case, split_arithmetic(3), k_scale=0.5, v_scale=0.5)


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
    assert (lse[0] == materialise(case).inputs.sinks.view).all()


def test_one_split_is_the_textbook_kernel_bit_for_bit() -> None:
    (out, lse), (want, want_lse) = call(EVERYTHING, subject(1)), call(EVERYTHING)
    assert (out == want).all()
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=0)


def test_an_empty_split_says_minus_infinity_and_writes_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    launch_merge = split_decode.launch_merge
    monkeypatch.setattr(split_decode, "launch_merge", lambda *states: (seen.extend(states), launch_merge(*states)))
    with empty_is_nan():
        out, _ = call(replace(RAGGED, seqs=lens(0, 20, 33)), subject(4))
    split_outs, split_lses = seen[:2]
    empty = split_lses == -math.inf
    assert empty[:, :, 0].tolist() == [[True, False, False], [True, False, False], [True, True, False], [True] * 3]
    assert split_outs[empty].isnan().all()
    assert not split_outs[~empty].isnan().any()
    assert np.isfinite(out).all()


SPLIT_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"num_splits": 0}, "num_splits is 0, but expected a whole number from 1"),
    ({"num_splits": 2.0}, r"num_splits is 2\.0, but expected a whole number from 1"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED + SPLIT_REFUSED)
def test_the_wrapper_refuses_and_names_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(kernel=paged_split_decode, **changes)
