"""The Case of a call: the one that made it, or one that differs in nothing that a call shows."""

import pytest
import torch
from recordings import arguments, like, plain

from harness import batches
from harness.calls import Inexpressible, read
from harness.case import Case, Hints, Seq
from harness.fixed import fixed_cases
from harness.likeness import operation, recorded
from harness.ours import cache_write, decode, extend, step

DECLARED = {"decode": decode, "extend": extend, "step": step}
#: What two cases may differ in and yet make the same call: a name for one thing, or what nothing of it shows.
ALIKE = {
    "seqs": "an empty row at the end is a padding row; of owners in a chain any will do",
    "padding_rows": "likewise",
    "placement": "of few blocks several orders are one",
    "layout": "with one head, or blocks of one slot, several layouts are one",
    "v_layout": "likewise",
    "q_layout": "likewise, and two rows are not far enough apart to be far",
    "out_layout": "likewise",
    "scale": "the usual one may be given",
    "scale_granularity": "with one head there is no other",
    "k_scale": "likewise",
    "v_scale": "likewise",
    "table_pad": "where nothing is padded, nothing shows; 0 may be another sequence's block",
    "slid_out": "one block that is gone looks like one that is there",
    "spare_blocks": "those of empty rows, and of far blocks, are told by the size of the pool",
    "hints": "which config was drawn is no argument of a call",
    "extra_columns": "the widest row of a batch without blocks has one column",
}
#: What must never differ in a call that attends.
EXACT = set(Case.__struct_fields__) - set(ALIKE)


def strays(case: Case) -> set[str]:
    """Fields of what is recorded of the case's call that differ from it; lengths beside them."""
    found = like(case).case
    lengths = [[(seq.query_len, seq.kv_len) for seq in one.batch] for one in (case, found)]
    fields = {name for name in Case.__struct_fields__ if getattr(plain(case), name) != getattr(found, name)}
    return fields | ({"lengths"} if lengths[0] != lengths[1] else set())


@pytest.mark.parametrize("op", ["decode", "extend", "step"])
def test_a_drawn_case_is_recorded_as_itself_but_for_what_no_call_shows(op):
    found = [strays(case) for case in fixed_cases(DECLARED[op].__kvetch__, 1, 120)]
    assert set().union(*found) <= set(ALIKE)
    assert sum(not names for names in found) > 30


@pytest.mark.parametrize(
    ("what", "wrong", "seen"),
    [
        (
            "lengths",
            lambda right: lambda call, op: tuple((new, max(kv - 1, 0)) for new, kv in right(call, op)),
            "lengths",
        ),
        ("_padding_rows", lambda right: lambda rows: 0, "padding_rows"),
        ("shared_prefixes", lambda right: lambda tables, most: (None,) * len(tables), "seqs"),
        ("placement", lambda right: lambda blocks: "in_order", "placement"),
    ],
)
def test_a_recorder_with_a_fault_is_seen_to_stray(monkeypatch, what, wrong, seen):
    seqs = (Seq(kv_len=40), Seq(kv_len=50, tag=1, shares_prefix_with=0, shared_blocks=2))
    case = Case(seqs=seqs, placement="reversed", padding_rows=2, extra_columns=2)
    assert strays(case) == set()
    monkeypatch.setattr(batches, what, wrong(getattr(batches, what)))
    assert seen in strays(case)


@pytest.mark.parametrize("op", ["decode", "extend", "step"])
def test_what_is_recorded_of_a_recorded_case_is_that_case(op):
    """So nothing drifts."""
    for case in fixed_cases(DECLARED[op].__kvetch__, 2, 40):
        without_blocks = {"extra_columns"} if all(seq.kv_len == 0 for seq in case.seqs) else set()
        assert strays(like(case).case) <= {"placement", "spare_blocks", "q_layout", "scale"} | without_blocks, case


def test_a_write_has_the_tokens_and_skipped_rows_of_its_slots():
    for case in fixed_cases(cache_write.__kvetch__, 2, 60):
        slots = arguments(case)["slot_mapping"]
        if (slots < 0).all():
            with pytest.raises(Inexpressible, match="skips every token"):
                like(case)
            continue
        found = like(case).case
        assert found.tokens == int((slots >= 0).sum())
        assert found.slots.holes + found.slots.tail_padding == int((slots < 0).sum())
        assert (found.num_kv_heads, found.block_size, found.kv_dtype) == (
            case.num_kv_heads,
            case.block_size,
            case.kv_dtype,
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"window": (7, 0)},
        {"softcap": 30.0},
        {"causal": False},
        {"alibi": True},
        {"sinks": True},
        {"scale": 0.5},
        {"want_lse": True},
        {"kv_dtype": "e4m3", "k_scale": 0.5, "v_scale": 4.0},
        {"kv_dtype": "e5m2", "k_scale": 0.5, "v_scale": 4.0, "scale_granularity": "head"},
        {"dtype": "bfloat16", "table_dtype": "int64", "extra_columns": 3, "max_len_slack": 100},
        {"hints": Hints(num_splits=4)},
        {"head_dim_v": 32},
        {"v_is_k_prefix": True, "num_kv_heads": 1, "head_dim": 32, "head_dim_v": 16},
    ],
    ids=str,
)
def test_each_feature_is_held(fields):
    seqs = (Seq(kv_len=40), Seq(kv_len=20, tag=1, shares_prefix_with=0, shared_blocks=1))
    case = Case(seqs=seqs, **{"num_q_heads": 4, "num_kv_heads": 2} | fields)
    assert like(case).case == case


@pytest.mark.parametrize("op", ["extend", "step"])
def test_operations_with_new_tokens_are_told_by_their_arguments(op):
    case = Case(op=op, seqs=(Seq(query_len=3, kv_len=40), Seq(query_len=20, kv_len=20, tag=1)))
    assert like(case).case == case


