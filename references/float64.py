"""The plain witness: attention in float64 with NumPy, as plain as the definition, one sequence at a time."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def positions(query_len: int, kv_len: int) -> Array:
    """Positions [query_len] of the queries in their sequence: the last query stands at the last key (bottom-right)."""
    return np.arange(kv_len - query_len, kv_len, dtype=np.int64)


def visible(query_len: int, kv_len: int, causal: bool, window: tuple[int, int]) -> Array:
    """Which keys each query sees, bool [query_len, kv_len].

    `window` is (left, right), the keys seen on either side of the query's own position, both inclusive as in
    flash-attn, -1 for no limit. `causal` hides every key after the query's position.
    """
    left, right = window
    ahead = np.arange(kv_len) - positions(query_len, kv_len)[:, None]
    seen = np.ones(ahead.shape, dtype=np.bool_)
    if causal:
        seen &= ahead <= 0
    if left >= 0:
        seen &= ahead >= -left
    if right >= 0:
        seen &= ahead <= right
    return seen


def attention(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool = True, window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Array | None = None, sinks: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Attention of one sequence: softmax(scale * q k^T) v, head by head, with nothing left out and nothing clever.

    q [query_len, num_q_heads, head_dim], k [kv_len, num_kv_heads, head_dim], v [kv_len, num_kv_heads, head_dim_v] of
    any numeric dtype; an FP8 cache is given dequantised. softcap c > 0 turns a score s into c * tanh(s / c), ALiBi
    then adds -slope * |position - key|, and a sink is one more logit that has no value. alibi_slopes, sinks
    [num_q_heads]. Returns out [query_len, num_q_heads, head_dim_v] and the natural-log lse [query_len, num_q_heads],
    the sink included. A row that sees no key gives 0, and lse -inf or its sink. The arguments are not written to.
    """
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    (query_len, num_q_heads, _), kv_len = q.shape, len(k)
    group = num_q_heads // k.shape[1]
    seen = visible(query_len, kv_len, causal, window)
    used = np.any(seen, axis=0)[:, None, None]
    k, v = (np.where(used, x, 0.0) for x in (k, v))  # a key that nobody sees may be NaN
    distance = np.abs(positions(query_len, kv_len)[:, None] - np.arange(kv_len))
    out, lse = np.zeros((query_len, num_q_heads, v.shape[2])), np.zeros((query_len, num_q_heads))
    for head in range(num_q_heads):
        scores = scale * (q[:, head] @ k[:, head // group].T)
        if softcap > 0:
            scores = softcap * np.tanh(scores / softcap)
        if alibi_slopes is not None:
            scores = scores - np.float64(alibi_slopes[head]) * distance
        sink = -np.inf if sinks is None else np.float64(sinks[head])
        out[:, head], lse[:, head] = _softmax(np.where(seen, scores, -np.inf), sink, v[:, head // group])
    return out, lse


def _softmax(scores: Array, sink: float, v: Array) -> tuple[Array, Array]:
    """The softmax of scores [query_len, kv_len] applied to v; a lone row of -inf has the shift 0 and the weights 0."""
    largest = np.maximum(scores.max(axis=1, initial=-np.inf), sink)
    shift = np.where(np.isneginf(largest), 0.0, largest)
    weights = np.exp(scores - shift[:, None])
    total = weights.sum(axis=1) + np.exp(sink - shift)
    empty = total == 0
    with np.errstate(divide="ignore"):
        lse = shift + np.log(total)
    return weights @ v / np.where(empty, 1.0, total)[:, None], lse
