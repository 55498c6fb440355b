"""Tensor descriptors: blocks of a tensor loaded, stored and reduced into, whole or row by row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.executors.gridsim import access
from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.frames import Descriptor, Frame, Value
from harness.executors.gridsim.ir import Op, Type
from harness.executors.gridsim.memory import Pointer
from harness.executors.gridsim.shapes import full

Kinds = tuple[Type, ...]
Effect = Callable[..., Value | None]  # of a frame and values


def _describe(op: Op, kinds: Kinds) -> Effect:
    rank = (len(kinds) - 1) // 2
    fill = np.nan if op.attributes.get("padding") == 2 else 0.0  # Triton's PaddingOption

    def run(_: Frame, pointer: Pointer, *sizes: Array) -> Descriptor:
        return Descriptor(pointer, sizes[:rank], sizes[rank:], fill)

    return run


def _load_tile(op: Op, kinds: Kinds) -> Effect:
    site, shape = access.site(op, kinds[0]), op.result_types[0].shape

    def run(frame: Frame, descriptor: Descriptor, *corner: Array) -> Array:
        pointer, inside = access.tile(descriptor, corner, site.shape)
        fill = np.full((1,) * (len(site.shape) + 1), descriptor.fill, site.codec.carrier)
        found = full(site.read(frame, pointer, inside, fill), site.shape)
        return found.reshape(found.shape[0], *shape)

    return run


def _store_tile(op: Op, kinds: Kinds) -> Effect:
    site = access.site(op, kinds[0])
    (stored,) = (number for number, kind in enumerate(kinds) if number and kind.shape)
    shape = kinds[stored].shape

    def run(frame: Frame, descriptor: Descriptor, *rest: Array) -> None:
        corner, value = rest[: stored - 1] + rest[stored:], full(rest[stored - 1], shape)
        pointer, inside = access.tile(descriptor, corner, site.shape)
        site.write(frame, pointer, value.reshape(value.shape[0], *site.shape), inside)

    return run


def _reduce_tile(op: Op, kinds: Kinds) -> Effect:
    """Combine a block with what lies in memory, element by element."""
    site, change = access.site(op, kinds[0]), access.change(op, kinds[0].element)
    shape = kinds[-1].shape

    def run(frame: Frame, descriptor: Descriptor, *rest: Array) -> None:
        pointer, inside = access.tile(descriptor, rest[:-1], site.shape)
        value = full(rest[-1], shape)
        site.atomic(frame, pointer, inside, change, value.reshape(value.shape[0], *site.shape))

    return run


def _rows(descriptor: Descriptor, row: Array, first: Array, width: int) -> tuple[Pointer, Array]:
    """Find the elements of some rows, from one column on, and which of them lie in the tensor."""
    column = first.astype(np.int64).reshape(-1, 1, 1) + np.arange(width)
    row = row.astype(np.int64)[:, :, None]
    (height, wide), (down, right) = (
        [part.astype(np.int64).reshape(-1, 1, 1) for part in parts] for parts in (descriptor.shape, descriptor.strides)
    )
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < wide)
    return descriptor.pointer.moved(descriptor.pointer.offset.reshape(-1, 1, 1) + row * down + column * right), inside


def _load_rows(op: Op, kinds: Kinds) -> Effect:
    shape = op.result_types[0].shape
    site = access.site(op, Type(kinds[0].element, shape))

    def run(frame: Frame, descriptor: Descriptor, row: Array, first: Array) -> Array:
        pointer, inside = _rows(descriptor, full(row, shape[:1]), first, shape[1])
        return site.read(frame, pointer, inside, np.full((1, 1, 1), descriptor.fill, site.codec.carrier))

    return run


def _store_rows(op: Op, kinds: Kinds) -> Effect:
    shape = kinds[-1].shape
    site = access.site(op, Type(kinds[0].element, shape))

    def run(frame: Frame, descriptor: Descriptor, row: Array, first: Array, value: Array) -> None:
        pointer, inside = _rows(descriptor, full(row, shape[:1]), first, shape[1])
        site.write(frame, pointer, value, inside)

    return run


DESCRIPTORS: dict[str, Callable[[Op, Kinds], Effect]] = {
    "tt.make_tensor_descriptor": _describe,
    "tt.descriptor_load": _load_tile,
    "tt.descriptor_store": _store_tile,
    "tt.descriptor_reduce": _reduce_tile,
    "tt.descriptor_gather": _load_rows,
    "tt.descriptor_scatter": _store_rows,
}
