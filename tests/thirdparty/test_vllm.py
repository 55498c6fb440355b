"""Each of vLLM's kernels on three tokens, computed by hand: with nothing, then with each feature that is translated."""

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import three_tokens
import torch

from harness.adapters import load
from harness.adapters.translate import generation
from harness.case import Case, Hints, Seq, States, replace
from harness.executors import gridsim
from harness.subjects import Subject

pytestmark = pytest.mark.thirdparty

UNIFIED = ("unified_attention", "unified_attention_split")
CHUNKED = (*UNIFIED, "context_attention_fwd")
DECODING = (*CHUNKED, "decode_attention_fwd")
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def vllm(name: str) -> Subject:
    return load(f"vllm.{name}")


def attended(name: str, queries: int = 1, **some: Any) -> torch.Tensor:
    """What the last of the queries sees of the three tokens [3], their weights times 4, 4 and 2."""
    out = three_tokens.call(vllm(name), three_tokens.attending(queries, **some))
    return out[-1, 0, :3]


def assert_weights(row: torch.Tensor, *weights: float) -> None:
    """The row is that of these weights, which need not be normalised to 1."""
    wanted = torch.tensor(weights) * torch.tensor([4.0, 4.0, 2.0])
    torch.testing.assert_close(row.float(), wanted, atol=three_tokens.NEAR, rtol=0)


def number(value: float) -> torch.Tensor:
    return torch.tensor([value])


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("name", CHUNKED)
def test_three_tokens_are_attended_to(name: str, queries: int) -> None:
    out = three_tokens.call(vllm(name), three_tokens.attending(queries))
    three_tokens.assert_rows(out, queries)


@pytest.mark.parametrize("splits", [0, 1, 3])
def test_decode_on_three_tokens_with_its_lse(splits: int) -> None:
    inputs = three_tokens.attending(1, want_lse=True, hints=Hints(num_splits=splits))
    out, lse = three_tokens.call(vllm("decode_attention_fwd"), inputs)
    three_tokens.assert_rows(out, 1)
    three_tokens.assert_lses(lse, 1)


@pytest.mark.parametrize("name", CHUNKED)
def test_a_window_of_one_beside_itself_leaves_two_tokens(name: str) -> None:
    assert_weights(attended(name, window=(1, -1)), 0, 1 / 3, 2 / 3)


@pytest.mark.parametrize("name", CHUNKED)
def test_a_window_of_none_beside_itself_leaves_one_token(name: str) -> None:
    assert_weights(attended(name, window=(0, -1)), 0, 0, 1)


@pytest.mark.parametrize("name", CHUNKED)
def test_a_sink_as_heavy_as_all_keys_halves_the_output(name: str) -> None:
    assert_weights(attended(name, sinks=number(math.log(4))), 1 / 8, 1 / 8, 1 / 4)


@pytest.mark.parametrize("name", UNIFIED)
def test_a_bias_halves_the_weight_of_a_key_with_each_step_back(name: str) -> None:
    assert_weights(attended(name, alibi_slopes=number(math.log(2))), 0.25 / 2.75, 0.5 / 2.75, 2 / 2.75)


def test_the_bias_of_a_prefix_and_dense_tokens_is_the_same() -> None:
    k_new, v_new = (rows[2:] for rows in three_tokens.tokens(torch.float16, 16))
    row = attended("context_attention_fwd", alibi_slopes=number(math.log(2)), k_new=k_new, v_new=v_new)
    assert_weights(row, 0.25 / 2.75, 0.5 / 2.75, 2 / 2.75)


@pytest.mark.parametrize("queries", [1, 3])
def test_dense_tokens_follow_the_prefix(queries: int) -> None:
    k_new, v_new = (rows[3 - queries :] for rows in three_tokens.tokens(torch.float16, 16))
    assert_weights(attended("context_attention_fwd", queries, k_new=k_new, v_new=v_new), 1 / 4, 1 / 4, 1 / 2)


