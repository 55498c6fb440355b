"""Each of SGLang's kernels on three tokens, and what each argument means, computed by hand.

The weights of the three tokens are as 1 to 1 to 2, and V is 4, 4 and 2 in a dimension of each token's own.
"""

import math
import runpy
from typing import Any

import pytest
import three_tokens
import torch

from harness.adapters import load
from harness.case import Case, Hints, Seq, States, replace
from harness.executors import gridsim
from harness.folders import PACKAGE
from harness.inputs import Inputs
from harness.pipeline import run_case

pytestmark = pytest.mark.thirdparty

MERGE = Case(op="merge", **dict.fromkeys(("k_poison", "v_poison", "spare_poison", "row_poison"), "huge"))
EXTENDS = ("sglang.extend_attention", "sglang.extend_attention_unified")
#: A softcap of 1 makes ln 2 the score 0.6, since tanh(ln 2) is (4 - 1) / (4 + 1).
CAPPED = math.exp(0.6)


def attending(name: str, queries: int, **some: Any) -> Inputs:
    """The inputs of a kernel; one that takes new tokens dense has NaN where they would lie in the cache."""
    inputs = three_tokens.attending(queries, **some)
    if name != "sglang.extend_attention":
        return inputs
    k_new, v_new = three_tokens.tokens(inputs.q.dtype, inputs.q.shape[2])
    for cache in (inputs.k_cache, inputs.v_cache):
        cache.view(-1, *cache.shape[2:])[list(three_tokens.SLOTS[-queries:])] = math.nan
    return three_tokens.given(**vars(inputs) | {"k_new": k_new[-queries:], "v_new": v_new[-queries:]} | some)


def rows_of(name: str, queries: int, **some: Any) -> list[list[float]]:
    """What the last `queries` tokens are given, in the three dimensions that are not 0 everywhere."""
    returned = three_tokens.call(load(name), attending(name, queries, **some))
    out = returned[0] if isinstance(returned, tuple) else returned
    assert not out[:, 0, 3:].any()
    return out[:, 0, :3].tolist()


def weighed(*weights: float) -> list[float]:
    """V weighed by hand."""
    return [v * weight / sum(weights) for v, weight in zip((4.0, 4.0, 2.0), weights, strict=True)]


def near(rows: list[list[float]], *wanted: list[float]) -> None:
    assert len(rows) == len(wanted)
    for row, want in zip(rows, wanted, strict=True):
        assert row == pytest.approx(want, abs=three_tokens.NEAR)


FEATURES = [
    ({"window": (1, -1)}, (0, 1, 2)),
    ({"window": (0, -1)}, (0, 0, 2)),
    ({"window": (2, 0)}, (1, 1, 2)),
    ({"softcap": 1.0}, (1, 1, CAPPED)),
    ({"scale": 2.0}, (1, 1, 4)),
]


@pytest.mark.parametrize("name", ["sglang.decode_attention", *EXTENDS])
@pytest.mark.parametrize(("some", "weights"), FEATURES)
def test_the_last_token_sees_what_an_argument_says(name: str, some: dict[str, Any], weights: tuple[float, ...]) -> None:
    near(rows_of(name, 1, **some), weighed(*weights))


@pytest.mark.parametrize("name", ["sglang.decode_attention", *EXTENDS])
def test_a_sink_of_weight_four_takes_half(name: str) -> None:
    near(rows_of(name, 1, sinks=torch.tensor([math.log(4)])), [0.5, 0.5, 0.5])


@pytest.mark.parametrize("splits", [0, 1, 3])
def test_decode_on_three_tokens_in_any_number_of_splits(splits: int) -> None:
    near(rows_of("sglang.decode_attention", 1, hints=Hints(num_splits=splits)), [1, 1, 1])


