"""Says of a forbidden access of the cache whether it is a right one with an id or an offset that has wrapped."""

from harness.executors.base import BadAccess
from harness.inputs import Materials
from harness.tensors import Tensor
from harness.writes import CACHES

#: Values of an id that is kept in 16 bits, and of an offset in 32.
IDS, OFFSETS = 2**16, 2**32


def wrap(materials: Materials, access: BadAccess) -> str:
    """For example "block 0 stands for block 8388608: a block id that is kept in 16 bits"; else nothing."""
    name = access.tensor.partition(" ")[0]
    if name not in CACHES:
        return ""
    tensor: Tensor = getattr(materials.inputs, name)
    element, used = _element(tensor, access), materials.geometry.used
    block = element // tensor.strides[0]
    for wraps in (1, -1, 2, -2):
        own = (element + wraps * OFFSETS) // tensor.strides[0]
        if own in used:
            return f"it lies {abs(wraps) * 2**32} elements from block {own}: an offset that is kept in 32 bits"
    ids = [int(own) for own in used if own != block and (own - block) % IDS == 0]
    if ids and -IDS // 2 <= block < IDS:
        return f"block {block} stands for block {ids[0]}: a block id that is kept in 16 bits"
    return ""


def _element(tensor: Tensor, access: BadAccess) -> int:
    """Elements from the first one of the view."""
    if isinstance(access.index, int):
        return access.index
    return sum(i * stride for i, stride in zip(access.index, tensor.strides, strict=True))
