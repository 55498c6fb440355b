"""From a Case to the tensors of a call: live data, poison wherever nobody may read, fences round everything."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from harness import values
from harness.case import WRITING, Case, Hints, Seq
from harness.geometry import Geometry, lay_out
from harness.states import partial_states
from harness.stopwatch import phase
from harness.tensors import (
    DEAD,
    FENCE,
    LIVE,
    Array,
    Tensor,
    again,
    contiguous,
    dense,
    fill,
    random_poison,
    reserve,
    strided,
)
from harness.writes import NewTokens, Stored, dense_tokens, new_tokens

#: K and V of a token that is skipped: no poison of a cache, and exact in FP8 whatever the scale.
SKIPPED = 24.0


@dataclass(frozen=True)
class Inputs:
    """What a subject is called with. Tensors are torch tensors there; in `materialise` they are `Tensor`s.

    Shapes: q [tokens, num_q_heads, head_dim]; k_cache [num_blocks, block_size, num_kv_heads, head_dim]; v_cache with
    head_dim_v; block_tables [seqs, columns]; kv_lens [seqs]; query_starts [seqs + 1]; out [tokens, num_q_heads,
    head_dim_v] or None (then the subject allocates); alibi_slopes and sinks [num_q_heads] or None; k_scale and v_scale
    [1 or num_kv_heads] of an FP8 cache, else None. For cache_write and step: k_new and v_new [rows, num_kv_heads, dim],
    slot_mapping [rows]; for extend with dense new tokens k_new and v_new [tokens, num_kv_heads, dim]. For merge:
    state_outs [states, tokens, num_q_heads, head_dim_v], state_lses without the dim.
    """

    q: Any
    k_cache: Any
    v_cache: Any
    block_tables: Any
    kv_lens: Any
    query_starts: Any
    out: Any
    alibi_slopes: Any
    sinks: Any
    k_scale: Any
    v_scale: Any
    k_new: Any
    v_new: Any
    slot_mapping: Any
    state_outs: Any
    state_lses: Any
    scale: float
    causal: bool
    window: tuple[int, int]
    softcap: float
    want_lse: bool
    max_query_len: int
    max_kv_len: int
    tile_start: int
    tile_end: int
    hints: Hints

    def tensors(self) -> dict[str, Any]:
        """The tensors that are there, by name."""
        return dict(self._tensors)

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        return {name: value for name in TENSOR_NAMES if (value := getattr(self, name)) is not None}

    def map(self, function: Callable[[str, Any], Any]) -> "Inputs":
        """The same inputs with each tensor replaced."""
        return replace(self, **{name: function(name, tensor) for name, tensor in self.tensors().items()})


TENSOR_NAMES = (
    "q", "k_cache", "v_cache", "block_tables", "kv_lens", "query_starts", "out", "alibi_slopes", "sinks",
    "k_scale", "v_scale", "k_new", "v_new", "slot_mapping", "state_outs", "state_lses",
)  # fmt: skip
SCALAR_NAMES = tuple(field.name for field in fields(Inputs) if field.name not in TENSOR_NAMES)


@dataclass(frozen=True)
class Materials:
    """A materialised case: its inputs as `Tensor`s, and where its blocks lie."""

    case: Case
    geometry: Geometry
    inputs: Inputs
    stored: Stored | None = None  # what a right call writes into the cache

    def rows(self, tensor: Tensor) -> Array:
        """The indices of the first dimension that are in use: of a cache its blocks, of anything else all."""
        caches = (self.inputs.k_cache, self.inputs.v_cache)
        return self.geometry.used if any(tensor is cache for cache in caches) else np.arange(tensor.shape[0])


@phase("materialising")
def materialise(case: Case) -> Materials:
    """Make every tensor of the case."""
    geometry = lay_out(case, _smallest_block_stride(case))
    k_cache, v_cache = _caches(case, geometry)
    fresh = new_tokens(case, geometry) if case.op in WRITING else None
    for cache in (k_cache, v_cache):
        _await(cache, fresh.stored if fresh else None)
    inputs = Inputs(
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=_block_tables(case, geometry),
        scale=case.softmax_scale,
        causal=case.causal,
        window=case.window,
        softcap=case.softcap,
        want_lse=case.want_lse,
        **(_settled(case) | ({} if fresh is None else _written(case, fresh))),
        max_query_len=max(seq.query_len for seq in case.batch) + case.max_len_slack,
        max_kv_len=max(seq.kv_len for seq in case.batch) + case.max_len_slack,
        tile_start=case.tile.start,
        tile_end=case.tile.end,
        hints=case.hints,
    )
    return Materials(case, geometry, inputs, fresh.stored if fresh else None)


def _settled(case: Case) -> dict[str, Tensor | None]:
    """The tensors that no block's place changes: made once, and each time in memory of their own."""
    if case.is_far:
        return _made(case)
    there, key = values.made(case), ("settled", case.row_poison)
    if key not in there:
        there[key] = _made(case)
    return {name: None if tensor is None else again(tensor) for name, tensor in there[key].items()}


