"""Which parameter is what: recognised by name for known projects, said by the user, or one clear complaint."""

import pytest

from harness.parameters import NAMES, bind
from harness.subjects import WrongUse


def vllm_unified(q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
                 block_table, softcap, q_descale, k_descale, v_descale, alibi_slopes=None, sinks=None): ...  # fmt: skip


def vllm_context(q, k, v, o, kv_cache_dtype, k_cache, v_cache, b_loc, b_start_loc, b_seq_len, max_seq_len, k_scale,
                 v_scale, alibi_slopes=None, sliding_window=None, sm_scale=None): ...  # fmt: skip


def flash_attn(q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, block_table=None, softmax_scale=None,
               causal=False, window_size=(-1, -1), softcap=0.0, return_softmax_lse=False): ...  # fmt: skip


def nano_store(key, value, k_cache, v_cache, slot_mapping): ...


def torch_varlen(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, seqused_k=None, block_table=None
): ...  # fmt: skip


def sglang_decode(q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, sm_scale): ...


KNOWN = {
    vllm_unified: {
        "k_cache": "k", "v_cache": "v", "kv_lens": "seqused_k", "query_starts": "cu_seqlens_q",
        "scale": "softmax_scale", "window": "window_size", "block_tables": "block_table",
        "k_scale": "k_descale", "max_kv_len": "max_seqlen_k",
    },
    vllm_context: {
        "k_new": "k", "v_new": "v", "k_cache": "k_cache", "out": "o", "block_tables": "b_loc", "kv_lens": "b_seq_len",
        "query_starts": "b_start_loc", "sliding_window": "sliding_window", "scale": "sm_scale",
    },
    flash_attn: {
        "k_new": "k", "v_new": "v", "k_cache": "k_cache", "kv_lens": "cache_seqlens", "want_lse": "return_softmax_lse",
    },
    nano_store: {"k_new": "key", "v_new": "value", "k_cache": "k_cache", "slot_mapping": "slot_mapping"},
    torch_varlen: {"q": "query", "k_cache": "key", "v_cache": "value", "query_starts": "cu_seq_q"},
}  # fmt: skip


@pytest.mark.parametrize("function", KNOWN, ids=lambda function: function.__name__)
def test_the_names_of_known_projects_are_recognised(function):
    where = bind(function, {}).where
    assert {role: where.get(role) for role in KNOWN[function]} == KNOWN[function]


def test_new_keys_are_not_taken_for_the_cache_nor_the_cache_for_new_keys():
    assert "k_new" not in bind(vllm_unified, {}).where
    assert bind(nano_store, {}).where["k_cache"] == "k_cache"


def test_no_name_stands_for_two_roles():
    names = [name for names in NAMES.values() for name in names]
    assert len(names) == len(set(names))


def test_what_is_missing_is_told_with_the_names_that_were_looked_for_and_what_to_say():
    with pytest.raises(WrongUse) as raised:
        bind(sglang_decode, {})
    assert str(raised.value) == (
        "record(sglang_decode): none of the parameters q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, "
        "sm_scale is known as block_tables, which goes by block_tables, block_table, page_table, page_tables, b_loc, "
        "req_to_token; say which it is: record(sglang_decode, block_tables=...)"
    )


def two_lengths(q, k_cache, v_cache, block_tables, seq_lens, context_lens): ...


def test_what_could_be_two_parameters_is_told_until_the_user_says_which():
    with pytest.raises(
        WrongUse, match=r"kv_lens could be 'seq_lens' or 'context_lens'; say which: record\(two_lengths"
    ):
        bind(two_lengths, {})
    assert bind(two_lengths, {"kv_lens": "context_lens"}).where["kv_lens"] == "context_lens"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"keys": "q"}, "'keys' is no role; there are: q, k_cache"),
        ({"q": "querry"}, "q is 'querry', but the parameters are q, k_cache"),
        ({"q": "querry.weight"}, "q is 'querry.weight', but the parameters are"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(given, told):
    with pytest.raises(WrongUse, match=told):
        bind(two_lengths, given)


def test_what_has_no_signature_is_refused():
    with pytest.raises(WrongUse, match="has no signature"):
        bind(min, {})


class Metadata:
    seq_lens, tables = "lens", ("first", "second")


def layer(query, kv, metadata, **more): ...


def test_a_path_a_function_and_a_constant_say_where_a_value_is():
    given = {
        "k_cache": "kv.0", "v_cache": lambda call: call["kv"][1], "kv_lens": "metadata.seq_lens",
        "block_tables": "metadata.tables.1", "causal": False, "softcap": "cap", "sinks": None,
    }  # fmt: skip
    values = bind(layer, given).values(("q", ("k", "v"), Metadata), {"cap": 30.0})
    assert values == {
        "q": "q", "k_cache": "k", "v_cache": "v", "kv_lens": "lens", "block_tables": "second", "causal": False,
        "softcap": 30.0,
    }  # fmt: skip


def test_defaults_count_and_none_is_not_there():
    values = bind(flash_attn, {}).values(("q", "k", "v"), {"block_table": "t", "cache_seqlens": "l"})
    assert values["softcap"] == 0.0
    assert not {"k_new", "scale"} & set(values)


def test_lengths_of_flash_attn_leave_out_what_it_appends():
    given = {"block_table": "t", "cache_seqlens": "l"}
    assert bind(flash_attn, {}).values(("q", "k", "v"), given)["kv_lens"] == "l"
    appended = bind(flash_attn, {}).values(("q", "k", "v", "new", "new"), given)
    assert ("kv_lens" in appended, appended["cached_lens"]) == (False, "l")


def test_a_path_stops_at_none():
    assert "kv_lens" not in bind(layer, {"k_cache": "kv.0", "v_cache": "kv.1", "kv_lens": "metadata.seq_lens",
                                         "block_tables": "metadata"}).values(("q", "kv", None), {})  # fmt: skip


def test_wrong_arguments_raise_as_the_call_would():
    with pytest.raises(TypeError, match="missing a required argument"):
        bind(nano_store, {}).values(("key",), {})


def odd(q, k_cache, v_cache, block_tables, kv_lens, bias, scratch=None, mode="auto", tiles=4, names=None): ...


def test_arguments_that_no_role_takes_are_told_unless_they_are_defaults():
    given = ("q", "k", "v", "t", "l")
    assert bind(odd, {}).unused((*given, "b"), {}) == ("bias",)
    assert bind(odd, {}).unused((*given, None), {"mode": "auto", "tiles": 4}) == ()
    assert bind(odd, {}).unused((*given, None), {"mode": "fp8", "scratch": 3}) == ("scratch", "mode")
    assert bind(odd, {"scale": lambda call: call["bias"], "sinks": "names.one"}).unused((*given, "b"), {}) == ()
