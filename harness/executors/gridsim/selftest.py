"""Says in one sentence whether this Triton still has the shape that gridsim hooks into."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from harness.executors.gridsim.launch import active


@triton.jit  # type: ignore[untyped-decorator]
def _double(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def self_test() -> str | None:
    """Run a tiny kernel; None if all is well."""
    x, y = torch.arange(5.0), torch.zeros(6)
    try:
        with active() as trace:
            _double[(2,)](x, y, 5, BLOCK=4)
    except Exception as error:  # whatever a changed Triton raises is the finding
        return f"gridsim does not fit Triton {triton.__version__}: {type(error).__name__}: {error}".splitlines()[0]
    if y.tolist() != [0, 2, 4, 6, 8, 0] or len(trace.launches) != 1 or trace.accesses:
        return f"gridsim does not fit Triton {triton.__version__}: expected [0, 2, 4, 6, 8, 0], got {y.tolist()}"
    return None
