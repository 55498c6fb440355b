"""Says in one sentence whether this Triton still has the shape that gridsim hooks into, and whether it was tried."""

from __future__ import annotations

import re
import warnings

import torch
import triton
import triton.language as tl

from harness.executors.gridsim.launch import active

OLDEST, NEWEST = (3, 6), (3, 9)  # tests/ pass with these and what lies between (see tox.ini)
WANT = [0.0, 2.0, 4.0, 6.0, 8.0, 0.0]


@triton.jit  # type: ignore[untyped-decorator]
def _double(x, y, n, turns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(turns):
        total += tl.load(x + at, mask=at < n, other=0.0)
    if tl.max(total, 0) >= 0:
        tl.store(y + at, total, mask=at < n)


def self_test() -> str | None:
    """Run a small kernel; None if all is well, which on a newer Triton than any tried is worth a warning."""
    complaint = _complaint()
    if complaint is None and _version() > NEWEST:
        warnings.warn(
            f"gridsim was never tried with Triton {triton.__version__}, only with 3.6 to 3.9; its self-test passes",
            stacklevel=2,
        )
    return complaint


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", triton.__version__)[:2])


def _complaint() -> str | None:
    if _version() < OLDEST:
        return f"gridsim needs Triton 3.6 or newer, but this is {triton.__version__}"
    x, y = (torch.tensor(data, dtype=torch.float32, device="cpu") for data in (range(5), [0] * 6))
    try:
        with active() as trace:
            _double[(2,)](x, y, 5, 2, BLOCK=4)
    except Exception as error:  # whatever a changed Triton raises is the finding
        first = (str(error).splitlines() or [""])[0]
        return f"gridsim does not fit Triton {triton.__version__}: {type(error).__name__}: {first}"
    if y.tolist() != WANT or len(trace.launches) != 1 or trace.accesses:
        return f"gridsim does not fit Triton {triton.__version__}: expected {WANT}, got {y.tolist()}"
    return None
