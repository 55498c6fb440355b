"""Claims about what is drawn."""

from collections import Counter
from functools import cache
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from harness import profiles
from harness.case import NEW_KV, NEW_TOKENS, Case, Hints, Op, from_json, to_json
from harness.hunt import FRESH
from harness.inputs import materialise
from harness.ours import decode, extend
from harness.profiles import KV_DTYPES, Profile, profile, useful
from harness.states import count
from harness.strategies import cases
from harness.subjects import declare, declines
from harness.traits import rung, traits

OURS = decode.__kvetch__


def drawn(options, count=300, number=0):
    """In short runs, as a campaign draws: in a long one most cases copy parts of the one before."""
    return [case for turn in range(-(-count // FRESH)) for case in run(options, 1000 * number + turn)]


def run(options, number):
    found: list[Case] = []

    @seed(number)
    @settings(
        max_examples=FRESH,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(options))
    def draw(case):
        found.append(case)

    draw()
    return found


def test_every_drawn_case_survives_json():
    for case in drawn(profiles.Profile(), 100):
        assert from_json(to_json(case)) == case


@pytest.mark.parametrize("step", range(1, 7))
def test_a_profile_stays_on_its_rungs(step):
    for case in drawn(profile(OURS, 1, step), 60):
        assert rung(traits(case)) <= step


def test_everything_that_the_issue_names_is_drawn():
    everything = [case for number in range(8) for case in drawn(profiles.Profile(), 100, number)]
    for field, wanted in {
        "block_size": set(profiles.BLOCK_SIZES),
        "head_dim": set(profiles.HEAD_DIMS),
        "dtype": set(profiles.DTYPES),
        "placement": {"in_order", "reversed", "shuffled", "interleaved", "far", "farther"},
        "table_pad": set(profiles.TABLE_PADS),
        "values": set(profiles.VALUES),
        "layout": set(profiles.LAYOUTS),
        "q_layout": set(profiles.Q_LAYOUTS),
        "k_poison": set(profiles.POISONS),
    }.items():
        assert {getattr(case, field) for case in everything} == wanted
    assert {(case.num_q_heads, case.num_kv_heads) for case in everything} == set(profiles.HEADS)


def test_edges_of_fp8_are_drawn_where_there_is_fp8_and_nowhere_else():
    found = drawn(profile(OURS, 1), 400)
    assert {case.kv_dtype != "same" for case in found if case.values == "edges"} == {True}
    assert "edges" not in profiles.whole_profile(declare(op="decode")).values


def test_where_a_softcap_or_an_lse_has_to_hold_them_half_of_the_scores_are_extreme():
    found = [case for number in range(4) for case in drawn(profile(OURS, number), 100, number)]
    held, others = ([c for c in found if bool(c.softcap or c.want_lse) == on] for on in (True, False))
    assert sum(case.values in profiles.EXTREME for case in held) > len(held) / 4
    assert sum(case.values in profiles.EXTREME for case in others) < len(others) / 3


def test_lengths_lean_towards_edges():
    lengths = Counter(seq.kv_len for case in drawn(profiles.Profile(block_sizes=(16,)), 400) for seq in case.seqs)
    edges = sum(lengths[n] for n in (1, 15, 16, 17, 31, 32, 33, 47, 48, 49))
    assert edges > sum(lengths.values()) / 4
    assert 0.02 < lengths[0] / sum(lengths.values()) < 0.15


def test_a_case_stays_within_its_budget():
    for case in drawn(profiles.Profile(), 300):
        tokens = sum(seq.kv_len for seq in case.seqs)
        assert tokens * case.num_kv_heads * case.head_dim * 2 <= 2 * profiles.BUDGET_ELEMENTS
        assert len(case.seqs) * case.num_q_heads <= profiles.BUDGET_PROGRAMS


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"groups": (1,), "empty_rows": False, "kv_strides_apart": False, "q_layouts": ("contiguous",)},
        {"dtypes": ("float16",), "head_dims": (64, 128), "block_sizes": (16,), "layouts": ("nhd",)},
        {"finite_dead_slots": True, "padded_table": True, "scales": False, "max_kv_len": 40, "window": True},
        {"head_dims": (48,), "placements": ("in_order",), "table_dtypes": ("int64",), "shared_blocks": False},
    ],
)
def test_what_is_drawn_for_a_subject_is_what_it_declares(limits):
    declared = declare(op="decode", **limits)
    for number in range(6):
        for case in drawn(profile(declared, number, 6), 40, number):
            assert declines(declared, case) is None


