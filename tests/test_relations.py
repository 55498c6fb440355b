"""Each relation fires on a subject that looks at what it should not, and is silent on one that does not."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from attending import RAGGED, attend, give, lens, nudged, right, torch_subject

from harness import relations
from harness.case import Case, replace
from harness.executors import Failure, Observed
from harness.inputs import materialise
from harness.pipeline import run_case
from harness.results import Finding
from harness.subjects import declines

LAST_OF_SECOND = 7  # RAGGED's second sequence has 7 tokens: slot 7 of its block is dead


def nudged_if(looks: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Right, but one representable number off where `looks` says so: no bound shows that, only moved bits do."""

    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        return give(inputs, nudged(out) if looks(inputs) else out, lse)

    return run


def found(run: Callable[[Any], Any], case: Case = RAGGED, **declared: Any) -> tuple[Finding, ...]:
    result = run_case(case, torch_subject(run, **declared), "gridsim", thorough=True)
    assert (result.declined, result.harness_fault) == ("", "")
    return result.findings


def dead_slot(inputs: Any, cache: str) -> torch.Tensor:
    return getattr(inputs, cache)[int(inputs.block_tables[1, 0]), LAST_OF_SECOND]


def spare_block(inputs: Any) -> torch.Tensor:
    return inputs.k_cache[len(inputs.k_cache) - 1]


LOOKS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "re-poisoned K": (
        lambda inputs: bool(dead_slot(inputs, "k_cache").isnan().any()),
        "K of slots that hold no token was changed",
        "the mask of the K load",
    ),
    "re-poisoned V": (
        lambda inputs: bool(dead_slot(inputs, "v_cache").isnan().any()),
        "V of slots that hold no token was changed",
        "the mask of the V load",
    ),
    "re-poisoned spare blocks": (
        lambda inputs: bool(spare_block(inputs).isnan().any()),
        "blocks that no sequence owns were changed",
        "the block table's lookup",
    ),
    "re-poisoned table padding": (
        lambda inputs: int(inputs.block_tables[1, -1]) < 0,
        "table entries that are not in use were changed",
        "the bound of the loop over blocks",
    ),
}


@pytest.mark.parametrize(("looks", "says", "accuses"), LOOKS.values(), ids=LOOKS)
def test_a_subject_that_looks_at_dead_data_is_found_and_the_culprit_named(
    looks: Callable[[Any], bool], says: str, accuses: str
) -> None:
    (finding,) = found(nudged_if(looks))
    assert (finding.kind, finding.detail, finding.accuses) == ("determinism", "dead data read", accuses)
    assert finding.message == f"64 of 64 elements of the output moved when {says}"


@pytest.mark.parametrize(("wrong", "kind"), [(False, "determinism"), (True, "dead data read")])
def test_what_moves_within_the_bound_is_no_wrong_number(wrong: bool, kind: str) -> None:
    def looks(inputs: Any) -> Any:
        out, lse = attend(inputs)
        if dead_slot(inputs, "k_cache").isnan().any():
            return give(inputs, nudged(out), lse)
        return give(inputs, out + 1.0 if wrong else out, lse)

    kinds = {finding.kind: finding.family for finding in found(looks)}
    assert kinds == {kind: "wrong output" if wrong else "determinism dead data read"}


def test_a_subject_that_looks_at_the_rows_of_a_graphs_padding_is_found_and_the_culprit_named() -> None:
    def looks(inputs: Any) -> Any:
        out, lse = attend(inputs)
        if inputs.q[-1].isnan().any():
            out[:-1] = nudged(out[:-1])
        return give(inputs, out, lse)

    (finding,) = found(looks, replace(RAGGED, padding_rows=1), padding_rows=True)
    assert (finding.kind, finding.detail, finding.accuses) == (
        "determinism",
        "dead data read",
        "a padding row that is computed with",
    )
    assert finding.message.endswith(
        "moved when rows that are nobody's were changed (of q, K and V, or of an empty state)"
    )
    assert found(right, replace(RAGGED, padding_rows=1), padding_rows=True) == ()


def test_rows_that_are_nobodys_are_changed_only_where_a_case_can_have_some() -> None:
    (rows,) = (relation for relation in relations.DEAD if relation.name == "re-poisoned rows")
    assert rows.transform(RAGGED, lambda _: True) is None
    assert rows.transform(replace(RAGGED, padding_rows=1), lambda _: True) is not None
    assert rows.transform(Case(op="extend", new_kv="dense"), lambda _: True) is not None


def test_what_only_all_changes_together_move_is_still_found() -> None:
    def looks(inputs: Any) -> bool:
        return bool(dead_slot(inputs, "k_cache").isnan().any() or dead_slot(inputs, "v_cache").isnan().any())

    (finding,) = found(nudged_if(looks))
    assert (finding.kind, finding.detail, finding.accuses) == (
        "determinism",
        "dead data read",
        "a mask or the bound of a loop",
    )


