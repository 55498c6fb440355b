"""Claims about cases."""

import pytest

from harness.case import Case, Hints, InvalidCase, Seq, Slots, complaints, digest, from_json, replace, to_json

RICH = Case(
    seqs=(Seq(kv_len=33), Seq(kv_len=20, tag=1, shares_prefix_with=0, shared_blocks=1)),
    num_q_heads=4,
    num_kv_heads=2,
    window=(3, -1),
    softcap=30.0,
    layout="hnd",
)


def test_a_case_survives_json():
    assert from_json(to_json(RICH)) == RICH


def test_json_shows_only_what_matters():
    assert to_json(Case()) == '{\n  "schema": 1\n}\n'
    assert len(to_json(RICH).splitlines()) <= 10


def test_equal_cases_have_equal_digests_and_hashes():
    assert digest(from_json(to_json(RICH))) == digest(RICH)
    assert hash(from_json(to_json(RICH))) == hash(RICH)
    assert digest(replace(RICH, data_seed=1)) != digest(RICH)


def test_a_default_that_was_set_again_is_left_out():
    again = replace(RICH, hints=Hints(num_splits=0), slots=Slots(holes=0), k_scale=float("1.0"))
    assert to_json(again) == to_json(RICH)
    assert digest(again) == digest(RICH)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"head_dims": 3}', "unknown field `head_dims`"),
        ('{"seqs": [{"kv_le": 1}]}', "unknown field `kv_le` - at `$.seqs[0]`"),
        ('{"head_dim":', "truncated"),
        ('{"dtype": "f16"}', "'f16' - at `$.dtype`"),
        ('{"head_dim": "16"}', "Expected `int`, got `str` - at `$.head_dim`"),
        ('{"schema": 9}', "schema is 9, but this version reads 1"),
        ('{"num_q_heads": 3, "num_kv_heads": 2}', "num_q_heads is 3, but should be a multiple of num_kv_heads 2"),
        ('{"seqs": []}', "at least one sequence"),
        ('{"softcap": -1.0}', "softcap is -1.0"),
        ('{"window": [-2, 0]}', "window is [-2, 0]"),
        ('{"seqs": [{"kv_len": 5, "shares_prefix_with": 3, "shared_blocks": 1}]}', "no earlier sequence has that tag"),
        ('{"seqs": [{}, {}]}', "seqs[1].tag is 0"),
        ('{"layout": "kv_stacked", "v_layout": "hnd"}', "holds K and V in one buffer"),
        ('{"seqs": [{"query_len": 2}]}', "query_len other than 1"),
        ('{"v_scale": 2.0}', "a cache of float32 has k_scale 1.0, v_scale 2.0 per tensor, but only FP8 is scaled"),
        ('{"scale_granularity": "head"}', "per head, but only FP8 is scaled"),
        ('{"op": "extend", "new_kv": "append"}', "op 'step' is the appended form"),
        ('{"op": "extend", "new_kv": "densely"}', "new_kv is 'densely', but should be 'in_cache' or 'dense'"),
        ('{"new_kv": "dense"}', "new_kv is 'dense', but op is 'decode': only 'extend' takes dense new tokens"),
        ('{"op": "gather", "padding_rows": 2}', "padding_rows is 2, but op is 'gather'"),
        ('{"padding_rows": -1}', "padding_rows is -1, but should not be negative"),
        ("\xff", "x.json"),
    ],
)
def test_bad_json_is_refused_with_value_and_place(text, told):
    with pytest.raises(InvalidCase) as refused:
        from_json(text.encode("latin-1"), "x.json")
    assert told in str(refused.value)
    assert str(refused.value).startswith("x.json: ")
    assert "\n" not in str(refused.value)


def test_a_dense_new_token_has_no_slot_and_no_block():
    seq = Seq(query_len=3, kv_len=18)
    case = Case(op="extend", seqs=(seq,))
    assert [case.cached_len(seq), case.paged_len(seq), case.blocks_of(seq)] == [18, 18, 2]
    dense = replace(case, new_kv="dense")
    assert [dense.cached_len(seq), dense.paged_len(seq), dense.blocks_of(seq)] == [15, 15, 1]


def test_padding_rows_follow_the_sequences_with_a_query_and_no_key():
    case = replace(RICH, padding_rows=2)
    assert case.batch[:2] == RICH.seqs
    assert [(seq.query_len, seq.kv_len) for seq in case.batch[2:]] == [(1, 0), (1, 0)]
    assert case.tokens == 4


def test_only_blocks_of_the_prefix_are_shared_where_new_tokens_are_dense():
    seqs = (Seq(query_len=4, kv_len=20), Seq(query_len=5, kv_len=20, tag=1, shares_prefix_with=0, shared_blocks=1))
    assert complaints(Case(op="extend", seqs=seqs)) == []
    with pytest.raises(InvalidCase, match="only whole common blocks can be shared"):
        Case(op="extend", new_kv="dense", seqs=seqs)


def test_a_changed_case_is_checked_again():
    with pytest.raises(InvalidCase, match="num_q_heads is 0"):
        replace(RICH, num_q_heads=0)


def test_the_simplest_case_has_nothing_to_complain_about():
    assert complaints(Case()) == []


def test_a_call_before_another_is_of_the_same_op_and_has_none_before_it() -> None:
    with pytest.raises(InvalidCase, match="before has op 'extend', but should be a call of the same op 'decode'"):
        Case(before=Case(op="extend"))
    with pytest.raises(InvalidCase, match="before has a call before it as well, but there should be one at most"):
        Case(before=Case(before=Case()))
