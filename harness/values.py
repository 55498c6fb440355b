"""Values of tensors: an integer hash of where an element belongs, mapped through a table. Same bytes everywhere."""

from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from harness.case import Case, Seq, replace
from harness.quantiles import QUANTILES

Floats = NDArray[np.float64]
Hashes = NDArray[np.uint64]

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}

# Tensor numbers are part of the recipe: changing one changes every corpus case.
Q, K, V, SLOPES, SINKS, POISON, ORDER, HOT = range(8)

#: Bits of a token's index that `two_level` spells out.
INDEX_BITS = 16

# Where each stretch between two quantiles begins and how far it reaches: of each the one above 0, then that below.
_STARTS = np.array([sign * start for start in QUANTILES[:-1] for sign in (1, -1)]) / 4096
_REACHES = np.array([sign * reach for reach in np.diff(QUANTILES).tolist() for sign in (1, -1)]) / 4096
_GAMMA, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_BY_30, _BY_27, _BY_31 = (np.uint64(n) for n in (30, 27, 31))


def mix(x: Hashes) -> Hashes:
    """The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014), in place."""
    x += _GAMMA
    shifted = x >> _BY_30
    x ^= shifted
    x *= _FIRST
    np.right_shift(x, _BY_27, out=shifted)
    x ^= shifted
    x *= _SECOND
    np.right_shift(x, _BY_31, out=shifted)
    x ^= shifted
    return x


def hashed(seed: int, tensor: int, *coordinates: object) -> Hashes:
    """A 64-bit hash per element of the broadcast integer coordinates."""
    x = mix(np.array([(seed * 8 + tensor) % 2**64], dtype=np.uint64))
    for coordinate in coordinates:
        x = mix(x ^ np.asarray(coordinate, dtype=np.uint64))
    return x


def normal(hashes: Hashes) -> Floats:
    """Standard normal values, cut at 3.1; exact arithmetic, so exactly the same everywhere."""
    bits = hashes.view(np.int64)
    stretch = bits >> 7  # bits 8 to 15 name it, bit 0 the side of 0
    stretch &= 0x1FE
    stretch |= bits & 1
    fraction = bits >> 16
    fraction &= 0xFFFF
    found = fraction * 2.0**-16
    found *= _REACHES.take(stretch)
    found += _STARTS.take(stretch)
    return np.asarray(found)


def cast(values: Floats, dtype: str) -> NDArray[Any]:
    """Round to nearest even, through float32 on every machine."""
    return values.astype(np.float32).astype(DTYPES[dtype])


def encode(values: Floats, scales: Floats, dtype: str) -> NDArray[Any]:
    """What a cache stores of [tokens, heads, dim]: divided by each head's scale, saturated in FP8."""
    scaled = values / scales[:, None] if np.any(scales != 1) else values
    if dtype in ("e4m3", "e5m2"):
        largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)  # type: ignore[no-untyped-call]
        scaled = np.clip(scaled, -largest, largest)
    return cast(scaled, dtype)


def scales(case: Case) -> tuple[Floats, Floats]:
    """Scales of K and V, [num_kv_heads] each; per head they differ by powers of two, so that dividing is exact."""
    steps = 2.0 ** (np.arange(case.num_kv_heads) % 3 - 1)
    per_head = steps if case.scale_granularity == "head" else np.ones(case.num_kv_heads)
    return np.asarray(case.k_scale * per_head), np.asarray(case.v_scale * per_head)


def owner_tags(case: Case, seq: Seq) -> NDArray[np.int64]:
    """For each token of the sequence, the tag of the sequence that owns its block."""
    tags = np.full(seq.kv_len, seq.tag, dtype=np.int64)
    if seq.shared_blocks and seq.shares_prefix_with is not None:
        shared = seq.shared_blocks * case.block_size
        tags[:shared] = owner_tags(case, by_tag(case, seq.shares_prefix_with))[:shared]
    return tags


def by_tag(case: Case, tag: int) -> Seq:
    """The sequence with the tag."""
    return next(seq for seq in case.seqs if seq.tag == tag)


#: Fields that say where blocks lie and what dead memory holds, with one value for all.
PLACING = {
    "placement": "in_order", "geometry_seed": 0, "spare_blocks": 0, "extra_columns": 0, "table_pad": "minus_one",
    "k_poison": "nan", "v_poison": "nan", "spare_poison": "nan", "row_poison": "nan",
}  # fmt: skip


@lru_cache(maxsize=1)
def _recipe(case: Case) -> Case:
    """The case without what says where blocks lie and what dead memory holds: no value depends on that."""
    return replace(case, **PLACING)


@lru_cache(maxsize=1)
def _made(recipe: Case) -> dict[Any, Any]:  # noqa: ARG001  (it is the key)
    """What has been made for the latest recipe."""
    return {}


def made(case: Case) -> dict[Any, Any]:
    """What has been made for this case and those that differ from it in placing alone; for more to be kept in."""
    return _made(_recipe(case))


def forget() -> None:
    """Keep nothing of what has been made."""
    _made.cache_clear()


