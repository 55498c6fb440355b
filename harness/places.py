"""What a forbidden place in the cache suggests: an id or an offset that has wrapped, padding, a block too far."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.executors.base import BadAccess
from harness.inputs import Materials
from harness.tensors import Tensor
from harness.writes import CACHES

#: Values of an id that is kept in 16 bits, and of an offset in 32.
IDS, OFFSETS = 2**16, 2**32


def suggested(materials: Materials, access: BadAccess) -> str:
    """For example "block 1 stands for block 8388609: a block id that is kept in 16 bits"; else nothing."""
    name = access.tensor.partition(" ")[0]
    if name not in CACHES:
        return ""
    tensor: Tensor = getattr(materials.inputs, name)
    element = _element(tensor, access)
    block = element // tensor.strides[0]
    tables = enumerate(materials.geometry.tables)
    return (
        _clamped(materials, access)
        or _of_the_other(materials, access, element)
        or _wrapped(materials, element, tensor.strides[0])
        or _padding(materials, block)
        or next(filter(None, (behind(block, sequence, table) for sequence, table in tables)), "")
    )


def _element(tensor: Tensor, access: BadAccess) -> int:
    """Elements from the first one of the view."""
    if isinstance(access.index, int):
        return access.index
    return sum(i * stride for i, stride in zip(access.index, tensor.strides, strict=True))


def _clamped(materials: Materials, access: BadAccess) -> str:
    """A write to slot 0, where no new token belongs, while one that is to be skipped has none."""
    slots = materials.inputs.slot_mapping
    if slots is None or not access.kind.endswith("write") or not isinstance(access.index, tuple):
        return ""
    if access.index[:2] != (0, 0) or 0 in slots.view or -1 not in slots.view:
        return ""
    return "slot 0 is no new token's: a token to be skipped, whose slot is -1, is written all the same, as if to slot 0"


def _of_the_other(materials: Materials, access: BadAccess, element: int) -> str:
    """A read where a token would lie if this cache were laid out as the other one is."""
    caches: dict[str, Tensor] = {"K": materials.inputs.k_cache, "V": materials.inputs.v_cache}
    own, other = ("V", "K") if access.tensor.startswith("v_cache") else ("K", "V")
    strides = caches[other].strides
    if not access.kind.endswith("read") or strides == caches[own].strides:
        return ""
    if element not in _led_to(materials, caches[own], strides):
        return ""
    return f"{own} is read with the strides of {other}, {strides}, but has its own, {caches[own].strides}"


def _led_to(materials: Materials, cache: Tensor, strides: tuple[int, ...]) -> NDArray[np.int64]:
    """Elements of all tokens in the cache, if these were its strides."""
    case, (_, size, heads, dim) = materials.case, cache.shape
    rows = zip(case.batch, materials.geometry.tables, strict=True)
    tokens = np.concatenate([_first(table, case.paged_len(seq), size, strides) for seq, table in rows])
    inner = np.arange(heads)[:, None] * strides[2] + np.arange(dim) * strides[3]
    found: NDArray[np.int64] = (tokens[:, None] + inner.reshape(-1)).reshape(-1)
    return found


def _first(table: NDArray[np.int64], tokens: int, size: int, strides: tuple[int, ...]) -> NDArray[np.int64]:
    position = np.arange(tokens)
    found: NDArray[np.int64] = table[position // size] * strides[0] + position % size * strides[1]
    return found


def _wrapped(materials: Materials, element: int, stride: int) -> str:
    block, used = element // stride, materials.geometry.used
    for wraps in (1, -1, 2, -2):
        own = (element + wraps * OFFSETS) // stride
        if own in used:
            return f"it lies {abs(wraps) * OFFSETS} elements from block {own}: an offset that is kept in 32 bits"
    ids = [int(own) for own in used if own != block != 0 and (own - block) % IDS == 0]  # 0 is what a clamp gives too
    if ids and -IDS // 2 <= block < IDS:
        return f"block {block} stands for block {ids[0]}: a block id that is kept in 16 bits"
    return ""


def _padding(materials: Materials, block: int) -> str:
    """Ids that no block has, in entries of the table that are not in use."""
    if block in range(materials.geometry.num_blocks) or block not in materials.inputs.block_tables.view:
        return ""
    return f"only the padding of the table names block {block}: one of its entries is read"


def behind(block: int, sequence: int, table: NDArray[np.int64]) -> str:
    """Whether a block lies behind one of the sequence's, where its table has another in its place."""
    for column in np.flatnonzero((table[:-1] + 1 == block) & (table[1:] != block)):
        return (
            f"block {block} lies behind block {block - 1}, but column {column + 1} of sequence {sequence} is "
            f"block {table[column + 1]}, as if blocks lay one after another"
        )
    return ""


def elsewhere(block: int, sequence: int, tables: Sequence[NDArray[np.int64]]) -> str:
    """Whether another row of the table has a block in a column where the sequence's own has a different one."""
    own = tables[sequence]
    for row, table in enumerate(tables):
        both = min(len(own), len(table))
        for column in np.flatnonzero((table[:both] == block) & (own[:both] != block)):
            return f"row {row} of the block table is read in place of row {sequence} in column {column}"
    return ""
