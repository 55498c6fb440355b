"""A kernel that casts, and its launch; on whatever executor is active."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from patterns import SMALL

BLOCK = 1024


@triton.jit
def cast(x, y, n, ROUNDING: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    if ROUNDING == "":
        tl.store(y + at, value.to(y.dtype.element_ty), mask=at < n)
    else:
        tl.store(y + at, value.to(y.dtype.element_ty, fp_downcast_rounding=ROUNDING), mask=at < n)


def to_torch(values: np.ndarray, device: str) -> torch.Tensor:
    """The same bits as a tensor."""
    name = next((name for name, kind in SMALL.items() if np.dtype(kind) == values.dtype), values.dtype.name)
    plain = np.ascontiguousarray(values).view(f"i{values.dtype.itemsize}")
    return torch.from_numpy(plain.copy()).view(getattr(torch, name)).to(device)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same bits as an array."""
    name = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.cpu().view(getattr(torch, f"int{8 * tensor.element_size()}")).numpy()
    return plain.view(SMALL.get(name, name))


def converted(values: np.ndarray, kind: str, device: str = "cpu", rounding: str = "") -> np.ndarray:
    """What a kernel makes of values in the type called `kind`; inside `gridsim.active()`, or on a GPU."""
    x = to_torch(values, device)
    of = getattr(torch, kind)
    y = torch.zeros(len(x), dtype=getattr(torch, f"int{8 * of.itemsize}"), device=device).view(of)
    cast[(triton.cdiv(len(x), BLOCK),)](x, y, len(x), ROUNDING=rounding, BLOCK=BLOCK)
    return to_numpy(y)
