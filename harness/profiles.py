"""Drawing profiles: what one round of a campaign may draw, within a declaration and up to a rung of the ladder."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from harness.case import FAR, FP8, NEW_KV, Case, Float, KvFloat, Op, Record
from harness.subjects import Declaration

T = TypeVar("T")

HEADS = (
    (1, 1), (2, 2), (2, 1), (3, 1), (4, 2), (6, 2), (7, 1), (8, 8), (12, 4), (13, 1), (16, 8), (28, 4), (32, 32)
)  # fmt: skip
HEAD_DIMS = (16, 32, 40, 64, 72, 80, 96, 128, 192, 256)
BLOCK_SIZES = (16, 1, 8, 24, 32, 48, 64, 128, 256)
DTYPES: tuple[Float, ...] = ("float32", "float16", "bfloat16")
LAYOUTS = ("nhd", "hnd", "kv_stacked", "kv_interleaved", "padded", "offset")
Q_LAYOUTS = ("contiguous", "fused_qkv", "transposed_heads", "far")
JOINT_LAYOUTS = ("kv_stacked", "kv_interleaved")
PLACEMENTS = ("in_order", "reversed", "shuffled", "interleaved", *FAR)
SOLO_LAYOUTS = ("same", "nhd", "hnd", "padded", "offset")
VALUES = (
    "normal", "peaked", "uniform", "gather", "large", "tiny", "ties", "cancelling", "ascending_max", "descending_max",
    "two_level", "powers_of_two", "far_above", "far_below",
)  # fmt: skip
#: Values that only an FP8 cache makes anything of.
FP8_VALUES = ("edges",)
#: Scores so far from 0 that a softcap holds them all, and an exponential of one overflows.
EXTREME = ("large", "far_above", "far_below")
#: The last one is ln 2: with values `powers_of_two`, weights are powers of two.
SCALES = (None, 0.25, 1.0, 0.0884, 0.6931471805599453)
TABLE_PADS = ("minus_one", "zero", "huge", "other")
POISONS = ("nan", "inf", "huge", "random_bits")
FEATURES = ("window", "softcap", "alibi", "sinks", "lse", "out", "non_causal", "head_dim_v", "mla", "padding_rows")
#: Features that an operation has no use for.
USELESS: dict[str, tuple[str, ...]] = {
    "cache_write": ("window", "softcap", "alibi", "sinks", "lse", "out", "non_causal"),
    "gather": ("window", "softcap", "alibi", "sinks", "lse", "out", "non_causal", "head_dim_v", "mla", "padding_rows"),
    "merge": ("window", "softcap", "alibi", "sinks", "lse", "non_causal", "mla", "padding_rows"),
}
KV_DTYPES: tuple[KvFloat, ...] = ("same", "e4m3", "e5m2")

#: Features whose order matters, each being part of what a score becomes, and how many pairs of them a pool has.
SCORED, PAIRS = ("window", "softcap", "alibi", "sinks"), 3
#: Combinations of compile-time constants that one round draws from.
POOL = 10
#: Elements of K and V together that one case may hold, tokens of one sequence, and programs of a plain grid.
BUDGET_ELEMENTS = 2**18
BUDGET_TOKENS = 700
BUDGET_PROGRAMS = 128
MAX_SEQS = 5
#: Scores of all heads and queries that one case may have: a long chunk sees few keys.
BUDGET_SCORES = 2**16
#: New tokens that a sequence may have beside cached ones.
LONGEST_CHUNK = 80


class Constants(Record, frozen=True):
    """Compile-time constants: each combination is compiled once."""

    head_dim: int
    block_size: int
    dtype: Float
    kv_dtype: KvFloat = "same"
    new_kv: str = "in_cache"
    config: int = 0
    features: tuple[str, ...] = ()


class Profile(Record, frozen=True):
    """What a round of a campaign may draw; each tuple with the simplest first."""

    op: Op = "decode"
    heads: tuple[tuple[int, int], ...] = HEADS
    head_dims: tuple[int, ...] = HEAD_DIMS
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    dtypes: tuple[Float, ...] = DTYPES
    kv_dtypes: tuple[KvFloat, ...] = ("same",)
    new_kv: tuple[str, ...] = ("in_cache",)
    layouts: tuple[str, ...] = LAYOUTS
    v_layouts: tuple[str, ...] = SOLO_LAYOUTS
    q_layouts: tuple[str, ...] = Q_LAYOUTS
    placements: tuple[str, ...] = PLACEMENTS
    table_dtypes: tuple[str, ...] = ("int32", "int64")
    table_pads: tuple[str, ...] = TABLE_PADS
    poisons: tuple[str, ...] = POISONS
    values: tuple[str, ...] = VALUES
    scales: tuple[float | None, ...] = SCALES
    features: tuple[str, ...] = FEATURES[:7]
    slid_out: bool = False
    splits: bool = False
    configs: int = 1
    constants: tuple[Constants, ...] = ()  # when given, these combinations only
    empty_rows: bool = True
    ragged: bool = True
    partial_blocks: bool = True
    shared_blocks: bool = True
    spare: bool = True
    max_kv_len: int = BUDGET_TOKENS
    near: tuple[Case, ...] = ()  # when given, each case is a relative of one of these
    frames: tuple[Case, ...] = ()  # when given, each case is compiled as one of these
    recorded: tuple[Case, ...] = ()  # when given, each case is a neighbour of one of these, as often as it stands here


def profile(declared: Declaration, seed: int, rungs: int = 6) -> Profile:
    """What to draw in one round: within the declaration and the lowest `rungs` of the ladder.

    Compile-time constants come from a small pool that changes with the seed, since each combination is compiled.
    """
    pick = random.Random(seed)  # noqa: S311  (drawing, not secrecy)
    whole = _on_rungs(whole_profile(declared), rungs)
    pool = dict.fromkeys([_plainest(whole), *_combinations(pick, whole, POOL - 1)])
    return msgspec.structs.replace(whole, constants=tuple(pool))


def whole_profile(declared: Declaration) -> Profile:
    """Everything that the declaration allows, on every rung."""
    return Profile(**_declared(declared))


def _plainest(whole: Profile) -> Constants:
    return Constants(
        head_dim=whole.head_dims[0],
        block_size=whole.block_sizes[0],
        dtype=whole.dtypes[0],
        new_kv=whole.new_kv[0],
    )


#: Fields of Constants and the options of a Profile for them.
COMPILED = {
    "head_dim": "head_dims", "block_size": "block_sizes", "dtype": "dtypes", "kv_dtype": "kv_dtypes", "new_kv": "new_kv"
}  # fmt: skip


def _combinations(pick: random.Random, whole: Profile, count: int) -> Iterator[Constants]:
    """Few features at a time show most; half of them at once are what brings any two together soon.

    Options are dealt rather than drawn: no round is without a feature, since the next like it may be 300 cases off.
    """
    dealt = {field: _dealt(pick, getattr(whole, options), count) for field, options in COMPILED.items()}
    hands = _hands(pick, whole.features, count)
    dealt["config"] = _dealt(pick, range(whole.configs), count)
    for i, hand in enumerate(hands):
        names = tuple(name for name in whole.features if name in hand)
        yield Constants(**{field: options[i] for field, options in dealt.items()}, features=names)


def _hands(pick: random.Random, features: tuple[str, ...], count: int) -> list[set[str]]:
    """Features dealt in turn, with some pairs of those that make a score; some names may be none of the features."""
    sizes = _dealt(pick, (0, 1, 1, 2, 3, (len(features) + 1) // 2), count)
    deck = iter(_dealt(pick, features, sum(sizes)))
    hands = [set(itertools.islice(deck, size)) for size in sizes]
    pairs = list(itertools.combinations([name for name in SCORED if name in features], 2))
    for hand, pair in zip(hands, pick.sample(pairs, min(len(pairs), PAIRS)), strict=False):
        hand.update(pair)
    for hand in hands:
        if "window" in hand and pick.random() < 0.5:
            hand.add("non_causal")  # the right side of a window shows where nothing is causal
        if pick.random() < 0.5:
            hand.add("lse")  # one output more to judge
    return hands


def _dealt(pick: random.Random, options: Sequence[T], count: int) -> list[T]:
    """So many options in random order, each as often as any other, but for one."""
    if not options:
        return []
    rounds = -(-count // len(options))
    return [option for _ in range(rounds) for option in pick.sample(options, len(options))][:count]


def _declared(declared: Declaration) -> dict[str, Any]:
    finite = ("huge",) if declared.finite_dead_slots else POISONS
    return {
        "heads": HEADS if declared.groups is None else _heads(declared.groups),
        "head_dims": _allowed(HEAD_DIMS, declared.head_dims),
        "block_sizes": _allowed(BLOCK_SIZES, declared.block_sizes),
        "dtypes": _allowed(DTYPES, declared.dtypes),
        "layouts": _allowed(LAYOUTS, declared.layouts),
        "v_layouts": _v_layouts(declared),
        "q_layouts": _allowed(Q_LAYOUTS, declared.q_layouts),
        "placements": _allowed(PLACEMENTS, declared.placements),
        "table_dtypes": _allowed(("int32", "int64"), declared.table_dtypes),
        "table_pads": ("zero", "other") if declared.padded_table else TABLE_PADS,
        "poisons": finite,
        "values": VALUES if set(declared.kv_dtypes).isdisjoint(FP8) else (*VALUES, *FP8_VALUES),
        "scales": SCALES if declared.scales else (None,),
        "op": declared.op,
        "kv_dtypes": _allowed(KV_DTYPES, declared.kv_dtypes),
        "new_kv": _allowed(NEW_KV, declared.new_kv),
        "features": tuple(name for name in useful(declared.op) if getattr(declared, name)),
        "slid_out": declared.slid_out and declared.window,
        "splits": declared.splits,
        "configs": declared.configs,
        "empty_rows": declared.empty_rows,
        "shared_blocks": declared.shared_blocks,
        "max_kv_len": min(declared.max_kv_len or BUDGET_TOKENS, BUDGET_TOKENS),
    }


def _allowed(known: tuple[T, ...], declared: tuple[T, ...] | None) -> tuple[T, ...]:
    """Known options that are declared, in known order, then declared ones that we did not think of."""
    if declared is None:
        return known
    return (*(option for option in known if option in declared), *(o for o in declared if o not in known))


def _heads(groups: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Head counts with these groups, also with those that we did not think of."""
    known = {q // kv for q, kv in HEADS}
    others = ((group * kv, kv) for group in groups if group not in known for kv in (1, 2))
    return (*(heads for heads in HEADS if heads[0] // heads[1] in groups), *others)


def _v_layouts(declared: Declaration) -> tuple[str, ...]:
    if not declared.kv_strides_apart:
        return ("same",)
    apart = declared.layouts and tuple(layout for layout in declared.layouts if layout not in JOINT_LAYOUTS)
    return ("same", *_allowed(SOLO_LAYOUTS[1:], apart))


_SIMPLE: dict[str, tuple[int, Any]] = {
    # field: (the rung from which it is drawn freely, what is drawn below)
    "empty_rows": (2, False),
    "ragged": (2, False),
    "partial_blocks": (2, False),
    "shared_blocks": (2, False),
    "spare": (2, False),
}
_FIRST_ONLY = {
    "placements": 2,
    "table_pads": 2,
    "values": 2,
    "dtypes": 3,
    "head_dims": 4,
    "block_sizes": 4,
    "layouts": 4,
    "v_layouts": 4,
    "q_layouts": 4,
    "table_dtypes": 4,
}


def _on_rungs(whole: Profile, rungs: int) -> Profile:
    changes: dict[str, Any] = {name: below for name, (from_rung, below) in _SIMPLE.items() if rungs < from_rung}
    changes |= {name: getattr(whole, name)[:1] for name, from_rung in _FIRST_ONLY.items() if rungs < from_rung}
    if rungs < 4:
        changes["heads"] = tuple(h for h in whole.heads if h[0] == h[1]) or whole.heads[:1]
    if rungs < 5:
        near = tuple(p for p in changes.get("placements", whole.placements) if p not in FAR)
        changes["placements"] = near or whole.placements[:1]
        layouts = changes.get("q_layouts", whole.q_layouts)
        changes["q_layouts"] = tuple(layout for layout in layouts if layout != "far") or layouts[:1]
    if rungs < 6:
        changes |= {"features": (), "kv_dtypes": ("same",), "new_kv": whole.new_kv[:1]}
        changes |= {"slid_out": False, "splits": False, "configs": 1}
    return Profile(**({name: getattr(whole, name) for name in Profile.__struct_fields__} | changes))


def not_drawn(declared: Declaration) -> tuple[str, ...]:
    """The features that a subject does not declare, so that no case has them."""
    gone = ("slid_out",) if declared.window and not declared.slid_out else ()
    return (*(name for name in useful(declared.op) if not getattr(declared, name)), *gone)


def useful(op: str) -> tuple[str, ...]:
    """The features that an operation can have."""
    return tuple(name for name in FEATURES if name not in USELESS.get(op, ()))
