"""The x-ray recovers the weights of any kernel, and says in words what is wrong with them; of a right one, nothing."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from attending import attend, gather, lens, right, torch_subject

from harness import probe, subjects, xray
from harness.case import Case, Seq, Slots, States, replace
from harness.ours import decode, extend, merge, split_decode, step
from harness.pipeline import Session, run_case, the_executor
from harness.subjects import Subject

TWO = Case(seqs=lens(37, 21), num_q_heads=4, num_kv_heads=2, placement="shuffled", spare_blocks=1, geometry_seed=3)

#: As a kernel in float32 that divides at the end would be read.
CAREFUL = {"dot": "ieee", "tensor_core": False, "p_dtype": "float32", "normalised_p": False, "max_splits": 1}

Weigh = Callable[[torch.Tensor, Any, int], torch.Tensor]


def session(case: Case, subject: Subject) -> Session:
    return Session(case, subject, the_executor("gridsim"), thorough=True, explain=True)


def weighing(change: Weigh) -> Any:
    """Decode whose normalised weights [heads, tokens] of sequence i are changed before they meet V."""

    def run(inputs: Any) -> Any:
        group, rows = inputs.q.shape[1] // inputs.k_cache.shape[2], []
        for i in range(len(inputs.q)):
            k, v = (x.double().repeat_interleave(group, dim=1) for x in gather(inputs, i))
            scores = (inputs.q[i].double() * k).sum(2).T * inputs.scale
            rows.append(torch.einsum("ht,thd->hd", change(torch.softmax(scores, dim=1), inputs, i), v))
        return torch.stack(rows).to(inputs.q.dtype)

    return run


def explained(case: Case, run: Any) -> tuple[str, ...]:
    """What the x-ray adds to the finding of a wrong output."""
    subject = torch_subject(run, op=case.op, arithmetic=CAREFUL)
    result = run_case(case, subject, "gridsim", thorough=True, explain=True)
    assert result.findings, "the fault shows"
    return tuple(words for finding in result.findings for words in finding.explains)


# --- a right kernel ----------------------------------------------------------------------------------------------

CHUNK = Case(
    op="extend", seqs=(Seq(query_len=5, kv_len=20), Seq(query_len=3, kv_len=3, tag=1)), num_q_heads=4, num_kv_heads=2
)
SHARED = (Seq(kv_len=33, tag=3), Seq(kv_len=40, tag=1, shares_prefix_with=3, shared_blocks=2))
RIGHT: dict[str, tuple[Case, Any]] = {
    "decode": (TWO, decode),
    "in torch": (TWO, torch_subject(right)),
    "bfloat16": (replace(TWO, dtype="bfloat16"), decode),
    "FP8": (replace(TWO, kv_dtype="e4m3", k_scale=0.5, v_scale=2.0, scale_granularity="head"), decode),
    "every feature": (replace(TWO, window=(9, -1), softcap=2.0, alibi=True, sinks=True), decode),
    "unlike strides": (replace(TWO, layout="padded", v_layout="hnd"), decode),
    "one buffer": (replace(TWO, layout="kv_interleaved"), decode),
    "far": (replace(TWO, placement="far"), decode),
    "shared blocks": (replace(TWO, seqs=SHARED), decode),
    "empty rows": (replace(TWO, seqs=lens(0, 5)), decode),
    "splits": (TWO, split_decode),
    "extend": (CHUNK, extend),
    "dense": (replace(CHUNK, new_kv="dense"), extend),
    "dense beside FP8": (replace(CHUNK, new_kv="dense", kv_dtype="e4m3", k_scale=0.5, v_scale=4.0), extend),
    "padding rows": (replace(TWO, padding_rows=2), decode),
    "step": (replace(CHUNK, op="step", slots=Slots(tail_padding=1)), step),
    "step in FP8": (replace(CHUNK, op="step", kv_dtype="e4m3", k_scale=0.5, v_scale=4.0), step),
    "merge": (Case(op="merge", num_q_heads=2, states=States(partition=(1, 16, 2), empty=(1,)), want_lse=True), merge),
}


@pytest.mark.parametrize(("case", "function"), RIGHT.values(), ids=RIGHT)
def test_no_weight_of_a_right_kernel_is_wrong(case: Case, function: Any) -> None:
    subject = function if isinstance(function, Subject) else subjects.from_function(function)
    look = session(case, subject).look
    found = probe.weights(probe.plain(case), look, probe.quiet)
    assert found is not None
    assert not found.wrong.any()
    assert (found.got > 0.01).sum() >= (len(case.seqs) - 1 if case.op != "merge" else 2)  # and some weights are seen
    if case.op != "merge":
        own = np.array([0.0 if seq.kv_len == 0 else 1.0 for seq in case.batch for _ in range(seq.query_len)])
        total = found.got.sum(axis=2) if not case.sinks else found.true.sum(axis=2)
        assert total == pytest.approx(np.repeat(own[:, None], case.num_q_heads, axis=1), abs=0.05) or case.sinks
        assert xray._mixed_dims(probe.plain(case), look) == ""


def test_a_result_without_a_wrong_output_is_not_looked_at_again() -> None:
    subject = subjects.from_function(decode)
    plain, asked = (run_case(TWO, subject, "gridsim", thorough=True, explain=explain) for explain in (False, True))
    assert plain.runs == asked.runs


def test_what_an_x_ray_supposes_is_what_the_judge_says() -> None:
    """Without a change, the supposed weights are the true ones."""
    found = probe.weights(probe.plain(TWO), session(TWO, torch_subject(right)).look, probe.quiet)
    assert found is not None
    same = probe.supposed(probe.plain(TWO), lambda materials: None, found.cells)
    assert same == pytest.approx(found.true, abs=1e-12)


# --- faults ------------------------------------------------------------------------------------------------------


def without(*tokens: int, renormalised: bool = True) -> Weigh:
    def change(weights: torch.Tensor, inputs: Any, i: int) -> torch.Tensor:
        if i == 0:
            weights[:, list(tokens)] = 0
            weights = weights / weights.sum(dim=1, keepdim=True) if renormalised else weights
        return weights

    return change


def times(factor: float, *tokens: int) -> Weigh:
    def change(weights: torch.Tensor, inputs: Any, i: int) -> torch.Tensor:
        if i == 0:
            weights[:, list(tokens) or slice(None)] *= factor
        return weights / weights.sum(dim=1, keepdim=True) if tokens else weights

    return change


def power(exponent: float) -> Weigh:
    return lambda weights, inputs, i: (weights**exponent) / (weights**exponent).sum(dim=1, keepdim=True)


def stale_tiles(weights: torch.Tensor, inputs: Any, i: int) -> torch.Tensor:
    """The weighted sum of a tile keeps the maximum of its own time: only the normaliser is rescaled."""
    logs = weights.log()
    tiles = torch.stack([logs[:, first : first + 16].max(dim=1).values for first in range(0, logs.shape[1], 16)], dim=1)
    running = torch.cummax(tiles, dim=1).values
    old = running.repeat_interleave(16, dim=1)[:, : logs.shape[1]]
    return (logs - old + running[:, -1:]).exp()


FAULTS: dict[str, tuple[Weigh, str]] = {
    "a dropped run": (without(16, 17, 18), "tokens 16-18 (column 1 of the table, block {1}, slots 0-2) have weight 0"),
    "and the normaliser agrees": (without(16), "the other weights are right for the keys that do count"),
    "or does not": (without(16, renormalised=False), "the normaliser sums keys whose V is not added"),
    "three tokens three times": (times(3.0, 16, 17, 18), "slots 0-2) count 3 times"),
    "a token twice": (times(2.0, 33), "token 33 (column 2 of the table, block {2}, slot 1) counts twice"),
    "a factor next to 1": (
        times(1.0005),
        "off by the common factor 1.0005: the normaliser, or a key that only it counts",
    ),
    "a common factor": (times(1.01), "off by the common factor 1.01: the normaliser, or a key that only it counts"),
    "a larger scale": (power(1.02), "the weights are those of scores 1.02 times as large: the scale"),
    "base 2": (power(float(np.log(2))), "powers of 2, but should be of e"),
    "base e": (power(float(np.log2(np.e))), "powers of e, but should be of 2"),
    "tiles that are not rescaled": (stale_tiles, "not rescaled when the maximum moves"),
}


@pytest.mark.parametrize(("change", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_weights_is_named(change: Weigh, words: str) -> None:
    case = replace(TWO, values="ties", num_q_heads=2, num_kv_heads=1)
    table = probe.quiet(case).geometry.tables[0]
    told = explained(case, weighing(change))
    assert any(words.format(*table) in sentence for sentence in told), told
    assert all(sentence.startswith("sequence ") for sentence in told)


def test_keys_of_score_0_that_only_the_normaliser_counts_are_numbered() -> None:
    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        return (out.double() * (lse.exp() / (lse.exp() + 3)).double()[..., None]).to(inputs.q.dtype)

    (told,) = explained(TWO, run)
    assert "as if 3 more keys of score 0 and without a value were summed" in told


@pytest.mark.parametrize("splits", [2, 3, 16])
def test_a_sink_that_counts_once_per_split_is_told_with_their_number(splits: int) -> None:
    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        more = (splits - 1) * inputs.sinks.exp()
        return (out.double() * (lse.exp() / (lse.exp() + more)).double()[..., None]).to(inputs.q.dtype)

    told = explained(replace(TWO, sinks=True), run)
    assert any(f"the sink counts {splits} times" in words for words in told), told


def test_two_tokens_of_which_one_counts_twice_are_not_taken_for_a_scale() -> None:
    told = explained(Case(seqs=lens(2), block_size=1), weighing(times(2.0, 1)))
    assert any("token 1 (column 1 of the table, block 1, slot 0) counts twice" in words for words in told), told


def test_dims_of_the_output_that_are_mixed_up_are_told_from_wrong_strides() -> None:
    def swapped(inputs: Any) -> Any:
        return right(inputs).reshape(*inputs.q.shape[:2], -1, 2).flip(3).flatten(2)

    told = explained(TWO, swapped)
    assert any(words.endswith("no dim is lost: dims are mixed up, of V or of the output") for words in told), told
    lost = explained(TWO, lambda inputs: right(inputs)[..., :1].expand(inputs.q.shape).contiguous())
    assert not any("no dim is lost" in words for words in lost)


def test_a_first_tile_of_one_key_that_is_not_rescaled_is_told_as_that() -> None:
    def stale(weights: torch.Tensor, inputs: Any, i: int) -> torch.Tensor:
        return torch.cat([weights[:, 1:].max(1, keepdim=True).values, weights[:, 1:]], dim=1)

    case = replace(TWO, seqs=lens(2), values="ascending_max")
    assert any("what was summed before is not rescaled when" in words for words in explained(case, weighing(stale)))
    wrong = weighing(lambda weights, inputs, i: torch.softmax(2 * weights.log(), dim=1))
    assert not any("not rescaled" in words for words in explained(case, wrong))


def test_a_number_in_place_of_minus_infinity_is_suspected_where_all_scores_are_far_below() -> None:
    none = weighing(lambda weights, inputs, i: 0 * weights)
    below = replace(TWO, values="far_below", scale=1.0)
    assert any("a finite number in place of -inf for hidden keys" in words for words in explained(below, none))
    assert not any("in place of -inf" in words for words in explained(TWO, none))


def test_an_output_that_is_never_finite_is_told_apart_from_one_whose_score_is_not() -> None:
    def never(inputs: Any) -> Any:
        return right(inputs) * float("nan")

    def by_score(inputs: Any) -> Any:
        return right(inputs) * (float("nan") if inputs.k_cache.nan_to_num().abs().max() > 0 else 1.0)

    assert "-inf is subtracted from -inf" in explained(TWO, never)[0]
    assert "a score is not, or what is read" in explained(TWO, by_score)[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_product_that_float16_cannot_hold_is_told_where_it_may_be_summed_in_it(dtype: str) -> None:
    def in_float16(inputs: Any) -> Any:
        products = (inputs.q[:, 0].float() @ gather(inputs, 0)[0][:, 0].float().T).half() * 0
        return right(inputs) + products.sum()

    case = Case(head_dim=256, dtype=dtype, values="far_below", scale=1.0)
    told = explained(case, in_float16)
    assert any("its exp overflows where the largest is not subtracted" in words for words in told), told
    assert any("where it is summed in float16" in words for words in told) is (dtype == "float16")


def test_the_block_of_another_sequence_is_named_with_its_owner() -> None:
    def run(inputs: Any) -> Any:
        inputs = type(inputs)(**{**vars(inputs), "block_tables": inputs.block_tables.clone()})
        inputs.block_tables[0, 1] = inputs.block_tables[1, 0]
        return right(inputs)

    told = explained(TWO, run)
    block = probe.quiet(TWO).geometry.tables[1][0]
    assert any(f"slots 0-15 of block {block} have weight" in words for words in told)
    assert any("that is sequence 1's: it reads the block of sequence 1" in words for words in told)


def test_dead_slots_that_count_are_named() -> None:
    def run(inputs: Any) -> Any:
        longer = inputs.kv_lens.clone()
        longer[0] += 2
        return right(type(inputs)(**{**vars(inputs), "kv_lens": longer}))

    told = explained(replace(TWO, k_poison="huge", v_poison="huge"), run)
    assert any("that is behind the last token" in words for words in told), told


def test_the_output_of_another_sequence_is_named() -> None:
    told = explained(TWO, lambda inputs: right(inputs).flip(0))
    assert any("the output is that of sequence 1 (its tokens 0-20)" in words for words in told), told


def test_another_kv_head_is_named() -> None:
    told = explained(TWO, lambda inputs: right(inputs).flip(1))
    assert any(re.search("attends to KV head ([01]), but should to KV head (?!\\1)[01]", words) for words in told), told


def test_k_of_another_head_is_named_where_v_is_right() -> None:
    def run(inputs: Any) -> Any:
        return right(type(inputs)(**{**vars(inputs), "k_cache": inputs.k_cache.flip(2)}))

    told = explained(TWO, run)
    assert any("the weights are those of K 1 KV head further on" in words for words in told), told


def restrided(inputs: Any, strides: tuple[int, ...]) -> Any:
    """The inputs with K seen through other strides; what it then shows lies in the same memory."""
    k_cache = inputs.k_cache.as_strided(inputs.k_cache.shape, strides, inputs.k_cache.storage_offset())
    return type(inputs)(**{**vars(inputs), "k_cache": k_cache})


STRIDES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "blocks": ({"layout": "kv_interleaved"}, lambda k: (16 * k[1], *k[1:]), "blocks that lie block_size tokens apart"),
    "heads": ({"layout": "hnd"}, lambda k: (*k[:2], 16, 1), "heads that lie head_dim apart"),
    "one token": ({"layout": "hnd", "seqs": lens(1)}, lambda k: (*k[:2], 16, 1), "heads that lie head_dim apart"),
    "gaps": ({"layout": "padded", "num_kv_heads": 1}, lambda k: (256, 16, 16, 1), "a cache without gaps"),
}


@pytest.mark.parametrize(("changes", "strides", "words"), STRIDES.values(), ids=STRIDES)
def test_k_that_is_read_with_other_strides_is_named_with_them(
    changes: dict[str, Any], strides: Any, words: str
) -> None:
    case = replace(TWO, **changes)
    told = explained(case, lambda inputs: right(restrided(inputs, strides(inputs.k_cache.stride()))))
    assert any(f"the weights are those of K read with the strides of {words}" in sentence for sentence in told), told


def test_v_of_the_query_s_head_is_named() -> None:
    def run(inputs: Any) -> Any:
        v_cache = inputs.v_cache.as_strided(
            (*inputs.v_cache.shape[:2], 4, 16), inputs.v_cache.stride(), inputs.v_cache.storage_offset()
        )
        k_cache = inputs.k_cache.repeat_interleave(2, dim=2)
        return right(type(inputs)(**{**vars(inputs), "k_cache": k_cache, "v_cache": v_cache}))

    told = explained(replace(TWO, seqs=lens(16)), run)
    assert any("V is read where head 1 would lie, that of the query, and not its KV head 0" in w for w in told), told


def test_a_query_that_sees_what_one_further_on_would_see_is_told_so() -> None:
    case = replace(TWO, op="extend", seqs=(Seq(query_len=1, kv_len=20),), window=(3, -1))
    later = explained(case, lambda inputs: extend(dataclasses.replace(inputs, window=(2, -1))))
    assert any(words.endswith("it sees what a query 1 token further on would see") for words in later), later
    earlier = explained(case, lambda inputs: extend(dataclasses.replace(inputs, kv_lens=inputs.kv_lens - 1)))
    assert not any("further on" in words for words in earlier)


def test_dims_that_are_left_out_of_a_score_are_named() -> None:
    def run(inputs: Any) -> Any:
        q = inputs.q.clone()
        q[..., 64:] = 0
        return right(type(inputs)(**{**vars(inputs), "q": q}))

    told = explained(replace(TWO, head_dim=72), run)
    assert any("the weights are those of the first 64 dims of q and K" in words for words in told), told


def test_a_row_that_sees_no_key_is_told_so_where_it_has_an_output() -> None:
    def run(inputs: Any) -> Any:
        kv_lens = inputs.kv_lens.clamp(min=1)
        return right(type(inputs)(**{**vars(inputs), "kv_lens": kv_lens}))

    told = explained(replace(TWO, seqs=lens(0, 21), extra_columns=1, table_pad="zero"), run)
    assert told[0] == "sequence 0, head 0 sees no key: its output should be 0"


def test_a_row_without_keys_that_is_the_mean_of_hidden_ones_is_told_as_a_sentinel() -> None:
    def run(inputs: Any) -> Any:
        out = extend(inputs)  # the first of four queries stands before the first of three tokens
        out[0] = gather(inputs, 0)[1].mean(0).repeat_interleave(2, dim=0)
        return out

    case = replace(TWO, op="extend", seqs=(Seq(query_len=4, kv_len=3, tag=1),))
    told = explained(case, run)
    assert "not the mean of hidden keys, as with a finite number in place of -inf for hidden keys" in told[0]


def test_q_that_is_read_from_another_row_is_named_with_its_token_and_head() -> None:
    def run(inputs: Any) -> Any:
        rows = inputs.q.reshape(-1, inputs.q.shape[2]).roll(-3, 0)
        return right(dataclasses.replace(inputs, q=rows.reshape(inputs.q.shape)))

    told = explained(TWO, run)
    named = [re.search(r"those of q of token (\d), head (\d) of the batch: the offset of q", words) for words in told]
    assert any(named), told


@pytest.mark.parametrize(
    ("changes", "forgotten", "words"),
    [
        ({"softcap": 2.0}, {"softcap": 0.0}, "those without softcap"),
        ({"alibi": True}, {"alibi_slopes": None}, "those without ALiBi"),
        ({"sinks": True}, {"sinks": None}, "the sink does not count"),
        ({"window": (8, -1)}, {"window": (9, -1)}, "outside the window, which begins with token 28"),
    ],
)
def test_a_forgotten_feature_is_named(changes: dict[str, Any], forgotten: dict[str, Any], words: str) -> None:
    def run(inputs: Any) -> Any:
        return right(type(inputs)(**{**vars(inputs), **forgotten}))

    told = explained(replace(TWO, **changes), run)
    assert any(words in sentence for sentence in told), told


def test_dims_that_are_mixed_are_told_as_strides() -> None:
    told = explained(TWO, lambda inputs: right(inputs).roll(1, dims=2))
    assert told[0].startswith("V is read with wrong strides: where V holds dim % 7 + 1 in every token, dim ")


def test_what_is_no_v_is_told_apart_from_weights() -> None:
    told = explained(TWO, lambda inputs: right(inputs) + 0.5)
    assert told == ("the output is 0.5 where V is 0 everywhere: something is added to it that is no V",)


def test_a_partial_output_that_is_read_in_place_of_another_is_told_so() -> None:
    def run(inputs: Any) -> Any:
        out = right(inputs)
        for i in range(len(out)):
            k, v = gather(inputs, i)
            scores = torch.einsum("hd,khd->hk", inputs.q[i].double(), k.double()) * inputs.scale
            weights = torch.softmax(scores, dim=1)
            first, last = weights[:, :16], weights[:, 32:]
            partial = (first / first.sum(1, keepdim=True)) @ v[:16, 0].double()
            out[i] += (last.sum(1, keepdim=True) * partial - last @ v[32:, 0].double()).to(out.dtype)
        return out

    told = explained(Case(seqs=lens(40)), run)
    assert any(
        "tokens 32-39" in words and words.endswith("have weight 0: the last of what the query sees") for words in told
    ), told
    assert any(
        "tokens 0-15" in words and words.endswith("a partial output is read in place of another") for words in told
    ), told


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda lse: lse / np.log(2), "it is a logarithm in base 2"),
        (lambda lse: lse * 0, "only its lse is wrong"),
    ],
)
def test_an_lse_in_another_base_is_told_so(wrong: Any, words: str) -> None:
    told = explained(replace(TWO, want_lse=True), lambda inputs: (attend(inputs)[0], wrong(attend(inputs)[1])))
    assert any(sentence.endswith(words) for sentence in told), told


def test_an_lse_without_the_logarithm_of_the_sum_is_told_so() -> None:
    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        for i in range(len(out)):
            k = gather(inputs, i)[0].double().repeat_interleave(2, dim=1)
            lse[i] = (torch.einsum("hd,khd->hk", inputs.q[i].double(), k) * inputs.scale).max(1).values
        return out, lse

    told = explained(replace(TWO, want_lse=True), run)
    assert any("that of the largest score alone" in sentence for sentence in told), told


def test_a_wrong_lse_beside_right_weights_is_told_so() -> None:
    told = explained(replace(TWO, want_lse=True), lambda inputs: (attend(inputs)[0], attend(inputs)[1] + 1))
    assert told == ("every weight is right: the output is, and only its lse is wrong",)


@pytest.mark.parametrize(
    ("changes", "spoil", "words"),
    [
        ({}, lambda out, lse: (out * torch.where(lse.isinf(), torch.nan, 1.0)[..., None], lse), "0 is divided by"),
        ({"want_lse": True}, lambda out, lse: (out, lse.clamp(min=-1e30)), "its lse should be -inf"),
        (
            {"want_lse": True, "sinks": True},
            lambda out, lse: (out, torch.where((out == 0).all(dim=2), lse + 1, lse)),
            "its lse should be that of the sink alone",
        ),
    ],
)
def test_what_is_wrong_with_a_row_without_keys_is_told(changes: dict[str, Any], spoil: Any, words: str) -> None:
    def run(inputs: Any) -> Any:
        out, lse = spoil(*attend(inputs))
        return (out, lse) if inputs.want_lse else out

    told = explained(replace(TWO, seqs=lens(0, 21), **changes), run)
    assert any(f"sequence 0 has no key: {words}" in sentence or words in sentence for sentence in told), told


def test_a_v_that_is_a_prefix_of_k_is_not_probed() -> None:
    case = replace(TWO, num_kv_heads=1, v_is_k_prefix=True)
    assert xray.explain(case, session(case, torch_subject(right)).look) == ()


def test_a_subject_that_gives_no_output_is_not_explained() -> None:
    assert xray.explain(TWO, lambda materials: None) == ()


def test_an_x_ray_ends_when_its_time_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SECONDS", -1.0)
    assert probe.weights(TWO, session(TWO, torch_subject(right)).look, probe.quiet) is None


def test_a_large_pool_is_seen_in_part_the_live_blocks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MOST_CALLS", 3)
    found = probe.weights(probe.plain(TWO), session(TWO, torch_subject(right)).look, probe.quiet)
    assert found is not None
    assert (len(found.cells), found.got.shape) == (48, (2, 4, 48))
    assert set(found.cells.blocks) <= set(probe.quiet(TWO).geometry.used)


def test_states_that_count_wrongly_are_named() -> None:
    case = Case(op="merge", num_q_heads=2, states=States(partition=(1, 16, 2), empty=(2,)), want_lse=True)

    def run(inputs: Any) -> Any:
        lses = torch.where(inputs.state_lses.isinf(), 0.0, inputs.state_lses)
        outs = torch.where(inputs.state_lses.isinf()[..., None], inputs.state_outs.nan_to_num(), inputs.state_outs)
        weights = torch.softmax(lses, dim=0)
        return (weights[..., None] * outs).sum(dim=0).to(inputs.state_outs.dtype), torch.logsumexp(lses, dim=0)

    told = explained(case, run)
    assert any("state 2 counts with weight" in words and "though it is empty" in words for words in told), told


def test_an_output_that_is_right_by_luck_is_explained_with_its_blocks_elsewhere() -> None:
    """Only other blocks make it wrong, so the weights of this call say nothing, and those of the changed one do."""

    def run(inputs: Any) -> Any:
        out = right(inputs)
        return out if int(inputs.block_tables[0, 0]) == first else out + 1.0

    first = int(probe.quiet(TWO).geometry.tables[0][0])
    result = run_case(TWO, torch_subject(run), "gridsim", thorough=True, explain=True)
    words = "with its blocks elsewhere: the output is 1 where V is 0 everywhere: something is added to it that is no V"
    assert [(finding.kind, finding.explains) for finding in result.findings] == [("block order", (words,))]


def test_a_block_that_is_left_to_the_sequence_that_shares_it_is_told_with_that_sequence() -> None:
    seqs = (Seq(kv_len=16, tag=3), Seq(kv_len=20, tag=1, shares_prefix_with=3, shared_blocks=1))

    def change(weights: torch.Tensor, inputs: Any, sequence: int) -> torch.Tensor:
        kept = weights.clone()
        kept[:, :16] = 0 if sequence else kept[:, :16]
        return kept

    told = explained(Case(seqs=seqs), weighing(change))
    assert any("slots 0-15; sequence 0 has it too) have weight 0" in words for words in told), told
    alone = explained(Case(seqs=lens(16, 20)), weighing(change))
    assert not any("has it too" in words for words in alone), alone


def test_states_that_are_not_named_are_not_said_to_be_empty() -> None:
    case = Case(op="merge", want_lse=True)

    def run(inputs: Any) -> Any:
        return merge(inputs)[0], inputs.state_lses.amax(dim=0)

    result = run_case(case, torch_subject(run, op="merge", lse=True), "gridsim", thorough=True, explain=True)
    assert result.findings
    assert not any("every state is empty" in words for finding in result.findings for words in finding.explains)
    both = replace(case, states=States(partition=(1, 1), empty=(0, 1)))
    told = explained(both, lambda inputs: tuple(x * float("nan") for x in merge(inputs)))
    assert any("every state is empty" in words for words in told)


def test_a_query_that_stands_where_a_top_left_mask_would_put_it_is_not_said_to_stand_elsewhere() -> None:
    def blind(inputs: Any) -> Any:
        return extend(dataclasses.replace(inputs, window=(1, 0)))

    case = Case(op="extend", seqs=(Seq(query_len=3, kv_len=3),), causal=False, window=(1, 1))
    told = explained(case, blind)
    assert any(words.endswith("has weight 0: the last of what the query sees") for words in told), told
    assert not any("top-left" in words for words in told)
