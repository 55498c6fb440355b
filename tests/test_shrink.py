"""Shrinking ends at the obvious minimum and never leaves the cases that fail."""

import random
from collections.abc import Callable

import pytest
from attending import lens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.case import FAR, Case, Seq, Slots, States, replace
from harness.profiles import Profile
from harness.shrink import PASSES, shrink, size
from harness.strategies import cases
from harness.traits import TRAITS

LARGE = Case(
    seqs=(Seq(kv_len=100, tag=9), Seq(kv_len=70, tag=3, shares_prefix_with=9, shared_blocks=2), Seq(kv_len=0, tag=5)),
    num_q_heads=12,
    num_kv_heads=4,
    head_dim=96,
    block_size=24,
    dtype="bfloat16",
    window=(65, 1),
    softcap=30.0,
    alibi=True,
    sinks=True,
    want_lse=True,
    scale=0.25,
    placement="far",
    table_pad="other",
    table_dtype="int64",
    extra_columns=2,
    spare_blocks=3,
    max_len_slack=100,
    layout="padded",
    v_layout="hnd",
    q_layout="fused_qkv",
    out_layout="padded",
    values="ties",
    k_poison="inf",
    v_poison="random_bits",
    spare_poison="huge",
    geometry_seed=77,
    data_seed=4242,
)

DENSE = replace(
    LARGE, op="extend", new_kv="dense", padding_rows=3, row_poison="huge",
    seqs=(
        Seq(query_len=17, kv_len=99, tag=9),
        Seq(query_len=3, kv_len=70, tag=3, shares_prefix_with=9, shared_blocks=2),
    ),
)  # fmt: skip

Fails = Callable[[Case], bool]

MINIMA: dict[str, tuple[Fails, Case]] = {
    "always": (lambda case: True, Case()),
    "two sequences": (lambda case: len(case.seqs) >= 2, Case(seqs=lens(1, 1))),
    "a long sequence": (lambda case: max(seq.kv_len for seq in case.seqs) > 40, Case(seqs=lens(41))),
    "two blocks": (lambda case: any(case.blocks_of(seq) > 1 for seq in case.seqs), Case(seqs=lens(17))),
    "groups": (lambda case: case.group > 1, Case(num_q_heads=2)),
    "several KV heads": (lambda case: case.num_kv_heads > 1, Case(num_q_heads=2, num_kv_heads=2)),
    "groups of several KV heads": (
        lambda case: case.group > 1 and case.num_kv_heads > 1,
        Case(num_q_heads=4, num_kv_heads=2),
    ),
    "a wide head": (lambda case: case.head_dim > 64, Case(head_dim=72)),
    "an odd block": (lambda case: case.block_size % 16 == 8 and case.block_size > 16, Case(block_size=24)),
    "bfloat16": (lambda case: case.dtype == "bfloat16", Case(dtype="bfloat16")),
    "far with int64": (
        lambda case: case.placement == "far" and case.table_dtype == "int64",
        Case(placement="far", table_dtype="int64"),
    ),
    "unlike strides": (lambda case: case.kv_layouts[0] != case.kv_layouts[1], Case(v_layout="hnd")),
    "sinks": (lambda case: case.sinks, Case(sinks=True)),
    "a poison": (lambda case: case.v_poison != "nan", Case(v_poison="random_bits")),
    "a sequence that needs data of its own": (lambda case: case.data_seed % 3 == 1, Case(data_seed=1)),
}


@pytest.mark.parametrize(("fails", "least"), MINIMA.values(), ids=MINIMA)
def test_the_obvious_minimum_is_reached(fails: Fails, least: Case) -> None:
    start = LARGE if fails(LARGE) else replace(LARGE, data_seed=4243)
    assert fails(start)
    assert shrink(start, fails) == least


def test_shared_blocks_stay_where_the_fault_needs_them() -> None:
    least = shrink(LARGE, lambda case: any(seq.shared_blocks for seq in case.seqs))
    owner, sharer = least.seqs
    assert sharer.shares_prefix_with == owner.tag
    assert (least.num_q_heads, least.head_dim, least.dtype, least.placement) == (1, 16, "float32", "in_order")