def test_compile_time_constants_come_from_a_small_pool():
    constants = {(case.head_dim, case.block_size, case.dtype) for case in drawn(profile(OURS, 5), 300)}
    assert 5 < len(constants) <= profiles.POOL


def test_a_config_is_compiled_in_and_comes_from_the_pool_too():
    cases = drawn(profile(extend.__kvetch__, 5), 300)
    constants = {(c.head_dim, c.block_size, c.dtype, c.kv_dtype, c.new_kv, c.hints.config) for c in cases}
    assert {case.hints.config for case in cases} == set(range(extend.__kvetch__.configs))
    assert len(constants) <= profiles.POOL


def test_relatives_of_a_case_have_its_config():
    near = (Case(op="extend", hints=Hints(config=3)),)
    relatives = drawn(msgspec.structs.replace(profile(extend.__kvetch__, 5), near=near), 100)
    assert {case.hints.config for case in relatives} == {3}
    assert len(set(relatives)) > 50


def test_half_of_all_caches_are_plain_where_another_config_runs():
    cases = [case for case in drawn(Profile(op="extend", configs=4, max_kv_len=100), 1000) if case.hints.config]
    plain = sum(case.kv_layouts[0] == "nhd" for case in cases) / len(cases)
    assert 0.45 < plain < 0.65


@pytest.mark.parametrize("number", range(4))
def test_every_feature_is_in_the_pool_of_every_round(number):
    pool = profile(OURS, number).constants
    assert {name for constants in pool for name in constants.features} == set(profiles.FEATURES)


def test_a_subject_without_features_has_a_pool_all_the_same():
    pool = profile(declare(op="gather"), 1).constants
    assert len(pool) > 5
    assert {constants.features for constants in pool} == {()}


def test_a_window_has_a_right_side_where_nothing_is_causal():
    pools = [profile(OURS, number).constants for number in range(8)]
    both = [c for pool in pools for c in pool if {"window", "non_causal"} <= set(c.features)]
    assert len(both) > 2


def test_batches_without_any_new_token_are_drawn_for_extend_alone():
    options = Profile(op="extend", features=useful("extend"), max_kv_len=100)
    idle = [case for case in drawn(options, 1000) if not any(seq.query_len for seq in case.seqs)]
    assert any(len(case.seqs) > 1 for case in idle)
    assert all(any(seq.query_len for seq in case.seqs) for op in ("step", "cache_write") for case in whole(op))


# --- every operation ---------------------------------------------------------------------------------------------

OPS = get_args(Op)
ALL = {"window": True, "softcap": True, "alibi": True, "sinks": True, "lse": True, "out": True, "non_causal": True,
       "head_dim_v": True, "mla": True, "padding_rows": True, "splits": True, "kv_dtypes": KV_DTYPES}  # fmt: skip


@cache
def whole(op: Op) -> tuple[Case, ...]:
    """What is drawn for an operation with every feature, no far blocks."""
    near = ("in_order", "reversed", "shuffled", "interleaved")
    new_kv = NEW_KV if op == "extend" else NEW_KV[:1]
    options = Profile(
        op=op, features=useful(op), kv_dtypes=KV_DTYPES, new_kv=new_kv, splits=True, placements=near, max_kv_len=100
    )
    return tuple(drawn(options, 200))


