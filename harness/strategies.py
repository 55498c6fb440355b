"""Drawing profiles and the Hypothesis strategy that draws a case from one: small, hostile, simplest first."""

import random
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st

from harness.case import Case, Float, Record, Seq
from harness.subjects import Declaration
from harness.traits import BY_NAME, rung, traits

Draw = Callable[[st.SearchStrategy[Any]], Any]
T = TypeVar("T")

HEADS = (
    (1, 1), (2, 2), (2, 1), (3, 1), (4, 2), (6, 2), (7, 1), (8, 8), (12, 4), (13, 1), (16, 8), (28, 4), (32, 32)
)  # fmt: skip
HEAD_DIMS = (16, 32, 40, 64, 72, 80, 96, 128, 192, 256)
BLOCK_SIZES = (16, 1, 8, 24, 32, 48, 64, 128, 256)
DTYPES: tuple[Float, ...] = ("float32", "float16", "bfloat16")
LAYOUTS = ("nhd", "hnd", "kv_stacked", "kv_interleaved", "padded", "offset")
SOLO_LAYOUTS = ("same", "nhd", "hnd", "padded", "offset")
VALUES = (
    "normal", "peaked", "uniform", "gather", "large", "tiny", "ties", "cancelling", "ascending_max", "descending_max"
)  # fmt: skip
TABLE_PADS = ("minus_one", "zero", "huge", "other")
POISONS = ("nan", "inf", "huge", "random_bits")
FEATURES = ("window", "softcap", "alibi", "sinks", "lse", "out", "non_causal")

#: Combinations of compile-time constants that one round draws from.
POOL = 10
#: Elements of K and V together that one case may hold, tokens of one sequence, and programs of a plain grid.
BUDGET_ELEMENTS = 2**18
BUDGET_TOKENS = 700
BUDGET_PROGRAMS = 128
MAX_SEQS = 5


class Constants(Record, frozen=True):
    """Compile-time constants: each combination is compiled once."""

    head_dim: int
    block_size: int
    dtype: Float
    features: tuple[str, ...] = ()


class Profile(Record, frozen=True):
    """What a round of a campaign may draw; each tuple with the simplest first."""

    heads: tuple[tuple[int, int], ...] = HEADS
    head_dims: tuple[int, ...] = HEAD_DIMS
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    dtypes: tuple[Float, ...] = DTYPES
    layouts: tuple[str, ...] = LAYOUTS
    v_layouts: tuple[str, ...] = SOLO_LAYOUTS
    q_layouts: tuple[str, ...] = ("contiguous", "fused_qkv", "transposed_heads")
    placements: tuple[str, ...] = ("in_order", "reversed", "shuffled", "interleaved", "far")
    table_dtypes: tuple[str, ...] = ("int32", "int64")
    table_pads: tuple[str, ...] = TABLE_PADS
    poisons: tuple[str, ...] = POISONS
    values: tuple[str, ...] = VALUES
    scales: tuple[float | None, ...] = (None, 0.25, 1.0, 0.0884)
    features: tuple[str, ...] = FEATURES
    constants: tuple[Constants, ...] = ()  # when given, these combinations only
    empty_rows: bool = True
    ragged: bool = True
    partial_blocks: bool = True
    shared_blocks: bool = True
    spare: bool = True
    max_kv_len: int = BUDGET_TOKENS


def profile(declared: Declaration, seed: int, rungs: int = 6) -> Profile:
    """What to draw in one round: within the declaration and the lowest `rungs` of the ladder.

    Compile-time constants come from a small pool that changes with the seed, since each combination is compiled.
    """
    pick = random.Random(seed)  # noqa: S311  (drawing, not secrecy)
    whole = _on_rungs(Profile(**_declared(declared)), rungs)
    pool = dict.fromkeys([_plainest(whole), *(_combination(pick, whole) for _ in range(POOL - 1))])
    return msgspec.structs.replace(whole, constants=tuple(pool))


def _plainest(whole: Profile) -> Constants:
    return Constants(head_dim=whole.head_dims[0], block_size=whole.block_sizes[0], dtype=whole.dtypes[0])


