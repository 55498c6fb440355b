"""Strided tensors over flat storage that has a fence at both ends and knows which elements are live."""

import math
import mmap
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from harness.values import DTYPES, POISON, hashed

Array = NDArray[Any]

#: Elements on either side of every tensor that nobody may touch.
FENCE = 64
#: From this many bytes on, storage is reserved and never filled.
SPARSE_BYTES = 2**28

#: Elements that are hashed at a time, so that the hashes stay in the processor's cache.
STRETCH = 2**15

OUT_OF_REACH, DEAD, LIVE = 0, 1, 2


@dataclass(frozen=True)
class Storage:
    """Flat memory shared by the tensors that lie in it; `state` says per element who may read it."""

    data: Array  # [elements]
    state: NDArray[np.uint8]  # [elements]: OUT_OF_REACH, DEAD or LIVE
    dtype: str

    @property
    def sparse(self) -> bool:
        """Too large to fill or to compare as a whole."""
        return self.data.nbytes >= SPARSE_BYTES


@dataclass(frozen=True)
class Tensor:
    """A view: shape and strides in elements, `offset` from the first element of the storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @cached_property
    def view(self) -> Array:
        """The values, writable."""
        return self.over(self.storage.data)

    @cached_property
    def state(self) -> NDArray[np.uint8]:
        """The states, in the shape of the tensor, writable."""
        return self.over(self.storage.state)

    def over(self, flat: Array) -> Array:
        """The same view of other flat memory."""
        return _strided(flat, self.offset, self.shape, self.strides)


def _strided(flat: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    in_bytes = tuple(stride * flat.itemsize for stride in strides)
    buffer = flat.view(np.uint8)  # NumPy's own as_strided does not know FP8
    return np.ndarray(shape, dtype=flat.dtype, buffer=buffer, offset=offset * flat.itemsize, strides=in_bytes)


def reserve(elements: int, dtype: str) -> Storage:
    """Storage full of NaN (integers: a huge number), all of it out of reach; sparse storage stays untouched."""
    itemsize = DTYPES[dtype].itemsize
    if elements * itemsize >= SPARSE_BYTES:
        return Storage(_lazy(elements * itemsize).view(DTYPES[dtype]), _lazy(elements), dtype)
    data = np.empty(elements, dtype=DTYPES[dtype])
    fill(data, ..., "nan", dtype)
    return Storage(data, np.zeros(elements, dtype=np.uint8), dtype)


def copied(storage: Storage) -> Array:
    """Memory for another copy of the numbers; of sparse storage it is empty."""
    return _lazy(storage.data.nbytes).view(storage.data.dtype) if storage.sparse else storage.data.copy()


def _lazy(size: int) -> NDArray[np.uint8]:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=np.uint8)


def again(tensor: Tensor) -> Tensor:
    """The same tensor in memory of its own; not for one that is sparse."""
    storage = tensor.storage
    own = Storage(storage.data.copy(), storage.state.copy(), storage.dtype)
    return Tensor(own, tensor.offset, tensor.shape, tensor.strides)


def dense(shape: tuple[int, ...], dtype: str) -> Tensor:
    """A contiguous tensor between two fences; every element dead until it is written."""
    return strided(shape, contiguous(shape), dtype)


def strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, shift: int = 0) -> Tensor:
    """A tensor with the given strides, `shift` elements behind the fence."""
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
    storage = reserve(span + shift + 2 * FENCE, dtype)
    tensor = Tensor(storage, FENCE + shift, shape, strides)
    tensor.state[...] = DEAD
    return tensor


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def poison(kind: str, dtype: str) -> Any:
    """One poison value of the type; `random_bits` is `random_poison`."""
    if DTYPES[dtype].kind == "i":
        return np.iinfo(DTYPES[dtype]).max
    if kind == "zero":
        return DTYPES[dtype].type(0)
    if kind == "huge":
        return ml_dtypes.finfo(DTYPES[dtype]).max  # type: ignore[no-untyped-call]
    return DTYPES[dtype].type(np.nan if kind == "nan" or dtype == "e4m3" else np.inf)


def fill(array: Array, where: Any, kind: str, dtype: str) -> None:
    """Put poison there, as bits: NumPy is slow to repeat a number of a type that is not its own."""
    array.view(f"u{array.itemsize}")[where] = _poison_bits(kind, dtype)


@cache
def _poison_bits(kind: str, dtype: str) -> int:
    return int(np.array(poison(kind, dtype), dtype=DTYPES[dtype]).view(f"u{DTYPES[dtype].itemsize}"))


def random_poison(seed: int, places: Array, dtype: str) -> Array:
    """Random bit patterns, keyed by physical place."""
    found = np.empty(places.shape, f"u{DTYPES[dtype].itemsize}")
    flat, places = found.reshape(-1), places.reshape(-1)
    for start in range(0, len(flat), STRETCH):
        flat[start : start + STRETCH] = hashed(seed, POISON, places[start : start + STRETCH])
    return found.view(DTYPES[dtype])
