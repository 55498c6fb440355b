"""How errors of scores, weights and sums reach an attention output, row by row.

For one row with visible keys j, exact scores s_j, weights pi_j and output o = sum pi_j v_j, a kernel computes
sum w_j (1 + phi_j) v_j / sum w_j (1 + psi_j) with w_j = pi_j (1 + theta_j): errors of a weight that reach numerator and
normaliser alike (theta), the numerator only (phi) and the normaliser only (psi). The common part obeys the identity

    sum w_j v_j / sum w_j - o  =  sum pi_j theta_j (v_j - o) / (1 + sum pi_j theta_j)

so it vanishes for a constant v, and stays within the hull of the v_j however bad the scores are. Rounding errors follow
the standard model; a sum of n products in any order errs by at most n u sum|x y|, to nearest (Jeannerod and Rump, SIAM
J. Matrix Anal. 34, 2013) as well as truncated (partial results never exceed the sum of absolute values).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.arithmetic import Arithmetic, growth, lossy, operand_eta, rounding, tf32_error
from harness.platforms import Platform

Array = npt.NDArray[Any]

#: Unit roundoff of this module's own arithmetic.
U64 = 2.0**-53
#: Beyond this error of a score its exponential less 1 is its exponential.
LARGE_SCORE_ERROR = 50.0
#: The largest whose exponential is still finite.
LARGEST_SCORE_ERROR = 700.0
#: Above any value of a cache.
HUGE = 1e300


@dataclass(frozen=True)
class Bound:
    """The truth of one sequence and how far a kernel may be from it, all float64."""

    truth: Array  # [query_len, num_q_heads, head_dim_v]
    out: Array  # the tolerance of each element of `truth`
    truth_lse: Array  # [query_len, num_q_heads], natural log
    lse: Array  # the tolerance of each element of `truth_lse`
    terms: dict[str, Array]  # the parts of `out`, which sum to it

    def dominating(self, index: tuple[int, ...]) -> tuple[str, float]:
        """Name of the largest term of the element at `index` and its share of the bound (0 if the bound is 0)."""
        name = max(self.terms, key=lambda term: float(self.terms[term][index]))
        total = float(self.out[index])
        return name, float(self.terms[name][index]) / total if total > 0 else 0.0


@dataclass(frozen=True)
class Rows:
    """K key-value heads, R rows each (query tokens times group) over n keys."""

    scores: Array  # [K, R, n]
    errors: Array  # [K, R, n]: absolute error of a score before the softmax
    errors64: Array  # [K, R, n]: the same of this module's own score
    seen: Array  # [K or 1, R, n]
    v: Array  # [K, n, head_dim_v]
    size_v: Array  # [K, n, head_dim_v]: its absolute value
    low: Array  # [K, R, head_dim_v]: least and largest visible value, with 0 for a sink
    high: Array
    sinks: Array  # [K, R], -inf for none
    products: Array  # [K, R, n]: sizes of the products that a subtraction of the maximum may be fused with


@dataclass(frozen=True)
class _Chain:
    """How long a row's computations are, each [K, R, 1]."""

    keys: Array  # and the sink
    rescales: Array  # tiles visited and splits merged
    splits: Array  # 0 if the kernel never splits

    @classmethod
    def of(cls, rows: Rows, arithmetic: Arithmetic) -> _Chain:
        """What a kernel with this arithmetic does for these rows; a sink is one more tile, of one key."""
        sink = np.isfinite(rows.sinks)[:, :, None]
        keys = rows.seen.sum(axis=-1, keepdims=True) + sink.astype(np.float64)
        tiles = np.minimum(keys, np.ceil(keys / arithmetic.tile_kv) + 1 + arithmetic.seams + sink)
        splits = np.minimum(keys, arithmetic.max_splits) if arithmetic.max_splits > 1 else np.zeros_like(keys)
        return cls(keys, tiles + splits, splits)


