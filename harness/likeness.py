"""The Case that is most like a recorded call, what of the call it holds, and what it does not."""

import math
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from harness.batches import Pool, batch, from_slots
from harness.calls import PRESENT, Call, Inexpressible, Part, View
from harness.case import FP8, Case, Float, Hints, InvalidCase, KvFloat, Seq
from harness.layouts import cache_layouts, is_dense, out_layout, q_layout

#: Operations that can be recorded; the others have neither a block table of their own nor slots.
OPS = ("decode", "extend", "step", "cache_write")
SCALES = ("k_scale", "v_scale")
#: Scales that differ by less are the usual one: some compute it in float32, some in float64.
SAME = 1e-6


@dataclass(frozen=True)
class Recorded:
    """A Case, what it holds of the call, and what of the call it cannot hold."""

    case: Case
    held: tuple[str, ...]
    lost: tuple[str, ...]


def recorded(call: Call, op: str | None = None) -> Recorded:
    """The Case of a call; raises Inexpressible where none is like it."""
    k, v = _caches(call)
    op = op or operation(call)
    q = _queries(call, k, op)
    parts = [_types(call, q, k), _cache(call, k, v), _scales(call, q, k), _beside(call, q, op)]
    parts += [q_layout(q, q.shape[1] + 2 * k.shape[2]), out_layout(_output(call))]
    parts += _of_sequences(call, op, Pool(k.shape[0], k.shape[1], k.strides[0]))
    fields = _shape(q, k, op) | {name: value for part in parts for name, value in part.fields.items()}
    try:
        case = Case(**fields)
    except InvalidCase as error:
        raise Inexpressible(str(error)) from None
    return Recorded(case, tuple(_held(case)), tuple(dict.fromkeys(words for part in parts for words in part.lost)))


def _of_sequences(call: Call, op: str, pool: Pool) -> tuple[Part, ...]:
    """Features, sequences, and what depends on both."""
    features = _features(call)
    if op == "cache_write" and "block_tables" not in call.arrays:
        return features, _written(call, pool)
    dense = op == "extend" and "k_new" in call.views
    sequences = batch(call, op, pool, dense, features.fields.get("window", (-1, -1))[0])
    new = {"new_kv": "dense"} if dense else {}
    return features, sequences, _slack(call, sequences.fields["seqs"]), Part(new)


def operation(call: Call) -> str:
    """What the call does, from what it was given."""
    if "q" not in call.views:
        return "cache_write"
    if "k_new" in call.views and ("slot_mapping" in call.arrays or "prefix_lens" in call.arrays):
        return "step"
    shape = call.views["q"].shape
    several = len(shape) == 4 and shape[1] > 1
    return "extend" if several or "query_starts" in call.arrays or "k_new" in call.views else "decode"


# --- tensors in the shapes of a Case -----------------------------------------------------------------------------


def _caches(call: Call) -> tuple[View, View]:
    """K and V as [blocks, slots, heads, dim]; a cache of slots has blocks of one."""
    k = _paged("k_cache", call.views["k_cache"])
    v = _paged("v_cache", call.views.get("v_cache", call.views["k_cache"]))
    if k.shape[:3] != v.shape[:3]:
        raise Inexpressible(
            f"k_cache has shape {list(k.shape)} and v_cache {list(v.shape)}: they differ in more than dims"
        )
    return k, v


def _paged(name: str, cache: View) -> View:
    if len(cache.shape) == 3:
        (slots, heads, dim), strides = cache.shape, cache.strides
        return View((slots, 1, heads, dim), (strides[0], strides[0], *strides[1:]), cache.dtype)
    if len(cache.shape) != 4:
        raise Inexpressible(f"{name} has shape {list(cache.shape)}, but should be [blocks, slots, heads, dim]")
    return cache


def _packed(name: str, tensor: View) -> View:
    """[tokens, heads, dim] of that, or of [seqs, tokens of each, heads, dim]."""
    if len(tensor.shape) == 4:
        count, each, heads, dim = tensor.shape
        row = tensor.strides[1 if count == 1 or each > 1 else 0]
        return View((count * each, heads, dim), (row, *tensor.strides[2:]), tensor.dtype)
    if len(tensor.shape) != 3:
        raise Inexpressible(f"{name} has shape {list(tensor.shape)}, but should be [tokens, heads, dim]")
    return tensor


