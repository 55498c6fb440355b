"""Changing what lives in a case's tensors, for the second call of a comparison."""

from collections.abc import Callable, Sequence

import numpy as np

from harness.case import Case
from harness.inputs import Materials
from harness.tensors import LIVE, Array
from harness.writes import CACHES


def rewrite(materials: Materials, name: str, change: Callable[[Array], Array]) -> None:
    """Put a function of each living number, taken in float64 and rounded to the tensor's type, in its place."""
    tensor = getattr(materials.inputs, name)
    where = materials.geometry.used if name in CACHES else slice(None)  # a sparse cache is read nowhere else
    data, alive = tensor.view[where].copy(), tensor.state[where] == LIVE
    data[alive] = change(data[alive].astype(np.float64)).astype(data.dtype)
    tensor.view[where] = data


def living(materials: Materials, name: str) -> Array:
    """The living numbers of a tensor, flat, in float64."""
    tensor = getattr(materials.inputs, name)
    where = materials.geometry.used if name in CACHES else slice(None)
    return np.asarray(tensor.view[where][tensor.state[where] == LIVE].astype(np.float64))


def slots(materials: Materials, index: int) -> tuple[Array, Array]:
    """Block and offset of each token of one sequence, in logical order."""
    position = np.arange(materials.case.seqs[index].kv_len)
    return materials.geometry.tables[index][position // materials.case.block_size], position % materials.case.block_size


def tokens(materials: Materials, name: str, index: int) -> Array:
    """A sequence's K or V as stored, [kv_len, heads, dim] in logical order."""
    return np.asarray(getattr(materials.inputs, name).view[slots(materials, index)])


def put_tokens(materials: Materials, name: str, index: int, data: Array) -> None:
    """The inverse of `tokens`."""
    getattr(materials.inputs, name).view[slots(materials, index)] = data


def rows(case: Case, index: int) -> slice:
    """Where one sequence's queries lie in q and out."""
    first = sum(seq.query_len for seq in case.seqs[:index])
    return slice(first, first + case.seqs[index].query_len)


def inherit(old: Materials, new: Materials, origin: Sequence[int], queries: Array) -> None:
    """Give each sequence the tokens of the old sequence `origin[i]`, as many as it has, and all the old `queries`."""
    new.inputs.q.view[...] = old.inputs.q.view[queries]
    for name in caches(new.case):
        for index, source in enumerate(origin):
            put_tokens(new, name, index, tokens(old, name, source)[: new.case.seqs[index].kv_len])


def fill(materials: Materials, name: str, data: Array) -> None:
    """Replace a whole tensor of numbers."""
    getattr(materials.inputs, name).view[...] = data


def caches(case: Case) -> tuple[str, ...]:
    """The caches that have memory of their own."""
    return ("k_cache",) if case.v_is_k_prefix else CACHES