@pytest.mark.parametrize("op", OPS)
def test_every_case_of_every_operation_survives_json_and_materialises(op):
    for case in whole(op):
        assert case.op == op
        assert from_json(to_json(case)) == case
    for case in whole(op)[:40]:
        materialise(case)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("limits", [{}, ALL, {"kv_dtypes": ("same", "e5m2"), "mla": True, "groups": (8,)},
                                    {"empty_rows": False, "shared_blocks": False, "max_kv_len": 40}])  # fmt: skip
def test_what_is_drawn_for_an_operation_is_what_its_subject_declares(op, limits):
    declared = declare(op=op, **({"lse": True} if op == "merge" else {}) | limits)
    for number in range(2):
        for case in drawn(profile(declared, number, 6), 20, number):
            assert declines(declared, case) is None


@pytest.mark.parametrize("op", OPS)
def test_only_what_takes_new_tokens_has_other_than_one_query_a_sequence(op):
    lens = {seq.query_len for case in whole(op) for seq in case.seqs}
    if op not in NEW_TOKENS:
        assert lens == {1}
    else:
        assert {1, 2, 8} <= lens
        assert {15, 16, 17, 31, 32, 33} <= lens
        assert max(lens) <= profiles.LONGEST_CHUNK
        assert (0 in lens) == (op == "extend")


@pytest.mark.parametrize("op", NEW_TOKENS)
def test_prefills_chunks_verifications_and_single_tokens_are_all_drawn(op):
    seqs = [seq for case in whole(op) for seq in case.seqs]
    assert any(seq.query_len == seq.kv_len > 1 for seq in seqs)
    assert any(8 <= seq.query_len < seq.kv_len for seq in seqs)
    assert any(1 < seq.query_len < 8 < seq.kv_len for seq in seqs)
    assert any(1 == seq.query_len < seq.kv_len for seq in seqs)


@pytest.mark.parametrize("op", NEW_TOKENS)
def test_a_sequence_may_have_more_queries_than_tokens_where_empty_rows_are_declared(op):
    more = [seq for case in whole(op) for seq in case.seqs if seq.query_len > seq.kv_len]
    assert any(seq.kv_len > 1 for seq in more)
    assert not any(
        seq.query_len > seq.kv_len for case in drawn(Profile(op=op, empty_rows=False), 200) for seq in case.seqs
    )


def test_long_chunks_are_common_where_there_is_room_for_them():
    seqs = [seq for case in drawn(Profile(op="extend", heads=((2, 1),)), 400) for seq in case.seqs if seq.kv_len > 65]
    lens = Counter(seq.query_len for seq in seqs)
    assert sum(number for query_len, number in lens.items() if query_len > 16) > len(seqs) / 3
    assert all(lens[query_len] for query_len in (15, 16, 17, 31, 32, 33, 63, 64, 65))


def test_the_scores_of_a_case_stay_within_their_budget():
    for op in NEW_TOKENS:
        for case in whole(op):
            scores = sum(seq.query_len * seq.kv_len for seq in case.seqs) * case.num_q_heads
            assert scores <= profiles.BUDGET_SCORES + case.num_q_heads * sum(seq.kv_len for seq in case.seqs)


def test_dense_new_tokens_have_prefixes_of_every_kind_before_them():
    dense = [(case, seq) for case in whole("extend") if case.new_kv == "dense" for seq in case.seqs]
    assert any(seq.query_len == seq.kv_len > 0 for _, seq in dense)
    assert any(case.paged_len(seq) % case.block_size for case, seq in dense)
    assert any(seq.query_len == 0 < seq.kv_len for _, seq in dense)
    assert {case.row_poison for case, _ in dense} == set(profiles.POISONS)
    small = drawn(Profile(op="extend", new_kv=("dense",), block_sizes=(1, 8)), 200)
    assert any(seq.shared_blocks for case in small for seq in case.seqs)


