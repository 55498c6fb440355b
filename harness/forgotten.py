"""Weights that are right for inputs which differ in one respect: a feature left out, q or K read from elsewhere."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from harness.case import Case, replace
from harness.inputs import Materials
from harness.landmarks import at
from harness.misreadings import misreadings
from harness.probe import supposed
from harness.rows import Row
from harness.tensors import Tensor
from harness.values import scales

#: What a kernel may forget, in words.
FEATURES = {"softcap": "softcap", "alibi": "ALiBi", "sinks": "the sink", "scale": "the given scale"}
#: Dims that a kernel may stop at.
DIMS = (16, 32, 64, 128)
#: Rows of q, each with its head, that a kernel may take for another: so many are supposed.
MOST_ROWS = 12


def forgotten(row: Row) -> str:
    """The weights are right for inputs that differ in one respect."""
    cells = row.weights.cells
    for words, case, change in _suppositions(row):
        supposedly = supposed(case, change, cells)[row.token, row.head]
        own = row.visible
        off = np.abs(row.got - supposedly)[own]
        if (off <= 4 * row.within[own].max()).all() and np.abs(supposedly - row.true)[own].max() > off.max():
            return words
    return ""


def _suppositions(row: Row) -> Iterator[tuple[str, Case, Callable[[Materials], Any]]]:
    case, plain = row.case, Case()
    for name, words in FEATURES.items():
        if getattr(case, name) != getattr(plain, name):
            without = replace(case, **{name: getattr(plain, name)})
            yield f"the weights are those without {words}{at('scores')}", without, _nothing
    if case.new_kv == "dense" and case.k_scale != 1:
        yield "the weights are those with the scale of the cached K on the new K as well", case, _scale_new_k
    for dims in (dims for dims in DIMS if dims < case.head_dim):
        yield f"the weights are those of the first {dims} dims of q and K", case, partial(_first_dims, dims=dims)
    yield from _misread_keys(row)
    for shift in range(1, min(case.num_kv_heads, 8)):
        words = f"the weights are those of K {shift} KV {'head' if shift == 1 else 'heads'} further on{at('K')}"
        yield words, case, partial(_roll, name="k_cache", by=shift, axis=2)
    for shift in range(1, min(case.num_q_heads, 8)):
        words = f"the weights are those of q {shift} {'head' if shift == 1 else 'heads'} further on"
        yield words, case, partial(_roll, name="q", by=shift, axis=1)
    for shift in range(1, min(case.tokens * case.num_q_heads, MOST_ROWS)):
        words = (
            f"the weights are those of q of {_other_row(row, shift)}: the offset of q, or one of its strides, is wrong"
        )
        yield words, case, partial(_other_rows, by=shift)


def _other_row(row: Row, shift: int) -> str:
    """The row of q that is so many rows further on, heads counted within tokens."""
    heads = row.case.num_q_heads
    token, head = divmod((row.token * heads + row.head + shift) % (row.case.tokens * heads), heads)
    return f"token {token}, head {head} of the batch"


def _other_rows(materials: Materials, by: int) -> None:
    q = materials.inputs.q
    rows = q.view.copy().reshape(-1, q.shape[2])
    q.view[...] = np.roll(rows, -by, axis=0).reshape(q.shape)


def _nothing(materials: Materials) -> None:  # noqa: ARG001  (the case itself is changed)
    return None


def _scale_new_k(materials: Materials) -> None:
    tensor: Tensor = materials.inputs.k_new
    scaled = tensor.view.astype(np.float64) * scales(materials.case)[0][:, None]
    tensor.view[...] = scaled.astype(tensor.view.dtype)


def _first_dims(materials: Materials, dims: int) -> None:
    materials.inputs.q.view[..., dims:] = 0


def _misread_keys(row: Row) -> Iterator[tuple[str, Case, Callable[[Materials], Any]]]:
    """K read through other strides, or at the query's own head; nothing of a pool too large to be read through."""
    inputs, further = row.materials.inputs, row.head - row.kv_head
    if inputs.k_cache.storage.sparse:
        return
    for words, strides in misreadings(row.case, inputs.k_cache, inputs.v_cache, "V"):
        change = partial(_restride, strides=strides, start=0)
        yield f"the weights are those of K read with the strides of {words}{at('K')}", row.case, change
    one_place = (inputs.k_cache.strides[0], 0, *inputs.k_cache.strides[2:])
    change = partial(_restride, strides=one_place, start=0)
    yield f"the weights are those of K whose slots are all read in one place{at('K')}", row.case, change
    if further:
        where = f"where head {row.head} would lie, that of the query, and not its KV head {row.kv_head}"
        start = further * inputs.k_cache.strides[2]
        change = partial(_restride, strides=inputs.k_cache.strides, start=start)
        yield f"the weights are those of K read {where}{at('K')}", row.case, change


def _restride(materials: Materials, strides: tuple[int, ...], start: int) -> None:
    """K as it is read through other strides, so many elements further on; 0 beyond its memory."""
    k = materials.inputs.k_cache
    places = sum(
        index * stride for index, stride in zip(np.indices(k.shape, sparse=True), strides, strict=True)
    ) + np.int64(k.offset + start)
    inside = (places >= 0) & (places < len(k.storage.data))
    k.view[...] = np.where(inside, k.storage.data[np.where(inside, places, 0)], 0)


def _roll(materials: Materials, name: str, by: int, axis: int) -> None:
    tensor: Tensor = getattr(materials.inputs, name)
    tensor.view[...] = np.roll(tensor.view.copy(), -by, axis=axis)
