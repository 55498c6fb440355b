"""What wrong numbers of a written FP8 cache have in common: the scale, the range or the format, in words."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from harness.case import FP8, Case
from harness.executors.base import Written
from harness.tensors import Array
from harness.values import DTYPES, scales

#: The largest number of the E4M3 of AMD's MI300, which has no infinity either.
LARGEST_FNUZ = 240.0


def quantised(case: Case, written: Written) -> str:
    """Words for all told elements of one KV head; "" where the cache is not FP8, or they have nothing in common."""
    if case.cache_dtype not in FP8 or not written.some or not isinstance(written.index, tuple):
        return ""
    got, wanted = np.array(written.some, dtype=np.float64).T
    if not np.isfinite(wanted).all():
        return ""
    return next(iter((*_of_range(case.cache_dtype, got, wanted), *_of_scale(case, written, got, wanted), "")))


def _of_range(dtype: str, got: Array, wanted: Array) -> Iterator[str]:
    info = ml_dtypes.finfo(DTYPES[dtype])  # type: ignore[no-untyped-call]
    largest, least, sizes = float(info.max), float(info.smallest_normal), np.abs(wanted)
    if (sizes == largest).all() and not np.isfinite(got).any():
        stored = f"it is stored as {got[0]:g}"
        yield f"what is beyond the largest number of {dtype}, {largest:g}, does not saturate: {stored}"
    cap = float(np.abs(got).max(initial=0.0))
    if cap > 1 and (np.abs(got) == cap).all() and (sizes > cap).all() and (np.sign(got) == np.sign(wanted)).all():
        whose = ", the largest number of e4m3fnuz" if cap == LARGEST_FNUZ else ""
        yield f"what is beyond {cap:g}{whose}, is stored as that: {dtype} goes to {largest:g}"
    if ((sizes > 0) & (sizes < least)).all() and not got.any():
        yield f"subnormal numbers of {dtype}, below {least:.4g}, are stored as 0"
    other = next(name for name in FP8 if name != dtype)
    meant = got.astype(DTYPES[dtype]).view(DTYPES[other]).astype(np.float64)
    near = np.abs(meant - wanted) <= sizes / 8 + least
    if len(got) > 2 and near.all() and not (np.abs(got - wanted) <= sizes / 8 + least).all():
        yield f"the bytes are those of {other}, in a cache of {dtype}"


def _of_scale(case: Case, written: Written, got: Array, wanted: Array) -> Iterator[str]:
    """Scales are powers of two, so that a factor shows in every element that is neither subnormal nor saturated."""
    assert isinstance(written.index, tuple)
    info = ml_dtypes.finfo(DTYPES[case.cache_dtype])  # type: ignore[no-untyped-call]
    k_scale, v_scale = scales(case)
    name, per_head, others = ("K", k_scale, "V") if written.tensor.startswith("k") else ("V", v_scale, "K")
    head = int(written.index[2])
    own, other = float(per_head[head]), float((v_scale if name == "K" else k_scale)[head])
    sizes = (np.abs(x) for x in (got, wanted))
    sound = np.logical_and.reduce([(x >= float(info.smallest_normal)) & (x < float(info.max)) for x in sizes])
    factors = {
        own * own: f"{name} is multiplied by the scale, {own:g}, where it should be divided by it",
        own: f"{name} is not divided by its scale, {own:g}",
        1 / own: f"{name} is divided by its scale, {own:g}, twice",
        own / float(per_head[0]): f"{name} is divided by the scale of head 0",
        own / other: f"{name} is divided by the scale of {others}",
    }
    for factor, words in factors.items():
        if factor != 1 and sound.any() and (got[sound] == wanted[sound] * factor).all():
            yield words
