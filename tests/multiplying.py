"""A kernel that multiplies matrices, its launch on whatever executor is active, and the bound of what it gives."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from casting import to_numpy, to_torch

#: What the operands of a float32 product lose, relative to |a| |b|: TF32 cuts each to 10 bits; in three products with
#: what was cut, each rest again loses 2^-20, and the product of the two rests is left out.
OPERANDS = {"ieee": 0.0, "tf32": 2 * 2.0**-10 + 2.0**-20, "tf32x3": 3 * 2.0**-20}


@triton.jit
def product(a, b, c, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    total = tl.load(c + m[:, None] * N + n[None, :])
    tl.store(z + m[:, None] * N + n[None, :], tl.dot(left, right, total, input_precision=PRECISION))


def multiplied(device: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, precision: str) -> np.ndarray:
    """a @ b + c, of shapes [M, K], [K, N] and [M, N]; inside `gridsim.active()`, or on a GPU."""
    left, right, total = (to_torch(x.ravel(), device).reshape(x.shape) for x in (a, b, c))
    z = torch.zeros(c.shape, device=device)
    (m, k), n = a.shape, b.shape[1]
    product[(1,)](left, right, total, z, M=m, N=n, K=k, PRECISION=precision)
    return to_numpy(z)


def bound(a: np.ndarray, b: np.ndarray, c: np.ndarray, precision: str, unit: float) -> np.ndarray:
    """How far a product may be from float64's: operands cut, and each of K + 1 additions by `unit` of what is summed.

    Three products of TF32 add three times as often.
    """
    p, q, r = (np.abs(x.astype(np.float64)) for x in (a, b, c))
    operands = OPERANDS[precision] if a.dtype == np.float32 else 0.0
    additions = (a.shape[1] + 1) * (3 if precision == "tf32x3" else 1)
    return (operands + additions * unit) * (p @ q + r) + 2.0**-126
