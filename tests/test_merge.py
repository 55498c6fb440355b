"""Merged states are the attention over the keys of all of them, and an empty state weighs nothing."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from test_decode import spread

from harness.arithmetic import Arithmetic
from harness.bounds import attention_bound, exceeds, state_bound
from harness.executors import gridsim
from harness.executors.base import to_numpy
from harness.folders import load
from harness.platforms import platform

merge_states = load("kernels", "merge").merge_states
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
TOKENS, HEADS, DIM = 3, 2, 20


def merge(outs: torch.Tensor, lses: torch.Tensor, **buffers: Any) -> Any:
    """The kernel under gridsim, told that the output of an empty state is dead."""
    memory = gridsim.Memory()
    if outs.is_contiguous():
        live = np.where(np.isneginf(lses.numpy()), 1, 2).astype(np.uint8)
        memory.declare(outs, "outs", np.repeat(live.reshape(-1), outs.shape[3]))
    with gridsim.active(memory):
        out, lse = merge_states(outs, lses, **buffers)
    assert not memory.accesses
    return out, lse


def some_states(states: int, dtype: str = "float32", size: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(states)
    outs = torch.randn(states, TOKENS, HEADS, DIM, generator=generator).to(DTYPES[dtype])
    return outs, size * torch.randn(states, TOKENS, HEADS, generator=generator)


def assert_right(outs: torch.Tensor, lses: torch.Tensor, dtype: str = "float32") -> None:
    out, lse = merge(outs, lses)
    bound = state_bound(
        to_numpy(outs), lses.numpy(), arithmetic=Arithmetic(), platform=platform("gridsim"), out_dtype=dtype
    )
    assert (out.dtype, lse.dtype) == (DTYPES[dtype], torch.float32)
    assert not exceeds(to_numpy(out), bound).any()
    assert not exceeds(lse.numpy(), bound.truth_lse, bound.lse).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("states", [1, 2, 3, 8, 100])
def test_any_number_of_states_agrees_with_the_definition(states: int, dtype: str) -> None:
    for size in (0.01, 1.0, 50.0):
        assert_right(*some_states(states, dtype, size), dtype)


@pytest.mark.parametrize("empty", [[0], [1], [2], [0, 1], [1, 2], [0, 2]])
@pytest.mark.parametrize("stale", [math.nan, math.inf])
def test_an_empty_state_does_not_enter_whatever_is_stored(empty: list[int], stale: float) -> None:
    outs, lses = some_states(3)
    outs[empty, 1], lses[empty, 1] = stale, -math.inf
    assert_right(outs, lses)
    others = [state for state in range(3) if state not in empty]
    out, lse = merge(outs, lses)
    want, want_lse = merge(outs[others].contiguous(), lses[others])
    assert torch.equal(out[1], want[1])
    assert torch.equal(lse[1], want_lse[1])


@pytest.mark.parametrize("states", [0, 1, 4])
def test_nothing_but_empty_states_give_zero_and_minus_infinity(states: int) -> None:
    outs, lses = some_states(states)
    out, lse = merge(outs.fill_(math.nan), lses.fill_(-math.inf))
    assert (out == 0).all()
    assert (lse == -math.inf).all()


def test_one_state_comes_back_as_it_was() -> None:
    outs, lses = some_states(1)
    out, lse = merge(outs, lses)
    assert torch.equal(out, outs[0])
    assert torch.equal(lse, lses[0])


@pytest.mark.parametrize("lse", [math.nan, math.inf])
def test_an_lse_that_cannot_be_is_not_taken_for_an_empty_state(lse: float) -> None:
    outs, lses = some_states(2)
    lses[1, 0, 0] = lse
    assert merge(outs, lses)[0][0, 0].isnan().all()


def test_the_lse_may_be_large() -> None:
    outs, lses = some_states(3)
    for shift in (-1e4, 1e4, 3e38):
        assert_right(outs, (lses * 0.1 + 1) * shift if abs(shift) > 1e9 else lses + shift)


def test_parts_of_a_sequence_merge_to_the_whole() -> None:
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal(shape) for shape in ((1, HEADS, 8), (30, 1, 8), (30, 1, DIM)))
    reference = load("references", "float64")
    parts = [reference.attention(q, k[part], v[part], scale=1.0) for part in (slice(0, 7), slice(7, 7), slice(7, 30))]
    outs, lses = (torch.from_numpy(np.stack(x)).float() for x in zip(*parts, strict=True))
    out, lse = merge(outs, lses)
    options = {
        "scale": 1.0, "causal": True, "window": (-1, -1), "softcap": 0.0, "alibi_slopes": None, "sinks": None
    }  # fmt: skip
    arithmetic = Arithmetic(max_splits=3, divisions=2)
    bound = attention_bound(
        q, k, v, **options, arithmetic=arithmetic, platform=platform("gridsim"), out_dtype="float32"
    )
    assert not exceeds(out.numpy(), bound).any()
    assert not exceeds(lse.numpy(), bound.truth_lse, bound.lse).any()


def test_strides_do_not_matter_in_any_dimension_of_any_tensor() -> None:
    outs, lses = some_states(3)
    lses[1, 2] = -math.inf
    out, lse = spread(torch.zeros(TOKENS, HEADS, DIM)), spread(torch.zeros(TOKENS, HEADS))
    returned = merge(spread(outs), spread(lses), out=out, lse=lse)
    assert returned[0] is out
    assert returned[1] is lse
    want, want_lse = merge(outs, lses)
    assert torch.equal(out, want)
    assert torch.equal(lse, want_lse)


def test_tokens_and_states_may_lie_in_any_order() -> None:
    outs, lses = some_states(4)
    by_token = outs.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3)
    by_head = lses.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert torch.equal(merge(by_token, by_head)[0], merge(outs, lses)[0])


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"outs": torch.zeros(3, 2, 20)},
        r"outs has shape \[3, 2, 20\], but expected \[states, tokens, heads, head_dim_v\]",
    ),
    ({"outs": torch.zeros(3, 3, 2, 20).double()}, "outs has dtype torch.float64, but expected torch.float32 or"),
    ({"outs": torch.zeros(3, 3, 2, 0)}, r"outs has shape \[3, 3, 2, 0\], but expected a head_dim_v of at least 1"),
    ({"lses": torch.zeros(3, 2, 3)}, r"lses has shape \[3, 2, 3\], but expected \[3, 3, 2\]"),
    ({"lses": torch.zeros(3, 3, 2).half()}, "lses has dtype torch.float16, but expected torch.float32"),
    ({"lses": torch.zeros(3, 3, 2, device="meta")}, "is on meta, but expected"),
    ({"out": torch.zeros(3, 2, 8)}, r"out has shape \[3, 2, 8\], but expected \[3, 2, 20\]"),
    ({"out": torch.zeros(3, 2, 20).half()}, "out has dtype torch.float16, but expected torch.float32"),
    ({"lse": torch.zeros(2, 3)}, r"lse has shape \[2, 3\], but expected \[3, 2\]"),
    ({"lse": torch.zeros(3, 2).half()}, "lse has dtype torch.float16"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_the_wrapper_refuses_and_names_the_value(changes: dict[str, Any], message: str) -> None:
    outs, lses = some_states(3)
    with gridsim.active(gridsim.Memory()), pytest.raises(ValueError, match=message):
        merge_states(**({"outs": outs, "lses": lses} | changes))
