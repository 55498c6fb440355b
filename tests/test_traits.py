"""Traits: each is seen where it is, can be taken away, and names a declaration that takes it away."""

import ast
from typing import Any, get_args

import pytest
from attending import EVERYTHING, lens
from hypothesis import HealthCheck, given, settings

from harness.case import NEW_KV, Case, Hints, Op, Seq, Slots, States, Tile, replace
from harness.profiles import KV_DTYPES, Profile, useful
from harness.strategies import cases
from harness.subjects import declare, declines
from harness.traits import BY_NAME, RUNGS, TRAITS, Trait, avoidable, rung, traits

SHARED = (Seq(kv_len=40, tag=4), Seq(kv_len=33, tag=2, shares_prefix_with=4, shared_blocks=2))

#: For each trait the least that has it.
WITH: dict[str, dict[str, Any]] = {
    "several sequences": {"seqs": lens(1, 1)},
    "several heads": {"num_q_heads": 2, "num_kv_heads": 2},
    "several blocks": {"seqs": lens(32)},
    "scale given": {"scale": 0.5},
    "empty row": {"seqs": lens(0)},
    "ragged lengths": {"seqs": lens(16, 32)},
    "partly filled block": {"seqs": lens(15)},
    "blocks out of order": {"placement": "reversed"},
    "shared blocks": {"seqs": SHARED},
    "spare blocks or columns": {"max_len_slack": 1},
    "table padding other than -1": {"table_pad": "huge"},
    "values that are not normal": {"values": "ties"},
    "several new tokens": {"op": "extend", "seqs": (Seq(query_len=2, kv_len=2),)},
    "no new token": {"op": "extend", "seqs": (Seq(kv_len=16), Seq(query_len=0, kv_len=16, tag=1))},
    "a prefix in the cache": {"op": "extend", "seqs": (Seq(query_len=16, kv_len=32),)},
    "skipped slots": {"op": "cache_write", "slots": Slots(holes=1, tail_padding=1)},
    "slots out of order": {"op": "cache_write", "slots": Slots(order="shuffled")},
    "tile inside a block": {"op": "gather", "tile": Tile(start=5, end=20)},
    "empty state": {"op": "merge", "states": States(empty=(0, 1))},
    "several states": {"op": "merge", "states": States(partition=(1, 1, 1), empty=(2,))},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
    "GQA": {"num_q_heads": 3},
    "odd head dim": {"head_dim": 72},
    "head dim above 128": {"head_dim": 256},
    "odd block size": {"block_size": 24},
    "block size below 16": {"block_size": 8},
    "int64 table": {"table_dtype": "int64"},
    "strided q": {"q_layout": "fused_qkv"},
    "strides of V unlike K's": {"v_layout": "hnd"},
    "strided cache": {"layout": "kv_stacked"},
    "far blocks": {"placement": "far"},
    "far rows": {"q_layout": "far"},
    "window": {"window": (0, -1)},
    "tokens that slid out": {"window": (0, -1), "slid_out": True},
    "softcap": {"softcap": 1.0},
    "ALiBi": {"alibi": True},
    "sinks": {"sinks": True},
    "lse": {"want_lse": True},
    "given out": {"out_layout": "padded"},
    "FP8 cache": {"kv_dtype": "e4m3", "k_scale": 2.0, "v_scale": 0.5},
    "scales per head": {"kv_dtype": "e5m2", "scale_granularity": "head"},
    "head_dim_v unlike head_dim": {"head_dim_v": 32},
    "V a prefix of K": {"v_is_k_prefix": True},
    "dense new K and V": {"op": "extend", "new_kv": "dense"},
    "padding rows": {"padding_rows": 1, "row_poison": "inf"},
    "several splits": {"hints": Hints(num_splits=2)},
    "another config": {"hints": Hints(config=1)},
    "not causal": {"causal": False},
    "a call before it": {"before": Case()},
}

#: One full block, so that nothing else is odd about it.
PLAIN = Case(seqs=lens(16))

#: A subject that takes every feature.
ALL = EVERYTHING | {
    "slid_out": True,
    "head_dim_v": True,
    "mla": True,
    "padding_rows": True,
    "splits": True,
    "configs": 2,
    "kv_dtypes": KV_DTYPES,
}

