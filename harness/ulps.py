"""How far an output is from the truth in units of its last place, and a digest of its bits."""

import hashlib
from typing import Any

import ml_dtypes
import numpy as np

from harness.checks import Run
from harness.tensors import Array

#: Of the errors of one output: the median, the 99.9th percentile, the worst.
QUANTILES = (0.5, 0.999, 1.0)


def errors(run: Run) -> tuple[float, ...]:
    """QUANTILES of |out - truth| in units of the last place of the row's largest true value; none without a truth.

    A row is one token and head. Units of a row, not of an element: a sum that cancels has no digits of its own.
    """
    out = np.asarray(run.observed.out)
    if run.bound is None or out.size == 0 or out.shape != run.bound.truth.shape:
        return ()
    with np.errstate(invalid="ignore"):  # an infinity less itself
        error = np.abs(out.astype(np.float64) - run.bound.truth) / _unit(run.bound.truth, out.dtype)
    finite = error[np.isfinite(error)]
    return tuple(round(float(value), 4) for value in np.quantile(finite, QUANTILES)) if finite.size else ()


def _unit(truth: Array, dtype: Any) -> Array:
    """The last place of the largest |truth| of each row in that type, [tokens, heads, 1]; subnormals have one unit."""
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    largest = np.abs(np.where(np.isfinite(truth), truth, 0.0)).max(axis=-1, keepdims=True)
    normal = np.maximum(largest, float(limits.smallest_normal))
    return np.asarray(np.exp2(np.floor(np.log2(normal))) * float(limits.eps))


def bits(run: Run) -> str:
    """A digest of out and lse; nothing where the call gave neither."""
    parts = [np.ascontiguousarray(part) for part in (run.observed.out, run.observed.lse) if part is not None]
    if not parts:
        return ""
    return hashlib.blake2b(b"".join(part.tobytes() for part in parts), digest_size=8).hexdigest()
