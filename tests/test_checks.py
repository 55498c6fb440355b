"""Every check fires on a planted fault, naming got, expected and where, and stays silent on a right kernel."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attending import RAGGED, attend, give, lens, right, torch_subject
from hunting import changed

from harness import ours, subjects
from harness.case import Case, Seq, Slots, States, Tile, replace
from harness.mutants import plant
from harness.ours import decode
from harness.pipeline import run_case
from harness.results import Finding, Result

WITH_LSE = replace(RAGGED, want_lse=True)
GIVEN = replace(RAGGED, out_layout="given")


def judged(case: Case, run: Callable[[Any], Any], **declared: Any) -> Result:
    return run_case(case, torch_subject(run, **declared), "gridsim", thorough=True)


def only(result: Result, kind: str) -> Finding:
    """The one finding of that kind, and no other kind."""
    assert [finding.kind for finding in result.findings] == [kind], result.findings
    return result.findings[0]


# --- right kernels -----------------------------------------------------------------------------------------------

CORNERS: dict[str, dict[str, Any]] = {
    "empty rows": {"seqs": lens(0, 5, 0)},
    "nothing but an empty row": {"seqs": lens(0)},
    "empty row with a sink": {"seqs": lens(0, 3), "sinks": True},
    "far blocks": {"placement": "far"},
    "given out": {"out_layout": "given", "dtype": "bfloat16"},
    "out with gaps": {"out_layout": "padded"},
    "fused q": {"q_layout": "fused_qkv"},
    "head-major q": {"q_layout": "transposed_heads"},
    "K and V in one buffer": {"layout": "kv_stacked"},
    "K and V interleaved": {"layout": "kv_interleaved"},
    "unlike strides": {"layout": "padded", "v_layout": "hnd"},
    "int64 table, huge padding": {"table_dtype": "int64", "table_pad": "huge"},
    "table exactly wide": {"extra_columns": 0, "seqs": lens(32, 16)},
    "random bits": {"k_poison": "random_bits", "v_poison": "random_bits", "spare_poison": "random_bits"},
    "every feature": {"window": (3, -1), "softcap": 2.0, "alibi": True, "sinks": True, "dtype": "float16"},
    "large values in 16 bits": {"values": "large", "dtype": "float16"},
    "tiny values in 16 bits": {"values": "tiny", "dtype": "float16"},
    "padding rows": {"padding_rows": 2, "table_pad": "other"},
    "padding rows of huge numbers": {"padding_rows": 1, "row_poison": "huge", "sinks": True},
    "shared blocks": {"seqs": (Seq(kv_len=33, tag=3), Seq(kv_len=40, tag=1, shares_prefix_with=3, shared_blocks=2))},
}


@pytest.mark.parametrize("changes", CORNERS.values(), ids=CORNERS)
def test_no_check_blames_a_right_kernel(changes: dict[str, Any]) -> None:
    case = replace(WITH_LSE, **changes)
    for subject in (torch_subject(right, padding_rows=True), subjects.from_function(decode)):
        result = run_case(case, subject, "gridsim", thorough=True)
        assert (result.declined, result.harness_fault, result.findings) == ("", "", ())
        assert result.margin <= 1.0


# --- the call ----------------------------------------------------------------------------------------------------


def test_an_exception_is_told_with_its_type_and_line() -> None:
    def raises(inputs: Any) -> Any:
        raise KeyError(int(inputs.k_cache.shape[1]))

    finding = only(judged(RAGGED, raises), "exception")
    line = raises.__code__.co_firstlineno + 1
    assert finding.message == f"KeyError at test_checks.py:{line}: 16"
    assert (finding.line, finding.family) == (f"test_checks.py:{line}", f"exception KeyError test_checks.py:{line}")


OUTPUTS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "a dim short": (lambda _, out, lse: (out[..., :-1], lse), "out has shape [2, 2, 15], but should have [2, 2, 16]"),
    "another dtype": (lambda _, out, lse: (out.double(), lse), "out is torch.float64, but should be torch.float32"),
    "no tensor": (lambda _, out, lse: (out.numpy(), lse), "out is ndarray, but should be a tensor [2, 2, 16]"),
    "nothing": (lambda *_: None, "out is NoneType, but should be a tensor [2, 2, 16]"),
    "no lse": (lambda _, out, lse: out, "lse is NoneType, but should be a tensor [2, 2]"),
    "lse by heads": (lambda _, out, lse: (out, lse.T[:1]), "lse has shape [1, 2], but should have [2, 2]"),
    "lse in 64 bits": (lambda _, out, lse: (out, lse.double()), "lse is torch.float64, but should be torch.float32"),
    "another device": (lambda _, out, lse: (out.to("meta"), lse), "out is on meta, but should be on cpu"),
}


@pytest.mark.parametrize(("spoil", "message"), OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_of_the_wrong_kind_is_named(spoil: Callable[..., Any], message: str) -> None:
    finding = only(judged(WITH_LSE, lambda inputs: spoil(inputs, *attend(inputs))), "wrong shape")
    assert finding.message == message


def test_an_output_that_is_a_view_of_an_input_is_named_though_its_values_are_right() -> None:
    finding = only(judged(Case(), lambda inputs: inputs.v_cache[inputs.block_tables[0, 0], :1]), "wrong shape")
    assert finding.message == "out lies in the memory of v_cache, but should have its own"


def test_an_input_handed_back_as_the_output_is_named() -> None:
    kinds = {finding.kind for finding in judged(RAGGED, lambda inputs: inputs.q).findings}
    assert kinds == {"wrong shape", "accuracy"}


# --- memory ------------------------------------------------------------------------------------------------------


def mutant(tmp_path: Path, old: str, new: str) -> subjects.Subject:
    return subjects.load(plant(changed("decode.py", old, new), tmp_path))


def test_a_read_beyond_a_tensor_is_a_bad_read_though_the_output_is_right(tmp_path: Path) -> None:
    old = "q = tl.load(q_ptr + q_offset, mask=in_head, other=0.0)"
    subject = mutant(tmp_path, old, "q = tl.where(in_head, tl.load(q_ptr + q_offset), 0.0)")
    finding = only(run_case(Case(head_dim=40), subject, "gridsim", thorough=True), "bad read")
    assert finding.message.startswith(
        "out of reach read of q element 40 (past its end) by program [0, 0, 0] at decode.py:"
    )
    assert finding.message.endswith(", 24 elements in all")
    assert finding.line.startswith("decode.py:")


def test_a_write_beyond_a_tensor_is_a_bad_write_and_breaks_the_fence(tmp_path: Path) -> None:
    old = "out.to(out_ptr.dtype.element_ty), mask=in_head_v)"
    subject = mutant(tmp_path, old, "out.to(out_ptr.dtype.element_ty))")
    allocated = run_case(Case(head_dim=40), subject, "gridsim", thorough=True)
    assert only(allocated, "bad write").message.startswith(
        "out of bounds write of out_ptr element 40 (past its end) by program"
    )
    given = run_case(Case(head_dim=40, out_layout="given"), subject, "gridsim", thorough=True)
    assert [(finding.kind, finding.detail) for finding in given.findings] == [
        ("bad write", "out"),
        ("wrote outside", "out"),
    ]


@pytest.mark.parametrize("name", ["out", "q", "k_cache", "block_tables", "kv_lens"])
def test_a_write_just_outside_a_tensor_is_seen(name: str) -> None:
    def writes(inputs: Any) -> Any:
        tensor = getattr(inputs, name)
        tensor.as_strided((1,), (1,), tensor.storage_offset() - 1).fill_(7)
        return right(inputs)

    finding = only(judged(GIVEN, writes), "wrote outside")
    expected = f"outside {name} (its fence, or between its strides), element -1 is 7 and was "
    assert finding.message.startswith(expected)


@pytest.mark.parametrize("case", [replace(RAGGED, out_layout="padded"), replace(RAGGED, q_layout="fused_qkv")])
def test_a_write_between_the_strides_is_seen(case: Case) -> None:
    def writes(inputs: Any) -> Any:
        tensor = inputs.q if inputs.out is None else inputs.out
        tensor.as_strided((1,), (1,), tensor.storage_offset() + tensor.stride(0) - 1).fill_(7)
        return right(inputs)

    assert only(judged(case, writes), "wrote outside").detail in ("q", "out")


def test_a_fence_that_two_tensors_share_is_reported_once() -> None:
    def writes(inputs: Any) -> Any:
        inputs.k_cache.as_strided((1,), (1,), inputs.k_cache.storage_offset() - 1).fill_(7)
        return right(inputs)

    assert only(judged(replace(RAGGED, layout="kv_stacked"), writes), "wrote outside").detail == "k_cache or v_cache"


@pytest.mark.parametrize("layout", ["nhd", "kv_stacked", "kv_interleaved"])
@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "block_tables", "kv_lens", "query_starts"])
def test_an_input_that_is_written_is_named_and_no_other(name: str, layout: Any) -> None:
    def writes(inputs: Any) -> Any:
        returned = right(inputs)
        getattr(inputs, name).fill_(3)
        return returned

    finding = only(judged(replace(RAGGED, layout=layout), writes), "inputs changed")
    assert finding.message.startswith(f"{name} is an input, but [0")
    assert "] is 3 and was " in finding.message


def test_a_write_to_a_dead_slot_far_away_is_seen() -> None:
    def writes(inputs: Any) -> Any:
        returned = right(inputs)
        inputs.v_cache[int(inputs.block_tables[1, 0]), 15, 0, 3] = 0
        return returned

    finding = only(judged(replace(RAGGED, placement="far"), writes), "inputs changed")
    assert re.fullmatch(r"v_cache is an input, but \[83886\d\d, 15, 0, 3\] is 0 and was nan", finding.message), finding


def test_an_input_turned_in_place_hides_nothing() -> None:
    def turns(inputs: Any) -> Any:
        returned = right(inputs)
        inputs.q.zero_().transpose_(0, 1)
        return returned

    assert only(judged(RAGGED, turns), "inputs changed").detail == "q"


def test_a_given_out_that_is_left_in_part_is_unwritten() -> None:
    def leaves(inputs: Any) -> Any:
        out, _ = attend(inputs)
        inputs.out[:, 0] = out[:, 0]

    unwritten, value = judged(GIVEN, leaves).findings
    assert (unwritten.kind, unwritten.message) == (
        "unwritten output",
        "32 of 64 elements of the given out were never written, first out[sequence 0, token 0, head 1, dim 0]",
    )
    assert (value.kind, value.where) == ("not finite", (0, 0, 1, 0))


def test_a_given_out_that_is_ignored_for_another_tensor_is_unwritten() -> None:
    first = judged(GIVEN, lambda inputs: attend(inputs)[0]).findings[0]
    assert (first.kind, first.message) == (
        "unwritten output",
        "64 of 64 elements of the given out were never written, first out[sequence 0, token 0, head 0, dim 0]",
    )


def test_an_allocated_output_that_nobody_writes_is_unwritten_and_not_finite() -> None:
    findings = judged(RAGGED, lambda inputs: torch.empty_like(inputs.q.contiguous())).findings
    unwritten, value = (finding for finding in findings if finding.kind in ("unwritten output", "not finite"))
    assert unwritten.message == (
        "64 of 64 elements of out were never written, first out[sequence 0, token 0, head 0, dim 0]"
    )
    assert "64 of 64 elements differ" in value.message


def test_of_an_allocated_output_the_rows_that_torch_leaves_are_not_finite_since_it_may_have_written_all() -> None:
    def leaves(inputs: Any) -> Any:
        out = torch.empty_like(inputs.q.contiguous())
        out[:, 0] = attend(inputs)[0][:, 0]
        return out

    assert only(judged(RAGGED, leaves), "not finite").where == (0, 0, 1, 0)


def test_an_allocated_output_that_torch_fills_is_written() -> None:
    assert judged(RAGGED, lambda inputs: torch.empty_like(inputs.q.contiguous()).copy_(right(inputs))).findings == ()


# --- values ------------------------------------------------------------------------------------------------------


def spoiled(name: str, at: tuple[int, ...], value: float) -> Callable[[Any], Any]:
    def run(inputs: Any) -> Any:
        made = dict(zip(("out", "lse"), attend(inputs), strict=True))
        made[name][at] += value
        return give(inputs, **made)

    return run


def test_a_wrong_element_is_told_with_got_expected_place_and_times_the_bound() -> None:
    finding = only(judged(RAGGED, spoiled("out", (1, 0, 5), 0.5)), "accuracy")
    assert finding.where == (1, 1, 0, 5)
    assert finding.message.startswith("out[sequence 1, token 1, head 0, dim 5] is ")
    got, truth = re.search(r"is (\S+), but should be (\S+) ±", finding.message).groups()
    assert float(got) - float(truth) == pytest.approx(0.5, abs=1e-5)
    assert finding.message.endswith("1 of 64 elements differ")
    assert finding.times_bound is not None
    assert finding.times_bound > 100
    assert finding.dominating in finding.message


def test_the_worst_of_several_wrong_elements_is_told() -> None:
    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        out[0, 0, 0] += 0.1
        out[1, 1, 7] += 0.5
        return give(inputs, out, lse)

    assert only(judged(RAGGED, run), "accuracy").where == (1, 1, 1, 7)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_output_that_is_not_finite_is_told_so(value: float) -> None:
    finding = only(judged(RAGGED, spoiled("out", (0, 1, 2), value)), "not finite")
    assert finding.message.startswith(f"out[sequence 0, token 0, head 1, dim 2] is {value}, but should be ")
    assert finding.times_bound is None


def test_a_finite_error_is_told_before_a_nan() -> None:
    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        out[0, 0, 0], out[1, 1, 7] = torch.nan, out[1, 1, 7] + 0.5
        return give(inputs, out, lse)

    assert only(judged(RAGGED, run), "accuracy").where == (1, 1, 1, 7)


@pytest.mark.parametrize(("value", "kind"), [(0.1, "accuracy"), (np.nan, "not finite"), (np.inf, "not finite")])
def test_a_wrong_lse_is_found_where_the_output_is_right(value: float, kind: str) -> None:
    finding = only(judged(WITH_LSE, spoiled("lse", (1, 0), value)), kind)
    assert finding.message.startswith("lse[sequence 1, token 1, head 0] is ")
    assert finding.message.endswith("1 of 4 elements differ")


@pytest.mark.parametrize(("value", "kind"), [(np.inf, "not finite"), (np.nan, "not finite"), (-1e30, "accuracy")])
def test_the_lse_of_an_empty_row_is_minus_infinity_and_nothing_else(value: float, kind: str) -> None:
    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        lse[0] = value
        return give(inputs, out, lse)

    finding = only(judged(replace(WITH_LSE, seqs=lens(0, 4)), run), kind)
    assert "but should be -inf" in finding.message


def test_an_lse_to_base_two_is_found() -> None:
    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        return give(inputs, out, lse / np.log(2))

    only(judged(WITH_LSE, run), "accuracy")


# --- operations that write, copy or merge ------------------------------------------------------------------------

WRITE = Case(
    op="cache_write",
    seqs=(Seq(query_len=3, kv_len=18), Seq(query_len=2, kv_len=2, tag=1)),
    num_kv_heads=2,
    num_q_heads=2,
    spare_blocks=1,
)
GATHER = Case(op="gather", seqs=lens(20, 3), num_kv_heads=2, num_q_heads=2, tile=Tile(start=5, end=24))
EMPTY_STATES = [{"row_poison": poison} for poison in ("inf", "huge", "random_bits")]
MERGE = Case(op="merge", num_q_heads=2, states=States(partition=(1, 2, 3), empty=(1,)), want_lse=True)


def of_operation(case: Case, run: Callable[[Any], Any]) -> Result:
    return run_case(case, torch_subject(run, op=case.op, kv_dtypes=("same", "e4m3", "e5m2")), "gridsim", thorough=True)


def writes(inputs: Any, slots: Any = None) -> None:
    """A right cache write in plain torch."""
    slots = inputs.slot_mapping if slots is None else slots
    size = inputs.k_cache.shape[1]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            inputs.k_cache[slot // size, slot % size] = inputs.k_new[row]
            inputs.v_cache[slot // size, slot % size] = inputs.v_new[row]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slots": Slots(order="shuffled", holes=2, tail_padding=2)},
        {"layout": "kv_interleaved"},
        {"layout": "padded", "v_layout": "hnd", "q_layout": "fused_qkv"},
        {"placement": "far", "table_dtype": "int64"},
    ],
)
def test_no_check_blames_a_right_write(changes: dict[str, Any]) -> None:
    case = replace(WRITE, **changes)
    for result in (of_operation(case, writes), run_case(case, subjects.from_function(ours.cache_write), "gridsim")):
        assert (result.declined, result.findings) == ("", ())


def test_a_token_in_the_wrong_slot_is_a_wrong_cache_told_at_both_places() -> None:
    def run(inputs: Any) -> None:
        slots = inputs.slot_mapping.clone()
        slots[0] = slots[0] - 5
        writes(inputs, slots)

    result = of_operation(WRITE, run)
    assert [(finding.kind, finding.detail) for finding in result.findings] == [
        ("wrong cache", "k_cache"),
        ("wrong cache", "v_cache"),
    ]
    assert result.findings[0].message.startswith("k_cache [0, 10, 0, 0] is ")
    assert result.findings[0].message.endswith("; 64 elements differ")
    assert result.findings[0].family == "wrong write"


def test_a_missing_token_is_a_wrong_cache_that_still_holds_poison() -> None:
    def run(inputs: Any) -> None:
        slots = inputs.slot_mapping.clone()
        slots[2] = -1
        writes(inputs, slots)

    finding = of_operation(WRITE, run).findings[0]
    assert finding.kind == "wrong cache"
    assert finding.message.startswith("k_cache [1, 1, 0, 0] is nan, but should be ")
    assert finding.message.endswith("; 32 elements differ")


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_one_foreign_cell_that_changes_is_a_wrong_cache(name: str) -> None:
    def run(inputs: Any) -> None:
        writes(inputs)
        getattr(inputs, name)[3, 7, 1, 2] = 5.0

    finding = only(of_operation(WRITE, run), "wrong cache")
    assert finding.detail == name
    assert finding.message == f"{name} [3, 7, 1, 2] is 5, but should be nan"


def test_a_skipped_token_that_is_written_is_a_wrong_cache() -> None:
    def run(inputs: Any) -> None:
        writes(inputs)
        inputs.k_cache[-1, -1] = inputs.k_new[-1]

    case = replace(WRITE, slots=Slots(tail_padding=1))
    assert only(of_operation(case, run), "wrong cache").detail == "k_cache"


def test_a_step_that_forgets_to_write_has_a_wrong_cache_though_it_is_not_the_output_that_tells() -> None:
    def attends_only(inputs: Any) -> Any:
        kept = inputs.k_cache.clone(), inputs.v_cache.clone()
        out = ours.step(inputs)
        for cache, before in zip((inputs.k_cache, inputs.v_cache), kept, strict=True):
            cache.copy_(before)
        return out

    result = of_operation(replace(WRITE, op="step"), attends_only)
    assert {finding.kind for finding in result.findings} == {"wrong cache"}


def tiles(inputs: Any) -> torch.Tensor:
    """A right gather in plain torch."""
    at, size = torch.arange(inputs.tile_start, inputs.tile_end), inputs.k_cache.shape[1]
    out = torch.zeros(len(inputs.kv_lens), len(at), *inputs.k_cache.shape[2:], dtype=inputs.k_cache.dtype)
    for row, kv_len in enumerate(inputs.kv_lens.tolist()):
        seen = at[at < kv_len]
        blocks = inputs.block_tables[row, seen // size].long()
        out[row, : len(seen)] = inputs.k_cache[blocks, seen % size]
    return out


@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"tile": Tile(start=4, end=4)}, {"placement": "far"}])
def test_no_check_blames_a_right_gather(changes: dict[str, Any]) -> None:
    case = replace(GATHER, **changes)
    for result in (of_operation(case, tiles), run_case(case, subjects.from_function(ours.gather), "gridsim")):
        assert (result.declined, result.findings) == ("", ())


def test_a_row_behind_the_last_token_that_is_not_zero_is_told_with_its_place() -> None:
    def run(inputs: Any) -> Any:
        out = tiles(inputs)
        out[0, 17, 1, 3] = 1e-30
        return out

    finding = only(of_operation(GATHER, run), "accuracy")
    assert finding.where == (0, 17, 1, 3)
    assert finding.message.startswith("out[sequence 0, row 17, head 1, dim 3] is 1e-30, but should be 0; 1 of ")


def test_a_gather_is_compared_bit_by_bit_so_minus_zero_is_not_zero() -> None:
    def run(inputs: Any) -> Any:
        out = tiles(inputs)
        out[1, -1, 0, 0] = -0.0
        return out

    finding = only(of_operation(GATHER, run), "accuracy")
    assert "is -0, but should be 0; 1 of 1216 elements differ" in finding.message


def test_rows_lost_at_a_block_boundary_are_found() -> None:
    def run(inputs: Any) -> Any:
        out = tiles(inputs)
        out[:, 11:15] = 0
        return out

    assert only(of_operation(GATHER, run), "accuracy").where == (0, 11, 0, 0)


def merges(inputs: Any, base: float = np.e) -> Any:
    """A right merge in plain torch, where the base is that of the natural logarithm."""
    outs, lses = inputs.state_outs.double(), inputs.state_lses.double() * np.log(base)
    lse = torch.logsumexp(lses, dim=0)
    weights = torch.exp(lses - torch.where(lse.isfinite(), lse, 0.0))[..., None]
    out = torch.where(weights > 0, weights * outs, 0.0).sum(dim=0)
    return out.to(inputs.state_outs.dtype), (lse / np.log(base)).float()


@pytest.mark.parametrize("changes", [{}, {"states": States(empty=(0, 1))}, {"dtype": "float16"}, *EMPTY_STATES])
def test_no_check_blames_a_right_merge(changes: dict[str, Any]) -> None:
    case = replace(MERGE, **changes)
    for result in (of_operation(case, merges), run_case(case, subjects.from_function(ours.merge), "gridsim")):
        assert (result.declined, result.findings) == ("", ())


def test_a_merge_in_the_wrong_base_is_inaccurate() -> None:
    result = of_operation(MERGE, lambda inputs: merges(inputs, 2.0))
    assert {finding.kind for finding in result.findings} == {"accuracy"}


def test_a_merge_that_reads_an_empty_state_is_not_finite() -> None:
    def run(inputs: Any) -> Any:
        out, lse = merges(inputs)
        return out + 0 * inputs.state_outs[1], lse

    assert "not finite" in {finding.kind for finding in of_operation(MERGE, run).findings}


def test_a_merge_that_counts_an_empty_state_is_found_with_finite_poison_as_well() -> None:
    def run(inputs: Any) -> Any:
        out, lse = merges(inputs)
        return out + 1e-30 * inputs.state_outs[1], lse

    finite = replace(MERGE, k_poison="huge", v_poison="huge", spare_poison="huge", row_poison="huge")
    declared = subjects.declare(op="merge", lse=True, finite_dead_slots=True)
    result = run_case(finite, subjects.Subject("tests.merges", declared, run), "gridsim", thorough=True)
    assert "accuracy" in {finding.kind for finding in result.findings}


# --- dense new tokens --------------------------------------------------------------------------------------------

DENSE = Case(op="extend", new_kv="dense", seqs=(Seq(query_len=3, kv_len=8), Seq(query_len=2, kv_len=2, tag=1)))


def extending(run: Callable[[Any], Any]) -> Result:
    return run_case(DENSE, subjects.Subject("tests.extending", ours.extend.__kvetch__, run), "gridsim", thorough=True)


def test_a_call_that_puts_dense_new_tokens_into_the_cache_is_found() -> None:
    def writes(inputs: Any) -> Any:
        inputs.k_cache[0, 5] = inputs.k_new[0]  # where an appending call would have put it
        return ours.extend(inputs)

    finding = only(extending(writes), "inputs changed")
    assert finding.message.startswith("k_cache is an input, but [0, 5, 0, 0] is ")
    assert extending(ours.extend).findings == ()


def test_a_call_that_looks_for_dense_new_tokens_in_the_cache_is_found_and_accused_of_the_read() -> None:
    findings = {finding.kind: finding for finding in extending(ours._attend).findings}
    accused = "dead read of block_tables [1, 0] (past the end of row 1) by program [0, 0, 1] at tile.py:"
    assert findings["not finite"].accuses.startswith(accused)
