"""Which parameter is what: recognised by name for known projects, said by the user, or one clear complaint."""

import inspect
from collections import Counter

import pytest
import triton

from harness.parameters import ROLES, bind
from harness.subjects import WrongUse
from harness.synonyms import NAMES, meanings
from harness.wrapping import Wrapped


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
        "query_starts": "b_start_loc", "window_tokens": "sliding_window", "scale": "sm_scale",
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


#: Every name that may be a role.
KNOWN_NAMES = sorted({name for role in ROLES for name in NAMES.get(role, ())})
USUAL = ("q", "k_cache", "v_cache", "block_tables", "kv_lens", "slot_mapping")


def beside(name):
    """A function with a parameter of this name beside what a call has to have, and nothing said of it."""
    others = [usual for usual in USUAL if usual not in meanings(name)]

    def attend(*_): ...

    attend.__signature__ = inspect.Signature(
        [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in (*others, name)]
    )
    return attend, {}


@pytest.mark.parametrize("name", KNOWN_NAMES)
def test_what_record_takes_a_name_for_is_what_wrap_takes_it_for_or_asks(tmp_path, name):
    function, given = beside(name)
    (tmp_path / "theirs.py").write_text(f"def attend{inspect.signature(function)}: ...")
    wrapped = Wrapped.of(f"{tmp_path}/theirs.py:attend", "step", {})
    asked = {doubt.name: doubt.choices for doubt in wrapped.doubts}
    roles = [role for role, parameter in bind(function, given).where.items() if parameter == name]
    assert len(roles) == 1
    assert roles[0] in asked.get(name, (wrapped.meaning.get(name),))


def test_every_role_but_the_type_of_bytes_is_a_field_with_names():
    assert set(ROLES) - set(NAMES) == {"kv_dtype"}


def joint(q, k, v, kv_cache, block_tables, seq_lens): ...


def parts(q, k_new, v_new, block_tables, seq_lens): ...


@pytest.mark.parametrize("function", [joint, parts])
def test_new_keys_beside_a_cache_of_both_or_called_new_are_no_cache(function):
    with pytest.raises(WrongUse, match="is known as k_cache"):
        bind(function, {})


def test_new_keys_beside_a_cache_that_is_given_are_new():
    where = bind(joint, {"k_cache": "kv_cache.0", "v_cache": "kv_cache.1"}).where
    assert (where["k_new"], where["v_new"]) == ("k", "v")


def test_a_pointer_s_name_is_told_like_the_thing_s():
    def attend(q_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr, seq_lens_ptr): ...

    assert bind(attend, {}).where["kv_lens"] == "seq_lens_ptr"


def test_new_keys_are_not_taken_for_the_cache_nor_the_cache_for_new_keys():
    assert "k_new" not in bind(vllm_unified, {}).where
    assert bind(nano_store, {}).where["k_cache"] == "k_cache"


def test_no_name_stands_for_two_roles():
    for name in KNOWN_NAMES:
        assert max(Counter(bind(*beside(name)).where.values()).values()) == 1, name


def test_what_is_missing_is_told_with_the_names_that_were_looked_for_and_what_to_say():
    with pytest.raises(WrongUse) as raised:
        bind(sglang_decode, {})
    assert str(raised.value) == (
        "record(sglang_decode): none of the parameters q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, "
        "sm_scale is known as block_tables, which goes by block_tables, block_table, page_table, page_tables, b_loc, "
        "req_to_token, req_to_pages, block_indices, table; say which it is: record(sglang_decode, block_tables=...)"
    )


def two_lengths(q, k_cache, v_cache, block_tables, seq_lens, context_lens): ...


def test_what_could_be_two_parameters_is_told_until_the_user_says_which():
    with pytest.raises(
        WrongUse, match=r"kv_lens could be 'seq_lens' or 'context_lens'; say which: record\(two_lengths"
    ):
        bind(two_lengths, {})
    assert bind(two_lengths, {"kv_lens": "context_lens"}).where["kv_lens"] == "context_lens"


def extending(q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q): ...


def appending(q, k, v, k_cache, v_cache, block_tables, context_len_ptr): ...


def counted(q, k_cache, v_cache, block_tables, context_lens, query_lens): ...


@pytest.mark.parametrize("function", [extending, appending, counted])
def test_lengths_that_may_leave_out_new_tokens_are_told_where_there_are_some_until_the_user_says(function):
    name = next(parameter for parameter in inspect.signature(function).parameters if "context" in parameter)
    with pytest.raises(WrongUse) as raised:
        bind(function, {})
    said = (f"record({function.__name__}, {role}='{name}')" for role in ("kv_lens", "prefix_lens"))
    could = f"record({function.__name__}): {name} could be kv_lens or prefix_lens; say which: {' or '.join(said)}"
    assert str(raised.value) == could
    assert bind(function, {"kv_lens": name}).where["kv_lens"] == name
    where = bind(function, {"prefix_lens": name}).where
    assert ("kv_lens" in where, where["prefix_lens"]) == (False, name)


def test_lengths_of_a_decode_count_all_tokens_whatever_they_are_called():
    def attend(q, k, v, block_tables, context_lens): ...

    assert bind(attend, {}).where["kv_lens"] == "context_lens"


def test_a_kernel_is_no_function_that_launches_one():
    kernel = triton.jit(two_lengths)
    for wrong in (kernel, triton.autotune([triton.Config({})], [])(kernel)):
        with pytest.raises(WrongUse, match="is a kernel, but expected the function that launches it"):
            bind(wrong, {})


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
    assert ("kv_lens" in appended, appended["prefix_lens"]) == (False, "l")


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
