"""Profiles: what a declaration and a rung leave to be drawn, simplest first."""

import itertools

import pytest

from harness.campaign import LADDER
from harness.case import Op
from harness.ours import cache_write, decode, extend, gather, merge, split_decode, step
from harness.profiles import FEATURES, POOL, SCORED, USELESS, Profile, not_drawn, profile, useful, whole_profile
from harness.subjects import declare

OURS = {
    "decode": decode, "split_decode": split_decode, "extend": extend, "step": step, "cache_write": cache_write,
    "gather": gather, "merge": merge,
}  # fmt: skip
every_subject = pytest.mark.parametrize("name", OURS)


@every_subject
def test_the_lowest_rung_draws_only_the_simplest(name: str) -> None:
    low = profile(OURS[name].__kvetch__, 1, rungs=1)
    assert (low.op, low.features, low.kv_dtypes, low.splits) == (OURS[name].__kvetch__.op, (), ("same",), False)
    assert (low.placements, low.layouts, low.dtypes) == (("in_order",), ("nhd",), ("float32",))
    assert not any((low.ragged, low.empty_rows, low.partial_blocks, low.shared_blocks, low.spare))
    assert {(c.head_dim, c.block_size, c.kv_dtype) for c in low.constants} == {(16, 16, "same")}


@every_subject
def test_a_higher_rung_never_draws_less(name: str) -> None:
    rungs = [profile(OURS[name].__kvetch__, 1, rungs=rungs) for rungs in range(1, 7)]
    for lower, higher in itertools.pairwise(rungs):
        for field in ("placements", "dtypes", "layouts", "head_dims", "block_sizes", "features", "kv_dtypes", "heads"):
            assert set(getattr(lower, field)) <= set(getattr(higher, field)), field


@every_subject
def test_a_pool_of_constants_begins_with_the_plainest_and_changes_with_the_seed(name: str) -> None:
    one, again, other = (profile(OURS[name].__kvetch__, seed) for seed in (1, 1, 2))
    assert one == again
    assert one.constants != other.constants
    assert 1 < len(one.constants) <= POOL
    first = one.constants[0]
    assert (first.head_dim, first.block_size, first.dtype, first.kv_dtype, first.features) == (
        16, 16, "float32", "same", ()
    )  # fmt: skip


@every_subject
@pytest.mark.parametrize("seed", range(20))
def test_every_pool_of_the_highest_rung_has_each_option_that_is_few(name: str, seed: int) -> None:
    whole = whole_profile(OURS[name].__kvetch__)
    pool = profile(OURS[name].__kvetch__, seed).constants
    assert {feature for combination in pool for feature in combination.features} == set(whole.features)
    assert {combination.dtype for combination in pool} == set(whole.dtypes)
    assert {combination.kv_dtype for combination in pool} == set(whole.kv_dtypes)
    assert {combination.new_kv for combination in pool} == set(whole.new_kv)
    assert {combination.config for combination in pool} == set(range(whole.configs))


@every_subject
def test_features_come_alone_as_well_as_together(name: str) -> None:
    known = len(whole_profile(OURS[name].__kvetch__).features)
    pools = [profile(OURS[name].__kvetch__, seed).constants for seed in range(20)]
    counts = {len(combination.features) for pool in pools for combination in pool}
    assert {0, min(known, 1), min(known, 2), (known + 1) // 2} <= counts


def test_any_two_features_meet_in_a_quarter_of_all_pools() -> None:
    pools = [profile(split_decode.__kvetch__, seed).constants for seed in range(200)]
    for two in itertools.combinations(whole_profile(split_decode.__kvetch__).features, 2):
        assert sum(any(set(two) <= set(c.features) for c in pool) for pool in pools) > len(pools) / 4, two


def test_any_two_features_of_a_score_meet_in_one_of_three_pools() -> None:
    pools = [profile(decode.__kvetch__, number).constants for number in range(30)]
    for pair in itertools.combinations(SCORED, 2):
        assert sum(any(set(pair) <= set(one.features) for one in pool) for pool in pools) >= 10, pair


@pytest.mark.parametrize("op", ["decode", "extend", "step", "cache_write", "gather", "merge"])
def test_an_operation_draws_the_features_that_it_has_a_use_for(op: Op) -> None:
    everything = whole_profile(declare(op=op, **dict.fromkeys(FEATURES, True)))
    assert everything.features == useful(op)
    assert set(useful(op)) == set(FEATURES) - set(USELESS.get(op, ()))
    assert not_drawn(declare(op=op)) == useful(op)


def test_tokens_that_slide_out_are_not_missed_where_there_is_no_window() -> None:
    assert "slid_out" not in not_drawn(declare())
    assert not_drawn(declare(**dict.fromkeys(FEATURES, True))) == ("slid_out",)
    assert not_drawn(declare(**dict.fromkeys((*FEATURES, "slid_out"), True))) == ()


@pytest.mark.parametrize(
    ("declared", "field", "drawn"),
    [
        ({"kv_dtypes": ("same", "e5m2")}, "kv_dtypes", ("same", "e5m2")),
        ({"splits": True}, "splits", True),
        ({"window": True, "slid_out": True}, "slid_out", True),
        ({"slid_out": True}, "slid_out", False),
        ({"groups": (8,)}, "heads", ((8, 1), (16, 2))),
        ({"groups": (13,)}, "heads", ((13, 1),)),
        ({"head_dims": (48, 64)}, "head_dims", (64, 48)),
        ({"finite_dead_slots": True}, "poisons", ("huge",)),
        ({"padded_table": True}, "table_pads", ("zero", "other")),
        ({"kv_strides_apart": False}, "v_layouts", ("same",)),
        ({"layouts": ("nhd", "kv_stacked")}, "v_layouts", ("same", "nhd")),
        ({"scales": False}, "scales", (None,)),
        ({"max_kv_len": 40}, "max_kv_len", 40),
        ({"max_kv_len": 10**6}, "max_kv_len", Profile().max_kv_len),
    ],
)
def test_what_is_declared_is_what_is_drawn(declared: dict, field: str, drawn: object) -> None:
    assert getattr(whole_profile(declare(**declared)), field) == drawn


def test_whatever_is_declared_is_drawn_even_where_only_far_blocks_are() -> None:
    assert profile(declare(placements=("far",)), 1, rungs=1).placements == ("far",)


def test_half_of_all_combinations_have_the_lse_judged_too() -> None:
    drawn = [c for seed in range(100) for c in profile(decode.__kvetch__, seed).constants[1:]]
    assert 0.4 < sum("lse" in c.features for c in drawn) / len(drawn) < 0.7


def test_within_the_first_rounds_hardly_a_feature_is_missed_and_every_rung_has_a_turn() -> None:
    assert set(LADDER) >= {1, 2, 3, 4, 5, 6}
    declared, missed = split_decode.__kvetch__, 0
    for seed in range(20):
        rounds = [profile(declared, 100 * seed + number, step) for number, step in enumerate(LADDER[:6])]
        drawn = {name for whole in rounds for constants in whole.constants for name in constants.features}
        missed += len(set(whole_profile(declared).features) - drawn)
    assert missed <= 20 * len(whole_profile(declared).features) / 50
