"""The error bound: how far each element of an attention output may be from the truth, derived and not guessed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from harness.arithmetic import Arithmetic, lossy, rounding
from harness.platforms import Platform
from harness.propagation import U64, Array, Bound, Rows, row_bound, scores_of, softcapped

__all__ = [
    "Bound",
    "attention_bound",
    "exceeds",
    "margin",
    "state_bound",
    "uniform_bound",
    "untrusted",
]

DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def attention_bound(
    q: Array, k: Array, v: Array, *,
    scale: float, causal: bool, window: tuple[int, int], softcap: float, alibi_slopes: Array | None,
    sinks: Array | None, arithmetic: Arithmetic, platform: Platform, out_dtype: str,
    k_scale: Array | float = 1.0, v_scale: Array | float = 1.0,
) -> Bound:  # fmt: skip
    """Truth and error bound of one sequence, of the same arguments as `attention` of references/float64.py.

    k and v are the dequantised values; k_scale and v_scale say only whether the kernel multiplies by a scale. Raises
    ValueError for a type whose rounding is unknown. Source: the identity in harness/propagation.py.
    """
    seen, ahead = _visible(len(q), len(k), causal, window)
    folded = _fold(q, k, seen)
    scores, errors, errors64 = scores_of(*folded, scale, arithmetic, platform, _scaled(k_scale))
    if softcap > 0:
        scores, errors = softcapped(scores, errors, softcap, platform)
    group = q.shape[1] // k.shape[1]
    products = np.abs(scores)
    if alibi_slopes is not None:
        bias = _per_row(alibi_slopes, len(q), group)[:, :, None] * np.repeat(np.abs(ahead), group, axis=0)
        products = products + np.abs(bias)
        scores = scores - bias
        errors = errors + platform.unit * (3 * np.abs(bias) + np.abs(scores))
        errors64 = errors64 + 3 * U64 * (np.abs(bias) + np.abs(scores))
    rows = _rows((scores, errors, errors64), v, seen, group, sinks, products)
    both = [row_bound(rows, each, platform, out_dtype, _scaled(v_scale)) for each in _normalisers(arithmetic, platform)]
    return _reshaped(_larger(both), lambda x: _unfold(x, len(q), group))


def state_bound(outs: Array, lses: Array, *, arithmetic: Arithmetic, platform: Platform, out_dtype: str) -> Bound:
    """Truth and bound of a merge of stored partial states.

    outs [states, tokens, num_q_heads, head_dim_v], lses [states, tokens, num_q_heads] natural log, -inf where a state
    is empty. A merge is attention in which the states are the keys and their lse the scores; of the arithmetic only
    the number of divisions counts.
    """
    states, tokens, heads, dim = outs.shape
    scores = lses.astype(np.float64).reshape(states, -1).T[:, None, :]
    seen = scores > -np.inf
    there = seen[:, 0, :, None]
    with np.errstate(invalid="ignore"):  # what an empty state holds may be a NaN that signals
        wide = outs.astype(np.float64).reshape(states, -1, dim).transpose(1, 0, 2)
    v = np.where(there, wide, 0.0)
    some = there.any(axis=1, keepdims=True)
    low = np.where(some, np.where(there, v, np.inf).min(axis=1, keepdims=True), 0.0)
    high = np.where(some, np.where(there, v, -np.inf).max(axis=1, keepdims=True), 0.0)
    scores = np.where(seen, scores, 0.0)
    none = np.full(scores.shape[:2], -np.inf)
    still = np.zeros_like(scores)  # no product is near: an lse comes from memory
    rows = Rows(scores, 4 * platform.unit * np.abs(scores), still, seen, v, np.abs(v), low, high, none, still)
    merging = Arithmetic(divisions=arithmetic.divisions, normalised_p=True)
    bound = row_bound(rows, merging, platform, out_dtype, scaled_v=False)
    return _reshaped(bound, lambda x: x.reshape(tokens, heads, *x.shape[2:]))


def uniform_bound(truth: Array, keys: Array, *, arithmetic: Arithmetic, platform: Platform, out_dtype: str) -> Array:
    """How far an output may be from `truth`, the exact mean of `keys` equal weights over values 0 and 1.

    Every weight is exactly 1 and every sum a small integer, so only divisions, the combining of splits and the last
    rounding err, unless sums are in 16 bits or the weights are normalised before they meet v.
    """
    keys = np.asarray(keys, dtype=np.float64)
    relative = arithmetic.divisions * np.log1p(platform.eps_div + platform.unit) * np.ones_like(keys)
    if arithmetic.max_splits > 1:
        logs = platform.eps_log * np.log(np.maximum(keys, 1)) + platform.eps_log_abs
        relative += 2 * (logs + platform.eps_exp) + (2 * np.minimum(keys, arithmetic.max_splits) + 12) * platform.unit
        relative += lossy(arithmetic.partial_dtype, platform)[0]
    for dtype in (arithmetic.pv_accumulator, arithmetic.sum_accumulator):
        unit = max(lossy(dtype, platform)[0], platform.unit, platform.dot_unit)
        relative += keys * unit * (arithmetic.normalised_p | (keys * unit >= 0.5))
    if arithmetic.normalised_p:
        relative += lossy(arithmetic.p_dtype, platform)[0]
    before = np.abs(truth) * np.expm1(relative)
    unit, eta = rounding(out_dtype, platform)
    return np.asarray(before + unit * (np.abs(truth) + before) + eta)


def untrusted(bound: Bound) -> Bound:
    """The bound where accuracy cannot be judged: exact is still exact, NaN is wrong, the rest may err."""
    out, lse = (np.where(limit > 0, np.inf, limit) for limit in (bound.out, bound.lse))
    return replace(bound, out=out, lse=lse)


def exceeds(y: Array, truth: Bound | Array, tolerance: Array | None = None, dtype: str | None = None) -> Array:
    """Where y breaks its bound, bool in the shape of y: `not (error <= tolerance)`, so that NaN always fails.

    truth and tolerance are the arrays of one or more bounds, of `out` or of `lse`, or a Bound, whose `out` is meant.
    `dtype` is the type in which y was made (default: y's own): where a finite truth may round beyond its range, an
    infinity of the right sign or its largest number is right as well. An infinite truth must be met exactly.
    """
    return np.asarray(~(margin(y, truth, tolerance, dtype) <= 1.0))


def margin(y: Array, truth: Bound | Array, tolerance: Array | None = None, dtype: str | None = None) -> Array:
    """Error over tolerance, of the same arguments as `exceeds` and above 1 exactly where that is true.

    0 where y is the truth to the bit, inf for NaN or a wrong infinity, 1 for an accepted overflow.
    """
    truth, tolerance = (truth.truth, truth.out) if isinstance(truth, Bound) else (truth, tolerance)
    limit = _largest_finite(np.asarray(y).dtype if dtype is None else DTYPES[dtype])
    y = np.asarray(y).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(y - truth) / tolerance
    ratio = np.where(np.isfinite(y) & ~np.isnan(ratio), ratio, np.inf)
    overflow = np.isfinite(truth) & (np.abs(truth) + tolerance > limit)
    accepted = overflow & (np.abs(y) >= limit) & (np.sign(y) == np.sign(truth))
    return np.where(y == truth, 0.0, np.where(accepted, 1.0, ratio))


def _largest_finite(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def _scaled(scale: Array | float) -> bool:
    return bool(np.any(np.asarray(scale) != 1.0))


def _normalisers(arithmetic: Arithmetic, platform: Platform) -> list[Arithmetic]:
    """Both ways of summing the weights if it is unknown which one a kernel takes and it matters."""
    if arithmetic.normaliser != "unknown":
        return [arithmetic]
    kinds = ("uncast", "cast") if lossy(arithmetic.p_dtype, platform)[0] else ("uncast",)
    return [replace(arithmetic, normaliser=kind) for kind in kinds]


def _visible(query_len: int, kv_len: int, causal: bool, window: tuple[int, int]) -> tuple[Array, Array]:
    """Which keys each query sees and how far ahead of it they lie, [query_len, kv_len]; bottom-right aligned."""
    left, right = window
    ahead = np.arange(kv_len) - np.arange(kv_len - query_len, kv_len)[:, None]
    right = 0 if causal else right
    seen = (ahead >= -left) if left >= 0 else np.ones(ahead.shape, dtype=np.bool_)
    return (seen & (ahead <= right) if right >= 0 else seen), ahead


def _fold(q: Array, k: Array, seen: Array) -> tuple[Array, Array]:
    """q as [K, query_len * group, head_dim] and k as [K, kv_len, head_dim]; a key that nobody sees becomes 0."""
    query_len, num_q_heads, head_dim = q.shape
    heads = k.shape[1]
    q = q.astype(np.float64).reshape(query_len, heads, num_q_heads // heads, head_dim)
    rows = query_len * (num_q_heads // heads)
    return q.transpose(1, 0, 2, 3).reshape(heads, rows, head_dim), _keys_first(k, seen)


def _keys_first(x: Array, seen: Array) -> Array:
    x = x.transpose(1, 0, 2).astype(np.float64, order="C")
    x[:, ~np.any(seen, axis=0)] = 0.0
    return np.asarray(x)


def _per_row(x: Array, query_len: int, group: int) -> Array:
    """One number per query head as [K, query_len * group]."""
    return np.tile(np.asarray(x).astype(np.float64).reshape(-1, group), (1, query_len))


def _rows(
    scores: tuple[Array, Array, Array], v: Array, seen: Array, group: int, sinks: Array | None, products: Array
) -> Rows:
    v = _keys_first(v, seen)
    low, high = (np.repeat(x, group, axis=1) for x in _hull(v, seen))
    if sinks is None:
        per_row = np.full(scores[0].shape[:2], -np.inf)
    else:
        per_row = _per_row(sinks, len(seen), group)
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    return Rows(*scores, np.repeat(seen, group, axis=0)[None], v, np.abs(v), low, high, per_row, products)


def _hull(v: Array, seen: Array) -> tuple[Array, Array]:
    """Least and largest visible v per query, [K, query_len, head_dim_v]; a query sees a contiguous run of keys."""
    count = seen.sum(axis=1)
    first = seen.argmax(axis=1) if seen.shape[1] else count
    low, high = np.zeros((2, len(v), len(seen), v.shape[2]))
    sighted = np.flatnonzero(count)
    if len(sighted) > 1 and np.ptp(first[sighted]) == 0:
        run, last = v[:, first[sighted[0]] :], count[sighted] - 1
        low[:, sighted] = np.minimum.accumulate(run, axis=1)[:, last]
        high[:, sighted] = np.maximum.accumulate(run, axis=1)[:, last]
        return low, high
    for i in sighted:
        run = v[:, first[i] : first[i] + count[i]]
        low[:, i], high[:, i] = run.min(axis=1), run.max(axis=1)
    return low, high


def _larger(bounds: list[Bound]) -> Bound:
    """Element by element the larger of one or two bounds of the same truth."""
    if len(bounds) == 1:
        return bounds[0]
    first, second = bounds
    keep = first.out >= second.out
    terms = {name: np.where(keep, first.terms[name], second.terms[name]) for name in first.terms}
    return replace(first, out=np.maximum(first.out, second.out), lse=np.maximum(first.lse, second.lse), terms=terms)


def _reshaped(bound: Bound, shape: Callable[[Array], Array]) -> Bound:
    """From [K, R, ...] to [tokens, heads, ...]."""
    truth, out, truth_lse, lse = (shape(x) for x in (bound.truth, bound.out, bound.truth_lse, bound.lse))
    return Bound(truth, out, truth_lse, lse, {name: shape(term) for name, term in bound.terms.items()})


def _unfold(x: Array, tokens: int, group: int) -> Array:
    """Undoes `_fold`: [K, tokens * group, ...] to [tokens, K * group, ...]."""
    rest = x.shape[2:]
    apart = x.reshape(len(x), tokens, group, *rest)
    return apart.transpose(1, 0, *range(2, apart.ndim)).reshape(tokens, len(x) * group, *rest)
