"""Where the kernels of the probes run: a GPU, or gridsim."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from harness.executors.base import to_numpy, to_torch
from harness.probes import kernels
from harness.tensors import Array
from harness.values import DTYPES

#: Elements that one program takes.
BLOCK = 1024


class Device:
    """Launches them on NumPy arrays."""

    def __init__(self, executor: str) -> None:
        self.executor = executor
        self.device = "cuda" if executor == "gpu" else "cpu"

    def elementwise(self, function: Any, *arguments: Array, dtype: str = "float32") -> Array:
        """FUNCTION of up to three float32 arrays [n], stored as `dtype`."""
        x, y, z = (self._placed(a.astype(np.float32)) for a in (*arguments, *(arguments[:1] * 2))[:3])
        out = self._placed(np.zeros(len(x), DTYPES[dtype]))
        grid = (-(-len(x) // BLOCK),)
        self._launch(kernels.elementwise, grid, x, y, z, out, len(x), FUNCTION=function, BLOCK=BLOCK)
        return to_numpy(out)

    def dot(self, a: Array, b: Array, precision: str = "ieee") -> Array:
        """a [programs, M, K] times b [programs, K, N], of one type; float32 [programs, M, N]."""
        programs, rows, inner = a.shape
        columns = b.shape[2]
        c = self._placed(np.zeros((programs, rows, columns), np.float32))
        sizes = {"M": rows, "N": columns, "K": inner, "PRECISION": precision}
        self._launch(kernels.dot, (programs,), self._placed(a), self._placed(b), c, **sizes)
        return to_numpy(c)

    def weights(self, q: Array, k: Array, scale: float) -> tuple[Array, Array]:
        """The weights of q [programs, dim] over k [programs, keys, dim], in the numerator and alone."""
        programs, keys, dim = k.shape
        out = [self._placed(np.zeros((programs, keys), np.float32)) for _ in range(2)]
        v = self._placed(np.eye(keys, dtype=np.float32))
        self._launch(kernels.weights, (programs,), self._placed(q), self._placed(k), v, *out, scale, KEYS=keys, DIM=dim)
        return to_numpy(out[0]), to_numpy(out[1])

    def _placed(self, array: Array) -> torch.Tensor:
        name = next(name for name, dtype in DTYPES.items() if np.dtype(dtype) == array.dtype)
        return to_torch(np.ascontiguousarray(array), name).to(self.device)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        with self._active():
            kernel[grid](*arguments, **constants)
        if self.executor == "gpu":
            torch.cuda.synchronize()

    def _active(self) -> Any:
        if self.executor != "gridsim":
            return nullcontext()
        from harness.executors import gridsim

        return gridsim.active()
