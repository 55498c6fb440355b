"""Values for which the output is exact: a right kernel is, and a key or a slot that is wrong is named."""

from typing import Any

import numpy as np
import pytest
import torch
from attending import gather, lens, right, torch_subject

from harness import subjects
from harness.arithmetic import Arithmetic
from harness.bounds import exceeds
from harness.case import Case, Hints, Seq, replace
from harness.exact import expected
from harness.inputs import materialise
from harness.judge import judge
from harness.ours import decode, extend, split_decode
from harness.pipeline import run_case
from harness.platforms import platform
from harness.results import Finding, Result

#: Tiled blocks of 16, two sequences, the second in blocks that the first does not own.
TWO = Case(seqs=lens(37, 21), num_q_heads=4, num_kv_heads=2, placement="shuffled", spare_blocks=2)
#: As a kernel in float32 that divides at the end would be read.
CAREFUL = {"dot": "ieee", "tensor_core": False, "p_dtype": "float32", "normalised_p": False, "max_splits": 1}
FAMILIES = ("uniform", "two_level", "gather")


def judged(case: Case, run: Any) -> Result:
    return run_case(case, torch_subject(run, arithmetic=CAREFUL), "gridsim", thorough=True)


def inexact(result: Result) -> Finding:
    (found,) = (finding for finding in result.findings if finding.kind == "inexact")
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_right_kernel_is_exact(family: str, dtype: str) -> None:
    case = replace(TWO, values=family, dtype=dtype)
    chunk = replace(case, op="extend", seqs=(Seq(query_len=5, kv_len=37), Seq(query_len=21, kv_len=21, tag=1)))
    for changed, subject in (
        (case, subjects.from_function(decode)),
        (replace(case, kv_dtype="e4m3", k_scale=0.5, v_scale=2.0), subjects.from_function(decode)),
        (replace(case, hints=Hints(num_splits=3)), subjects.from_function(split_decode)),
        (chunk, subjects.from_function(extend)),
        (replace(chunk, window=(7, -1)), subjects.from_function(extend)),
        (case, torch_subject(right, arithmetic=CAREFUL)),
    ):
        assert run_case(changed, subject, "gridsim", thorough=True).findings == ()


def applies(case: Case, arithmetic: Arithmetic | None = None) -> Any:
    kernel = arithmetic or Arithmetic()
    return expected(case, judge(materialise(case), kernel, platform("gridsim")), kernel)


@pytest.mark.parametrize("family", ["uniform", "two_level"])
def test_the_exact_output_is_nearer_than_the_bound_and_needs_no_platform(family: str) -> None:
    case = replace(TWO, values=family, seqs=lens(700, 301))
    wanted = applies(case)
    allowed = judge(materialise(case), Arithmetic(), platform("sm90")).out
    assert wanted.rows.all()
    assert (np.maximum(wanted.high - wanted.truth, wanted.truth - wanted.low) <= allowed).mean() > 0.9


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ALiBi": ({"alibi": True}, {}),
    "a sink": ({"sinks": True}, {}),
    "sums in 16 bits": ({}, {"pv_accumulator": "float16"}),
    "weights that are divided first": ({}, {"normalised_p": True}),
    "a scale that is no power of two": ({"kv_dtype": "e5m2", "v_scale": 0.3}, {}),
    "a merge of equal weights": ({}, {"max_splits": 4}),
}


@pytest.mark.parametrize(("changes", "kernel"), CHANGES.values(), ids=CHANGES)
def test_nothing_is_exact_with(changes: dict[str, Any], kernel: dict[str, Any]) -> None:
    assert applies(replace(TWO, values="uniform", **changes), Arithmetic(**kernel)) is None


def test_a_row_that_does_not_see_the_hot_key_is_left_to_the_bound() -> None:
    wanted = applies(replace(TWO, values="gather", window=(0, -1)))
    assert not wanted.rows.any()


# --- faults ------------------------------------------------------------------------------------------------------