def _once(make: Callable[..., NDArray[Any]]) -> Callable[..., NDArray[Any]]:
    """Make values once for cases that differ in nothing that they depend on, as those of a relation do."""

    @wraps(make)
    def found(case: Case, *seqs: Seq) -> NDArray[Any]:
        there, key = made(case), (make.__name__, seqs)
        if key not in there:
            there[key] = make(case, *seqs)
            there[key].flags.writeable = False
        return there[key]  # type: ignore[no-any-return]

    return found


def _joined(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts])


@_once
def query(case: Case, *seqs: Seq) -> Floats:
    """q of the sequences one after another, [tokens, num_q_heads, head_dim]; new tokens are the last ones of each."""
    positions = _joined(np.arange(seq.kv_len - seq.query_len, seq.kv_len) for seq in seqs)
    tags = np.repeat([seq.tag for seq in seqs], [seq.query_len for seq in seqs])
    hashes = _hash_tokens(case.data_seed, Q, tags, positions, case.num_q_heads, case.head_dim)
    return _QUERIES.get(case.values, _plain)(hashes)


@_once
def keys(case: Case, *seqs: Seq) -> Floats:
    """K of the sequences one after another, [tokens, num_kv_heads, head_dim]."""
    tags, positions = _tokens(case, seqs)
    hashes = _hash_tokens(case.data_seed, K, tags, positions, case.num_kv_heads, case.head_dim)
    if case.values in ("ascending_max", "descending_max"):
        return _ramp(hashes, positions if case.values == "ascending_max" else -positions, case.head_dim)
    if case.values == "edges" and case.op == "cache_write":
        return _edges(hashes, case, scales(case)[0])
    if case.values == "gather":
        return np.broadcast_to(_hot_keys(case, tags, positions)[:, None, None], hashes.shape).copy()
    return _KEYS.get(case.values, _plain)(hashes)


@_once
def values(case: Case, *seqs: Seq) -> Floats:
    """V of the sequences one after another, [tokens, num_kv_heads, head_dim_v]."""
    if case.v_is_k_prefix:
        return keys(case, *seqs)[:, :, : case.value_dim]
    tags, positions = _tokens(case, seqs)
    if case.values == "two_level":
        return _index_bits(positions, case.num_kv_heads, case.value_dim)
    if case.values == "gather":
        return _identities(tags, positions, case.num_kv_heads, case.value_dim)
    hashes = _hash_tokens(case.data_seed, V, tags, positions, case.num_kv_heads, case.value_dim)
    if case.values == "large":
        return normal(hashes) * 2.0 ** _LARGE_V.get(case.cache_dtype, 40)
    if case.values == "edges":
        return _edges(hashes, case, scales(case)[1])
    if case.values == "cancelling":
        return normal(hashes) / 2 + 4 * (1 - 2 * (positions % 2))[:, None, None]
    return _VALUES.get(case.values, _plain)(hashes)