@dataclass(frozen=True)
class _Softmax:
    """The exact softmax of `Rows` and the errors of its weights; all but the first two are [K, R, 1]."""

    weights: Array  # [K, R, n]
    taus: Array  # [K, R, n]: absolute errors of the weights
    sink_tau: Array
    worst: Array  # largest error of the logarithm of a weight
    mean64: Array  # weighted mean of `errors64`
    total: Array  # sum of the weights before they are normalised, 1 for an empty row
    largest: Array  # the largest score or sink, 0 for an empty row
    lse: Array


def scores_of(
    q: Array, k: Array, scale: float, arithmetic: Arithmetic, platform: Platform, scaled_k: bool
) -> tuple[Array, Array, Array]:
    """Scaled scores [K, R, n], their errors in the kernel and in this module.

    Scaling takes up to four roundings: scale, its product with log2(e), that with the score, a second product.
    """
    size_q, size_k = np.abs(q), np.abs(k)
    scores = scale * (q @ k.transpose(0, 2, 1))
    size = abs(scale) * (size_q @ size_k.transpose(0, 2, 1))
    accumulator, product = (lossy(x, platform) for x in (arithmetic.qk_accumulator, arithmetic.qk_product))
    scaled_q, dequantised = (lossy(x, platform) for x in (arithmetic.scaled_q_dtype, arithmetic.dequant_dtype))
    relative = growth(q.shape[2], 0.0, arithmetic.qk_accumulator, arithmetic, platform) + tf32_error(
        arithmetic, platform
    )
    relative += product[0] + scaled_q[0] + scaled_k * (dequantised[0] + platform.unit)
    errors = relative * size + (4 * platform.unit + lossy(arithmetic.score_dtype, platform)[0]) * np.abs(scores)
    errors += abs(scale) * q.shape[2] * (max(platform.eta, accumulator[1]) + product[1])
    operand = operand_eta(arithmetic, platform)
    errors += (abs(scale) * operand + max(1.0, abs(scale)) * scaled_q[1]) * size_k.sum(axis=2)[:, None, :]
    errors += abs(scale) * (operand + scaled_k * dequantised[1]) * size_q.sum(axis=2)[:, :, None]
    return scores, errors, U64 * ((q.shape[2] + 1) * size + 4 * np.abs(scores))


def softcapped(scores: Array, errors: Array, softcap: float, platform: Platform) -> tuple[Array, Array]:
    """c tanh(s / c) and its error: by the mean value theorem an error of s shrinks with the slope within its reach."""
    capped = softcap * np.tanh(scores / softcap)
    slope = 1.0 - np.tanh(np.maximum(np.abs(scores) - errors, 0.0) / softcap) ** 2
    relative = platform.eps_tanh + platform.eps_div + 4 * platform.unit
    return capped, errors * slope + relative * np.abs(capped) + softcap * (platform.eps_tanh_abs + 8 * U64)


def _softmax(rows: Rows, chain: _Chain, arithmetic: Arithmetic, platform: Platform) -> _Softmax:
    """The weights and their errors: of the scores, of the differences from the maximum, of exp, of underflow."""
    sinks = rows.sinks[:, :, None]
    hidden = np.where(rows.seen, rows.scores, -np.inf)
    largest = np.maximum(hidden.max(axis=2, keepdims=True, initial=-np.inf), sinks)
    largest = np.where(np.isneginf(largest), 0.0, largest)
    weights, sink = np.exp(hidden - largest), np.exp(sinks - largest)
    total = weights.sum(axis=2, keepdims=True) + sink
    with np.errstate(divide="ignore"):
        lse = largest + np.log(total)
    total = np.where(total == 0, 1.0, total)
    weights /= total
    logs_total = np.log(total)
    cast = lossy(arithmetic.p_dtype, platform) if arithmetic.normaliser == "cast" else (0.0, 0.0)
    absolute = ((chain.rescales + 1) * platform.eta + cast[1] / arithmetic.p_scale) / total
    growth = (chain.rescales + 1) * np.log1p(platform.eps_exp) + np.log1p(cast[0])
    apart = 3 * platform.unit + lossy(arithmetic.score_dtype, platform)[0]
    finite_lse = np.where(np.isneginf(lse), 0.0, np.abs(lse))

    def log_errors(scores: Array, errors: Array) -> Array:
        errors = errors + apart * np.maximum(largest - scores, 0.0)
        size = np.maximum(np.abs(largest), finite_lse)
        return np.asarray(_merging(errors, scores, size, chain, platform) + growth)

    logs = log_errors(rows.scores, rows.errors)
    taus = _grown(hidden - largest - logs_total, logs) + rows.seen * absolute
    present = np.isfinite(sinks)
    sink_score = np.where(present, sinks, 0.0)
    sink_logs = np.where(present, log_errors(sink_score, 4 * platform.unit * np.abs(sink_score)), 0.0)
    sink_tau = _grown(sinks - largest - logs_total, sink_logs) + present * absolute
    worst = np.maximum(np.where(rows.seen, logs, 0.0).max(axis=2, keepdims=True, initial=0.0), sink_logs)
    worst = worst + chain.keys * absolute
    mean64 = (weights * (rows.errors64 + 3 * U64 * np.maximum(largest - rows.scores, 0.0))).sum(axis=2, keepdims=True)
    return _Softmax(weights, taus, sink_tau, worst, mean64, total, largest, lse)