def counting(often: dict[int, float]) -> Any:
    """Attention in which some tokens of the first sequence count more often than once, or not at all."""

    def run(inputs: Any) -> Any:
        group, rows = inputs.q.shape[1] // inputs.k_cache.shape[2], []
        for i in range(len(inputs.q)):
            k, v = (x.double().repeat_interleave(group, dim=1) for x in gather(inputs, i))
            scores = (inputs.q[i].double() * k).sum(2).T * inputs.scale
            weights = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
            for token, times in often.items():
                if i == 0 and token < len(k):
                    weights[:, token] *= times
            extra = often.get(-1, 0.0) if i == 0 else 0.0  # keys that only the normaliser counts
            rows.append(torch.einsum("ht,thd->hd", weights / (weights.sum(dim=1, keepdim=True) + extra), v))
        return torch.stack(rows).to(inputs.q.dtype)

    return run


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("family", ["uniform", "two_level"])
@pytest.mark.parametrize(
    ("often", "words"),
    [
        ({18: 0.0}, "offset 2 (token 18) does not count"),
        ({33: 2.0}, "offset 1 (token 33) counts once too often"),
        ({-1: 1.0}, "one key more is counted, whose V is 0"),
    ],
)
def test_one_key_too_few_or_too_many_is_found_and_named(
    family: str, dtype: str, often: dict[int, float], words: str
) -> None:
    found = inexact(judged(replace(TWO, values=family, dtype=dtype), counting(often)))
    assert "but should be exactly" in found.message
    (told,) = found.explains
    assert told.startswith("sequence 0, head 0")
    assert told.endswith(words)


def test_one_key_among_thousands_is_found_where_the_bound_of_a_gpu_hides_it() -> None:
    """In float32 the error of a sum of n weights grows with n; whole numbers are summed without any."""
    case = replace(TWO, values="two_level", seqs=lens(4000), num_q_heads=1, num_kv_heads=1)
    materials = materialise(case)
    bound = judge(materials, Arithmetic(), platform("sm90"))
    wanted = expected(case, bound, Arithmetic())
    out = bound.truth.astype(np.float32)
    hidden = out * (1 + 2.0**-20)  # what a key of weight 2^-20 too much would do
    assert not wanted.broken(out).any()
    assert not exceeds(hidden, bound).any()
    assert wanted.broken(hidden).any()


def test_a_gather_names_the_slot_that_was_wanted_and_the_one_that_was_read() -> None:
    """K and V of another block: of three blocks two are whole, so the hot token's place is another's."""

    def run(inputs: Any) -> Any:
        group, rows = inputs.q.shape[1] // inputs.k_cache.shape[2], []
        for i in range(len(inputs.q)):
            k, v = (x.double().repeat_interleave(group, dim=1) for x in gather(inputs, i))
            scores = (inputs.q[i].double() * k).sum(2).T * inputs.scale
            rows.append(torch.einsum("ht,thd->hd", torch.softmax(scores, dim=1), torch.roll(v, 16, dims=0)))
        return torch.stack(rows).to(inputs.q.dtype)

    case = replace(TWO, values="gather", seqs=lens(48, 32))
    found = inexact(judged(case, run))
    (told,) = found.explains
    tables = materialise(case).geometry.tables
    wanted, read = told.removeprefix("sequence 0, head 0 wanted ").split(", read ")
    token, other = (int(words.split("token ")[1].rstrip(")")) for words in (wanted, read))
    assert other == (token - 16) % 48
    for words, at in ((wanted, token), (read, other)):
        assert words == f"block {tables[0][at // 16]} offset {at % 16} (token {at})"


def test_a_gather_names_the_other_sequence_and_the_other_head_that_were_read() -> None:
    def other_row(inputs: Any) -> Any:
        out = right(inputs)
        return torch.stack([out[1], out[1]])

    def other_head(inputs: Any) -> Any:
        return right(inputs).flip(1)

    case = replace(TWO, values="gather")
    assert " of sequence 1" in inexact(judged(case, other_row)).explains[0]
    assert inexact(judged(case, other_head)).explains[0].endswith(" of KV head 1, not 0")


def test_a_mixture_is_told_as_one() -> None:
    def mixed(inputs: Any) -> Any:
        return right(inputs) * 0.75

    told = inexact(judged(replace(TWO, values="gather"), mixed)).explains[0]
    assert told.endswith("read no slot of the cache alone: a mixture, or nothing")


def test_values_spell_out_the_index_of_their_token() -> None:
    case = replace(TWO, values="two_level")
    inputs, geometry = materialise(case).inputs, materialise(case).geometry
    for token in (0, 5, 36):
        row = inputs.v_cache.view[geometry.tables[0][token // 16], token % 16, 1].astype(np.int64)
        assert sum(int(bit) << c for c, bit in enumerate(row)) == token


def test_powers_of_two_are_weights_when_the_scale_is_ln_2() -> None:
    case = replace(TWO, values="powers_of_two", scale=float(np.log(2)))
    seen = judge(materialise(case), Arithmetic.float64(), platform("float64"), out_dtype="float64")
    k = materialise(case).inputs.k_cache.view[materialise(case).geometry.tables[1]].reshape(-1, 2, 16)[:21, 0, 0]
    assert np.exp2(k.astype(np.float64)).sum() == pytest.approx(np.exp(seen.truth_lse[1, 0]), rel=1e-12)
    assert len(np.unique(k)) > 8