def _tokens(case: Case, seqs: tuple[Seq, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each token of the sequences the tag of its owner, and its position."""
    tags = _joined(owner_tags(case, seq) for seq in seqs)
    return tags, _joined(np.arange(seq.kv_len) for seq in seqs)


@_once
def stored_query(case: Case, *seqs: Seq) -> NDArray[Any]:
    """q of the sequences in its own type."""
    return cast(query(case, *seqs), case.dtype)


@_once
def stored_keys(case: Case, *seqs: Seq) -> NDArray[Any]:
    """K of the sequences as a cache has it."""
    return encode(keys(case, *seqs), scales(case)[0], case.cache_dtype)


@_once
def stored_values(case: Case, *seqs: Seq) -> NDArray[Any]:
    """V of the sequences as a cache has it."""
    return encode(values(case, *seqs), scales(case)[1], case.cache_dtype)


def slopes(case: Case) -> Floats:
    """ALiBi slopes, [num_q_heads]: powers of two from 1/2 to 1/256."""
    hashes = hashed(case.data_seed, SLOPES, np.arange(case.num_q_heads))
    return 2.0 ** -(1 + (hashes % np.uint64(8)).astype(np.float64))


def sink_logits(case: Case) -> Floats:
    """Sink logits, [num_q_heads]."""
    return 2 * normal(hashed(case.data_seed, SINKS, np.arange(case.num_q_heads)))


def _hash_tokens(
    seed: int, tensor: int, tags: NDArray[np.int64], positions: NDArray[np.int64], heads: int, dims: int
) -> Hashes:
    # A bottom-right query of a longer chunk may stand before the first key: 2**32 keeps the position positive.
    where = (positions + 2**32)[:, None, None]
    return hashed(seed, tensor, tags[:, None, None], where, np.arange(heads)[None, :, None], np.arange(dims))


def _plain(hashes: Hashes) -> Floats:
    return normal(hashes)


def _small_integers(hashes: Hashes) -> Floats:
    return ((hashes >> np.uint64(20)) % np.uint64(8)).astype(np.float64)


def _ternary(hashes: Hashes) -> Floats:
    return ((hashes >> np.uint64(20)) % np.uint64(3)).astype(np.float64) - 1


def _ramp(hashes: Hashes, order: NDArray[np.int64], head_dim: int) -> Floats:
    """Scores that rise by about one from token to token, when q is near 1 and the scale 1/sqrt(head_dim)."""
    step = 0.5 ** (int(head_dim).bit_length() // 2)
    return normal(hashes) / 8 + step * order[:, None, None]


def _hot_keys(case: Case, tags: NDArray[np.int64], positions: NDArray[np.int64]) -> Floats:
    """+16 for the one hot token of each owner, -16 for the others: its weight is exactly 1."""
    hot = np.full(len(tags), -1, dtype=np.int64)
    for tag in np.unique(tags):
        kv_len = by_tag(case, int(tag)).kv_len
        hot[tags == tag] = int(hashed(case.data_seed, HOT, int(tag))[0] % np.uint64(max(kv_len, 1)))
    return np.where(positions == hot, 16.0, -16.0)


def _identities(tags: NDArray[np.int64], positions: NDArray[np.int64], heads: int, dims: int) -> Floats:
    """Channels name the token: its place in 64, its 64s, its head, its sequence; each exact in every dtype."""
    channels = np.empty((len(positions), heads, dims))
    channels[..., 0::4] = (positions % 64)[:, None, None]
    channels[..., 1::4] = (positions // 64 % 64)[:, None, None]
    channels[..., 2::4] = np.arange(heads)[None, :, None] % 64
    channels[..., 3::4] = (tags % 63 + 1)[:, None, None]
    return channels


def _index_bits(positions: NDArray[np.int64], heads: int, dims: int) -> Floats:
    """Channel c is bit c of the token's index: the mean over equal weights tells which share of the keys has it."""
    bits = (positions[:, None] >> (np.arange(dims) % INDEX_BITS)) & 1
    return np.repeat(bits[:, None, :], heads, axis=1).astype(np.float64)


def _exponents(hashes: Hashes) -> Floats:
    """Whole numbers from -8 to 7 in the first channel and 0 elsewhere: times a scale of ln 2, powers of two."""
    exponents = ((hashes >> np.uint64(20)) % np.uint64(16)).astype(np.float64) - 8
    exponents[..., 1:] = 0
    return exponents


def _edges(hashes: Hashes, case: Case, factors: Floats) -> Floats:
    """Where FP8 begins and ends: subnormals and what rounds to them, the largest number and what saturates."""
    if case.cache_dtype not in EDGES:
        return normal(hashes)
    table = np.array(EDGES[case.cache_dtype])
    sizes: Floats = table[(hashes >> np.uint64(20)) % np.uint64(len(table))] * factors[:, None]
    largest = float(ml_dtypes.finfo(DTYPES[case.dtype]).max)  # type: ignore[no-untyped-call]
    signs = np.where(hashes >> np.uint64(60) & np.uint64(1), -1.0, 1.0)
    return np.asarray(signs * np.minimum(sizes, largest))


#: Of each FP8 type: half the least subnormal, one that ties, the least, the largest, the least normal number, 1; then
#: the largest, what still rounds to it, the tie with what would come next, and beyond.
EDGES = {
    "e4m3": (2.0**-10, 3 * 2.0**-10, 2.0**-9, 7 * 2.0**-9, 2.0**-6, 1.0, 448.0, 456.0, 464.0, 480.0, 1024.0),
    "e5m2": (2.0**-17, 3 * 2.0**-17, 2.0**-16, 3 * 2.0**-16, 2.0**-14, 1.0, 57344.0, 59392.0, 61440.0, 65504.0),
}
_LARGE_V = {"float16": 12, "e4m3": 6, "e5m2": 12}
_Family = dict[str, Callable[[Hashes], Floats]]

_QUERIES: _Family = {
    "far_above": lambda h: np.full(h.shape, 32.0),
    "far_below": lambda h: np.full(h.shape, 32.0),
    "gather": lambda h: np.full(h.shape, 16.0),
    "large": lambda h: normal(h) * 32,
    "tiny": lambda h: normal(h) / 256,
    "ties": _ternary,
    "powers_of_two": lambda h: np.ones(h.shape),
    "ascending_max": lambda h: 1 + normal(h) / 8,
    "descending_max": lambda h: 1 + normal(h) / 8,
}
_KEYS: _Family = {
    "far_above": lambda h: normal(h) + 32,
    "far_below": lambda h: normal(h) - 32,
    "peaked": lambda h: normal(h) * 4,
    "uniform": lambda h: np.zeros(h.shape),
    "two_level": lambda h: np.zeros(h.shape),
    "powers_of_two": _exponents,
    "large": lambda h: normal(h) * 32,
    "tiny": lambda h: normal(h) / 256,
    "ties": _ternary,
}
_VALUES: _Family = {
    "uniform": _small_integers,
    "powers_of_two": _small_integers,
    "tiny": lambda h: normal(h) / 4096,
}