def _grown(log_weights: Array, logs: Array) -> Array:
    """By how much weights err whose logarithms err by `logs`, up to 1: then the hull alone bounds the output.

    In logarithms, since a weight that is 0 in float64 may be any in a kernel whose scores err enough.
    """
    with np.errstate(divide="ignore"):
        growth = np.where(logs < LARGE_SCORE_ERROR, np.log(np.expm1(np.minimum(logs, LARGE_SCORE_ERROR))), logs)
    return np.asarray(np.exp(np.minimum(log_weights + growth, 0.0)))


def _merging(errors: Array, scores: Array, size: Array, chain: _Chain, platform: Platform) -> Array:
    """Adds what a merge by lse costs: a split's lse lies between its scores and the row's, and is rounded as such."""
    if not chain.splits.any():
        return errors
    logs = (platform.eps_log + 2 * platform.unit) * np.log(np.maximum(chain.keys, 1.0)) + platform.eps_log_abs
    return np.asarray(errors + (3 * platform.unit * np.maximum(np.abs(scores), size) + logs) * (chain.splits > 0))


@dataclass(frozen=True)
class _Moments:
    """The output and the sums over keys that its bound is made of, [K, R, head_dim_v]."""

    out: Array
    size: Array  # mean of |v|, and its bound in the kernel
    largest_size: Array
    common: Array  # the error from errors of the weights alone
    hull: Array  # how far a convex combination can be from `out`
    tau: Array  # [K, R, 1]: sum of the errors of the weights


def _moments(rows: Rows, soft: _Softmax) -> _Moments:
    """The common part sum tau |v - o| / (1 - sum tau), by two upper bounds that need matrix products only.

    One is the triangle inequality, the other Cauchy-Schwarz about the midrange of v; the smaller holds, always.
    """
    out, size, tau_size = soft.weights @ rows.v, soft.weights @ rows.size_v, soft.taus @ rows.size_v
    tau = soft.taus.sum(axis=2, keepdims=True) + soft.sink_tau
    spread = np.minimum(tau_size + np.abs(out) * tau, _cauchy_schwarz(rows, soft, out, tau))
    hull = np.maximum(np.maximum(rows.high - out, out - rows.low), 0.0)
    room = 1.0 - tau
    inverse = np.where(room > 0, 1.0 / np.where(room > 0, room, 1.0), np.inf)
    with np.errstate(invalid="ignore"):
        common = np.fmin(spread * inverse, hull)
        largest_size = np.fmin((size + tau_size) * inverse, np.maximum(np.abs(rows.low), np.abs(rows.high)))
    return _Moments(out, size, largest_size, common, hull, tau)