@pytest.mark.parametrize("name", [*UNIFIED, "decode_attention_fwd"])
def test_a_softcap_holds_the_score_of_the_last_token(name: str) -> None:
    held = math.exp(math.log(2) * math.tanh(1))
    assert_weights(attended(name, softcap=math.log(2)), 1 / (2 + held), 1 / (2 + held), held / (2 + held))


@pytest.mark.parametrize("name", DECODING)
def test_the_scale_multiplies_scores(name: str) -> None:
    assert_weights(attended(name, scale=2.0), 1 / 6, 1 / 6, 4 / 6)


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("name", DECODING)
def test_what_an_fp8_cache_holds_is_multiplied_by_its_scale(name: str, dtype: torch.dtype) -> None:
    k_cache, v_cache = three_tokens.caches(torch.float16, 16)
    caches = {"k_cache": (k_cache * 2).to(dtype), "v_cache": (v_cache / 2).to(dtype)}
    assert_weights(attended(name, **caches, k_scale=number(0.5), v_scale=number(2.0)), 1 / 4, 1 / 4, 1 / 2)


@pytest.mark.parametrize("name", ["unified_attention", "context_attention_fwd"])
def test_without_causality_the_first_query_sees_all(name: str) -> None:
    out = three_tokens.call(vllm(name), three_tokens.attending(3, causal=False))
    for row in out[:, 0, :3]:
        assert_weights(row, 1 / 4, 1 / 4, 1 / 2)


def test_mla_takes_v_from_k() -> None:
    k_cache, _ = three_tokens.caches(torch.float16, 32)
    q = torch.zeros(1, 2, 32, dtype=torch.float16)
    q[:, :, 0] = math.log(2)
    inputs = three_tokens.attending(1, dim=32, q=q, v_cache=k_cache[..., :16], want_lse=True)
    out, lse = three_tokens.call(vllm("decode_attention_fwd"), inputs)
    assert out.shape == (1, 2, 16)
    torch.testing.assert_close(out[0, :, :2].float(), torch.tensor([[0.5, 0.0]] * 2), atol=three_tokens.NEAR, rtol=0)
    torch.testing.assert_close(lse, torch.full((1, 2), math.log(4)), atol=three_tokens.NEAR, rtol=0)


def test_three_tokens_are_written() -> None:
    inputs = three_tokens.writing()
    three_tokens.call(vllm("triton_reshape_and_cache_flash"), inputs)
    three_tokens.assert_written(inputs)


def test_what_is_written_to_an_fp8_cache_is_divided_by_its_scale() -> None:
    k_cache, v_cache = (cache.to(FP8[0]) for cache in three_tokens.caches(torch.float16, 16, filled=False))
    inputs = three_tokens.writing()
    scaled = {"k_cache": k_cache, "v_cache": v_cache, "k_scale": number(0.5), "v_scale": number(2.0)}
    given = three_tokens.given(**(inputs.tensors() | scaled))
    three_tokens.call(vllm("triton_reshape_and_cache_flash"), given)
    k, v = (cache.float().view(-1, 16)[list(three_tokens.SLOTS)] for cache in (k_cache, v_cache))
    assert (k[2, 0].item(), v[0, 0].item(), v[1, 1].item(), v[2, 2].item()) == (2.0, 2.0, 2.0, 1.0)


def test_two_states_are_merged() -> None:
    out, lse = three_tokens.call(vllm("merge_attn_states"), three_tokens.merging())
    assert (out == 7).all()
    assert lse.item() == pytest.approx(math.log(4))


CHUNK = Case(op="extend", seqs=(Seq(query_len=2, kv_len=5),))
MERGE = Case(op="merge", want_lse=True, k_poison="huge", v_poison="huge", spare_poison="huge")