def test_lengths_shrink_where_the_fault_needs_shared_blocks() -> None:
    owner, sharer = Seq(kv_len=10), Seq(kv_len=75, tag=1, shares_prefix_with=0, shared_blocks=8)
    shared = Case(seqs=(owner, sharer), block_size=1)
    least = shrink(shared, lambda case: any(0 < seq.shared_blocks < seq.kv_len for seq in case.seqs))
    assert [(seq.kv_len, seq.shared_blocks) for seq in least.seqs] == [(1, 0), (2, 1)]


def test_an_empty_row_stays_where_the_fault_needs_it() -> None:
    assert shrink(LARGE, lambda case: any(seq.kv_len == 0 for seq in case.seqs)) == Case(seqs=lens(0))


def test_of_more_queries_than_tokens_two_of_one_stay() -> None:
    case = replace(LARGE, op="extend", seqs=(Seq(query_len=40, kv_len=37), Seq(kv_len=30, tag=3)))
    least = shrink(case, lambda case: any(0 < seq.kv_len < seq.query_len for seq in case.seqs))
    assert least == Case(op="extend", seqs=(Seq(query_len=2, kv_len=1),))


def test_a_maximum_that_is_larger_than_a_length_needs_no_second_sequence() -> None:
    case = Case(op="extend", seqs=(Seq(query_len=3, kv_len=9), Seq(query_len=9, kv_len=9, tag=1)))

    def fails(case: Case) -> bool:
        return case.max_len_slack > 0 or len({seq.query_len for seq in case.seqs}) > 1

    assert shrink(case, fails) == Case(op="extend", max_len_slack=1)


def test_a_call_before_it_shrinks_as_well() -> None:
    case = replace(LARGE, before=replace(LARGE, data_seed=9))
    least = shrink(case, lambda case: case.before is not None and case.before.num_q_heads > 1)
    assert least == Case(before=Case(num_q_heads=2))


def test_of_skipped_slots_one_stays() -> None:
    case = Case(op="cache_write", seqs=(Seq(query_len=20, kv_len=20),), slots=Slots(holes=2, tail_padding=3))
    least = shrink(case, lambda case: case.slots.holes + case.slots.tail_padding > 0)
    assert (least.slots.holes, least.slots.tail_padding) in ((0, 1), (1, 0))


def test_blocks_come_nearer_where_that_is_enough_and_stay_farther_where_it_is_not() -> None:
    farther = replace(LARGE, placement="farther")
    assert shrink(farther, lambda case: case.placement in FAR) == Case(placement="far")
    assert shrink(farther, lambda case: case.placement == "farther") == Case(placement="farther")


def test_rows_that_are_needed_become_those_of_one_sequence() -> None:
    seqs = tuple(Seq(query_len=1, kv_len=9, tag=tag) for tag in range(3))
    case = Case(op="extend", seqs=seqs)
    assert shrink(case, lambda case: case.tokens >= 3) == Case(op="extend", seqs=(Seq(query_len=3, kv_len=3),))


def strides_of_v_are_others(case: Case) -> bool:
    tokens = max(seq.kv_len for seq in case.seqs)
    return case.value_dim != case.head_dim or (case.kv_layouts[0] != case.kv_layouts[1] and tokens > 1)


def test_a_fault_of_strides_that_a_v_of_another_dim_shows_ends_with_one_of_the_same() -> None:
    found = shrink(Case(seqs=lens(32), head_dim=64, head_dim_v=16, block_size=32), strides_of_v_are_others)
    assert (found.head_dim, found.head_dim_v, found.v_layout) == (16, None, "padded")
    assert [seq.kv_len for seq in found.seqs] == [2]


def test_a_v_of_another_dim_stays_where_the_fault_needs_it() -> None:
    found = shrink(Case(seqs=lens(32), head_dim=64, head_dim_v=16), lambda case: case.value_dim != case.head_dim)
    assert found.value_dim != found.head_dim


