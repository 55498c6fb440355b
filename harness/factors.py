"""What weights that are all off have in common: a factor, one per tile, a power, a forgotten feature."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from harness.forgotten import forgotten
from harness.landmarks import at
from harness.listing import listed
from harness.rows import TILES, Row
from harness.tensors import Array
from harness.values import scales

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
        yield from _instead(row, there)
        return
    if (got < -2 * within).any():
        yield _negative(row, there)
        return
    words = forgotten(row) or _repeated(row, there) or _tiles(row, there) or _stale(row, there) or _apart(row, there)
    words = words or power(got, true, within)
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
        yield "the other weights are as if all counted: the normaliser sums keys whose V is not added" + at("output")
    else:
        yield f"the other weights are all off by the common factor {ratio:.4g}"


def _instead(row: Row, there: NDArray[np.bool_]) -> Iterator[str]:
    """Some keys have the weight of the missing ones besides their own, all others are right."""
    got, true, within = row.got[there], row.true[there], row.within[there]
    more = got - true > 2 * within
    if row.extra.any() or not more.any() or not _fits(got[~more], true[~more], within[~more]):
        return
    factor = float(got[more].sum() / true[more].sum())
    over = float(got[more].sum() - true[more].sum() - row.true[row.lost].sum())
    if abs(over) <= 2 * within.sum() and _fits(got[more], factor * true[more], within[more], factor):
        tokens = row.where_is(np.sort(row.mine[there][more]))
        yield f"{tokens} also {_has(more)} the weight of the missing: a partial output is read in place of another"


def _has(tokens: NDArray[np.bool_]) -> str:
    return "has" if tokens.sum() == 1 else "have"


def _common(row: Row, ratio: float, relative: float) -> Iterator[str]:
    """All weights are off by one factor."""
    off = f"all weights are off by the common factor {ratio:.{4 if abs(ratio - 1) > 1e-3 else 7}g}"
    scale = float(scales(row.case)[1][row.kv_head])
    if _close(ratio, 1.0, relative):
        return
    if scale != 1 and _close(ratio * scale, 1.0, relative):
        yield f"{off}: the scale of V, {scale:.4g}, is not multiplied in"
    elif scale != 1 and _close(ratio, scale, relative):
        yield f"{off}: the scale of V, {scale:.4g}, is multiplied {_too_often(row)}"
    elif row.case.sinks and _close(ratio * row.true[row.visible].sum(), 1.0, relative):
        yield f"{off}: the sink does not count"
    elif row.case.sinks and (times := _sinks(row, ratio, relative)):
        yield f"{off}: the sink counts {times} times, as if each of {times} splits or tiles began with it"
    elif tile := _stale_normaliser(row, ratio, relative):
        yield (
            f"{off}: the normaliser is not rescaled when the maximum moves, so that it still counts the tiles before "
            f"by the old one ({tile}){at('normaliser')}"
        )
    elif _close(ratio * row.true[row.visible].max(), 1.0, relative):
        yield f"{off}, so that the largest is 1: the output is not divided by the normaliser{at('output')}"
    elif last := _last_tile(row, ratio, relative):
        yield (
            f"{off}: the normaliser is that of the last tile of {last} keys alone, what was summed before it is lost"
            f"{at('normaliser')}"
        )
    elif keys := _keys_of_score_0(row, ratio, relative):
        yield (
            f"{off}: as if {keys} more {'key' if keys == 1 else 'keys'} of score 0 and without a value were summed, "
            f"such as a masked slot or an empty split that counts{at('scores')}"
        )
    else:
        yield f"{off}: the normaliser, or a key that only it counts{at('normaliser')}"


def _too_often(row: Row) -> str:
    """Where a scale too much was multiplied in: dense tokens have none."""
    seen = row.mine[row.visible]
    dense = row.case.new_kv == "dense" and (seen >= row.case.paged_len(row.case.batch[row.sequence])).all()
    return "into the new V as well, which is not scaled" if dense else "in twice"


def _keys_of_score_0(row: Row, ratio: float, relative: float) -> int:
    """How many keys with exp(0) too many make the factor, 0 if no whole number does."""
    per_key = float(np.exp(np.clip(row.weights.lse[row.token, row.head], -50, 50)))
    count = (1 / ratio - 1) * per_key if ratio > 0 else 0.0
    keys, doubt = round(count), per_key / max(ratio, 1e-9) * (4 * relative + 1e-6)
    return keys if 1 <= keys <= MOST_KEYS and abs(count - keys) <= doubt < 0.05 else 0


def _sinks(row: Row, ratio: float, relative: float) -> int:
    """How often a sink counts whose weight makes the factor, 0 if no whole number from 2 does."""
    weight = 1 - float(row.true[row.visible].sum())
    if ratio <= 0 or weight <= 0:
        return 0
    count, doubt = 1 + (1 / ratio - 1) / weight, (4 * relative + 1e-6) / ratio / weight
    times = round(count)
    return times if 2 <= times <= MOST_KEYS and abs(count - times) <= doubt < 0.05 else 0


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
        stale = summed * float(np.exp(largest))
        if stale and not _close(stale, 1.0, 4 * relative) and _close(ratio * stale, 1.0, 4 * relative):
            return f"tiles of {tile} keys"
    return ""


def _last_tile(row: Row, ratio: float, relative: float) -> int:
    """The tile for which the sum of the last one alone gives this factor, 0 for none."""
    tokens, weights = row.mine[row.visible], row.true[row.visible]
    for tile in dict.fromkeys((row.case.block_size, *TILES)):
        share = float(weights[tokens // tile == tokens.max() // tile].sum())
        if share and not _close(share, 1.0, 4 * relative) and _close(ratio * share, 1.0, 4 * relative):
            return tile
    return 0


def _logs(row: Row) -> Array:
    """Log of the true weight of each token in order, -inf for those it does not see."""
    logs = np.full(row.case.batch[row.sequence].kv_len, -np.inf)
    with np.errstate(divide="ignore"):
        logs[row.mine[row.visible]] = np.log(row.true[row.visible])
    return logs


def _negative(row: Row, there: NDArray[np.bool_]) -> str:
    """No exponential is negative."""
    least = int(np.where(there, row.got, np.inf).argmin())
    words = f"the weight of token {row.mine[least]} is {row.got[least]:.4g}, but none is negative"
    return f"{words}: what V is multiplied by is no exponential of a score{at('output')}"


def _repeated(row: Row, there: NDArray[np.bool_]) -> str:
    """A few tokens count twice or more often, the others alike."""
    ratios = np.sort(row.got[there] / row.true[there])
    usual = float(ratios[(len(ratios) - 1) // 2])  # of two tokens, that of the lesser
    if (odd := _odd_ones(row, there, usual)) is None:
        return ""
    tokens, times, alike = odd
    if round(times) < 2 or not alike or abs(times - round(times)) >= 0.01:
        return ""
    amount = "twice" if round(times) == 2 else f"{round(times)} times"
    return f"{row.where_is(tokens)} {'count' if len(tokens) > 1 else 'counts'} {amount}"


def _stale(row: Row, there: NDArray[np.bool_]) -> str:
    """The first tokens count as if no larger score had come after them: the best of them like the best of all."""
    tokens, got, true, within = row.mine[there], row.got[there], row.true[there], row.within[there]
    first = np.abs(got - true) > 2 * within
    if not 0 < first.sum() < len(first) or tokens[first].max() > tokens[~first].min():
        return ""
    factor = float(true.max() / true[first].max())
    if factor == 1.0 or not _fits(got[first], factor * true[first], within[first], factor):
        return ""
    return (
        f"{row.where_is(np.sort(tokens[first]))} {'count' if first.sum() > 1 else 'counts'} {factor:.4g} times as much "
        "as it should: what was summed before is not rescaled when the maximum moves"
        f"{at('output')}"
    )


def _apart(row: Row, there: NDArray[np.bool_]) -> str:
    """A few tokens are off, the others are right for each other."""
    if (odd := _odd_ones(row, there, float(np.median(row.got[there] / row.true[there])))) is None:
        return ""
    tokens, times, alike = odd
    if len(tokens) > 1 and alike:
        return (
            f"{row.where_is(tokens)} count {times:.4g} times as much as they should: that tile is not rescaled"
            f"{at('output')}"
        )
    return f"the scores of {row.where_is(tokens)} are wrong, those of the other tokens are right{at('K', 'scores')}"


def _odd_ones(row: Row, there: NDArray[np.bool_], usual: float) -> tuple[NDArray[np.int64], float, bool] | None:
    """Tokens, half of all at most, that are off by more than the usual factor: by which, and whether all alike."""
    got, true, within = row.got[there], row.true[there], row.within[there]
    odd = np.abs(got - usual * true) > 2 * max(1.0, usual) * within
    if not 0 < odd.sum() <= len(odd) // 2:
        return None
    times = float(got[odd].sum() / (usual * true[odd].sum()))
    return np.sort(row.mine[there][odd]), times, _fits(got[odd], times * usual * true[odd], within[odd], times * usual)


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
                f"those of the last tile of {size}: they are not rescaled when the maximum moves{at('output')}"
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
        words = "a natural logarithm taken for one in base 2"
        return f"the weights are powers of 2, but should be of e: {words}{at('scores')}"
    if abs(exponent - np.log2(np.e)) < 1e-3:
        return "the weights are powers of e, but should be of 2: scores that hold log2(e) already" + at("scores")
    if usable.sum() == 2:  # any two weights fit
        return (
            f"the scores are {exponent:.4g} times as far apart as they should be: the scale, or one of the two scores"
            f"{at('K', 'scores')}"
        )
    return f"the weights are those of scores {exponent:.4g} times as large: the scale{at('scores')}"


def worst(row: Row) -> str:
    """Nothing is common to them."""
    there = row.visible
    differ = np.abs(row.got - row.true) * there
    most, wrong = int(differ.argmax()), row.weights.wrong[row.token, row.head] & there
    return (
        f"{wrong.sum()} of {there.sum()} weights are wrong, that of token {row.mine[most]} the most: "
        f"{row.got[most]:.4g}, but should be {row.true[most]:.4g}{at('K', 'scores')}"
    )