every_trait = pytest.mark.parametrize("trait", TRAITS, ids=lambda trait: trait.name)


@every_trait
def test_each_trait_is_seen_and_taken_away_alone(trait: Trait) -> None:
    case = replace(PLAIN, **WITH[trait.name])
    assert trait.has(case)
    assert not trait.has(PLAIN)
    plain = trait.without(case)
    assert trait.name not in traits(plain)
    assert traits(plain) < traits(case)


def test_rows_before_the_first_key_are_empty_ones() -> None:
    case = Case(op="extend", seqs=(Seq(query_len=20, kv_len=16),))
    assert "empty row" in traits(case)
    assert declines(declare(op="extend", empty_rows=False), case) == "declares empty_rows=False"
    plain = BY_NAME["empty row"].without(case)
    assert plain.seqs == (Seq(query_len=20, kv_len=20),)
    assert declines(declare(op="extend", empty_rows=False), plain) is None


@pytest.mark.parametrize("op", get_args(Op))
def test_every_trait_is_taken_from_any_drawn_case(op: Op) -> None:
    new_kv = NEW_KV if op == "extend" else NEW_KV[:1]

    @given(case=cases(Profile(op=op, features=useful(op), kv_dtypes=KV_DTYPES, new_kv=new_kv, splits=True)))
    @settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def holds(case: Case) -> None:
        for trait in TRAITS:
            plain = trait.without(case)  # a legal case, or this raises
            assert not trait.has(plain), trait.name
            assert [seq.tag for seq in plain.seqs] == [seq.tag for seq in case.seqs][: len(plain.seqs)]

    holds()


DECLARED = [trait for trait in TRAITS if trait.declare]


@pytest.mark.parametrize("trait", DECLARED, ids=lambda trait: trait.name)
def test_the_declaration_that_a_trait_names_declines_it_and_nothing_else(trait: Trait) -> None:
    call = ast.parse(f"subject({trait.declare})", mode="eval").body
    assert isinstance(call, ast.Call)
    stated = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    case = replace(PLAIN, **WITH[trait.name])
    takes = ALL | {"op": case.op, "new_kv": NEW_KV if case.op == "extend" else NEW_KV[:1]}
    declared = declare(**(takes | stated))
    assert declines(declare(**takes), case) is None
    assert declines(declared, case) is not None
    assert declines(declared, trait.without(case)) is None


def test_what_a_subject_cannot_declare_away_is_every_kernels_of_its_operation() -> None:
    """A kernel that is wrong there is just wrong: no `@subject` line excuses it."""
    assert {trait.name for trait in TRAITS if not trait.declare} == {
        "several sequences",
        "several heads",
        "several blocks",
        "ragged lengths",
        "partly filled block",
        "spare blocks or columns",
        "table padding other than -1",
        "values that are not normal",
        "several new tokens",
        "no new token",
        "a prefix in the cache",
        "skipped slots",
        "slots out of order",
        "a call before it",
        "tile inside a block",
        "empty state",
        "several states",
        "scales per head",  # with an FP8 cache only, which can be declared away
    }


def test_a_case_stands_on_the_rung_of_its_highest_trait() -> None:
    assert rung(traits(PLAIN)) == 1
    assert rung(traits(replace(PLAIN, dtype="float16", seqs=lens(3, 40)))) == 3
    assert rung(["window", "GQA"]) == 6


def test_traits_are_told_apart_and_stand_on_rungs() -> None:
    assert list(BY_NAME) == [trait.name for trait in TRAITS]
    assert set(BY_NAME) == set(WITH)
    assert {trait.rung for trait in TRAITS} == set(RUNGS)


def test_what_every_case_of_a_subject_has_puts_none_on_a_higher_rung() -> None:
    dense = Case(op="extend", seqs=(Seq(query_len=2, kv_len=2),), new_kv="dense", num_q_heads=2, dtype="float16")
    either = declare(op="extend", new_kv=("in_cache", "dense"))
    only = declare(op="extend", new_kv=("dense",), dtypes=("float16",))
    assert (rung(traits(dense)), rung(avoidable(dense, either)), rung(avoidable(dense, only))) == (6, 6, 4)
    assert "float16" in avoidable(dense, only), "the rung of types has the cases of a subject of one type"
    assert "GQA" not in avoidable(dense, declare(op="extend", groups=(2,)))
