"""Claims about what is drawn."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from harness import strategies
from harness.case import Case, from_json, to_json
from harness.ours import decode
from harness.strategies import cases, profile
from harness.subjects import declare, declines
from harness.traits import rung, traits

OURS = decode.__kvetch__


def drawn(options, count=300, number=0):
    found: list[Case] = []

    @seed(number)
    @settings(
        max_examples=count,
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
    for case in drawn(strategies.Profile(), 100):
        assert from_json(to_json(case)) == case


@pytest.mark.parametrize("step", range(1, 7))
def test_a_profile_stays_on_its_rungs(step):
    for case in drawn(profile(OURS, 1, step), 60):
        assert rung(traits(case)) <= step


def test_everything_that_the_issue_names_is_drawn():
    everything = drawn(strategies.Profile(), 2500)
    for field, wanted in {
        "block_size": set(strategies.BLOCK_SIZES),
        "head_dim": set(strategies.HEAD_DIMS),
        "dtype": set(strategies.DTYPES),
        "placement": {"in_order", "reversed", "shuffled", "interleaved", "far"},
        "table_pad": set(strategies.TABLE_PADS),
        "values": set(strategies.VALUES),
        "layout": set(strategies.LAYOUTS),
        "q_layout": {"contiguous", "fused_qkv", "transposed_heads"},
        "k_poison": set(strategies.POISONS),
    }.items():
        assert {getattr(case, field) for case in everything} == wanted
    assert {(case.num_q_heads, case.num_kv_heads) for case in everything} == set(strategies.HEADS)


def test_lengths_lean_towards_edges():
    lengths = Counter(seq.kv_len for case in drawn(strategies.Profile(block_sizes=(16,)), 1000) for seq in case.seqs)
    edges = sum(lengths[n] for n in (1, 15, 16, 17, 31, 32, 33, 47, 48, 49))
    assert edges > sum(lengths.values()) / 4
    assert lengths[0] > 0


def test_a_case_stays_within_its_budget():
    for case in drawn(strategies.Profile(), 500):
        tokens = sum(seq.kv_len for seq in case.seqs)
        assert tokens * case.num_kv_heads * case.head_dim * 2 <= 2 * strategies.BUDGET_ELEMENTS
        assert len(case.seqs) * case.num_q_heads <= strategies.BUDGET_PROGRAMS


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
    assert 5 < len(constants) <= strategies.POOL


def test_every_feature_is_in_the_pool_of_some_of_the_first_rounds():
    pools = [profile(OURS, number).constants for number in range(4)]
    assert {name for pool in pools for constants in pool for name in constants.features} == set(strategies.FEATURES)
