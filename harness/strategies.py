"""The Hypothesis strategies that draw a case from a profile: small, hostile, simplest first."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from harness.case import NEW_TOKENS, WRITING, Case, Hints, InvalidCase, Op, Seq, Slots, States, Tile, replace
from harness.neighbours import Draw, neighbour
from harness.profiles import (
    BUDGET_ELEMENTS,
    BUDGET_PROGRAMS,
    BUDGET_SCORES,
    BUDGET_TOKENS,
    EXTREME,
    FP8_VALUES,
    JOINT_LAYOUTS,
    LONGEST_CHUNK,
    MAX_SEQS,
    Constants,
    Profile,
    useful,
)
from harness.subjects import features
from harness.traits import resized

#: Lengths of a chunk at the edges of tiles of queries.
QUERY_EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65)
#: How many of them, the longest that a case has room for, are drawn more often: few cases have room.
LONG_EDGES = 3
#: By so many a sequence may have more queries than tokens.
MORE_QUERIES = (1, 3)
#: One batch in so many and one more has no new token at all: every prompt is in the cache.
IDLE = 15

#: Of the lengths that are drawn from the edges, about one in so many is 0.
EMPTY = 8

#: What a relative of a case may have anew; what belongs together is drawn together.
PARTS = {
    "lengths": ("seqs", "num_q_heads", "num_kv_heads"),
    "layouts": ("layout", "v_layout", "q_layout"),
    "placement": ("placement", "geometry_seed", "table_dtype", "extra_columns", "spare_blocks", "max_len_slack"),
    "padding": ("table_pad", "k_poison", "v_poison", "spare_poison", "row_poison"),
    "numbers": ("values", "data_seed", "scale"),
    "amounts": ("window", "slid_out", "softcap", "head_dim_v", "out_layout", "k_scale", "v_scale", "scale_granularity"),
    "padding rows": ("padding_rows",),
    "operation": ("slots", "tile", "states", "hints"),
}


#: What of a case is mostly compiled in: constants, types, what is None, strides and places by their divisibility.
COMPILED_IN = (
    "head_dim_v", "causal", "layout", "v_layout", "q_layout", "out_layout", "table_dtype", "scale_granularity", "hints",
)  # fmt: skip

#: Strategies that are kept: of one round there are some hundreds.
KEPT = 4096


def sampled(options: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Any of these. Kept, since Hypothesis looks over each strategy that is new to it: that was half of its time."""
    return _sampled(tuple(options), tuple(type(option) for option in options))


@lru_cache(KEPT)
def _sampled(options: tuple[Any, ...], types: tuple[type, ...]) -> st.SearchStrategy[Any]:  # noqa: ARG001  (1 is not True)
    return st.sampled_from(options)