def _queries(call: Call, k: View, op: str) -> View:
    """The query; a write has none, so it counts one per head of the cache, laid out as the new keys are."""
    if op not in OPS:
        raise Inexpressible(f"op is {op!r}, but what can be recorded is {', '.join(OPS)}")
    q = _packed("q", call.views["q"]) if op != "cache_write" else _packed("k_new", call.views["k_new"])
    if q.shape[2] != k.shape[3]:
        raise Inexpressible(f"q has dim {q.shape[2]}, but k_cache has shape {list(k.shape)} with the dim last")
    if q.shape[1] % k.shape[2]:
        raise Inexpressible(
            f"q has {q.shape[1]} heads, but k_cache has shape {list(k.shape)}: {k.shape[2]} heads in its third "
            "dimension; if they are in the second: k_cache=lambda call: call[...].transpose(1, 2)"
        )
    return q


def _output(call: Call) -> View | None:
    return _packed("out", call.views["out"]) if "out" in call.views else None


# --- the parts of a Case -----------------------------------------------------------------------------------------


def _shape(q: View, k: View, op: str) -> dict[str, Any]:
    heads = {"num_q_heads": q.shape[1], "num_kv_heads": k.shape[2]}
    return heads | {"op": op, "head_dim": k.shape[3], "block_size": k.shape[1]}


def _types(call: Call, q: View, k: View) -> Part:
    """The type of q and that of the cache; bytes of FP8 have one only when `kv_dtype` says which."""
    if q.dtype not in get_args(Float):
        raise Inexpressible(f"q is {q.dtype}, but should be {', '.join(get_args(Float))}")
    stored = call.scalars.get("kv_dtype", k.dtype)
    if stored not in get_args(KvFloat):
        hint = "; for bytes of FP8 say kv_dtype='e4m3' or 'e5m2'" if stored == "uint8" else ""
        raise Inexpressible(f"k_cache is {stored}, but should be {', '.join(get_args(KvFloat)[1:])}{hint}")
    return Part({"dtype": q.dtype, "kv_dtype": "same" if stored == q.dtype else stored})


def _cache(call: Call, k: View, v: View) -> Part:
    only_k = "v_cache" not in call.views
    found = cache_layouts(k, v, 0 if only_k else call.v_from_k, call.misaligned)
    if only_k and "v_is_k_prefix" not in found.fields:
        raise Inexpressible(f"there is no v_cache, but k_cache has {k.shape[2]} heads: V is a part of K with one only")
    return found


def _features(call: Call) -> Part:
    """Masks and what becomes of a score, but for the scale."""
    found = call.scalars
    fields: dict[str, Any] = {"alibi" if role == "alibi_slopes" else role: True for role in PRESENT if role in found}
    if (window := _window(found)) != (-1, -1):
        fields["window"] = window
    if not isinstance(found.get("causal", True), bool | int):
        raise Inexpressible(f"causal is {found['causal']}, but should be True or False for the whole batch")
    fields |= {} if found.get("causal", True) else {"causal": False}
    fields |= {"softcap": softcap} if (softcap := _number(found, "softcap")) else {}
    fields |= {"want_lse": True} if found.get("want_lse") is True else {}
    splits = _number(found, "num_splits") or 0
    fields |= {"hints": Hints(num_splits=int(splits))} if splits > 1 else {}
    return Part(fields, tuple(f"{role}: the case draws values of its own" for role in PRESENT if role in found))


def _number(found: dict[str, Any], role: str) -> float | None:
    """The number that was given; raises Inexpressible for what is none."""
    value = found.get(role)
    if value is None or isinstance(value, int | float):
        return value
    raise Inexpressible(f"{role} is {value}, but should be a number")


