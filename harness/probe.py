"""Recovers the weights of a kernel: attention is linear in V, so V is replaced by basis vectors, a channel per slot."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.arithmetic import Arithmetic
from harness.bounds import Bound
from harness.case import Case, replace
from harness.inputs import Materials, materialise
from harness.judge import judge
from harness.platforms import platform
from harness.tensors import OUT_OF_REACH, Array, Tensor
from harness.values import scales

#: Calls, and seconds, that one x-ray may take.
MOST_CALLS, SECONDS = 64, 10.0
#: The block of a dense new token.
DENSE = -1
#: In the call that tells dims apart, V holds 1 to 7 in turn: no power of two, so that no stride maps it onto itself.
DIM_CYCLE = 7


class Seen(NamedTuple):
    """What one call gave, and the bound of its very input."""

    out: Array
    bound: Bound
    lse: Array | None = None


#: Runs the subject on materials; None where there is no output.
Look = Callable[[Materials], Seen | None]
#: Makes the tensors of a probe, V 0 everywhere.
Make = Callable[[Case], Materials]


@dataclass(frozen=True)
class Cells:
    """Places that hold a V vector: in the cache a block, an offset and a KV head; of a merge, a state.

    A dense new token lies in block -1, its row is the offset.
    """

    blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    heads: NDArray[np.int64]
    units: Array  # what a 1 in the cell is worth: the scale of an FP8 V

    def __len__(self) -> int:
        return len(self.blocks)


@dataclass(frozen=True)
class Weights:
    """What each row of the output makes of each cell, and what it should."""

    materials: Materials
    cells: Cells
    got: Array  # [tokens, heads, cells]
    true: Array
    within: Array  # how far apart the two may be
    lse: Array  # [tokens, heads]: the true one

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Which weights differ."""
        with np.errstate(invalid="ignore"):
            return np.asarray(~(np.abs(self.got - self.true) <= self.within))


def plain(case: Case) -> Case:
    """The case with tame numbers wherever nobody may read: a wrong read shows as a weight, not as a NaN."""
    return replace(case, **{name: "zero" for name in case.__struct_fields__ if name.endswith("_poison")})


def weights(case: Case, look: Look, make: Make) -> Weights | None:
    """Probe every cell, live ones first; None where the subject gives no output, or not in time."""
    first, until = make(case), time.monotonic() + SECONDS
    cells = _states(first) if case.op == "merge" else _slots(first)
    parts, lse = [], np.empty(0)
    for chosen in _batches(len(cells), case.value_dim):
        seen = look(_marked(make(case), cells, chosen)) if time.monotonic() < until else None
        if seen is None:
            return None
        out, bound = np.asarray(seen.out).astype(np.float64), seen.bound
        lse = bound.truth_lse
        parts.append([x[..., : len(chosen)] / cells.units[chosen] for x in (out, bound.truth, bound.out)])
    if not parts:
        return None
    covered = Cells(*(x[: MOST_CALLS * case.value_dim] for x in vars(cells).values()))
    got, true, within = (np.concatenate(kind, axis=2) for kind in zip(*parts, strict=True))
    return Weights(first, covered, got, true, within, lse)


def supposed(case: Case, change: Callable[[Materials], object], cells: Cells) -> Array:
    """The true weights [tokens, heads, cells] of the case if its inputs were changed."""
    parts = []
    for chosen in _batches(len(cells), case.value_dim):
        materials = _marked(quiet(case), cells, chosen)
        change(materials)
        truth = judge(materials, Arithmetic.float64(), platform("float64"), out_dtype="float64").truth
        parts.append(truth[..., : len(chosen)] / cells.units[chosen])
    return np.concatenate(parts, axis=2)


def dims(case: Case, look: Look, make: Make) -> Seen | None:
    """The output where every V vector is the same and says which dim is which."""
    materials = make(case)
    pattern = dim_pattern(case)
    for tensor in _sources(materials):
        _fill(materials, tensor, pattern)
    if materials.stored is not None:
        materials.stored.v[...] = pattern / scales(case)[1][:, None]
    return look(materials)


def dim_pattern(case: Case) -> Array:
    """V of every cell in the call that tells dims apart, [head_dim_v]."""
    return np.arange(case.value_dim) % DIM_CYCLE + 1.0


def quiet(case: Case) -> Materials:
    """The case with V 0 everywhere, also between its strides, and K 0 between its own."""
    materials = materialise(case)
    for tensor in filter(None, (materials.inputs.k_cache, materials.inputs.k_new, *_sources(materials))):
        if not tensor.storage.sparse:
            tensor.storage.data[tensor.storage.state == OUT_OF_REACH] = 0
    for tensor in _sources(materials):
        _fill(materials, tensor, 0)
    if materials.stored is not None:
        materials.stored.v[...] = 0
    return materials