def test_decode_of_an_fp8_cache_is_scaled() -> None:
    inputs = three_tokens.attending(1)
    caches = {name: getattr(inputs, name).to(torch.float8_e4m3fn) for name in ("k_cache", "v_cache")}
    scales = {"k_scale": torch.tensor([2.0]), "v_scale": torch.tensor([0.5])}
    near(rows_of("sglang.decode_attention", 1, **caches, **scales), [2 / 6, 2 / 6, 4 / 6])


@pytest.mark.parametrize(("dim", "dim_v"), [(64, 16), (576, 512)])
def test_decode_takes_v_from_the_front_of_k(dim: int, dim_v: int) -> None:
    k_cache, _ = three_tokens.caches(torch.float16, dim)
    q = three_tokens.attending(1, dim=dim).q.repeat(1, 2, 1)
    inputs = three_tokens.attending(1, dim=dim, q=q, k_cache=k_cache, v_cache=k_cache[..., :dim_v])
    out = three_tokens.call(load("sglang.decode_attention"), inputs)
    wanted = torch.zeros(1, 2, dim_v)
    wanted[..., 0] = 0.5
    torch.testing.assert_close(out.float(), wanted, atol=three_tokens.NEAR, rtol=0)


@pytest.mark.parametrize("name", EXTENDS)
def test_extend_on_three_new_tokens(name: str) -> None:
    near(rows_of(name, 3), [4, 0, 0], [2, 2, 0], [1, 1, 1])
    near(rows_of(name, 2), [2, 2, 0], [1, 1, 1])


@pytest.mark.parametrize("name", EXTENDS)
@pytest.mark.parametrize("queries", [2, 3])
def test_extend_in_a_window(name: str, queries: int) -> None:
    wide, narrow = (rows_of(name, queries, window=(left, -1)) for left in (1, 0))
    near(wide, *[[4.0, 0, 0], [2.0, 2, 0], weighed(0, 1, 2)][-queries:])
    near(narrow, *[[4.0, 0, 0], [0, 4.0, 0], [0, 0, 2.0]][-queries:])


@pytest.mark.parametrize("name", EXTENDS)
def test_extend_that_is_not_causal_sees_what_comes_after(name: str) -> None:
    near(rows_of(name, 3, causal=False), *[[1, 1, 1]] * 3)
    near(rows_of(name, 2, causal=False, window=(0, 1)), weighed(0, 1, 2), [0, 0, 2])
    near(rows_of(name, 3, causal=False, window=(1, 0)), [4, 0, 0], [2, 2, 0], weighed(0, 1, 2))
    near(rows_of(name, 3, causal=False, window=(-1, 1)), [2, 2, 0], *[[1, 1, 1]] * 2)
    near(rows_of(name, 3, causal=False, window=(1, 1)), [2, 2, 0], [1, 1, 1], weighed(0, 1, 2))
    near(rows_of(name, 2, causal=False, window=(1, 1)), [1, 1, 1], weighed(0, 1, 2))


@pytest.mark.parametrize(("sinks", "lses"), [(None, three_tokens.LSES), ([math.log(4)], map(math.log, (5, 6, 8)))])
def test_extend_gives_the_natural_lse_by_token_and_head(sinks: Any, lses: Any) -> None:
    sinks = None if sinks is None else torch.tensor(sinks)
    inputs = attending("sglang.extend_attention", 3, want_lse=True, sinks=sinks)
    _, lse = three_tokens.call(load("sglang.extend_attention"), inputs)
    assert lse.shape == (3, 1)
    assert lse[:, 0].tolist() == pytest.approx(list(lses), abs=three_tokens.NEAR)


def test_merge_of_two_states() -> None:
    out, lse = three_tokens.call(load("sglang.merge_state"), three_tokens.merging())
    assert out.flatten().tolist() == pytest.approx([7.0] * 16, abs=three_tokens.NEAR)
    assert lse.tolist() == [[pytest.approx(math.log(4))]]


