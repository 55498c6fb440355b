"""Our own kernels as subjects."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

from harness.folders import load
from harness.subjects import subject

_kernels = partial(load, "kernels")
_decode = _kernels("decode")
_split_decode = _kernels("split_decode")
_extend = _kernels("extend")
_cache_write = _kernels("cache_write")
_gather = _kernels("gather")
_merge = _kernels("merge")

_READING = ("strides", "types", "lengths", "blocks", "devices", "dims")
#: Nothing is rounded before the output is.
_IN_FLOAT32 = {
    "dot": "ieee",
    "scaled_q_dtype": "float32",
    "qk_product": "float32",
    "pv_product": "float32",
    "qk_accumulator": "float32",
    "pv_accumulator": "float32",
    "score_dtype": "float32",
    "p_dtype": "float32",
    "sum_accumulator": "float32",
    "partial_dtype": "float32",
}
_ATTENTION: dict[str, Any] = {
    "window": True,
    "slid_out": True,
    "softcap": True,
    "alibi": True,
    "sinks": True,
    "lse": True,
    "out": True,
    "non_causal": True,
    "head_dim_v": True,
    "mla": True,
    "padding_rows": True,
    "kv_dtypes": ("same", "e4m3", "e5m2"),
    "batch_invariant": True,
    "fixed_splits": True,
    "layout_invariant": True,
    "promises": (*_READING, "heads"),
    "arithmetic": _IN_FLOAT32,
}


def _features(inputs: Any) -> dict[str, Any]:
    names = ("window", "causal", "softcap", "alibi_slopes", "sinks", "k_scale", "v_scale", "out")
    usual = inputs.scale == 1.0 / math.sqrt(inputs.q.shape[2])
    given = {"scale": None if usual else inputs.scale, "return_lse": inputs.want_lse}  # the default is tested too
    return {name: getattr(inputs, name) for name in names} | given


def _paged(inputs: Any) -> tuple[Any, ...]:
    return inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables


@subject(op="decode", **_ATTENTION)
def decode(inputs: Any) -> Any:
    """The textbook kernel of `kernels/decode.py`."""
    return _decode.paged_decode(*_paged(inputs), inputs.kv_lens, **_features(inputs))


#: The weights are rounded to the type of q before they meet V.
_AT_SPEED = _ATTENTION | {"arithmetic": _IN_FLOAT32 | {"p_dtype": "query"}}


@subject(op="decode", splits=True, own_splits=True, configs=len(_split_decode.CONFIGS), **_AT_SPEED)
def split_decode(inputs: Any) -> Any:
    """`kernels/split_decode.py`: programs share the keys of a sequence, the last of them merges."""
    usual = None if inputs.q.is_cuda else 4  # how many fill a CPU is no question
    knobs = {"num_splits": inputs.hints.num_splits or usual} | _split_decode.CONFIGS[inputs.hints.config]
    return _split_decode.paged_split_decode(*_paged(inputs), inputs.kv_lens, **knobs, **_features(inputs))


@subject(
    op="extend", new_kv=("in_cache", "dense"), splits=True, own_splits=True, configs=len(_extend.CONFIGS), **_AT_SPEED
)
def extend(inputs: Any) -> Any:
    """`kernels/extend.py`: prefill, chunks, a prefix in the cache, verification; programs may share its keys."""
    return _attend(inputs, k_new=inputs.k_new, v_new=inputs.v_new)


def _attend(inputs: Any, **new: Any) -> Any:
    lens = {"query_starts": inputs.query_starts, "kv_lens": inputs.kv_lens, "max_query_len": inputs.max_query_len}
    knobs = {"num_splits": inputs.hints.num_splits or None} | _extend.CONFIGS[inputs.hints.config]
    return _extend.paged_extend(*_paged(inputs), **lens, **new, **knobs, **_features(inputs))


_WRITING = ("strides", "types", "slots", "devices", "dims")
_WRITTEN: dict[str, Any] = {
    "mla": True,
    "head_dim_v": True,
    "padding_rows": True,
    "kv_dtypes": ("same", "e4m3", "e5m2"),
    "promises": _WRITING,
}


@subject(op="cache_write", **_WRITTEN)
def cache_write(inputs: Any) -> None:
    """`kernels/cache_write.py`; V is not written apart where it is a prefix of K."""
    apart = inputs.v_cache.untyped_storage().data_ptr() != inputs.k_cache.untyped_storage().data_ptr()
    whole = apart or inputs.v_cache.data_ptr() != inputs.k_cache.data_ptr()
    _cache_write.paged_cache_write(
        inputs.k_new,
        inputs.v_new if whole else None,
        inputs.k_cache,
        inputs.v_cache if whole else None,
        inputs.slot_mapping,
        k_scale=inputs.k_scale,
        v_scale=inputs.v_scale if whole else None,
    )


@subject(op="step", splits=True, own_splits=True, **(_AT_SPEED | {"promises": (*_READING, "heads", "slots")}))
def step(inputs: Any) -> Any:
    """A server's step: the new tokens go into the cache, then their queries attend."""
    cache_write(inputs)
    return _attend(inputs)


@subject(op="gather", kv_dtypes=("same", "e4m3", "e5m2"), layout_invariant=True, promises=_READING)
def gather(inputs: Any) -> Any:
    """`kernels/gather.py`: the tile loader by itself."""
    return _gather.paged_gather(inputs.k_cache, inputs.block_tables, inputs.kv_lens, inputs.tile_start, inputs.tile_end)


@subject(op="merge", lse=True, out=True, head_dim_v=True, layout_invariant=True)
def merge(inputs: Any) -> Any:
    """`kernels/merge.py`: any number of states, some of them empty."""
    return _merge.merge_states(inputs.state_outs, inputs.state_lses, out=inputs.out)


def _validate_step(inputs: Any) -> None:
    """What either of its kernels refuses."""
    _cache_write.validate(inputs)
    _extend.validate(replace(inputs, k_new=None, v_new=None))  # by then they are in the cache


decode.validate = _decode.validate  # type: ignore[attr-defined]
split_decode.validate = _split_decode.validate  # type: ignore[attr-defined]
extend.validate = _extend.validate  # type: ignore[attr-defined]
cache_write.validate = _cache_write.validate  # type: ignore[attr-defined]
gather.validate = _gather.validate  # type: ignore[attr-defined]
step.validate = _validate_step  # type: ignore[attr-defined]