def test_a_subject_that_looks_at_block_ids_is_found() -> None:
    (finding,) = found(nudged_if(lambda inputs: int(inputs.block_tables[0, 0]) == 0))
    assert (finding.kind, finding.detail) == ("determinism", "block order")
    assert finding.message.endswith("moved when the same tokens were put into other physical blocks")


def test_a_subject_that_raises_on_other_blocks_is_found() -> None:
    def run(inputs: Any) -> Any:
        if int(inputs.block_tables[0, 0]) > 0:
            raise RuntimeError("blocks should be in order")
        return right(inputs)

    (finding,) = found(run)
    assert finding.kind == "block order"
    assert finding.message.endswith("the call raised RuntimeError: blocks should be in order")


def test_a_subject_that_differs_from_call_to_call_is_not_repeatable_and_nothing_else() -> None:
    calls = count()
    (finding,) = found(nudged_if(lambda _: next(calls) % 2 == 0))
    assert (finding.kind, finding.detail, finding.accuses) == ("determinism", "not repeatable", "a race")
    calls = count()
    (finding,) = found(nudged_if(lambda _: next(calls) == 0))
    assert (finding.kind, finding.detail) == ("determinism", "not repeatable")
    assert finding.accuses.startswith("the first call alone is another: what the subject keeps from one call for the ")


@triton.jit
def add_up(numbers, total, PLAIN: tl.constexpr):
    program = tl.program_id(0)
    number = tl.load(numbers + program)
    if PLAIN:
        tl.store(total + program, number)
    else:
        tl.atomic_add(total, number)


def summing(plain: bool) -> Any:
    """Programs of a grid add up, each for itself or all in one place, where the order of large numbers tells."""

    def run(inputs: Any) -> Any:
        total = torch.zeros(4)
        add_up[(4,)](torch.tensor([1e8, 1.0, -1e8, 1.0]), total, PLAIN=plain)
        out, lse = attend(inputs)
        return give(inputs, out if plain or total[0] == 1.0 else nudged(out), lse)

    return run


def test_a_sum_in_the_order_in_which_programs_happen_to_run_is_not_repeatable() -> None:
    (finding,) = found(summing(plain=False))
    assert (finding.kind, finding.detail, finding.accuses) == ("determinism", "not repeatable", "a race")
    says = "of the output moved when the call was repeated with the programs in another order"
    assert finding.message.endswith(says)
    assert found(summing(plain=True)) == ()


def test_a_sign_of_zero_that_moves_is_a_moved_bit() -> None:
    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        out[0] = -0.0 if dead_slot(inputs, "k_cache").isnan().any() else 0.0
        return give(inputs, out, lse)

    (finding,) = found(run, replace(RAGGED, seqs=lens(0, LAST_OF_SECOND)))
    assert finding.message == "32 of 64 elements of the output moved when K of slots that hold no token was changed"


def test_an_lse_that_moves_is_seen_where_the_output_stays() -> None:
    def run(inputs: Any) -> Any:
        out, lse = attend(inputs)
        return give(inputs, out, nudged(lse) if dead_slot(inputs, "v_cache").isnan().any() else lse)

    (finding,) = found(run, replace(RAGGED, want_lse=True))
    assert finding.message.startswith("4 of 68 elements of the output moved when V of slots")


def test_a_subject_that_keeps_its_output_buffer_hides_nothing() -> None:
    kept: dict[torch.Size, torch.Tensor] = {}

    def run(inputs: Any) -> Any:
        out = nudged_if(lambda inputs: bool(dead_slot(inputs, "v_cache").isnan().any()))(inputs)
        return kept.setdefault(out.shape, out.clone()).copy_(out)

    (finding,) = found(run)
    assert finding.accuses == "the mask of the V load"


# --- what a subject declares is respected ------------------------------------------------------------------------


