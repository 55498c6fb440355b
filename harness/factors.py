"""What weights that are all off have in common: a factor, one per tile, a power, a forgotten feature."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.case import Case, replace
from harness.inputs import Materials
from harness.listing import listed
from harness.probe import supposed
from harness.rows import Row
from harness.tensors import Array, Tensor
from harness.values import scales

#: Tiles that a kernel may walk in, beside one per block.
TILES = (16, 32, 64, 128)
#: What a kernel may forget, in words.
FEATURES = {"softcap": "softcap", "alibi": "ALiBi", "sinks": "the sink", "scale": "the given scale"}
#: Keys of score 0 that a normaliser may count too many: more are told as a factor only.
MOST_KEYS = 256


def rest(row: Row) -> Iterator[str]:
    """Sentences on the tokens that the row sees and that have a weight."""
    there = row.visible & ~row.lost & (row.true > 4 * row.within)
    if not there.any():
        return
    got, true, within = row.got[there], row.true[there], row.within[there]
    ratio = float(got.sum() / true.sum())
    odd = bool(row.lost.any() or row.extra.any())
    if _fits(got, ratio * true, within, ratio):
        yield from _odd(row, ratio, got, true, within) if odd else _common(row, ratio, within.sum() / true.sum())
        return
    if odd:
        return
    words = _forgotten(row) or _tiles(row, there) or _twice(row, there) or power(got, true, within)
    yield words or worst(row)


def _fits(got: Array, wanted: Array, within: Array, factor: float = 1.0) -> bool:
    return bool((np.abs(got - wanted) <= 2 * max(1.0, abs(factor)) * within).all())


def _close(a: float, b: float, relative: float) -> bool:
    return abs(a - b) <= (4 * relative + 1e-6) * max(abs(a), abs(b))


def _odd(row: Row, ratio: float, got: Array, true: Array, within: Array) -> Iterator[str]:
    """Some keys are missing or too many: does the normaliser agree with the sum?"""
    fair = (1 - row.got[row.extra].sum()) / (1 - row.true[row.lost].sum())
    if _close(ratio, fair, float(within.sum() / true.sum())):
        yield "the other weights are right for the keys that do count"
    elif row.lost.any() and _fits(got, true, within):
        yield "the other weights are as if all counted: the normaliser sums keys whose V is not added"
    else:
        yield f"the other weights are all off by the common factor {ratio:.4g}"


def _common(row: Row, ratio: float, relative: float) -> Iterator[str]:
    """All weights are off by one factor."""
    off = f"all weights are off by the common factor {ratio:.4g}"
    scale = float(scales(row.case)[1][row.kv_head])
    if _close(ratio, 1.0, relative):
        return
    if scale != 1 and _close(ratio * scale, 1.0, relative):
        yield f"{off}: the scale of V, {scale:.4g}, is not multiplied in"
    elif scale != 1 and _close(ratio, scale, relative):
        yield f"{off}: the scale of V, {scale:.4g}, is multiplied in twice"
    elif row.case.sinks and _close(ratio * row.true[row.visible].sum(), 1.0, relative):
        yield f"{off}: the sink does not count"
    elif tile := _stale_normaliser(row, ratio, relative):
        yield (
            f"{off}: the normaliser is not rescaled when the maximum moves, so that it still counts the tiles before "
            f"by the old one ({tile})"
        )
    elif keys := _keys_of_score_0(row, ratio, relative):
        yield (
            f"{off}: as if {keys} more {'key' if keys == 1 else 'keys'} of score 0 and without a value were summed, "
            "such as a masked slot or an empty split that counts"
        )
    else:
        yield f"{off}: the normaliser, or a key that only it counts"


def _keys_of_score_0(row: Row, ratio: float, relative: float) -> int:
    """How many keys with exp(0) too many make the factor, 0 if no whole number does."""
    per_key = float(np.exp(np.clip(row.weights.lse[row.token, row.head], -50, 50)))
    count = (1 / ratio - 1) * per_key if ratio > 0 else 0.0
    keys, doubt = round(count), per_key / max(ratio, 1e-9) * (4 * relative + 1e-6)
    return keys if 1 <= keys <= MOST_KEYS and abs(count - keys) <= doubt < 0.05 else 0


def _stale_normaliser(row: Row, ratio: float, relative: float) -> str:
    """The tile for which a sum that keeps the old maximum gives this factor."""
    for tile in dict.fromkeys((row.case.block_size, *TILES)):
        logs, sink = _logs(row), 1 - row.true[row.visible].sum()
        largest, summed = -np.inf, 0.0
        if row.case.sinks and sink > 0:
            largest, summed = float(np.log(sink)), 1.0
        for part in (logs[first : first + tile] for first in range(0, len(logs), tile)):
            if np.isfinite(part).any():
                largest = max(largest, float(part.max()))
                summed += float(np.exp(part - largest).sum())
        if summed and _close(ratio * summed * np.exp(largest), 1.0, 4 * relative):
            return f"tiles of {tile} keys"
    return ""


def _logs(row: Row) -> Array:
    """Log of the true weight of each token in order, -inf for those it does not see."""
    logs = np.full(row.case.batch[row.sequence].kv_len, -np.inf)
    with np.errstate(divide="ignore"):
        logs[row.mine[row.visible]] = np.log(row.true[row.visible])
    return logs


def _twice(row: Row, there: NDArray[np.bool_]) -> str:
    """A few tokens count twice, the others alike."""
    got, true, within = row.got[there], row.true[there], row.within[there]
    ratios = got / true
    usual = float(np.median(ratios))
    odd = np.abs(got - usual * true) > 2 * max(1.0, usual) * within
    if not 0 < odd.sum() <= len(odd) // 2:
        return ""
    tokens = np.sort(row.mine[there][odd])
    times = float(got[odd].sum() / (usual * true[odd].sum()))
    verb = "count" if len(tokens) > 1 else "counts"
    if _fits(got[odd], times * usual * true[odd], within[odd], times * usual) and abs(times - round(times)) < 0.01:
        amount = "twice" if round(times) == 2 else f"{times:.3g} times"
        return f"{row.where_is(tokens)} {verb} {amount}"
    if len(tokens) > 1 and _fits(got[odd], times * usual * true[odd], within[odd], times * usual):
        return f"{row.where_is(tokens)} {verb} {times:.4g} times as much as they should: that tile is not rescaled"
    return f"the scores of {row.where_is(tokens)} are wrong, those of the other tokens are right"


def _tiles(row: Row, there: NDArray[np.bool_]) -> str:
    """Each tile has a factor of its own."""
    tokens, got, true, within = row.mine[there], row.got[there], row.true[there], row.within[there]
    for size in dict.fromkeys((row.case.block_size, *TILES)):
        tiles = tokens // size
        shares = {int(tile): float(got[tiles == tile].sum() / true[tiles == tile].sum()) for tile in np.unique(tiles)}
        wanted = np.array([shares[int(tile)] for tile in tiles]) * true
        if 1 < len(shares) < len(tokens) and _fits(got, wanted, within, max(shares.values())):
            last = shares[max(shares)]
            off = [tile for tile, share in shares.items() if not _close(share, last, float((within / true).max()))]
            first = shares[off[0]] / last if off else 1.0
            stale = np.sort(tokens[np.isin(tiles, off)])
            return (
                f"the weights of {listed(stale, 'token')} are off by a factor ({first:.4g} in the first tile) against "
                f"those of the last tile of {size}: they are not rescaled when the maximum moves"
            )
    return ""


def power(got: Array, true: Array, within: Array) -> str:
    """The weights are a power of what they should be: the scores are all multiplied by one factor."""
    usable = (true > 4 * within) & (got > 0)
    if usable.sum() < 2 or np.ptp(np.log(true[usable])) < 1e-3:
        return ""
    logs = np.log(true[usable])
    exponent = float(np.polyfit(logs, np.log(got[usable]), 1, w=np.sqrt(true[usable]))[0])
    wanted = true[usable] ** exponent
    wanted *= got[usable].sum() / wanted.sum()
    loose = 4 * within[usable] * np.maximum(1.0, wanted / true[usable]) + 1e-4 * wanted
    if abs(exponent - 1) < 1e-4 or not _fits(got[usable], wanted, loose):
        return ""
    if abs(exponent - np.log(2)) < 1e-3:
        return "the weights are powers of 2, but should be of e: a natural logarithm taken for one in base 2"
    if abs(exponent - np.log2(np.e)) < 1e-3:
        return "the weights are powers of e, but should be of 2: scores that hold log2(e) already"
    if usable.sum() == 2:  # any two weights fit
        return (
            f"the scores are {exponent:.4g} times as far apart as they should be: the scale, or one of the two scores"
        )
    return f"the weights are those of scores {exponent:.4g} times as large: the scale"


def worst(row: Row) -> str:
    """Nothing is common to them."""
    there = row.visible
    differ = np.abs(row.got - row.true) * there
    at, wrong = int(differ.argmax()), row.weights.wrong[row.token, row.head] & there
    return (
        f"{wrong.sum()} of {there.sum()} weights are wrong, that of token {row.mine[at]} the most: "
        f"{row.got[at]:.4g}, but should be {row.true[at]:.4g}"
    )


# --- a feature that is forgotten ---------------------------------------------------------------------------------


def _forgotten(row: Row) -> str:
    """The weights are right for inputs that differ in one respect."""
    cells = row.weights.cells
    for words, case, change in _suppositions(row.case):
        supposedly = supposed(case, change, cells)[row.token, row.head]
        own = row.visible
        off = np.abs(row.got - supposedly)[own]
        if (off <= 4 * row.within[own].max()).all() and np.abs(supposedly - row.true)[own].max() > off.max():
            return words
    return ""


def _suppositions(case: Case) -> Iterator[tuple[str, Case, Callable[[Materials], Any]]]:
    plain = Case()
    for name, words in FEATURES.items():
        if getattr(case, name) != getattr(plain, name):
            yield f"the weights are those without {words}", replace(case, **{name: getattr(plain, name)}), _nothing
    if case.new_kv == "dense" and case.k_scale != 1:
        yield "the weights are those with the scale of the cached K on the new K as well", case, _scale_new_k
    for shift in range(1, min(case.num_kv_heads, 8)):
        words = f"the weights are those of K {shift} KV {'head' if shift == 1 else 'heads'} further on"
        yield words, case, partial(_roll, name="k_cache", by=shift, axis=2)
    for shift in range(1, min(case.num_q_heads, 8)):
        words = f"the weights are those of q {shift} {'head' if shift == 1 else 'heads'} further on"
        yield words, case, partial(_roll, name="q", by=shift, axis=1)


def _nothing(materials: Materials) -> None:  # noqa: ARG001  (the case itself is changed)
    return None


def _scale_new_k(materials: Materials) -> None:
    tensor: Tensor = materials.inputs.k_new
    scaled = tensor.view.astype(np.float64) * scales(materials.case)[0][:, None]
    tensor.view[...] = scaled.astype(tensor.view.dtype)


def _roll(materials: Materials, name: str, by: int, axis: int) -> None:
    tensor: Tensor = getattr(materials.inputs, name)
    tensor.view[...] = np.roll(tensor.view.copy(), -by, axis=axis)