def _fill(materials: Materials, tensor: Tensor, value: Any) -> None:
    """Of a pool too large to fill, only the blocks in use."""
    tensor.view[materials.rows(tensor) if tensor.storage.sparse else ...] = value


def padded(case: Case) -> Materials:
    """The same with one more block, and one more column of the table, whose padding names that block."""
    wider = replace(case, spare_blocks=case.spare_blocks + 1, extra_columns=max(case.extra_columns, 1))
    materials = quiet(wider)
    spare = np.setdiff1d(np.arange(materials.geometry.num_blocks), materials.geometry.used)
    for row, table in enumerate(materials.geometry.tables):
        materials.inputs.block_tables.view[row, len(table) :] = spare[-1]
    return materials


def _sources(materials: Materials) -> list[Tensor]:
    """The tensors that hold V."""
    inputs = materials.inputs
    if materials.case.op == "merge":
        return [inputs.state_outs]
    return [inputs.v_cache] if inputs.v_new is None else [inputs.v_cache, inputs.v_new]


def _batches(count: int, size: int) -> Iterator[NDArray[np.int64]]:
    for first in range(0, min(count, MOST_CALLS * size), size):
        yield np.arange(first, min(first + size, count))


def _states(materials: Materials) -> Cells:
    count = materials.inputs.state_outs.shape[0]
    none = np.zeros(count, dtype=np.int64)
    return Cells(np.arange(count), none, none, np.ones(count))


def _slots(materials: Materials) -> Cells:
    """Every slot of every head, those of blocks in use first; of a pool too large to fill, only these."""
    case, geometry = materials.case, materials.geometry
    far = materials.inputs.v_cache.storage.sparse
    spare = () if far else np.setdiff1d(np.arange(geometry.num_blocks), geometry.used)
    blocks = np.concatenate([geometry.used, np.asarray(spare, dtype=np.int64)])
    grid = np.meshgrid(blocks, np.arange(case.block_size), np.arange(case.num_kv_heads), indexing="ij")
    block, offset, head = (axis.ravel() for axis in grid)
    if case.new_kv == "dense":
        rows, row_heads = np.divmod(np.arange(materials.inputs.v_new.shape[0] * case.num_kv_heads), case.num_kv_heads)
        block, offset = np.concatenate([np.full(len(rows), DENSE), block]), np.concatenate([rows, offset])
        head = np.concatenate([row_heads, head])
    fp8 = materials.inputs.v_scale is not None
    units = np.where(block == DENSE, 1.0, scales(case)[1][head] if fp8 else 1.0)
    for cell, _ in _stored_rows(materials, block, offset):
        units[cell] = 1.0
    return Cells(block, offset, head, units)


def _stored_rows(materials: Materials, blocks: Array, offsets: Array) -> list[tuple[int, int]]:
    """(cell, index in `Stored`) of the cells that the call writes itself."""
    if materials.stored is None:
        return []
    stored = zip(materials.stored.blocks.tolist(), materials.stored.offsets.tolist(), strict=True)
    index = {place: i for i, place in enumerate(stored)}
    places = zip(blocks.tolist(), offsets.tolist(), strict=True)
    return [(cell, index[place]) for cell, place in enumerate(places) if place in index]


def _marked(materials: Materials, cells: Cells, chosen: NDArray[np.int64]) -> Materials:
    """V with a 1 in channel i of the i-th chosen cell."""
    channels = np.arange(len(chosen))
    blocks, offsets, heads = cells.blocks[chosen], cells.offsets[chosen], cells.heads[chosen]
    if materials.case.op == "merge":
        materials.inputs.state_outs.view[blocks, :, :, channels] = 1
        return materials
    written = _stored_rows(materials, blocks, offsets)
    kept = np.ones(len(chosen), dtype=bool)
    kept[[cell for cell, _ in written]] = False
    dense, kept = blocks == DENSE, kept & (blocks != DENSE)
    if dense.any():
        materials.inputs.v_new.view[offsets[dense], heads[dense], channels[dense]] = 1
    materials.inputs.v_cache.view[blocks[kept], offsets[kept], heads[kept], channels[kept]] = 1
    for cell, index in written:
        _mark_new(materials, index, int(heads[cell]), int(channels[cell]))
    return materials


def _mark_new(materials: Materials, index: int, head: int, channel: int) -> None:
    """A new token's V, in its dense row and in what a right call stores."""
    stored = materials.stored
    assert stored is not None
    slot = stored.blocks[index] * materials.case.block_size + stored.offsets[index]
    row = int(np.flatnonzero(materials.inputs.slot_mapping.view == slot)[0])
    materials.inputs.v_new.view[row, head, channel] = 1
    stored.v[index, head, channel] = 1.0 / scales(materials.case)[1][head]
