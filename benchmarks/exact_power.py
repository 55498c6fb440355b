"""How often one key too few or too many shows: exactly, on values with equal weights, and by the bound of a GPU.

    python benchmarks/exact_power.py [CASES]

Each line: type, family of values, and for each fault the share of cases found exactly and by the bound.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.arithmetic import Arithmetic
from harness.bounds import exceeds
from harness.case import Case, Seq
from harness.exact import expected
from harness.inputs import gathered, materialise
from harness.judge import judge
from harness.platforms import platform
from harness.values import cast

FAULTS = ("last key dropped", "one key twice", "one extra zero key")


def outputs(case: Case, materials: Any) -> Iterator[tuple[str, Any]]:
    """The output [1, 1, head_dim] of attention with each fault, rounded to the case's type once."""
    q, k, v = (x.astype(np.float64) for x in gathered(materials, 0))
    weights = np.exp(k[:, 0] @ q[0, 0] * case.softmax_scale)
    for fault in FAULTS:
        times = np.ones(len(weights))
        if fault == "last key dropped":
            times[-1] = 0
        if fault == "one key twice":
            times[case.data_seed % len(weights)] = 2
        total = (weights * times).sum() + (fault == "one extra zero key")
        yield fault, cast(((weights * times) @ v[:, 0] / total)[None, None], case.dtype)


def found(dtype: str, values: str, seed: int) -> Iterator[tuple[str, bool, bool]]:
    """Fault, whether it is found exactly, whether by the bound, on one case of 33 to 999 keys."""
    keys = 33 + int(np.random.default_rng(seed).integers(967))
    case = Case(seqs=(Seq(kv_len=keys),), dtype=dtype, values=values, data_seed=seed)  # type: ignore[arg-type]
    materials = materialise(case)
    kernel = Arithmetic(p_dtype=dtype, tile_kv=16, tensor_core=dtype != "float32")
    bound = judge(materials, kernel, platform("sm90"))
    exact = expected(case, bound, kernel)
    for fault, out in outputs(case, materials):
        yield fault, exact is not None and bool(exact.broken(out).any()), bool(exceeds(out, bound).any())


def main(cases: int) -> None:
    """Print the table."""
    for dtype in ("float32", "float16", "bfloat16"):
        for values in ("uniform", "two_level", "normal"):
            rows = [row for seed in range(cases) for row in found(dtype, values, seed)]
            shares = []
            for fault in FAULTS:
                exactly, bounded = np.mean([row[1:] for row in rows if row[0] == fault], axis=0)
                shares.append(f"{fault} {exactly:.2f} {bounded:.2f}")
            sys.stdout.write(f"{dtype:<9} {values:<10} {'; '.join(shares)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