@pytest.mark.parametrize("held", [0.0, 7.0, 60000.0])
def test_merge_with_an_empty_state_gives_the_other(held: float) -> None:
    inputs = three_tokens.merging()
    inputs.state_outs[1], inputs.state_lses[1] = held, -math.inf
    out, lse = three_tokens.call(load("sglang.merge_state"), inputs)
    assert out.flatten().tolist() == [4.0] * 16
    assert lse.tolist() == [[0.0]]


def test_new_tokens_go_to_their_slots() -> None:
    inputs = three_tokens.writing()
    three_tokens.call(load("sglang.reshape_and_cache"), inputs)
    three_tokens.assert_written(inputs)


def test_new_tokens_are_divided_by_the_scale_of_an_fp8_cache() -> None:
    inputs = three_tokens.writing()
    caches = {name: torch.zeros(4, 2, 1, 16, dtype=torch.float8_e4m3fn) for name in ("k_cache", "v_cache")}
    scales = {"k_scale": torch.tensor([0.5]), "v_scale": torch.tensor([4.0])}
    three_tokens.call(load("sglang.reshape_and_cache"), three_tokens.given(**vars(inputs) | caches | scales))
    k, v = (cache.float().view(8, 16) for cache in caches.values())
    assert k[2].tolist() == [2.0] + [0.0] * 15
    assert [v[slot, dim].item() for slot, dim in zip(three_tokens.SLOTS, range(3), strict=True)] == [1.0, 1.0, 0.5]
    assert (k.sum(), v.sum()) == (2.0, 2.5)


@pytest.mark.parametrize(
    ("name", "case", "told"),
    [
        ("merge_state", replace(MERGE, states=States(partition=(1, 1, 1))), "merges two states, not 3"),
        ("merge_state", replace(MERGE, states=States(partition=(1, 1), empty=(0, 1))), "two empty states"),
        ("merge_state", replace(MERGE, states=States(partition=(1, 1), empty=(1,)), row_poison="nan"), "finite_dead"),
        ("reshape_and_cache", Case(op="cache_write", table_dtype="int64", kv_dtype="e4m3", scale_granularity="head"),
         "one scale for a cache"),
        ("extend_attention", Case(op="extend", new_kv="dense", kv_dtype="e5m2"), "a head dim of 32 or more"),
        ("decode_attention", Case(kv_dtype="e5m2", num_q_heads=2), "a head dim of 32 or more"),
    ],
)  # fmt: skip
def test_what_a_kernel_cannot_do_is_declined_with_the_reason(name: str, case: Case, told: str) -> None:
    assert told in (load(f"sglang.{name}").declines(case) or "")


@pytest.mark.parametrize("name", ["decode_attention", "extend_attention_unified"])
def test_a_sink_far_above_every_score_is_no_finding_in_an_output(name: str) -> None:
    """The sum of the weights is infinite there, and 0 comes out where 1e-39 should."""
    op = "decode" if name == "decode_attention" else "extend"
    far = Case(
        op=op, seqs=(Seq(kv_len=80),), head_dim=80, window=(0, -1), sinks=True, values="descending_max", data_seed=1
    )
    assert not run_case(far, load(f"sglang.{name}"), "gridsim").findings


def test_what_is_no_limit_is_taken() -> None:
    assert load("sglang.merge_state").declines(replace(MERGE, states=States(partition=(1, 1), empty=(1,)))) is None
    assert load("sglang.decode_attention").declines(Case(kv_dtype="e5m2")) is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("sglang_sink_lse", "score -89.0, sink 0: lse is inf, but should be 0"),
        ("sglang_temperature", "extend, one stage: error 0.96 for a factor of log2(32) / log2(4)"),
    ],
)
def test_a_finding_is_shown_by_its_script(script: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("decode_attention", "extend_attention"):
        load(f"sglang.{name}")
    with gridsim.active():
        runpy.run_path(str(PACKAGE.parent / "docs" / "findings" / f"{script}.py"))
    assert told in capsys.readouterr().out
