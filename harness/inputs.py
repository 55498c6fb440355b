"""From a Case to the tensors of a call: live data, poison wherever nobody may read, fences round everything."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from harness import values
from harness.case import Case, Hints, Seq
from harness.geometry import Geometry, lay_out
from harness.tensors import DEAD, FENCE, LIVE, Array, Tensor, contiguous, dense, poison, random_poison, reserve, strided


@dataclass(frozen=True)
class Inputs:
    """What a subject is called with. Tensors are torch tensors there; in `materialise` they are `Tensor`s.

    Shapes: q [tokens, num_q_heads, head_dim]; k_cache [num_blocks, block_size, num_kv_heads, head_dim]; v_cache with
    head_dim_v; block_tables [seqs, columns]; kv_lens [seqs]; query_starts [seqs + 1]; out [tokens, num_q_heads,
    head_dim_v] or None (then the subject allocates); alibi_slopes and sinks [num_q_heads] or None.
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
    scale: float
    causal: bool
    window: tuple[int, int]
    softcap: float
    want_lse: bool
    max_query_len: int
    max_kv_len: int
    hints: Hints

    def tensors(self) -> dict[str, Any]:
        """The tensors that are there, by name."""
        return {name: value for name in TENSOR_NAMES if (value := getattr(self, name)) is not None}

    def map(self, function: Callable[[str, Any], Any]) -> "Inputs":
        """The same inputs with each tensor replaced."""
        return replace(self, **{name: function(name, tensor) for name, tensor in self.tensors().items()})


TENSOR_NAMES = ("q", "k_cache", "v_cache", "block_tables", "kv_lens", "query_starts", "out", "alibi_slopes", "sinks")
SCALAR_NAMES = tuple(field.name for field in fields(Inputs) if field.name not in TENSOR_NAMES)


@dataclass(frozen=True)
class Materials:
    """A materialised case: its inputs as `Tensor`s, and where its blocks lie."""

    case: Case
    geometry: Geometry
    inputs: Inputs


def materialise(case: Case) -> Materials:
    """Make every tensor of the case."""
    geometry = lay_out(case, _smallest_block_stride(case))
    k_cache, v_cache = _caches(case, geometry)
    inputs = Inputs(
        q=_queries(case),
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=_block_tables(case, geometry),
        kv_lens=_vector([seq.kv_len for seq in case.seqs], "int32"),
        query_starts=_vector(np.cumsum([0] + [seq.query_len for seq in case.seqs]), "int32"),
        out=_output(case),
        alibi_slopes=_vector(values.slopes(case), "float32") if case.alibi else None,
        sinks=_vector(values.sink_logits(case), "float32") if case.sinks else None,
        scale=case.softmax_scale,
        causal=case.causal,
        window=case.window,
        softcap=case.softcap,
        want_lse=case.want_lse,
        max_query_len=max(seq.query_len for seq in case.seqs),
        max_kv_len=max(seq.kv_len for seq in case.seqs) + case.max_len_slack,
        hints=case.hints,
    )
    return Materials(case, geometry, inputs)


def gathered(materials: Materials, index: int) -> tuple[Array, Array, Array]:
    """q, K and V of one sequence as stored, in logical order: what the references read."""
    case, seq = materials.case, materials.case.seqs[index]
    first = sum(s.query_len for s in case.seqs[:index])
    blocks, offsets = _slots(materials.geometry, case, index)
    inputs = materials.inputs
    q = inputs.q.view[first : first + seq.query_len]
    return q, inputs.k_cache.view[blocks, offsets], inputs.v_cache.view[blocks, offsets]


def _slots(geometry: Geometry, case: Case, index: int) -> tuple[Array, Array]:
    position = np.arange(case.seqs[index].kv_len)
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
    tokens = sum(seq.query_len for seq in case.seqs)
    tensor = _query_tensor(case, tokens)
    data = np.concatenate([values.query(case, seq) for seq in case.seqs])
    _write(tensor, ..., values.cast(data, case.dtype))
    return tensor


def _query_tensor(case: Case, tokens: int) -> Tensor:
    shape = (tokens, case.num_q_heads, case.head_dim)
    if case.q_layout == "fused_qkv":
        row = (case.num_q_heads + 2 * case.num_kv_heads) * case.head_dim
        return strided(shape, (row, case.head_dim, 1), case.dtype)
    if case.q_layout == "transposed_heads":
        return strided(shape, (case.head_dim, tokens * case.head_dim, 1), case.dtype)
    return dense(shape, case.dtype)


def _output(case: Case) -> Tensor | None:
    shape = (sum(seq.query_len for seq in case.seqs), case.num_q_heads, case.value_dim)
    if case.out_layout == "allocated":
        return None
    if case.out_layout == "given":
        return dense(shape, case.dtype)
    head = case.value_dim + 5
    return strided(shape, (case.num_q_heads * head + 3, head, 1), case.dtype)


# --- the block table ---------------------------------------------------------------------------------------------


def _block_tables(case: Case, geometry: Geometry) -> Tensor:
    columns = max(max(len(table) for table in geometry.tables) + case.extra_columns, 1)
    tensor = dense((len(case.seqs), columns), case.table_dtype)
    for row, table in enumerate(geometry.tables):
        tensor.view[row] = _table_pad(case, geometry, row)
        _write(tensor, (row, slice(0, len(table))), table)
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
    _fill(case, geometry, k_cache, case.k_poison, values.keys)
    if not case.v_is_k_prefix:
        _fill(case, geometry, v_cache, case.v_poison, values.values)
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


def _fill(case: Case, geometry: Geometry, cache: Tensor, dead: str, live: Callable[[Case, Seq], Array]) -> None:
    spare = np.setdiff1d(np.arange(geometry.num_blocks), geometry.used) if not cache.storage.sparse else ()
    _poison_blocks(case, cache, geometry.used, dead)
    _poison_blocks(case, cache, np.asarray(spare, dtype=np.int64), case.spare_poison)
    for index, seq in enumerate(case.seqs):
        if seq.kv_len:
            _write(cache, _slots(geometry, case, index), values.cast(live(case, seq), case.cache_dtype))


def _poison_blocks(case: Case, cache: Tensor, blocks: Array, kind: str) -> None:
    dtype, shape = cache.storage.dtype, (len(blocks), *cache.shape[1:])
    if kind == "random_bits":
        elements = contiguous(cache.shape)[0]
        places = blocks[:, None] * elements + np.arange(elements)
        cache.view[blocks] = random_poison(case.data_seed, places, dtype).reshape(shape)
    else:
        cache.view[blocks] = poison(kind, dtype)
    cache.state[blocks] = DEAD