@pytest.mark.parametrize("op", ["decode", *NEW_TOKENS])
def test_one_to_three_padding_rows_are_drawn_where_they_are_declared(op):
    assert {case.padding_rows for case in whole(op)} == {0, 1, 2, 3}
    assert {case.padding_rows for case in drawn(Profile(op=op), 60)} == {0}


@pytest.mark.parametrize("op", get_args(Op))
def test_cases_of_every_operation_have_relatives(op):
    profile = Profile(op=op, features=useful(op))
    near = tuple(drawn(profile, 5))
    assert {case.op for case in drawn(msgspec.structs.replace(profile, near=near), 15)} == {op}


def test_slots_are_skipped_and_shuffled_where_nobody_attends_to_them():
    slots = [case.slots for case in whole("cache_write")]
    assert {s.holes for s in slots} == {0, 1, 2}
    assert {s.tail_padding for s in slots} == {0, 1, 2, 3}
    assert {s.order for s in slots} == {"in_order", "shuffled"}
    assert {(case.slots.holes, case.slots.order) for case in whole("step")} == {(0, "in_order")}
    assert {case.slots.tail_padding for case in whole("step")} == {0, 1, 2, 3}


def test_tiles_start_inside_blocks_cross_them_and_lie_behind_the_last_token():
    found = [(case, case.tile.start, case.tile.end) for case in whole("gather")]
    assert any(a % c.block_size and a // c.block_size < (b - 1) // c.block_size for c, a, b in found)
    assert any(a > max(seq.kv_len for seq in c.seqs) for c, a, b in found)
    assert any(a == b for _, a, b in found)


def test_states_are_one_to_five_and_none_some_or_all_of_them_empty():
    merges = whole("merge")
    assert {count(case) for case in merges} == {1, 2, 3, 4, 5}
    assert any(not case.states.empty for case in merges)
    assert any(0 < len(case.states.empty) < count(case) for case in merges)
    assert any(len(case.states.empty) == count(case) > 1 for case in merges)
    assert all(case.want_lse for case in merges)


@pytest.mark.parametrize("op", ["decode", "extend", "step", "cache_write"])
def test_an_fp8_cache_has_scales_that_are_powers_of_two_and_none_is_one(op):
    found = [case for case in whole(op) if case.kv_dtype != "same"]
    assert {case.kv_dtype for case in found} == {"e4m3", "e5m2"}
    assert {case.scale_granularity for case in found} == {"tensor", "head"}
    scales = {scale for case in found for scale in (case.k_scale, case.v_scale)}
    assert 1.0 not in scales
    assert all(scale.hex().split("p")[0] == "0x1.0000000000000" for scale in scales)
    assert any(case.k_scale != case.v_scale for case in found)
    assert all(case.k_scale == case.v_scale == 1.0 for case in whole(op) if case.kv_dtype == "same")


@pytest.mark.parametrize("op", ["decode", "extend", "step", "cache_write"])
def test_mla_has_one_kv_head_and_a_v_that_is_the_beginning_of_k_and_other_dims_differ(op):
    mla = [case for case in whole(op) if case.v_is_k_prefix]
    assert mla
    assert {case.num_kv_heads for case in mla} == {1}
    assert any(case.value_dim < case.head_dim for case in mla)
    others = [case for case in whole(op) if not case.v_is_k_prefix]
    assert any(case.value_dim < case.head_dim for case in others)
    assert any(case.value_dim > case.head_dim for case in others)


def test_splits_are_drawn_where_they_are_declared_and_nowhere_else():
    assert {case.hints.num_splits for case in whole("decode")} == {0, 1, 2, 3, 5, 8}
    assert {case.hints.num_splits for case in drawn(Profile(), 60)} == {0}


@pytest.mark.parametrize("op", get_args(Op))
def test_near_a_case_of_every_operation_relatives_are_drawn(op):
    options = Profile(op=op, features=useful(op), max_kv_len=100)
    near = tuple(drawn(options, count=20)[-3:])
    assert drawn(Profile(op=op, features=useful(op), max_kv_len=100, near=near), count=20)
