"""One call of a kernel in plain numbers: shapes, strides, types, and the small tensors that say where tokens lie."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.parameters import ATTENDING, WRITING

#: Columns of a block table that are read beyond those in use: enough to see what fills them.
BEYOND = 8
#: Tensors of which shape, strides and type are kept, never a value.
LARGE = ("q", "k_cache", "v_cache", "k_new", "v_new", "out")
#: Tensors that are copied.
SMALL = ("kv_lens", "prefix_lens", "query_starts", "slot_mapping", "k_scale", "v_scale")
#: Tensors that hold lengths, places and ids.
WHOLE = ("kv_lens", "prefix_lens", "query_starts", "slot_mapping", "block_tables")
#: Of these it is only kept that they are there.
PRESENT = ("alibi_slopes", "sinks")
#: Bytes to which memory that torch allocates is always aligned, and slices of it mostly.
ALIGNED = 16


class Inexpressible(Exception):
    """A call that no Case is like, with the reason."""


@dataclass(frozen=True)
class Part:
    """Some fields of the Case that is like a call, and in words what of the call they do not hold."""

    fields: dict[str, Any]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """Shape, strides in elements, and type of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Call:
    """What is kept of one call."""

    views: dict[str, View]
    arrays: dict[str, NDArray[Any]]
    scalars: dict[str, Any]
    v_from_k: int | None  # elements from the first one of K to that of V, where both lie in one storage
    misaligned: tuple[str, ...]  # the caches that begin off a boundary of 16 bytes
    unused: tuple[str, ...] = ()  # arguments that no role took


def read(values: Mapping[str, Any], unused: tuple[str, ...] = ()) -> Call:
    """The call with these values by role; copies the small tensors to the CPU, so a GPU is waited for."""
    views = {role: view(values[role]) for role in (*LARGE, "block_tables") if role in values}
    arrays = {role: _copied(values[role]) for role in SMALL if role in values}
    if "block_tables" in values:
        arrays["block_tables"] = _table(values["block_tables"], views, arrays)
    _check_whole(arrays)
    scalars = {role: _plain(value) for role, value in values.items() if role not in (*views, *arrays)}
    return Call(views, arrays, scalars, _v_from_k(values), _misaligned(values), unused)


def check_there(values: Mapping[str, Any]) -> None:
    """Raise Inexpressible where a parameter that may be None is, as in a server's first run without a cache."""
    for group in ATTENDING if "q" in values else WRITING:
        if "v_cache" not in group and not {*group} & {*values}:
            raise Inexpressible(f"{' and '.join(group)} {'are' if len(group) > 1 else 'is'} None in the call")


def _check_whole(arrays: Mapping[str, NDArray[Any]]) -> None:
    for role in WHOLE:
        if role in arrays and arrays[role].dtype.kind not in "iu" and arrays[role].size:
            raise Inexpressible(f"{role} is {arrays[role].dtype}, but should be integers")


def view(tensor: Any) -> View:
    """Shape, strides and type; raises Inexpressible for what is no tensor."""
    if not hasattr(tensor, "stride") or not hasattr(tensor, "dtype"):
        raise Inexpressible(f"a {type(tensor).__name__} came where a tensor should be")
    return View(tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), _type_name(tensor.dtype))


def _type_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}.get(name, name)


def _copied(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = (value.float() if value.is_floating_point() else value).detach().cpu().numpy()
    return np.array(value)


def _table(table: Any, views: Mapping[str, View], arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The columns in use and a few more: a server's table has room for its longest sequence."""
    if len(views["block_tables"].shape) != 2:
        raise Inexpressible(
            f"block_tables has shape {list(views['block_tables'].shape)}, but should be [seqs, columns]"
        )
    longest = sum(int(arrays[role].max(initial=0)) for role in ("kv_lens", "prefix_lens") if role in arrays)
    new = views["q"].shape[0] if "prefix_lens" in arrays else 0
    slots = views["k_cache"].shape[1] if len(views["k_cache"].shape) == 4 else 1
    return _copied(table[:, : -(-(longest + new) // max(slots, 1)) + BEYOND])


def _plain(value: Any) -> Any:
    """A number, a word or a tuple of such; of anything else that it was there."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return tuple(_plain(part) for part in value)
    if getattr(value, "ndim", None) == 0 and not hasattr(value, "detach"):
        return value.item()
    return f"a {type(value).__name__}"


def _v_from_k(values: Mapping[str, Any]) -> int | None:
    k, v = values.get("k_cache"), values.get("v_cache")
    if k is None or v is None or k.untyped_storage().data_ptr() != v.untyped_storage().data_ptr():
        return None
    return int(v.data_ptr() - k.data_ptr()) // int(k.element_size())


def _misaligned(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(role for role in ("k_cache", "v_cache") if role in values and values[role].data_ptr() % ALIGNED)