def _made(case: Case) -> dict[str, Tensor | None]:
    return {
        "q": _queries(case),
        "kv_lens": _vector([seq.kv_len for seq in case.batch], "int32"),
        "query_starts": _vector(np.cumsum([0] + [seq.query_len for seq in case.batch]), "int32"),
        "out": _output(case),
        "alibi_slopes": _vector(values.slopes(case), "float32") if case.alibi else None,
        "sinks": _vector(values.sink_logits(case), "float32") if case.sinks else None,
        **_scales(case),
        **_dense(case),
        **_states(case),
    }


def far_bytes(case: Case) -> int:
    """Bytes of what may lie far apart, or a little more: caches, queries, new tokens, output. Nothing is filled for it.

    Far new tokens are taken for as many as reach beyond 32 bits.
    """
    geometry = lay_out(case, _smallest_block_stride(case))
    tensors = (*_cache_tensors(case, geometry.num_blocks), _query_tensor(case, case.tokens), _output(case))
    storages = {id(tensor.storage): tensor.storage.data for tensor in tensors if tensor is not None}
    fresh = case.q_layout == "far" and (case.op in WRITING or case.new_kv == "dense")
    return sum(data.nbytes for data in storages.values()) + 2 * fresh * 2**31 * values.DTYPES[case.dtype].itemsize


def gathered(materials: Materials, index: int) -> tuple[Array, Array, Array]:
    """q, K and V of one sequence in logical order: what the references read. An FP8 cache comes dequantised."""
    case, seq = materials.case, materials.case.batch[index]
    first = sum(s.query_len for s in case.batch[:index])
    rows = slice(first, first + seq.query_len)
    blocks, offsets = _slots(materials.geometry, case, index)
    k, v = (_kept(case, seq, _dequantised(materials, name, blocks, offsets)) for name in ("k_cache", "v_cache"))
    if case.new_kv == "dense":
        k, v = _followed(k, materials.inputs.k_new, rows, seq), _followed(v, materials.inputs.v_new, rows, seq)
    q = materials.inputs.q.view[rows]
    return (q if index < len(case.seqs) else np.zeros_like(q)), k, v  # what a padding row asks for does not matter


def _kept(case: Case, seq: Seq, cached: Array) -> Array:
    """The cached tokens with 0 for those that slid out: whatever lies there, nobody sees it."""
    cached[: case.slid(seq)] = 0
    return cached


def _followed(cached: Array, new: Tensor, rows: slice, seq: Seq) -> Array:
    """The cached tokens of a sequence, then its dense ones, which are not scaled."""
    there = new.view[rows][max(seq.query_len - seq.kv_len, 0) :]
    return np.concatenate([cached, there.astype(cached.dtype)])


def _dequantised(materials: Materials, name: str, blocks: Array, offsets: Array) -> Array:
    cache: Tensor = getattr(materials.inputs, name)
    data = cache.view[blocks, offsets]
    if materials.stored is not None:
        data = _overlaid(materials.stored, name, data, blocks, offsets)
    scale = materials.inputs.k_scale if name == "k_cache" else materials.inputs.v_scale
    return data if scale is None else data.astype(np.float64) * scale.view.astype(np.float64)[:, None]