def weights_times_dead(inputs: Any) -> Any:
    """Right where dead slots are finite: it multiplies all of each block's V by weights that are 0 behind the end."""
    out, lse = attend(inputs)
    for i, kv_len in enumerate(inputs.kv_lens.tolist()):
        size = inputs.k_cache.shape[1]
        for block in inputs.block_tables[i, : -(-kv_len // size)].tolist():
            out[i] += (inputs.v_cache[block, kv_len % size or size :] * 0.0).sum()
    return give(inputs, out, lse)


HUGE = replace(RAGGED, k_poison="huge", v_poison="huge", spare_poison="huge")


def test_a_subject_that_needs_finite_dead_slots_is_not_given_nan() -> None:
    assert found(weights_times_dead, HUGE, finite_dead_slots=True) == ()
    kinds = {finding.kind for finding in found(weights_times_dead, HUGE)}
    assert kinds == {"dead data read"}


def test_a_subject_that_needs_finite_dead_slots_may_still_not_read_them() -> None:
    def looks(inputs: Any) -> bool:
        return bool((dead_slot(inputs, "v_cache") > 1e30).any())

    (finding,) = found(nudged_if(looks), HUGE, finite_dead_slots=True)
    assert finding.accuses == "the mask of the V load"


def test_a_subject_that_needs_a_padded_table_is_given_no_other_padding() -> None:
    def run(inputs: Any) -> Any:
        assert int(inputs.block_tables.min()) >= 0
        return right(inputs)

    for pad in ("zero", "other"):
        assert found(run, replace(RAGGED, table_pad=pad), padded_table=True) == ()


@pytest.mark.parametrize("placements", [("in_order",), ("in_order", "shuffled"), ("reversed",), ("far",)])
def test_blocks_are_renumbered_only_as_declared(placements: tuple[str, ...]) -> None:
    calls = []

    def run(inputs: Any) -> Any:
        calls.append(inputs.block_tables.tolist())
        return right(inputs)

    assert (
        found(run, replace(RAGGED, placement=placements[0], spare_blocks=3, geometry_seed=3), placements=placements)
        == ()
    )
    assert (len({str(table[0][:2]) for table in calls}) > 1) == (placements != ("in_order",))


def test_a_subject_that_does_not_promise_determinism_is_held_to_the_bound() -> None:
    calls = count()
    assert found(nudged_if(lambda _: next(calls) % 2 == 0), deterministic=False) == ()

    def leaks(inputs: Any) -> Any:
        out, lse = attend(inputs)
        return give(inputs, out + (0.0 if dead_slot(inputs, "v_cache").isnan().any() else 1.0), lse)

    (finding,) = found(leaks, deterministic=False)
    assert finding.accuses == "the mask of the V load"


# --- what torch reads before a kernel runs -----------------------------------------------------------------------


@triton.jit
def copy_kernel(out, source, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE), tl.load(source + tl.arange(0, SIZE)))


def launching(looks: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Like `nudged_if`, with the result handed over by a kernel."""

    def run(inputs: Any) -> Any:
        made = nudged_if(looks)(inputs)
        out = torch.empty_like(made)
        copy_kernel[(1,)](out, made, made.numel())
        return out

    return run


@pytest.mark.parametrize(("looks", "says", "accuses"), LOOKS.values(), ids=LOOKS)
def test_dead_data_that_torch_reads_beside_a_kernel_is_found(
    looks: Callable[[Any], bool], says: str, accuses: str
) -> None:
    (finding,) = found(launching(looks))
    assert (finding.kind, finding.detail, finding.accuses) == ("determinism", "dead data read", accuses)
    assert found(launching(lambda _: False)) == ()


# --- the changes themselves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", [*relations.DEAD, relations.RENUMBER], ids=lambda relation: relation.name)
@pytest.mark.parametrize("table_pad", ["minus_one", "zero", "huge", "other"])
@pytest.mark.parametrize("poison", ["nan", "inf", "huge", "zero", "random_bits"])
def test_a_change_leaves_all_that_lives_as_it_was(relation: relations.Relation, table_pad: Any, poison: Any) -> None:
    poisons = dict.fromkeys(("k_poison", "v_poison", "spare_poison", "row_poison"), poison)
    case = replace(RAGGED, table_pad=table_pad, padding_rows=1, **poisons)
    changed = relation.transform(case, lambda _: True)
    assert changed is not None
    assert changed != case
    before, after = materialise(case), materialise(changed)
    for i, seq in enumerate(case.seqs):
        for name in ("k_cache", "v_cache"):
            old, new = (
                getattr(made.inputs, name).view[made.geometry.tables[i]].reshape(-1, 16)[: seq.kv_len]
                for made in (before, after)
            )
            assert old.tobytes() == new.tobytes()
        assert before.inputs.q.view[i].tobytes() == after.inputs.q.view[i].tobytes()


def test_a_second_call_without_a_verdict_accuses_nobody() -> None:
    first = Observed(out=np.zeros((1, 1, 1)))
    lacks = Observed(failure=Failure("Unsupported", "gridsim lacks it", "", unsupported=True))
    assert list(relations.compare(relations.RENUMBER, first, lacks)) == []
    raised = Observed(failure=Failure("KeyError", "3", "k.py:1"))
    assert len(list(relations.compare(relations.RENUMBER, first, raised))) == 1


def test_a_change_that_the_subject_declares_away_is_not_made() -> None:
    declared = torch_subject(right, placements=("in_order",)).declaration
    assert relations.RENUMBER.transform(RAGGED, lambda case: declines(declared, case) is None) is None
    assert relations.all_dead(RAGGED, lambda _: False) == RAGGED