def _combination(pick: random.Random, whole: Profile) -> Constants:
    """Few features at a time: each alone, and pairs of them, show most."""
    count = min(pick.choice((0, 1, 1, 2, 2, 3)), len(whole.features))
    return Constants(
        head_dim=pick.choice(whole.head_dims),
        block_size=pick.choice(whole.block_sizes),
        dtype=pick.choice(whole.dtypes),
        features=tuple(sorted(pick.sample(whole.features, count), key=whole.features.index)),
    )


def _declared(declared: Declaration) -> dict[str, Any]:
    finite = ("huge",) if declared.finite_dead_slots else POISONS
    return {
        "heads": tuple(h for h in HEADS if declared.groups is None or h[0] // h[1] in declared.groups),
        "head_dims": _allowed(HEAD_DIMS, declared.head_dims),
        "block_sizes": _allowed(BLOCK_SIZES, declared.block_sizes),
        "dtypes": _allowed(DTYPES, declared.dtypes),
        "layouts": _allowed(LAYOUTS, declared.layouts),
        "v_layouts": _v_layouts(declared),
        "q_layouts": _allowed(("contiguous", "fused_qkv", "transposed_heads"), declared.q_layouts),
        "placements": _allowed(("in_order", "reversed", "shuffled", "interleaved", "far"), declared.placements),
        "table_dtypes": _allowed(("int32", "int64"), declared.table_dtypes),
        "table_pads": ("zero", "other") if declared.padded_table else TABLE_PADS,
        "poisons": finite,
        "scales": (None, 0.25, 1.0, 0.0884) if declared.scales else (None,),
        "features": tuple(name for name in FEATURES if getattr(declared, name)),
        "empty_rows": declared.empty_rows,
        "shared_blocks": declared.shared_blocks,
        "max_kv_len": min(declared.max_kv_len or BUDGET_TOKENS, BUDGET_TOKENS),
    }


def _allowed(known: tuple[T, ...], declared: tuple[T, ...] | None) -> tuple[T, ...]:
    """Known options that are declared, in known order, then declared ones that we did not think of."""
    if declared is None:
        return known
    return (*(option for option in known if option in declared), *(o for o in declared if o not in known))


def _v_layouts(declared: Declaration) -> tuple[str, ...]:
    if not declared.kv_strides_apart:
        return ("same",)
    return ("same", *_allowed(SOLO_LAYOUTS[1:], declared.layouts))


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
        near = tuple(p for p in changes.get("placements", whole.placements) if p != "far")
        changes["placements"] = near or whole.placements[:1]
    if rungs < 6:
        changes["features"] = ()
    return Profile(**({name: getattr(whole, name) for name in Profile.__struct_fields__} | changes))


def cases(options: Profile) -> st.SearchStrategy[Case]:
    """Draw a decode case within the profile."""
    return st.composite(_case)(options)


def _case(draw: Draw, options: Profile) -> Case:
    heads = draw(st.sampled_from(options.heads))
    constants = _constants(draw, options)
    head_dim, block_size = constants.head_dim, constants.block_size
    features = _features(draw, constants.features, block_size)
    seqs = _seqs(draw, options, heads, head_dim, block_size)
    layout = draw(st.sampled_from(options.layouts))
    joint = layout in ("kv_stacked", "kv_interleaved")
    return Case(
        seqs=seqs,
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        block_size=block_size,
        dtype=constants.dtype,
        layout=layout,
        v_layout="same" if joint else draw(st.sampled_from(options.v_layouts)),
        q_layout=draw(st.sampled_from(options.q_layouts)),
        scale=draw(st.sampled_from(options.scales)),
        values=draw(st.sampled_from(options.values)),
        data_seed=draw(st.integers(0, 2**16)),
        **_placement(draw, options),
        **features,
    )


def _placement(draw: Draw, options: Profile) -> dict[str, Any]:
    spare = st.integers(0, 3 if options.spare else 0)
    return {
        "placement": draw(st.sampled_from(options.placements)),
        "geometry_seed": draw(st.integers(0, 255)),
        "table_dtype": draw(st.sampled_from(options.table_dtypes)),
        "table_pad": draw(st.sampled_from(options.table_pads)),
        "extra_columns": draw(spare),
        "spare_blocks": draw(spare),
        "max_len_slack": draw(st.sampled_from((0, 1, 100) if options.spare else (0,))),
        "k_poison": draw(st.sampled_from(options.poisons)),
        "v_poison": draw(st.sampled_from(options.poisons)),
        "spare_poison": draw(st.sampled_from(options.poisons)),
    }


def _constants(draw: Draw, options: Profile) -> Constants:
    if options.constants:
        return draw(st.sampled_from(options.constants))  # type: ignore[no-any-return]
    return Constants(
        head_dim=draw(st.sampled_from(options.head_dims)),
        block_size=draw(st.sampled_from(options.block_sizes)),
        dtype=draw(st.sampled_from(options.dtypes)),
        features=tuple(name for name in options.features if draw(st.booleans())),
    )


def _features(draw: Draw, names: tuple[str, ...], block_size: int) -> dict[str, Any]:
    left = st.sampled_from(sorted({0, 1, 2, 15, 16, 17, 63, 64, 65, block_size - 1, block_size, block_size + 1}))
    drawn: dict[str, Any] = {}
    if "window" in names:
        drawn["window"] = (draw(left), draw(st.sampled_from((-1, 0, 1))))
    if "softcap" in names:
        drawn["softcap"] = draw(st.sampled_from((30.0, 1.0, 5.0, 50.0)))
    if "out" in names:
        drawn["out_layout"] = draw(st.sampled_from(("given", "padded")))
    drawn["causal"] = "non_causal" not in names
    return drawn | {"alibi": "alibi" in names, "sinks": "sinks" in names, "want_lse": "lse" in names}


def _seqs(draw: Draw, options: Profile, heads: tuple[int, int], head_dim: int, block_size: int) -> tuple[Seq, ...]:
    token = 2 * heads[1] * head_dim
    most = max(1, min(MAX_SEQS, BUDGET_PROGRAMS // heads[0]))
    count = draw(st.integers(1, most))
    cap = max(1, min(options.max_kv_len, BUDGET_ELEMENTS // token // count))
    length = _length(options, block_size, cap)
    common = None if options.ragged else draw(length)
    seqs: list[Seq] = []
    for _ in range(count):
        kv_len = draw(length) if common is None else common
        seqs.append(_seq(draw, options, kv_len, block_size, seqs))
    return tuple(seqs)


def _length(options: Profile, block_size: int, cap: int) -> st.SearchStrategy[int]:
    if not options.partial_blocks:
        return st.integers(1, max(1, min(cap // block_size, 6))).map(lambda blocks: blocks * block_size)
    edges = {n * edge + d for edge in (block_size, 16, 64, 128) for n in (1, 2, 3, 4) for d in (-1, 0, 1)}
    drawn = sorted(edge for edge in edges if 1 <= edge <= cap) or [1]
    if options.empty_rows:
        drawn.append(0)
    return st.one_of(st.integers(1, cap), st.sampled_from(drawn))


def _seq(draw: Draw, options: Profile, kv_len: int, block_size: int, earlier: list[Seq]) -> Seq:
    tag = draw(st.integers(0, 15))
    while any(seq.tag == tag for seq in earlier):
        tag += 1
    if not (options.shared_blocks and earlier and draw(st.booleans())):
        return Seq(kv_len=kv_len, tag=tag)
    owner = draw(st.sampled_from(earlier))
    shared = draw(st.integers(0, min(kv_len, owner.kv_len) // block_size))
    if not shared:
        return Seq(kv_len=kv_len, tag=tag)
    return Seq(kv_len=kv_len, tag=tag, shares_prefix_with=owner.tag, shared_blocks=shared)


def not_drawn(declared: Declaration) -> tuple[str, ...]:
    """The features that a subject does not declare, so that no case has them."""
    return tuple(name for name in FEATURES if not getattr(declared, name))


__all__ = ["BY_NAME", "Profile", "cases", "not_drawn", "profile", "rung", "traits"]