def _cauchy_schwarz(rows: Rows, soft: _Softmax, out: Array, tau: Array) -> Array:
    """sqrt(sum tau * sum tau (v - o)^2), the second sum expanded and its own rounding added."""
    lowest = rows.low.min(axis=1, keepdims=True, initial=HUGE)
    highest = rows.high.max(axis=1, keepdims=True, initial=-HUGE)
    middle = (lowest + highest) / 2
    v, out = rows.v - middle, out - middle
    first = soft.taus @ v - soft.sink_tau * middle
    np.multiply(v, v, out=v)
    second = soft.taus @ v + soft.sink_tau * middle**2
    squares = second + out * out * tau
    variance = np.maximum(squares - 2 * out * first, 0.0) + 4 * (v.shape[1] + 8) * U64 * squares
    return np.asarray(np.sqrt(tau * variance))


def row_bound(rows: Rows, arithmetic: Arithmetic, platform: Platform, out_dtype: str, scaled_v: bool) -> Bound:
    """The bound in folded shapes [K, R, ...]."""
    chain = _Chain.of(rows, arithmetic)
    soft = _softmax(rows, chain, arithmetic, platform)
    moments = _moments(rows, soft)
    phi, cast, psi = _one_sided(chain, arithmetic, platform, scaled_v)
    apart = _recomputed(rows, soft, arithmetic, platform)
    possible = psi < 1
    quotient = 1.0 / np.where(possible, 1.0 - psi, 1.0)
    shared = lossy(arithmetic.p_dtype, platform)[0] if arithmetic.normaliser == "cast" else 0.0
    share = np.minimum(shared / np.where(moments.tau > 0, moments.tau, 1.0), 1.0)
    terms = {
        "scores": moments.common * (1.0 - share),
        "p cast": moments.common * share + cast * moments.largest_size * quotient,
        "accumulation": (phi - cast) * moments.largest_size * quotient,
        "recomputed weights": apart * quotient,
        "normaliser": np.where(possible, (np.abs(moments.out) + moments.common) * psi * quotient, np.inf),
        "underflow": _underflow(rows, soft, chain, arithmetic, platform, scaled_v) * quotient,
    }
    before = sum(terms.values())
    unit, eta = rounding(out_dtype, platform)
    terms["output rounding"] = unit * (np.abs(moments.out) + before) + eta
    own = np.minimum(2 * soft.mean64, 1.0) * moments.hull
    terms["oracle"] = own + U64 * (2 * chain.keys + 8) * moments.size
    sighted = rows.seen.any(axis=-1, keepdims=True)
    if not sighted.all():
        terms = {name: np.where(sighted, term, 0.0) for name, term in terms.items()}
    lse = _lse_bound(rows, soft, chain, moments.tau, psi, platform)
    return Bound(moments.out, np.asarray(sum(terms.values())), soft.lse[:, :, 0], lse[:, :, 0], terms)


def _recomputed(rows: Rows, soft: _Softmax, arithmetic: Arithmetic, platform: Platform) -> Array:
    """How far numerator and normaliser lie apart where a weight exists twice, [K, R, head_dim_v].

    A score that was summed by ordinary additions is one evaluation in each copy, each with the whole error of a score;
    one from a matrix unit exists once, and only a product fused with the subtraction of the maximum sets its copies
    apart, by one u of its size and one of what is rounded after it. A cast of two weights may fall on different sides.
    """
    if not platform.recomputes:
        return np.zeros((*rows.scores.shape[:2], rows.v.shape[2]))
    distance = np.maximum(soft.largest - rows.scores, 0.0)
    score = platform.unit * rows.products if arithmetic.tensor_core else rows.errors
    logs = 2 * score + (3 * platform.unit + 2 * lossy(arithmetic.score_dtype, platform)[0]) * distance
    logs = logs + 2 * np.log1p(platform.eps_exp)
    if arithmetic.normaliser == "cast":
        logs = logs + 2 * np.log1p(lossy(arithmetic.p_dtype, platform)[0])
    apart = np.expm1(np.minimum(logs, LARGEST_SCORE_ERROR))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.fmin(((soft.weights + soft.taus) * apart * rows.seen) @ rows.size_v, HUGE))


