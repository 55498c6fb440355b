"""Traits: what a case has beyond the simplest one, on which rung of the ladder, and how a subject declares it away."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.case import Case, Seq, replace

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


def _lengths(change: Callable[[Case, Seq], int]) -> Callable[[Case], Case]:
    """Change every kv_len; sharing ends, since it may not fit any more."""
    return lambda case: replace(case, seqs=tuple(Seq(kv_len=change(case, seq), tag=seq.tag) for seq in case.seqs))


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _ragged(case: Case) -> bool:
    return len({seq.kv_len for seq in case.seqs}) > 1


def _partial(case: Case) -> bool:
    return any(seq.kv_len % case.block_size for seq in case.seqs)


def _spare(case: Case) -> bool:
    return case.spare_blocks > 0 or case.extra_columns > 0 or case.max_len_slack > 0


def _empty(case: Case) -> bool:
    return any(seq.kv_len == 0 for seq in case.seqs)


def _longest(case: Case, seq: Seq) -> int:  # noqa: ARG001  (one of several ways to change a length)
    return max(other.kv_len for other in case.seqs)


def _whole_blocks(case: Case, seq: Seq) -> int:
    return case.blocks_of(seq) * case.block_size


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
        _lengths(lambda case, seq: min(seq.kv_len, case.block_size)),
    ),
    Trait("scale given", 1, lambda c: c.scale is not None, _reset("scale"), "scales=False"),
    Trait("empty row", 2, _empty, _lengths(lambda case, seq: seq.kv_len or case.block_size), "empty_rows=False"),
    Trait("ragged lengths", 2, _ragged, _lengths(_longest)),
    Trait("partly filled block", 2, _partial, _lengths(_whole_blocks)),
    Trait(
        "blocks out of order",
        2,
        lambda c: c.placement not in ("in_order", "far"),
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
    Trait("float16", 3, lambda c: c.dtype == "float16", _reset("dtype"), 'dtypes=("float32", "bfloat16")'),
    Trait("bfloat16", 3, lambda c: c.dtype == "bfloat16", _reset("dtype"), 'dtypes=("float32", "float16")'),
    Trait("GQA", 4, lambda c: c.group > 1, lambda c: replace(c, num_q_heads=c.num_kv_heads), "groups=(1,)"),
    Trait(
        "odd head dim",
        4,
        lambda c: not _power_of_two(c.head_dim),
        lambda c: replace(c, head_dim=64),
        "head_dims=(16, 32, 64, 128, 256)",
    ),
    Trait(
        "head dim above 128",
        4,
        lambda c: c.head_dim > 128,
        lambda c: replace(c, head_dim=128),
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
    Trait("strided q", 4, lambda c: c.q_layout != "contiguous", _reset("q_layout"), 'q_layouts=("contiguous",)'),
    Trait(
        "strides of V unlike K's",
        4,
        lambda c: c.kv_layouts[0] != c.kv_layouts[1],
        _reset("v_layout"),
        "kv_strides_apart=False",
    ),
    Trait("strided cache", 4, lambda c: {*c.kv_layouts} != {"nhd"}, _reset("layout", "v_layout"), 'layouts=("nhd",)'),
    Trait("far blocks", 5, lambda c: c.placement == "far", _reset("placement"), 'placements=("in_order", "shuffled")'),
    Trait("window", 6, lambda c: c.window != (-1, -1), _reset("window"), "window=False"),
    Trait("softcap", 6, lambda c: c.softcap > 0, _reset("softcap"), "softcap=False"),
    Trait("ALiBi", 6, lambda c: c.alibi, _reset("alibi"), "alibi=False"),
    Trait("sinks", 6, lambda c: c.sinks, _reset("sinks"), "sinks=False"),
    Trait("lse", 6, lambda c: c.want_lse, _reset("want_lse"), "lse=False"),
    Trait("given out", 6, lambda c: c.out_layout != "allocated", _reset("out_layout"), "out=False"),
    Trait("not causal", 6, lambda c: not c.causal, _reset("causal"), "non_causal=False"),
)
BY_NAME = {trait.name: trait for trait in TRAITS}


def _private(case: Case) -> Case:
    """The case without shared blocks: their number would not fit another block size."""
    return replace(case, seqs=tuple(Seq(kv_len=seq.kv_len, tag=seq.tag) for seq in case.seqs))


def traits(case: Case) -> frozenset[str]:
    """The names of the case's traits."""
    return frozenset(trait.name for trait in TRAITS if trait.has(case))


def rung(names: Iterable[str]) -> int:
    """The rung of the ladder on which a case with these traits stands."""
    return max((BY_NAME[name].rung for name in names), default=1)