def _overlaid(stored: Stored, name: str, data: Array, blocks: Array, offsets: Array) -> Array:
    """The tokens with those in their places that a right call has written."""
    new = stored.k if name == "k_cache" else stored.v
    places = {place: i for i, place in enumerate(zip(stored.blocks.tolist(), stored.offsets.tolist(), strict=True))}
    for i, place in enumerate(zip(blocks.tolist(), offsets.tolist(), strict=True)):
        if place in places:
            data[i] = new[places[place]]
    return data


def _slots(geometry: Geometry, case: Case, index: int) -> tuple[Array, Array]:
    position = np.arange(case.paged_len(case.batch[index]))
    return geometry.tables[index][position // case.block_size], position % case.block_size


def _vector(data: Any, dtype: str) -> Tensor:
    data = np.asarray(data)
    tensor = dense(data.shape, dtype)
    _write(tensor, ..., data)
    return tensor


def _write(tensor: Tensor, where: Any, data: Any) -> None:
    tensor.view[where] = data
    tensor.state[where] = LIVE


# --- q and out ---------------------------------------------------------------------------------------------------


def _queries(case: Case) -> Tensor:
    """Live rows, then poison in those of the padding."""
    tensor = _query_tensor(case, case.tokens)
    data = values.stored_query(case, *case.seqs)
    _write(tensor, slice(0, len(data)), data)
    _poison_rows(case, tensor, np.arange(case.tokens) >= len(data))
    return tensor


def _query_tensor(case: Case, tokens: int) -> Tensor:
    shape = (tokens, case.num_q_heads, case.head_dim)
    if case.q_layout == "fused_qkv":
        row = (case.num_q_heads + 2 * case.num_kv_heads) * case.head_dim
        return strided(shape, (row, case.head_dim, 1), case.dtype)
    if case.q_layout == "transposed_heads":
        return strided(shape, (case.head_dim, tokens * case.head_dim, 1), case.dtype)
    if case.q_layout == "far":
        return strided(shape, (_far_row(shape), case.head_dim, 1), case.dtype)
    return dense(shape, case.dtype)


def _far_row(shape: tuple[int, ...]) -> int:
    """A stride in 32 bits that takes the last of three or more rows beyond them."""
    return max(-(-(2**31) // max(shape[0] - 1, 2)), int(np.prod(shape[1:])))


def _output(case: Case) -> Tensor | None:
    shape = (case.tokens, case.num_q_heads, case.value_dim)
    if case.out_layout == "allocated":
        return None
    if case.out_layout == "given":
        return dense(shape, case.dtype)
    if case.out_layout == "far":
        tensor = strided(shape, (_far_row(shape), case.value_dim, 1), case.dtype)
        fill(tensor.view, ..., "nan", case.dtype)  # what is sparse comes full of zeros
        return tensor
    head = case.value_dim + 5
    return strided(shape, (case.num_q_heads * head + 3, head, 1), case.dtype)


# --- what only some operations take ------------------------------------------------------------------------------


def _scales(case: Case) -> dict[str, Tensor | None]:
    if case.cache_dtype not in ("e4m3", "e5m2"):
        return {"k_scale": None, "v_scale": None}
    size = case.num_kv_heads if case.scale_granularity == "head" else 1
    k_scales, v_scales = values.scales(case)
    return {"k_scale": _vector(k_scales[:size], "float32"), "v_scale": _vector(v_scales[:size], "float32")}


def _written(case: Case, fresh: NewTokens) -> dict[str, Tensor]:
    k_new, v_new = _new_pair(case, fresh.k, fresh.v)
    for tensor in (k_new, v_new):
        # What is dead here must be seen where it is written, so it is unlike what a dead slot of the cache holds.
        tensor.view[fresh.slots < 0] = SKIPPED
    return {"k_new": k_new, "v_new": v_new, "slot_mapping": _vector(fresh.slots, case.table_dtype)}


def _dense(case: Case) -> dict[str, Tensor | None]:
    if case.new_kv != "dense":
        return {"k_new": None, "v_new": None, "slot_mapping": None}
    k_new, v_new = _new_pair(case, *dense_tokens(case))
    for tensor in (k_new, v_new):
        _poison_rows(case, tensor, (tensor.state == DEAD).all(axis=(1, 2)))
    return {"k_new": k_new, "v_new": v_new, "slot_mapping": None}


def _new_pair(case: Case, k: Array, v: Array) -> tuple[Tensor, Tensor]:
    """New K and V, strided apart where the caches are."""
    gap = 3 if case.kv_layouts[0] != case.kv_layouts[1] else 0
    return _new_tensor(case, k, 0), _new_tensor(case, v, gap)


def _new_tensor(case: Case, data: Array, gap: int) -> Tensor:
    """New K or V as a slice of a fused projection where q is one; a row of NaN is dead."""
    heads, dim = data.shape[1:]
    row = heads * dim if case.q_layout == "contiguous" else (case.num_q_heads + 2 * heads) * dim + 1
    row = _far_row(data.shape) if case.q_layout == "far" else row
    tensor = strided(data.shape, (row + gap, dim, 1), case.dtype)
    tensor.view[...] = values.cast(data, case.dtype)
    tensor.state[~np.isnan(data)] = LIVE
    return tensor


def _poison_rows(case: Case, tensor: Tensor, rows: Array) -> None:
    """Poison in the rows that are nobody's."""
    shape = tensor.view[rows].shape
    if case.row_poison == "random_bits":
        places = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
        tensor.view[rows] = random_poison(case.data_seed, places, case.dtype)
    else:
        fill(tensor.view, rows, case.row_poison, case.dtype)


def _states(case: Case) -> dict[str, Tensor | None]:
    if case.op != "merge":
        return {"state_outs": None, "state_lses": None}
    outs, lses = partial_states(case)
    state_outs = strided(outs.shape, _state_strides(case, outs.shape), case.dtype)
    state_outs.view[...] = values.cast(outs, case.dtype)
    state_outs.state[~np.isnan(outs)] = LIVE
    _poison_rows(case, state_outs, (state_outs.state == DEAD).all(axis=(1, 2, 3)))
    state_lses = strided(lses.shape, _state_strides(case, (*lses.shape, 1))[:-1], "float32")
    _write(state_lses, ..., lses)
    return {"state_outs": state_outs, "state_lses": state_lses}


def _state_strides(case: Case, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of [states, tokens, heads, dim]: dense, a slice of something wider, or heads before tokens, as q is laid out."""
    _, tokens, heads, dim = shape
    if case.q_layout == "fused_qkv":
        row = heads * (dim + 3) + 1
        return tokens * row + 2, row, dim + 3, 1
    if case.q_layout == "transposed_heads":
        return heads * tokens * dim, dim, tokens * dim, 1
    return contiguous(shape)


# --- the block table ---------------------------------------------------------------------------------------------


def _block_tables(case: Case, geometry: Geometry) -> Tensor:
    columns = max(max(len(table) for table in geometry.tables) + case.extra_columns, 1)
    tensor = dense((len(case.batch), columns), case.table_dtype)
    for row, table in enumerate(geometry.tables):
        tensor.view[row] = _table_pad(case, geometry, row)
        there = slice(case.slid(case.batch[row]) // case.block_size, len(table))
        _write(tensor, (row, there), table[there])
    return tensor


def _table_pad(case: Case, geometry: Geometry, row: int) -> int:
    if case.table_pad == "huge":
        return int(np.iinfo(values.DTYPES[case.table_dtype]).max)
    if case.table_pad == "other":
        others = np.setdiff1d(geometry.used, geometry.tables[row])
        return int(others[0]) if others.size else 0
    return 0 if case.table_pad == "zero" else -1


# --- the caches --------------------------------------------------------------------------------------------------


def _strides(case: Case, layout: str, dim: int) -> tuple[int, int, int, int]:
    """Strides of [num_blocks, block_size, num_kv_heads, dim] in elements."""
    heads, size = case.num_kv_heads, case.block_size
    if layout == "hnd":
        return heads * size * dim, dim, size * dim, 1
    if layout == "padded":
        token = heads * (dim + 5) + 2
        return size * token + 7, token, dim + 5, 1
    block = size * heads * dim
    return (2 * block if layout == "kv_interleaved" else block), heads * dim, dim, 1


def _smallest_block_stride(case: Case) -> int:
    dims = (case.head_dim, case.value_dim)
    return min(_strides(case, layout, dim)[0] for layout, dim in zip(case.kv_layouts, dims, strict=True))


def _caches(case: Case, geometry: Geometry) -> tuple[Tensor, Tensor]:
    k_cache, v_cache = _cache_tensors(case, geometry.num_blocks)
    filled = [(k_cache, case.k_poison, values.stored_keys), (v_cache, case.v_poison, values.stored_values)]
    tokens, blocks, offsets = _cached(case, geometry)
    for cache, dead, live in filled[:1] if case.v_is_k_prefix else filled:
        _poison_cache(case, geometry, cache, dead)
        _write(cache, (blocks, offsets), live(case, *case.seqs)[tokens])
    return k_cache, v_cache


def _cache_tensors(case: Case, num_blocks: int) -> tuple[Tensor, Tensor]:
    if case.layout in ("kv_stacked", "kv_interleaved"):
        return _joint_caches(case, num_blocks)
    k_cache = _cache(case, num_blocks, case.kv_layouts[0], case.head_dim)
    if case.v_is_k_prefix:
        return k_cache, replace(k_cache, shape=(*k_cache.shape[:3], case.value_dim))
    return k_cache, _cache(case, num_blocks, case.kv_layouts[1], case.value_dim)


def _cache(case: Case, num_blocks: int, layout: str, dim: int) -> Tensor:
    shape = (num_blocks, case.block_size, case.num_kv_heads, dim)
    strides = _strides(case, layout, dim)
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    shift = 3 if layout == "offset" else 0
    return Tensor(reserve(span + shift + 2 * FENCE, case.cache_dtype), FENCE + shift, shape, strides)


def _joint_caches(case: Case, num_blocks: int) -> tuple[Tensor, Tensor]:
    shape = (num_blocks, case.block_size, case.num_kv_heads, case.head_dim)
    strides, size = _strides(case, case.layout, case.head_dim), contiguous(shape)[0] * num_blocks
    storage = reserve(2 * size + 2 * FENCE, case.cache_dtype)
    second = size if case.layout == "kv_stacked" else contiguous(shape)[0]
    return Tensor(storage, FENCE, shape, strides), Tensor(storage, FENCE + second, shape, strides)


def _cached(case: Case, geometry: Geometry) -> tuple[Array, Array, Array]:
    """Of each token in the cache when the call begins its place among all tokens, its block and its offset."""
    positions = [np.arange(case.slid(seq), case.cached_len(seq)) for seq in case.seqs]
    firsts = np.cumsum([0] + [seq.kv_len for seq in case.seqs]).tolist()
    places = [first + at for first, at in zip(firsts, positions, strict=False)]
    blocks = [table[at // case.block_size] for table, at in zip(geometry.tables, positions, strict=False)]
    return np.concatenate(places), np.concatenate(blocks), np.concatenate(positions) % case.block_size


def _poison_cache(case: Case, geometry: Geometry, cache: Tensor, dead: str) -> None:
    if cache.storage.sparse:
        _poison_blocks(case, cache, geometry.used, dead)
    else:
        _poison_blocks(case, cache, geometry.used if dead == "random_bits" else ..., dead)
        _poison_blocks(case, cache, geometry.spare, case.spare_poison)


def _await(cache: Tensor, stored: Stored | None) -> None:
    """What a right call writes may be read afterwards."""
    if stored is not None:
        cache.state[stored.blocks, stored.offsets] = LIVE


def _noise(case: Case, blocks: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """Random bits for the blocks, [blocks, *shape]; K, V and the cases of a relation have many of them in common."""
    made, elements = values.made(case).setdefault(("noise", dtype, shape), {}), math.prod(shape)
    missing = np.array([block for block in blocks.tolist() if block not in made], dtype=np.int64)
    found = random_poison(case.data_seed, missing[:, None] * elements + np.arange(elements), dtype)
    made.update(zip(missing.tolist(), found, strict=True))
    return np.array([made[block] for block in blocks.tolist()], dtype=found.dtype).reshape(len(blocks), *shape)


def _poison_blocks(case: Case, cache: Tensor, blocks: Any, kind: str) -> None:
    """Poison in some blocks by their ids, or in all (`...`); not with random bits, which are keyed by place."""
    dtype = cache.storage.dtype
    if kind == "random_bits":
        cache.view[blocks] = _noise(case, blocks, dtype, cache.shape[1:])
    else:
        fill(cache.view, blocks, kind, dtype)
    cache.state[blocks] = DEAD