@lru_cache(KEPT)
def either(*strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What one of them gives."""
    return st.one_of(*strategies)


@lru_cache(KEPT)
def between(least: int, most: int) -> st.SearchStrategy[int]:
    """A whole number, both ends included."""
    return st.integers(least, most)


def cases(options: Profile) -> st.SearchStrategy[Case]:
    """Draw a case within the profile."""
    if options.recorded:
        return st.composite(neighbour)(options)
    if options.near:
        return st.composite(_relative)(options)
    return st.composite(_within_frame if options.frames else _case)(options)


def _within_frame(draw: Draw, options: Profile) -> Case:
    """A case that is compiled as one of the frames, all else drawn anew."""
    frame = options.frames[draw(between(0, len(options.frames) - 1))]
    heads = ((frame.num_q_heads, frame.num_kv_heads),)
    fresh = _case(draw, msgspec.structs.replace(options, constants=(constants_of(frame),), heads=heads))
    kept = {name: getattr(frame, name) for name in COMPILED_IN}
    right = frame.window[1] if min(frame.window[1], fresh.window[1]) < 0 else fresh.window[1]  # None is compiled in
    return replace(fresh, **kept, window=(fresh.window[0], right))


def _relative(draw: Draw, options: Profile) -> Case:
    """One of the given cases with some of its parts drawn anew, its compile-time constants kept."""
    base = draw(sampled(options.near))
    fresh = _case(draw, msgspec.structs.replace(options, constants=(constants_of(base),)))
    parts = draw(st.sets(sampled(tuple(PARTS)), min_size=1, max_size=3))
    if "lengths" not in parts:
        base = _nudged(draw, base)
    try:
        return replace(base, **{name: getattr(fresh, name) for part in sorted(parts) for name in PARTS[part]})
    except InvalidCase:
        return fresh


def _nudged(draw: Draw, base: Case) -> Case:
    """One sequence a token or a block longer or shorter, or none."""
    which = draw(between(0, len(base.seqs) - 1))
    by = draw(sampled((0, 1, -1, base.block_size, -base.block_size)))
    seq = base.seqs[which]
    if not by or not 1 <= seq.kv_len + by <= BUDGET_TOKENS:
        return base
    try:
        return replace(base, seqs=(*base.seqs[:which], resized(seq, seq.kv_len + by), *base.seqs[which + 1 :]))
    except InvalidCase:
        return base


def constants_of(case: Case) -> Constants:
    """The compile-time constants of a case."""
    on = features(case)
    return Constants(
        head_dim=case.head_dim,
        block_size=case.block_size,
        dtype=case.dtype,
        kv_dtype=case.kv_dtype,
        new_kv=case.new_kv,
        config=case.hints.config,
        features=tuple(name for name in useful(case.op) if on.get(name)),
    )


def _case(draw: Draw, options: Profile) -> Case:
    constants = _constants(draw, options)
    heads = draw(sampled(_heads(options, constants)))
    head_dim, block_size = constants.head_dim, constants.block_size
    drawn = _features(draw, options, constants)
    seqs = _seqs(draw, options, heads, constants)
    return Case(
        op=options.op,
        seqs=seqs,
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        block_size=block_size,
        dtype=constants.dtype,
        q_layout=draw(sampled(options.q_layouts)),
        scale=draw(sampled(options.scales)),
        values=draw(sampled(_values(options, constants))),
        data_seed=draw(between(0, 2**16)),
        **_layouts(draw, options, constants, drawn),
        **_scales(draw, constants, drawn),
        **_placement(draw, options),
        **_of_operation(draw, options, seqs, constants),
        **drawn,
    )


def _heads(options: Profile, constants: Constants) -> tuple[tuple[int, int], ...]:
    """MLA has one KV head."""
    if "mla" not in constants.features:
        return options.heads
    return tuple(heads for heads in options.heads if heads[1] == 1) or ((1, 1),)


def _values(options: Profile, constants: Constants) -> tuple[str, ...]:
    """The edges of FP8 where there is any; extreme scores where a softcap or an lse has to hold them."""
    known = tuple(name for name in options.values if name not in FP8_VALUES or constants.kv_dtype != "same")
    extreme = tuple(name for name in EXTREME if name in known)
    held = not {"softcap", "lse"}.isdisjoint(constants.features)
    return (*known, *extreme * (len(known) // len(EXTREME))) if held else known


def _layouts(draw: Draw, options: Profile, constants: Constants, drawn: dict[str, Any]) -> dict[str, Any]:
    one_each = drawn["v_is_k_prefix"] or drawn["head_dim_v"] is not None
    layouts = tuple(layout for layout in options.layouts if not (one_each and layout in JOINT_LAYOUTS)) or ("nhd",)
    layout = draw(sampled(_plain_often(layouts, constants)))
    apart = layout not in JOINT_LAYOUTS and not drawn["v_is_k_prefix"]
    return {
        "layout": layout,
        "v_layout": draw(sampled(_plain_often(options.v_layouts, constants))) if apart else "same",
    }


def _plain_often(layouts: tuple[str, ...], constants: Constants) -> tuple[str, ...]:
    """The simplest as often as all others where another config runs: many are for caches without gaps alone."""
    return (*layouts, *layouts[:1] * (len(layouts) - 2)) if constants.config else layouts


def _scales(draw: Draw, constants: Constants, drawn: dict[str, Any]) -> dict[str, Any]:
    """Of an FP8 cache: powers of two, so that what is stored is exact; all different from 1."""
    if constants.kv_dtype == "same":
        return {}
    k_scale = draw(sampled((0.5, 2.0, 0.25, 4.0)))
    v_scale = k_scale if drawn["v_is_k_prefix"] else draw(sampled((2.0, 0.5, 8.0, 0.125)))
    granularity = draw(sampled(("tensor", "head")))
    return {"kv_dtype": constants.kv_dtype, "k_scale": k_scale, "v_scale": v_scale, "scale_granularity": granularity}


def _of_operation(draw: Draw, options: Profile, seqs: tuple[Seq, ...], constants: Constants) -> dict[str, Any]:
    """What only some operations have."""
    if options.op in WRITING:
        return {"slots": _slots(draw, options.op, options.ragged)}
    if options.op == "gather":
        return {"tile": _tile(draw, max(seq.kv_len for seq in seqs), constants.block_size)}
    if options.op == "merge":
        return {"states": _states(draw, options.empty_rows), "want_lse": True}
    splits = draw(sampled((0, 1, 2, 3, 5, 8))) if options.splits else 0
    return {"hints": Hints(num_splits=splits, config=constants.config)}


def _slots(draw: Draw, op: Op, hostile: bool) -> Slots:
    if not hostile:
        return Slots()
    padding = draw(between(0, 3))
    if op == "step":
        return Slots(tail_padding=padding)
    order = draw(sampled(("in_order", "shuffled")))
    return Slots(order=order, holes=draw(between(0, 2)), tail_padding=padding)


def _tile(draw: Draw, longest: int, block_size: int) -> Tile:
    """Starts inside a block and ends in a later one, mostly; sometimes behind the last token, sometimes empty."""
    edges = sorted({0, 1, 5, block_size - 1, block_size, block_size + 1, 31, 32, 33})
    start = draw(either(between(0, longest), sampled(edges)))
    size = draw(either(between(0, 40), sampled((1, 15, 16, 17, 31, 32, 33, 64, 65))))
    return Tile(start=start, end=start + size)


def _states(draw: Draw, empties: bool) -> States:
    count = draw(between(1, 5))
    partition = tuple(draw(st.lists(sampled((1, 2, 16, 100)), min_size=count, max_size=count)))
    empty = draw(st.sets(between(0, len(partition) - 1))) if empties else ()
    return States(partition=partition, empty=tuple(sorted(empty)))


def _placement(draw: Draw, options: Profile) -> dict[str, Any]:
    spare = between(0, 3 if options.spare else 0)
    return {
        "placement": draw(sampled(options.placements)),
        "geometry_seed": draw(between(0, 255)),
        "table_dtype": draw(sampled(options.table_dtypes)),
        "table_pad": draw(sampled(options.table_pads)),
        "extra_columns": draw(spare),
        "spare_blocks": draw(spare),
        "max_len_slack": draw(sampled((0, 1, 100) if options.spare else (0,))),
        "k_poison": draw(sampled(options.poisons)),
        "v_poison": draw(sampled(options.poisons)),
        "spare_poison": draw(sampled(options.poisons)),
        "row_poison": draw(sampled(options.poisons)),
    }


def _constants(draw: Draw, options: Profile) -> Constants:
    if options.constants:
        return draw(sampled(options.constants))  # type: ignore[no-any-return]
    return Constants(
        head_dim=draw(sampled(options.head_dims)),
        block_size=draw(sampled(options.block_sizes)),
        dtype=draw(sampled(options.dtypes)),
        kv_dtype=draw(sampled(options.kv_dtypes)),
        new_kv=draw(sampled(options.new_kv)),
        config=draw(between(0, options.configs - 1)),
        features=tuple(name for name in options.features if draw(st.booleans())),
    )


def _features(draw: Draw, options: Profile, constants: Constants) -> dict[str, Any]:
    names, block_size = constants.features, constants.block_size
    left = sampled(sorted({0, 1, 2, 15, 16, 17, 63, 64, 65, block_size - 1, block_size, block_size + 1}))
    drawn: dict[str, Any] = {"v_is_k_prefix": "mla" in names, "head_dim_v": None, "new_kv": constants.new_kv}
    if "mla" in names or "head_dim_v" in names:
        drawn["head_dim_v"] = _value_dim(draw, constants.head_dim, prefix="mla" in names)
    if "window" in names:
        drawn["window"] = (draw(left), draw(sampled((-1, 0, 1, 5))))
        drawn["slid_out"] = draw(sampled((False, True, True))) if options.slid_out else False
    if "softcap" in names:
        drawn["softcap"] = draw(sampled((30.0, 1.0, 5.0, 50.0)))
    if "out" in names:
        far = ("far",) if "far" in options.q_layouts else ()
        drawn["out_layout"] = draw(sampled(("given", "padded", *far)))
    if "lse" in names:
        drawn["want_lse"] = True
    if "padding_rows" in names:
        drawn["padding_rows"] = draw(between(1, 3))
    return drawn | {"alibi": "alibi" in names, "sinks": "sinks" in names, "causal": "non_causal" not in names}


def _value_dim(draw: Draw, head_dim: int, prefix: bool) -> int | None:
    known = (16, 32, 40, 64, 128, 256, 512) if prefix else (16, 32, 40, 64, 128)  # a K of MLA may be longer than any
    dims = [dim for dim in known if dim < head_dim or (not prefix and dim != head_dim)]
    return draw(sampled(dims)) if dims else None


def _seqs(draw: Draw, options: Profile, heads: tuple[int, int], constants: Constants) -> tuple[Seq, ...]:
    token, block_size = 2 * heads[1] * constants.head_dim, constants.block_size
    most = max(1, min(MAX_SEQS, BUDGET_PROGRAMS // heads[0]))
    count = draw(between(1, most))
    cap = max(1, min(options.max_kv_len, BUDGET_ELEMENTS // token // count))
    if _only_new(options):
        cap = max(1, min(cap, math.isqrt(BUDGET_SCORES // heads[0] // count)))
    length = _length(options, block_size, cap)
    common = None if options.ragged else draw(length)
    if options.op == "extend" and options.empty_rows and draw(between(0, IDLE)) == IDLE:
        return tuple(Seq(query_len=0, kv_len=draw(length), tag=tag) for tag in range(count))
    seqs: list[Seq] = []
    for _ in range(count):
        kv_len = draw(length) if common is None else common
        query_len = _query_len(draw, options, kv_len, BUDGET_SCORES // heads[0] // count // max(kv_len, 1))
        seqs.append(_seq(draw, options, constants, kv_len, query_len, seqs))
    return tuple(seqs)


def _only_new(options: Profile) -> bool:
    """On the lowest rung of what takes new tokens, nothing is cached: a plain prefill."""
    return options.op in NEW_TOKENS and not options.ragged


def _query_len(draw: Draw, options: Profile, kv_len: int, cap: int) -> int:
    """One token (decode), a few (verification), all of them (prefill), or anything between (a chunk).

    A padded verification has more queries than tokens: the first of them stand before the first key.
    """
    if options.op not in NEW_TOKENS:
        return 1
    if _only_new(options):
        return kv_len
    most = max(1, min(kv_len, cap, LONGEST_CHUNK))
    edges = [n for n in QUERY_EDGES if n <= most]
    sizes = sorted({1, min(most, 2), min(most, 8), most, *edges})
    if options.empty_rows and options.op == "extend":
        sizes.append(0)
    if options.empty_rows:
        sizes += [kv_len + more for more in MORE_QUERIES if kv_len + more <= min(cap, LONGEST_CHUNK)]
    longest = sizes if len(edges) < LONG_EDGES else edges[-LONG_EDGES:]
    return draw(_chunk(most, tuple(sizes), tuple(longest)))  # type: ignore[no-any-return]


@lru_cache(KEPT)
def _chunk(most: int, sizes: tuple[int, ...], longest: tuple[int, ...]) -> st.SearchStrategy[int]:
    """Three strategies of its own, for `one_of` drops one that it has already, and the longest are to count twice."""
    return st.one_of(st.integers(1, most), st.sampled_from(sizes), st.sampled_from(longest))


def _length(options: Profile, block_size: int, cap: int) -> st.SearchStrategy[int]:
    if not options.partial_blocks:
        return _whole_blocks(max(1, min(cap // block_size, 6)), block_size)
    edges = {n * edge + d for edge in (block_size, 16, 64, 128) for n in (1, 2, 3, 4) for d in (-1, 0, 1)}
    drawn = sorted(edge for edge in edges if 1 <= edge <= cap) or [1]
    if options.empty_rows:
        drawn += [0] * (1 + len(drawn) // EMPTY)
    return either(between(1, cap), sampled(drawn))


@lru_cache(KEPT)
def _whole_blocks(most: int, block_size: int) -> st.SearchStrategy[int]:
    return between(1, most).map(lambda blocks: blocks * block_size)


def _seq(draw: Draw, options: Profile, constants: Constants, kv_len: int, query_len: int, earlier: list[Seq]) -> Seq:
    tag = draw(between(0, 15))
    while any(seq.tag == tag for seq in earlier):
        tag += 1
    if not (options.shared_blocks and earlier and draw(st.booleans())):
        return Seq(query_len=query_len, kv_len=kv_len, tag=tag)
    owner = draw(sampled(earlier))
    apart = options.op in WRITING or constants.new_kv == "dense"
    common = min(kv_len - query_len * apart, owner.kv_len - owner.query_len * apart)
    shared = draw(between(0, max(common, 0) // constants.block_size))
    alone = Seq(query_len=query_len, kv_len=kv_len, tag=tag)
    return msgspec.structs.replace(alone, shares_prefix_with=owner.tag, shared_blocks=shared) if shared else alone