def test_dense_new_tokens_are_told_by_k_that_comes_without_slots():
    case = Case(op="extend", new_kv="dense", seqs=(Seq(query_len=3, kv_len=40), Seq(query_len=20, kv_len=20, tag=1)))
    assert like(case).case == case


def test_an_append_without_slots_is_a_step():
    case = Case(op="step", seqs=(Seq(query_len=1, kv_len=40), Seq(query_len=1, kv_len=21, tag=1)))
    values = {role: value for role, value in arguments(case).items() if value is not None} | {
        "prefix_lens": torch.tensor([39, 20])
    }
    del values["slot_mapping"], values["kv_lens"]
    assert operation(read(values)) == "step"


def test_a_cache_of_slots_has_blocks_of_one():
    values = {"k_cache": torch.zeros(60, 1, 16), "v_cache": torch.zeros(60, 1, 16)}
    table = torch.arange(60, dtype=torch.int32).reshape(2, 30)
    found = like(Case(seqs=(Seq(kv_len=30), Seq(kv_len=20, tag=1))), **values, block_tables=table).case
    assert (found.block_size, found.placement, found.extra_columns) == (1, "in_order", 0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"q": torch.zeros(1, 1, 16, dtype=torch.int8)}, "q is int8, but should be float32, float16, bfloat16"),
        ({"q": torch.zeros(1, 16)}, r"q has shape \[1, 16\], but should be \[tokens, heads, dim\]"),
        ({"q": torch.zeros(1, 1, 32)}, r"q has dim 32, but k_cache has shape \[1, 16, 1, 16\] with the dim last"),
        ({"k_cache": torch.zeros(1, 1, 2, 16, 8)}, "k_cache has shape .*, but should be .blocks, slots, heads, dim"),
        ({"k_cache": torch.zeros(1, 1, 16, 16)}, "they differ in more than dims"),
        (
            {"k_cache": torch.zeros(1, 4, 16, 16), "v_cache": torch.zeros(1, 4, 16, 16)},
            r"16 heads in its third dimension; if they are in the second: k_cache=lambda",
        ),
        ({"causal": torch.ones(2)}, "causal is a Tensor, but should be True or False for the whole batch"),
        ({"window": 128}, r"window is 128, but should be \(left, right\)"),
        ({"scale": torch.ones(1)}, "scale is a Tensor, but should be a number"),
        ({"scale": -1.0}, "scale is -1.0, but should be a positive number"),
        (
            {"k_cache": torch.zeros(1, 16, 1, 16, dtype=torch.uint8)},
            "k_cache is uint8, but should be .*; for bytes of FP8 say kv_dtype='e4m3' or 'e5m2'",
        ),
    ],
)
def test_what_no_case_can_hold_is_told_with_the_value(changes, told):
    with pytest.raises(Inexpressible, match=told):
        like(Case(), **changes)


def test_bytes_of_fp8_are_what_the_user_says():
    values = {"k_cache": torch.zeros(1, 16, 1, 16, dtype=torch.uint8)}
    values["v_cache"] = values["k_cache"].clone()
    read_call = {role: value for role, value in arguments(Case()).items() if value is not None} | values
    assert recorded(read(read_call | {"kv_dtype": "e4m3"})).case.kv_dtype == "e4m3"


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"window_left": -1}, (-1, -1)),
        ({"window_left": 0}, (0, -1)),
        ({"window_left": 7}, (7, -1)),
        ({"window_tokens": 0}, (-1, -1)),
        ({"window_tokens": 8}, (7, -1)),
        ({"window": (-1, -1)}, (-1, -1)),
        ({"window": (7, 0)}, (7, 0)),
    ],
)
def test_windows_of_each_convention_become_counts_left_and_right(given, held):
    values = {role: value for role, value in arguments(Case()).items() if value is not None and role != "window"}
    assert recorded(read(values | given)).case.window == held


def test_scales_of_an_fp8_cache_become_powers_of_two_and_that_is_told():
    case = Case(kv_dtype="e4m3", k_scale=0.5, v_scale=2.0)
    found = like(case, k_scale=torch.tensor([0.3]))
    assert found.case.k_scale == 0.25
    assert found.lost == ("k_scale is 0.3: that of the case is the power of two next to it",)
    assert like(case).lost == ()


def test_types_of_lengths_and_strides_of_new_keys_are_told():
    case = Case(op="step", seqs=(Seq(query_len=3, kv_len=40), Seq(query_len=2, kv_len=20, tag=1)))
    assert like(case).lost == ()
    wide = torch.zeros(5, 1, 40)[..., :16]
    lost = like(case, kv_lens=torch.tensor([40, 20]), k_new=wide).lost
    assert lost == (
        "kv_lens is int64: that of the case is int32",
        "strides of k_new are [40, 40, 1]: the case has them laid out as q is",
    )


def test_a_scale_without_an_fp8_cache_is_left_out_and_told():
    assert like(Case(), k_scale=torch.tensor([1.0])).lost == ()
    assert like(Case(), k_scale=torch.tensor([0.5])).lost == ("k_scale is not 1, but the cache is not FP8: left out",)


def test_what_is_held_is_told_in_words():
    seqs = (Seq(kv_len=40), Seq(kv_len=50, tag=1, shares_prefix_with=0, shared_blocks=2))
    case = Case(seqs=seqs, placement="reversed", extra_columns=12, padding_rows=2)
    assert like(case).held == (
        "2 sequences of kv_len 40 to 50", "placement: reversed", "2 blocks shared by 0 and 1", "2 padding rows",
        "12 spare columns",
    )  # fmt: skip
