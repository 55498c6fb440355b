"""What the device reaches at something simple: copying, reading, a product of matrices, nothing. In a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from harness.speeds import COPY, MATMUL, NOTHING, READ, Ceiling
from harness.timing import Clock, GpuClock

#: Bytes that are copied and read, and the side of the square matrices.
BUFFER, SIDE = 2 << 30, 8192


def measure(turn: float, repeats: int) -> list[dict[str, Any]]:
    """All of them, as plain words; to be called in a worker of a GPU."""
    found: list[dict[str, Any]] = msgspec.to_builtins(list(ceilings(GpuClock(turn), repeats, "cuda")))
    torch.cuda.empty_cache()
    return found


def ceilings(clock: Clock, repeats: int, device: str, buffer: int = BUFFER, side: int = SIDE) -> Iterator[Ceiling]:
    """`read` is torch's sum of float32; a copy counts the bytes it reads and those it writes.

    It is a kernel that writes -x: in a graph torch's own copy is left to the copy engine, which is slower than kernels.
    """
    source = torch.ones(buffer // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    yield _timed(clock, repeats, COPY, 2 * buffer, lambda: torch.neg(source, out=target))
    yield _timed(clock, repeats, READ, buffer, lambda: source.sum())
    left, right = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    yield _timed(clock, repeats, MATMUL, 2 * side**3, lambda: left @ right)
    yield _timed(clock, repeats, NOTHING, 0, lambda: None)


def _timed(clock: Clock, repeats: int, name: str, amount: float, call: Callable[[], Any]) -> Ceiling:
    return Ceiling(name=name, amount=amount, repeats=clock.repeats(clock.ready(call), repeats))
