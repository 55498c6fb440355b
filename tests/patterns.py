"""Numbers on which a cast can go wrong: every 16-bit float, what lies between two neighbours of a type, specials."""

from __future__ import annotations

import ml_dtypes
import numpy as np

SMALL = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
SPECIALS = (
    0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519, 65520, 65536, 3.38953e38, 3.39615e38, 3.4028235e38, -3.4028235e38,
    1e-45, 2.0**-149, 2.0**-126, 2.0**-133, 448, 449, 463.9, 464, 464.1, 480, 1e6, -1e9, 57344, 61439, 61440, 61441,
)  # fmt: skip


def every(kind: str) -> np.ndarray:
    """All bit patterns of a small type."""
    of = np.dtype(SMALL[kind])
    return np.arange(1 << 8 * of.itemsize, dtype=np.uint32).astype(f"u{of.itemsize}").view(of)


def between(kind: str) -> np.ndarray:
    """The points halfway between neighbours of a small type, and their neighbours in float32."""
    values = every(kind).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    halfway = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    return np.concatenate([np.nextafter(halfway, np.float32(side)) for side in (-np.inf, np.inf)] + [halfway])


def hostile() -> np.ndarray:
    """Every float32 at which a cast to a small type is likely to go wrong: 630 thousand of them."""
    with np.errstate(all="ignore"):
        wide = [every(kind).astype(np.float32) for kind in SMALL]
        return np.concatenate([*wide, *(between(kind) for kind in SMALL), np.array(SPECIALS, np.float32)])


def codes(values: np.ndarray) -> np.ndarray:
    """The bits, all NaNs of one type being one."""
    bits = values.view(f"u{values.dtype.itemsize}")
    return np.where(np.isnan(values.astype(np.float32)), bits.dtype.type(-1 % (1 << 8 * bits.itemsize)), bits)