def _one_sided(chain: _Chain, arithmetic: Arithmetic, platform: Platform, scaled_v: bool) -> tuple[Array, float, Array]:
    """Relative errors of the numerator only (phi), the cast's share of it, and of the normaliser only (psi)."""
    u = platform.unit
    cast = lossy(arithmetic.p_dtype, platform)[0] if arithmetic.normaliser == "uncast" else 0.0
    stored, product, partial, summed, dequantised = (
        lossy(dtype, platform)[0]
        for dtype in (arithmetic.pv_accumulator, arithmetic.pv_product, arithmetic.partial_dtype,
                      arithmetic.sum_accumulator, arithmetic.dequant_dtype)
    )  # fmt: skip
    logs = np.log1p(cast) + np.log1p(product) + chain.rescales * np.log1p(max(stored, u))
    logs = logs + np.log1p(growth(chain.keys, chain.rescales, arithmetic.pv_accumulator, arithmetic, platform))
    logs = logs + np.log1p(tf32_error(arithmetic, platform)) + arithmetic.divisions * np.log1p(platform.eps_div + u)
    logs = logs + (chain.splits > 0) * (np.log1p((chain.splits + 3) * u) + np.log1p(partial))
    logs = logs + scaled_v * (np.log1p(dequantised) + 2 * u) + (arithmetic.p_scale != 1) * 2 * u
    psi = (1 + chain.keys * max(summed, u)) * (1 + max(summed, u)) ** chain.rescales - 1
    return np.expm1(logs), cast, psi


def _underflow(
    rows: Rows, soft: _Softmax, chain: _Chain, arithmetic: Arithmetic, platform: Platform, scaled_v: bool
) -> Array:
    """Absolute errors: of the cast of each weight, of each product and rescaling, of stored partial outputs."""
    products = max(platform.eta, *(lossy(x, platform)[1] for x in (arithmetic.pv_accumulator, arithmetic.pv_product)))
    total = np.ones_like(soft.total) if arithmetic.normalised_p else soft.total
    absolute = products * (2 * chain.keys + chain.rescales) / total
    absolute = absolute + chain.splits * lossy(arithmetic.partial_dtype, platform)[1]
    operand, largest_v = operand_eta(arithmetic, platform), np.maximum(np.abs(rows.low), np.abs(rows.high))
    absolute = absolute + scaled_v * lossy(arithmetic.dequant_dtype, platform)[1] + operand
    absolute = absolute + operand * chain.keys * largest_v / total
    cast = lossy(arithmetic.p_dtype, platform)[1] / arithmetic.p_scale
    if cast and (arithmetic.normaliser == "uncast" or arithmetic.normalised_p):
        absolute = absolute + cast * (rows.seen.astype(np.float64) @ rows.size_v) / total
    return np.asarray(absolute)


def _lse_bound(rows: Rows, soft: _Softmax, chain: _Chain, tau: Array, psi: Array, platform: Platform) -> Array:
    """The error of lse = m + log(l): of the weights, of their sum, of the logarithm and of the last additions.

    m is the largest score with or without the sink, whichever the kernel subtracts.
    """
    u = platform.unit
    keys = np.where(rows.seen, rows.scores, -np.inf).max(axis=2, keepdims=True, initial=-np.inf)
    keys = np.where(np.isneginf(keys), soft.largest, keys)
    empty = np.isneginf(soft.lse)
    lse = np.where(empty, 0.0, soft.lse)
    shift, logs = np.maximum(np.abs(keys), np.abs(soft.largest)), np.maximum(lse - keys, 0.0)
    with np.errstate(divide="ignore"):
        weights = np.minimum(-np.log1p(-np.minimum(tau, 1.0)), soft.worst)
        summed = -np.log1p(-np.minimum(psi, 1.0))
    logarithm = platform.eps_log * logs + platform.eps_log_abs
    error = weights + summed + logarithm + u * (3 * shift + 4 * logs + 2 * np.abs(lse))
    merged = platform.eps_log * np.log(np.maximum(chain.splits, 1.0)) + platform.eps_log_abs + 3 * u * np.abs(lse)
    own = 2 * soft.mean64 + U64 * (chain.keys + 8 * (np.abs(lse) + shift) + 8)
    return np.where(empty, 0.0, error + (chain.splits > 0) * merged + own)