def _window(found: dict[str, Any]) -> tuple[int, int]:
    """(left, right), both counts inclusive, -1 without limit; `window_tokens` counts the token itself, 0 is off."""
    if "window" in found:
        window = found["window"]
        if not (isinstance(window, tuple) and len(window) == 2 and all(isinstance(side, int) for side in window)):
            hint = "for a number of tokens, itself included, say window_tokens='...' instead"
            raise Inexpressible(f"window is {window}, but should be (left, right); {hint}")
        return max(window[0], -1), max(window[1], -1)
    if (tokens := _number(found, "window_tokens") or 0) > 0:
        return int(tokens) - 1, -1
    left = _number(found, "window_left")
    return (-1 if left is None else max(int(left), -1)), -1


def _scales(call: Call, q: View, k: View) -> Part:
    """The softmax scale where it is not the usual one, and the scales of an FP8 cache."""
    scale, usual = _number(call.scalars, "scale"), 1.0 / math.sqrt(q.shape[2])
    fields: dict[str, Any] = {} if scale is None or abs(scale / usual - 1) <= SAME else {"scale": float(scale)}
    given = {role: array.reshape(-1) for role, array in call.arrays.items() if role in SCALES and array.size}
    if call.scalars.get("kv_dtype", k.dtype) not in FP8:
        odd = (role for role, array in given.items() if (array != 1).any())
        return Part(fields, tuple(f"{role} is not 1, but the cache is not FP8: left out" for role in odd))
    return _of_fp8(fields, given)


def _of_fp8(fields: dict[str, Any], given: dict[str, Any]) -> Part:
    """Scales of the cache: powers of two, since by others a kernel may divide in several right ways.

    Those of the heads are half, one and two times that of the case, in turn.
    """
    lost = []
    for role, array in given.items():
        first = abs(float(array[0])) or 1.0
        fields |= {role: 2.0 ** round(math.log2(first)) * (2 if array.size > 1 else 1)}
        if array.size > 1:
            fields |= {"scale_granularity": "head"}
            lost.append(f"{role}: one of each head, of which the first is held")
        if 2.0 ** round(math.log2(first)) != first:
            lost.append(f"{role} is {first:.4g}: that of the case is the power of two next to it")
    return Part(fields, tuple(lost))


def _beside(call: Call, q: View, op: str) -> Part:
    """What has no place in a Case: arguments that are not known, types of lengths, strides of new keys."""
    lost = [f"arguments that are not known: {', '.join(call.unused)}"] if call.unused else []
    for role in ("kv_lens", "query_starts"):
        if role in call.arrays and call.arrays[role].dtype != np.int32:
            lost.append(f"{role} is {call.arrays[role].dtype}: that of the case is int32")
    for role in ("k_new", "v_new"):
        if op != "cache_write" and role in call.views and is_dense(q) != is_dense(new := call.views[role]):
            lost.append(f"strides of {role} are {list(new.strides)}: the case has them laid out as q is")
    return Part({}, tuple(lost))


def _written(call: Call, pool: Pool) -> Part:
    found = from_slots(call.arrays["slot_mapping"].reshape(-1).astype(np.int64), pool)
    wide = call.arrays["slot_mapping"].dtype == np.int64
    return Part(found.fields | ({"table_dtype": "int64"} if wide else {}), found.lost)


def _slack(call: Call, seqs: tuple[Seq, ...]) -> Part:
    """By how much the maximum of lengths that the call was given exceeds the true one."""
    given = call.scalars.get("max_kv_len")
    longest = max((seq.kv_len for seq in seqs), default=0)
    if not isinstance(given, int) or given <= longest:
        return Part({})
    return Part({"max_len_slack": given - longest})


def _held(case: Case) -> list[str]:
    """What a reader would want to know that the Case took from the table."""
    lens = sorted(seq.kv_len for seq in case.seqs)
    span = f"kv_len {lens[0]}" + (f" to {lens[-1]}" if lens[-1] > lens[0] else "")
    words = [f"{len(lens)} sequences of {span}" if len(lens) > 1 else span]
    words.append(f"placement: {case.placement}")
    words += [
        f"{seq.shared_blocks} blocks shared by {seq.shares_prefix_with} and {seq.tag}"
        for seq in case.seqs
        if seq.shared_blocks
    ]
    counted = {"padding_rows": "padding rows", "extra_columns": "spare columns"}
    words += [f"{getattr(case, name)} {what}" for name, what in counted.items() if getattr(case, name)]
    return words
