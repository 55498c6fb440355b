"""Knows which memory nobody has written yet: what torch allocates without filling, until a kernel or torch writes it.

Torch is watched by function: whatever gets a tensor and is not known to leave its elements alone may have written it,
and that storage is then believed to be written as a whole.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from harness.executors.gridsim.codecs import Array
from harness.executors.gridsim.touch import Record, Touch

EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
#: What writes no element: questions about a tensor, views and copies of it.
HARMLESS = {
    "__get__", "__getitem__", "__hash__", "__len__", "as_strided", "chunk", "clone", "contiguous", "data_ptr",
    "detach", "diagonal", "dim", "element_size", "expand", "flatten", "get_device", "is_contiguous",
    "is_floating_point", "movedim", "narrow", "ndimension", "nelement", "new_full", "new_ones", "new_zeros", "numel",
    "ones_like", "permute", "reshape", "select", "size", "split", "squeeze", "storage_offset", "stride", "swapaxes",
    "t", "transpose", "unbind", "unflatten", "unsqueeze", "untyped_storage", "view", "view_as", "zeros_like",
}  # fmt: skip
#: Integers by their width in bytes.
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LARGE = 1 << 28  # bytes from which on memory is not followed


class Scratch:
    """One storage that came unwritten: which bytes a kernel has written since, and what they held at first."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor  # keeps the storage, and so its address, from being used again
        storage = tensor.untyped_storage()
        self.first = _bytes(storage).copy()
        self.written = np.zeros(len(self.first), np.uint8)

    def read(self, touch: Touch, record: Record) -> None:
        """Record elements that nobody wrote: unmarked ones that hold what they held at first."""
        unwritten = _elements(self.written, touch).take(touch.index) == 0
        if unwritten.any():
            unwritten &= _elements(self.first, touch).take(touch.index) == touch.held
            record("uninitialised read", touch, unwritten, "")

    def write(self, touch: Touch, _record: Record) -> None:
        """Mark elements as written."""
        marks = _elements(self.written, touch)
        marks[touch.index] = ~marks.dtype.type(0)

    def update(self, touch: Touch, record: Record) -> None:
        """Read and write at once."""
        self.read(touch, record)
        self.write(touch, record)

    def untouched(self, tensor: torch.Tensor) -> Array:
        """Say which elements of a tensor in this storage nobody wrote, bool in its shape."""
        same = _bytes(self.tensor.untyped_storage()) == self.first
        kept = torch.from_numpy((same & (self.written == 0)).astype(np.uint8)).view(WHOLE[tensor.element_size()])
        every = torch.from_numpy(np.ones(tensor.element_size(), np.uint8)).view(kept.dtype)
        found: Array = (kept.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()) == every).numpy()
        return found


def _bytes(storage: torch.UntypedStorage) -> Array:
    window = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return np.ctypeslib.as_array(window)  # torch's own way would forbid to resize the storage


def _elements(flat: Array, touch: Touch) -> Array:
    """Show bytes as elements of the access's width."""
    width = touch.itemsize
    return flat[: len(flat) // width * width].view(f"u{width}")


class Unwritten(TorchFunctionMode):
    """The storages that are not written, by address, kept up to date while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, Scratch] = {}
        self.fill: int | None = None  # a byte to fill new memory with, instead of what torch leaves there

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note new memory, and forget what torch may have written."""
        returned = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in EMPTY:
            self.add(returned)
        elif self.found and name not in HARMLESS:
            for tensor in _tensors((args, kwargs)):
                self.found.pop(address(tensor), None)
        return returned

    def at(self, place: int) -> Scratch | None:
        """Give the storage that lies at an address; one that torch has moved since is forgotten."""
        found = self.found.get(place)
        if found is not None and address(found.tensor) != place:
            del self.found[place]
            return None
        return found

    def untouched(self, tensor: torch.Tensor) -> Array | None:
        """Say which elements of a tensor nobody has written since it was allocated; None where all may be."""
        found = self.at(address(tensor))
        return None if found is None else found.untouched(tensor)

    def add(self, tensor: torch.Tensor) -> None:
        """Take a tensor's storage as not written."""
        place = address(tensor)
        if place and tensor.untyped_storage().nbytes() < LARGE:
            if self.fill is not None:
                _bytes(tensor.untyped_storage())[:] = self.fill
            self.found[place] = Scratch(tensor)


def address(tensor: torch.Tensor) -> int:
    """Say where a tensor's storage lies; 0 where it has none."""
    there = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return tensor.untyped_storage().data_ptr() if there else 0


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)
