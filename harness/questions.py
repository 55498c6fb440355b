"""The questions of the landscape: small cases that ask one thing each, whatever a subject declares of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.case import NEW_TOKENS, Case, Seq, Slots, States, Tile, replace
from harness.profiles import whole_profile
from harness.subjects import Declaration

#: What an adapter does to its kernel's inputs as the project's server would, and what a question puts in its place.
BARE: dict[str, Callable[..., Any]] = {
    "aligned_table": lambda tables, *_: tables,
    "starts_without_padding": lambda inputs: inputs.query_starts,
}


@dataclass(frozen=True)
class Question:
    """What is asked: how the plain case changes, and which declarations and translations are set aside for it."""

    name: str
    changes: Callable[[Case], Case]
    opens: dict[str, Any] = field(default_factory=dict)
    bare: tuple[str, ...] = ()  # names in BARE


def _with(**changes: Any) -> Callable[[Case], Case]:
    return lambda case: replace(case, **changes)


def _empty(case: Case) -> Case:
    return replace(case, seqs=(case.seqs[0], Seq(query_len=1, kv_len=0, tag=7), *case.seqs[1:]))


def _narrow(case: Case) -> Case:
    """The longest sequence comes last, so that what is beyond its row is beyond the table."""
    return replace(case, extra_columns=0, seqs=tuple(sorted(case.seqs, key=lambda seq: seq.kv_len)))


_STRIDES: dict[str, Any] = {"layouts": None, "kv_strides_apart": True}
PLAIN = Question("plain", lambda case: case)
_CACHES = (
    Question("far blocks", _with(placement="far"), {"placements": None}),
    Question("odd strides", _with(layout="padded"), _STRIDES),
    Question("V strided otherwise", _with(layout="nhd", v_layout="padded"), _STRIDES),
)
ATTENDING = (
    PLAIN,
    Question("empty row", _empty, {"empty_rows": True}, bare=("starts_without_padding",)),
    Question(
        "NaN in dead slots",
        _with(k_poison="nan", v_poison="nan", spare_poison="nan"),
        {"finite_dead_slots": False},
    ),
    Question("table as wide as needed", _narrow, bare=("aligned_table",)),
    Question("-1 padding", _with(table_pad="minus_one"), {"padded_table": False}),
    Question("huge padding", _with(table_pad="huge"), {"padded_table": False}),
    *_CACHES,
    Question("sliced q", _with(q_layout="fused_qkv"), {"q_layouts": None}),
    Question("int64 table", _with(table_dtype="int64"), {"table_dtypes": None}),
)
WRITING = (
    PLAIN,
    Question("slot -1", _with(slots=Slots(holes=1))),
    Question("padded tail", _with(slots=Slots(tail_padding=2))),
    *_CACHES,
    Question("sliced K and V", _with(q_layout="fused_qkv"), {"q_layouts": None}),
    Question("int64 slots", _with(table_dtype="int64"), {"table_dtypes": None}),
    Question("int32 slots", _with(table_dtype="int32"), {"table_dtypes": None}),
)
MERGING = (
    PLAIN,
    Question("an empty state", _with(states=States(partition=(3, 5), empty=(0,)))),
    Question("all states empty", _with(states=States(partition=(3, 5), empty=(0, 1)))),
    Question("sliced states", _with(q_layout="fused_qkv"), {"q_layouts": None}),
)
#: Title, operations, questions: a table each.
TABLES = (
    ("Attention", ("decode", "extend", "step", "gather"), ATTENDING),
    ("Writes into the cache", ("cache_write",), WRITING),
    ("Merges of partial states", ("merge",), MERGING),
)


def plain(declared: Declaration) -> Case:
    """A small case in the middle of what is declared: ragged, shuffled, with room in its table and zeros where dead."""
    whole = whole_profile(declared)
    size, longest = whole.block_sizes[0], whole.max_kv_len
    new = 2 if declared.op in NEW_TOKENS else 1
    lens = (min(2 * size + 3, longest), min(size, longest), min(5, longest))
    heads = (4, 2) if (4, 2) in whole.heads else whole.heads[0]
    return Case(
        op=declared.op,  # type: ignore[arg-type]
        seqs=tuple(Seq(query_len=min(new, length), kv_len=length, tag=tag) for tag, length in enumerate(lens)),
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=whole.head_dims[0],
        block_size=size,
        dtype=whole.dtypes[0],
        kv_dtype=whole.kv_dtypes[0],
        new_kv=whole.new_kv[0],
        placement="shuffled" if "shuffled" in whole.placements else whole.placements[0],  # type: ignore[arg-type]
        table_dtype=whole.table_dtypes[0],  # type: ignore[arg-type]
        layout=whole.layouts[0],  # type: ignore[arg-type]
        q_layout=whole.q_layouts[0],  # type: ignore[arg-type]
        tile=Tile(1, size + 2) if declared.op == "gather" else Tile(),
        **dict.fromkeys(("k_poison", "v_poison", "spare_poison", "row_poison", "table_pad"), "zero"),  # type: ignore[arg-type]
        extra_columns=2,
        spare_blocks=1,
    )


def questions_for(op: str) -> tuple[Question, ...]:
    """What is asked of subjects for the operation."""
    return next(questions for _, ops, questions in TABLES if op in ops)