@pytest.mark.parametrize(
    ("name", "case", "told"),
    [
        ("unified_attention", replace(CHUNK, causal=False, window=(3, 1)), "as wide to the right as to the left"),
        ("unified_attention", replace(CHUNK, causal=False, window=(3, 3)), ""),
        ("unified_attention", replace(CHUNK, alibi=True, sinks=True), "ALiBi counts from the first query of a chunk"),
        ("unified_attention_split", replace(CHUNK, max_len_slack=7), "more than 8 queries of a sequence are not split"),
        ("unified_attention_split", replace(CHUNK, max_len_slack=6), ""),
        ("unified_attention_split", replace(CHUNK, causal=False), "several queries that are not causal are not split"),
        ("context_attention_fwd", replace(CHUNK, alibi=True), "ALiBi takes new tokens from dense rows"),
        ("context_attention_fwd", replace(CHUNK, head_dim=24, kv_dtype="e4m3"), "vectors of 16 bytes"),
        ("merge_attn_states", replace(MERGE, states=States(partition=(1, 2, 3))), "it merges two states"),
        ("merge_attn_states", replace(MERGE, states=States(partition=(1, 2))), ""),
    ],
)
def test_what_a_kernel_cannot_do_is_declined_in_words(name: str, case: Case, told: str) -> None:
    reason = vllm(name).declines(case)
    assert (told in reason) if told and reason else reason is None and not told


# --- the scripts of docs/findings/vllm.md ------------------------------------------------------------------------

FINDINGS = Path(__file__).parents[2] / "docs" / "findings"


def shown(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """What a script prints when its kernels run under gridsim, and the lines of its forbidden accesses."""
    vllm("unified_attention")  # from here on vLLM's modules are imported lightly
    torch.utils.deterministic.fill_uninitialized_memory = False  # one script takes memory that it does not touch
    try:
        with gridsim.active() as trace, generation(torch.empty(0), (9, 0)):
            runpy.run_path(str(FINDINGS / f"vllm_{name}.py"))
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
    return capsys.readouterr().out.splitlines(), [str(access.line) for access in trace.memory.accesses]


def test_the_script_shows_that_v_ahead_of_a_window_is_taken_for_0(capsys: pytest.CaptureFixture[str]) -> None:
    _, largest, cause = shown("window_without_causality", capsys)[0]
    assert float(largest.rpartition(" ")[2]) > 1
    assert float(cause.rpartition(" ")[2]) < 2e-3


def test_the_script_shows_v_of_a_range_behind_a_window_taken_for_0(capsys: pytest.CaptureFixture[str]) -> None:
    largest, cause = shown("window_with_mm_prefix", capsys)[0]
    assert float(largest.rpartition(" ")[2]) > 0.5
    assert float(cause.rpartition(" ")[2]) < 2e-3


def test_the_script_reads_behind_block_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown("block_table_reads", capsys)[1] == ["prefix_prefill.py:90", "triton_unified_attention.py:431"]


def test_the_script_shows_scores_in_16_bits_beside_better_ones(capsys: pytest.CaptureFixture[str]) -> None:
    lse_errors = [float(line.rpartition(" ")[2]) for line in shown("scores_in_16_bits", capsys)[0]]
    assert all(not bad < 10 * good for bad, good in zip(lse_errors[::2], lse_errors[1::2], strict=True))


def test_the_script_shows_nan_in_a_row_without_keys(capsys: pytest.CaptureFixture[str]) -> None:
    full, empty = shown("row_without_keys", capsys)[0]
    assert full.endswith("False")
    assert empty.endswith("8192 of 8192; lse -inf")


def test_the_script_shows_e4m3_in_a_cache_of_e5m2(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown("e5m2_written_as_e4m3", capsys)[0][1:] == [
        "read as e5m2: [6.0, 0.5, -2.0, 0.125]",
        "read as e4m3: [3.5, 1.0, -2.0, 0.5]",
    ]


def test_the_script_shows_far_rows_that_are_others(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown("far_rows", capsys)[1]
    assert {"prefix_prefill.py:219", "triton_decode_attention.py:113"} <= set(lines)


def test_the_script_shows_the_corners(capsys: pytest.CaptureFixture[str]) -> None:
    empty, few, window, none, early = shown("corners", capsys)[0]
    assert empty.endswith("nan")
    assert few.endswith("K >= 16")
    assert float(window.split("window 4 ")[2].split(",")[0]) > 1 > 1e-2 > float(window.rpartition(" ")[2])
    assert none == "no tokens, unsplit: 0.0 split: 7.0"
    assert early == "4 queries over 1 token, unsplit: nan split: 0.0"
