"""Traits: what a case has beyond the simplest one, on which rung of the ladder, and how a subject declares it away."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.case import FAR, NEW_TOKENS, Case, Seq, States, Tile, replace
from harness.subjects import Declaration, declines

RUNGS = {
    1: "tutorial shapes",
    2: "ragged, shuffled, -1 and poison",
    3: "fp16 and bf16",
    4: "GQA, odd sizes, strides",
    5: "far blocks",
    6: "features",
}


@dataclass(frozen=True)
class Trait:
    """One way in which a case is not the simplest."""

    name: str
    rung: int
    has: Callable[[Case], bool]
    without: Callable[[Case], Case]  # the same case as far as possible, but plain in this respect
    declare: str = ""  # the argument of @subject that states the limit


def _reset(*names: str) -> Callable[[Case], Case]:
    plain = Case()
    return lambda case: replace(case, **{name: getattr(plain, name) for name in names})


def _first_config(case: Case) -> Case:
    return replace(case, hints=msgspec.structs.replace(case.hints, config=0))


def _lengths(change: Callable[[Case, Seq], int]) -> Callable[[Case], Case]:
    """Change every kv_len; sharing ends, since it may not fit any more."""
    return lambda case: replace(case, seqs=tuple(resized(seq, change(case, seq)) for seq in case.seqs))


def resized(seq: Seq, kv_len: int) -> Seq:
    """The sequence alone with another length; its new tokens are at most all of them, and one stays one."""
    return Seq(query_len=min(seq.query_len, max(kv_len, 1)), kv_len=kv_len, tag=seq.tag)


def _one_new_token(case: Case) -> Case:
    """One new token a sequence; where all tokens were new, that one is all there is."""
    return replace(case, seqs=tuple(_alone(seq) if seq.query_len > 1 else seq for seq in _private(case).seqs))


def _alone(seq: Seq) -> Seq:
    kv_len = seq.kv_len if seq.query_len < seq.kv_len else min(seq.kv_len, 1)
    return Seq(query_len=1, kv_len=kv_len, tag=seq.tag)


def _some_new_token(case: Case) -> Case:
    seqs = (msgspec.structs.replace(seq, query_len=max(seq.query_len, 1)) for seq in _private(case).seqs)
    return replace(case, seqs=tuple(seqs))


def _cached(case: Case) -> bool:
    return case.op in NEW_TOKENS and any(0 < s.query_len < s.kv_len for s in case.seqs)


def _only_new(case: Case) -> Case:
    """The new tokens alone: nothing was in the cache before."""
    cached = (s.query_len or s.kv_len for s in case.seqs)
    return replace(case, seqs=tuple(resized(s, kv_len) for s, kv_len in zip(case.seqs, cached, strict=True)))


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _ragged(case: Case) -> bool:
    return len({seq.kv_len for seq in case.seqs}) > 1


def _partial(case: Case) -> bool:
    return any(case.paged_len(seq) % case.block_size for seq in case.seqs)


def _spare(case: Case) -> bool:
    return case.spare_blocks > 0 or case.extra_columns > 0 or case.max_len_slack > 0


def _empty(case: Case) -> bool:
    return any(has_empty_row(seq) for seq in case.seqs)


def has_empty_row(seq: Seq) -> bool:
    """Whether the sequence has no keys, or more queries than keys: then the first of them see none."""
    return seq.kv_len == 0 or seq.kv_len < seq.query_len


def _filled(case: Case, seq: Seq) -> int:
    return max(seq.kv_len, seq.query_len) if seq.kv_len else case.block_size


def _longest(case: Case, seq: Seq) -> int:  # noqa: ARG001  (one of several ways to change a length)
    return max(other.kv_len for other in case.seqs)


def _whole_blocks(case: Case, seq: Seq) -> int:
    return seq.kv_len - case.paged_len(seq) + case.blocks_of(seq) * case.block_size


def _one_block(case: Case, seq: Seq) -> int:
    return seq.kv_len - max(case.paged_len(seq) - case.block_size, 0)


def _near_rows(case: Case) -> Case:
    """Far rows are strided ones as well: near each other they still are, so that what only needs strides needs less."""
    near = {"q_layout": {"far": "fused_qkv"}, "out_layout": {"far": "given"}}
    return replace(case, **{name: known.get(getattr(case, name), getattr(case, name)) for name, known in near.items()})


def _slots(case: Case, **changes: Any) -> Case:
    return replace(case, slots=msgspec.structs.replace(case.slots, **changes))


def _whole_tile(case: Case) -> Case:
    start = case.tile.start // case.block_size * case.block_size
    return replace(case, tile=Tile(start=start, end=start + case.tile.end - case.tile.start))


def _states(case: Case, **changes: Any) -> Case:
    return replace(case, states=msgspec.structs.replace(case.states, **changes))


def _two_states(case: Case) -> Case:
    empty = tuple(i for i in case.states.empty if i < 2)
    return replace(case, states=States(partition=case.states.partition[:2], empty=empty))


def _with_dim(case: Case, head_dim: int) -> Case:
    """Another head dim; a V that is a prefix of K is no longer than K."""
    prefix = case.v_is_k_prefix and case.value_dim > head_dim
    return replace(case, head_dim=head_dim, head_dim_v=head_dim if prefix else case.head_dim_v)


def _without_fp8(case: Case) -> Case:
    return replace(case, kv_dtype="same", k_scale=1.0, v_scale=1.0, scale_granularity="tensor")


TRAITS = (
    Trait("several sequences", 1, lambda c: len(c.seqs) > 1, lambda c: replace(c, seqs=c.seqs[:1])),
    Trait(
        "several heads",
        1,
        lambda c: c.num_kv_heads > 1,
        lambda c: replace(c, num_q_heads=c.group, num_kv_heads=1),
    ),
    Trait(
        "several blocks",
        1,
        lambda c: any(c.blocks_of(seq) > 1 for seq in c.seqs),
        _lengths(_one_block),
    ),
    Trait("scale given", 1, lambda c: c.scale is not None, _reset("scale"), "scales=False"),
    Trait("empty row", 2, _empty, _lengths(_filled), "empty_rows=False"),
    Trait("ragged lengths", 2, _ragged, _lengths(_longest)),
    Trait("partly filled block", 2, _partial, _lengths(_whole_blocks)),
    Trait(
        "blocks out of order",
        2,
        lambda c: c.placement not in ("in_order", *FAR),
        _reset("placement"),
        'placements=("in_order",)',
    ),
    Trait(
        "shared blocks",
        2,
        lambda c: any(seq.shared_blocks for seq in c.seqs),
        _lengths(lambda _, seq: seq.kv_len),
        "shared_blocks=False",
    ),
    Trait("spare blocks or columns", 2, _spare, _reset("spare_blocks", "extra_columns", "max_len_slack")),
    Trait("table padding other than -1", 2, lambda c: c.table_pad != "minus_one", _reset("table_pad")),
    Trait("values that are not normal", 2, lambda c: c.values != "normal", _reset("values")),
    Trait("several new tokens", 1, lambda c: any(s.query_len > 1 for s in c.seqs), _one_new_token),
    Trait("no new token", 2, lambda c: any(s.query_len == 0 for s in c.seqs), _some_new_token),
    Trait("a prefix in the cache", 2, _cached, _only_new),
    Trait(
        "skipped slots",
        2,
        lambda c: c.slots.holes + c.slots.tail_padding > 0,
        lambda c: _slots(c, holes=0, tail_padding=0),
    ),
    Trait("slots out of order", 2, lambda c: c.slots.order != "in_order", lambda c: _slots(c, order="in_order")),
    Trait("tile inside a block", 2, lambda c: c.tile.start % c.block_size != 0, _whole_tile),
    Trait("empty state", 2, lambda c: bool(c.states.empty), lambda c: _states(c, empty=())),
    Trait("several states", 1, lambda c: len(c.states.partition) > 2, _two_states),
    Trait("float16", 3, lambda c: c.dtype == "float16", _reset("dtype"), 'dtypes=("float32", "bfloat16")'),
    Trait("bfloat16", 3, lambda c: c.dtype == "bfloat16", _reset("dtype"), 'dtypes=("float32", "float16")'),
    Trait("GQA", 4, lambda c: c.group > 1, lambda c: replace(c, num_q_heads=c.num_kv_heads), "groups=(1,)"),
    Trait(
        "odd head dim",
        4,
        lambda c: not _power_of_two(c.head_dim),
        lambda c: _with_dim(c, 64),
        "head_dims=(16, 32, 64, 128, 256)",
    ),
    Trait(
        "head dim above 128",
        4,
        lambda c: c.head_dim > 128,
        lambda c: _with_dim(c, 128),
        "head_dims=(16, 32, 64, 128)",
    ),
    Trait(
        "odd block size",
        4,
        lambda c: not _power_of_two(c.block_size),
        lambda c: replace(_private(c), block_size=32),
        "block_sizes=(16, 32, 64, 128, 256)",
    ),
    Trait(
        "block size below 16",
        4,
        lambda c: c.block_size < 16,
        lambda c: replace(_private(c), block_size=16),
        "block_sizes=(16, 32, 64, 128, 256)",
    ),
    Trait("int64 table", 4, lambda c: c.table_dtype == "int64", _reset("table_dtype"), 'table_dtypes=("int32",)'),
    Trait(
        "strided q",
        4,
        lambda c: c.q_layout != "contiguous",
        _reset("q_layout"),
        'q_layouts=("contiguous",)',
    ),
    Trait(
        "strides of V unlike K's",
        4,
        lambda c: c.kv_layouts[0] != c.kv_layouts[1],
        _reset("v_layout"),
        "kv_strides_apart=False",
    ),
    Trait("strided cache", 4, lambda c: {*c.kv_layouts} != {"nhd"}, _reset("layout", "v_layout"), 'layouts=("nhd",)'),
    Trait("far blocks", 5, lambda c: c.placement in FAR, _reset("placement"), 'placements=("in_order", "shuffled")'),
    Trait(
        "far rows",
        5,
        lambda c: "far" in (c.q_layout, c.out_layout),
        _near_rows,
        'q_layouts=("contiguous", "fused_qkv", "transposed_heads")',
    ),
    Trait("window", 6, lambda c: c.window != (-1, -1), _reset("window", "slid_out"), "window=False"),
    Trait("tokens that slid out", 6, lambda c: c.slid_out, _reset("slid_out"), "slid_out=False"),
    Trait("softcap", 6, lambda c: c.softcap > 0, _reset("softcap"), "softcap=False"),
    Trait("ALiBi", 6, lambda c: c.alibi, _reset("alibi"), "alibi=False"),
    Trait("sinks", 6, lambda c: c.sinks, _reset("sinks"), "sinks=False"),
    Trait("lse", 6, lambda c: c.want_lse and c.op != "merge", _reset("want_lse"), "lse=False"),
    Trait("given out", 6, lambda c: c.out_layout != "allocated", _reset("out_layout"), "out=False"),
    Trait("FP8 cache", 6, lambda c: c.kv_dtype in ("e4m3", "e5m2"), _without_fp8, 'kv_dtypes=("same",)'),
    Trait("dense new K and V", 6, lambda c: c.new_kv == "dense", _reset("new_kv"), 'new_kv=("in_cache",)'),
    Trait("padding rows", 6, lambda c: c.padding_rows > 0, _reset("padding_rows", "row_poison"), "padding_rows=False"),
    Trait("scales per head", 6, lambda c: c.scale_granularity == "head", _reset("scale_granularity")),
    Trait(
        "head_dim_v unlike head_dim",
        6,
        lambda c: not c.v_is_k_prefix and c.value_dim != c.head_dim,
        _reset("head_dim_v"),
        "head_dim_v=False",
    ),
    Trait("V a prefix of K", 6, lambda c: c.v_is_k_prefix, _reset("v_is_k_prefix", "head_dim_v"), "mla=False"),
    Trait("several splits", 6, lambda c: c.hints.num_splits > 1, _reset("hints"), "splits=False"),
    Trait("another config", 6, lambda c: c.hints.config > 0, _first_config, "configs=1"),
    Trait("not causal", 6, lambda c: not c.causal, _reset("causal"), "non_causal=False"),
    Trait("a call before it", 6, lambda c: c.before is not None, _reset("before")),
)
BY_NAME = {trait.name: trait for trait in TRAITS}


def _private(case: Case) -> Case:
    """The case without shared blocks: their number would not fit another block size."""
    return replace(case, seqs=tuple(resized(seq, seq.kv_len) for seq in case.seqs))


def traits(case: Case) -> frozenset[str]:
    """The names of the case's traits."""
    return frozenset(trait.name for trait in TRAITS if trait.has(case))


def avoidable(case: Case, declared: Declaration) -> frozenset[str]:
    """The traits of the case that not every case of the subject has; of its types one is a choice always."""
    types = ("float16", "bfloat16")
    there = (trait for trait in TRAITS if trait.has(case))
    return frozenset(t.name for t in there if t.name in types or declines(declared, t.without(case)) is None)


def rung(names: Iterable[str]) -> int:
    """The rung of the ladder on which a case with these traits stands."""
    return max((BY_NAME[name].rung for name in names), default=1)