def test_the_tokens_of_a_state_become_one() -> None:
    case = Case(op="merge", seqs=lens(1), states=States(partition=(2,), empty=(0,)))
    assert shrink(case, lambda case: 0 in case.states.empty).states == States(partition=(1,), empty=(0,))


def test_of_two_layouts_that_differ_one_stays() -> None:
    case = replace(LARGE, layout="padded", v_layout="nhd")
    assert shrink(case, lambda case: "padded" in case.kv_layouts and "nhd" in case.kv_layouts) == Case(
        v_layout="padded"
    )


def failing_by(salt: int, share: float) -> Fails:
    """A predicate without rhyme or reason, the same for the same case."""
    return lambda case: random.Random(f"{salt} {case}").random() < share


@given(cases(Profile()), st.integers(0, 99), st.sampled_from((0.05, 0.5, 0.95)))
@settings(max_examples=50, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_every_step_still_fails_and_is_smaller(case: Case, salt: int, share: float) -> None:
    fails, accepted = failing_by(salt, share), [case]

    def seen(candidate: Case) -> bool:
        assert size(candidate) < size(accepted[-1])
        if fails(candidate):
            accepted.append(candidate)
        return fails(candidate)

    least = shrink(case, seen)
    assert least == accepted[-1]
    assert least == case or fails(least)


@given(cases(Profile()))
@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_every_candidate_is_a_legal_case(case: Case) -> None:
    for candidates in PASSES:
        for candidate in candidates(case):
            assert replace(candidate) == candidate  # `replace` checks again


@given(cases(Profile()))
@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_any_drawn_case_that_always_fails_ends_as_the_plainest(case: Case) -> None:
    assert shrink(case, lambda _: True) in (Case(), Case(seqs=lens(0)))


def test_where_nothing_smaller_fails_the_case_stays() -> None:
    assert shrink(LARGE, lambda case: case == LARGE) == LARGE


def test_a_predicate_may_stop_the_shrinking() -> None:
    class Stop(Exception):
        pass

    shown: list[Case] = []

    def fails(case: Case) -> bool:
        shown.append(case)
        if len(shown) == 5:
            raise Stop
        return True

    with pytest.raises(Stop):
        shrink(LARGE, fails)
    assert size(shown[-2]) < size(LARGE)


def test_a_case_with_fewer_traits_is_smaller_all_else_equal() -> None:
    for trait in TRAITS:
        if trait.rung == 6 and trait.has(LARGE):
            assert size(trait.without(LARGE)) < size(LARGE)


@pytest.mark.parametrize(
    ("fails", "least"),
    [
        (lambda case: case.new_kv == "dense", Case(op="extend", new_kv="dense")),
        (
            lambda case: case.new_kv == "dense" and any(case.paged_len(seq) for seq in case.seqs),
            Case(op="extend", new_kv="dense", seqs=(Seq(kv_len=2),)),
        ),
        (
            lambda case: any(seq.query_len > 15 for seq in case.seqs),
            Case(op="extend", seqs=(Seq(query_len=16, kv_len=16),)),
        ),
        (lambda case: case.padding_rows > 0, Case(op="extend", padding_rows=1)),
        (lambda case: case.padding_rows > 1, Case(op="extend", padding_rows=2)),
        (
            lambda case: case.padding_rows > 0 or any(seq.kv_len == 0 for seq in case.seqs),
            Case(op="extend", seqs=(Seq(kv_len=0),)),
        ),
    ],
)
def test_dense_new_tokens_and_padding_rows_shrink_to_what_the_fault_needs(fails: Fails, least: Case) -> None:
    assert shrink(DENSE, fails) == least


def test_a_padding_row_whose_slot_is_written_shrinks_to_a_skipped_token() -> None:
    case = replace(LARGE, op="step", padding_rows=2, seqs=(Seq(query_len=3, kv_len=70),))
    least = shrink(case, lambda case: case.padding_rows + case.slots.tail_padding > 0)
    assert least == Case(op="step", slots=Slots(tail_padding=1))
