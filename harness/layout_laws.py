"""Laws of memory: the same numbers in other blocks, strides, tables and buffers."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from harness.case import Case, Seq
from harness.editing import caches, put_tokens, tokens
from harness.inputs import materialise
from harness.laws import First, Law, Twin
from harness.operations import ATTENTION

BLOCK_SIZES = (16, 32, 64, 8, 24)
READING = (*ATTENTION, "gather")


def shares(case: Case) -> bool:
    """Whether sequences have blocks in common."""
    return any(seq.shared_blocks for seq in case.seqs)


def _one_of(changes: Callable[[Case], Iterable[dict[str, Any]]]) -> Callable[[First], Twin | None]:
    """The first of the changes that the subject takes."""

    def make(first: First) -> Twin | None:
        found = (first.changed(**change) for change in changes(first.case))
        case = next((case for case in found if case is not None), None)
        return None if case is None else Twin(materialise(case))

    return make


def _turned(options: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """The options from another one on, so that each has its turn."""
    start = seed // 7 % len(options)
    return options[start:] + options[:start]


def _fields(name: str, *options: Any) -> Callable[[First], Twin | None]:
    return _one_of(
        lambda case: ({name: option} for option in _turned(options, case.data_seed) if option != getattr(case, name))
    )


def _block_sizes(case: Case) -> Iterable[dict[str, Any]]:
    """Shared blocks would be other tokens."""
    if not shares(case):
        yield from ({"block_size": size} for size in _turned(BLOCK_SIZES, case.data_seed) if size != case.block_size)


def _layouts(case: Case) -> Iterable[dict[str, Any]]:
    for layout in _turned(("nhd", "hnd", "padded", "kv_interleaved", "kv_stacked", "offset"), case.data_seed):
        if layout != case.layout:
            yield {"layout": layout, "v_layout": "same"}


def _tables(case: Case) -> Iterable[dict[str, Any]]:
    other = "int64" if case.table_dtype == "int32" else "int32"
    wider = {"extra_columns": case.extra_columns + 3}
    yield from ({"table_dtype": other, **wider}, wider)


def _splits(case: Case) -> Iterable[dict[str, Any]]:
    for splits in _turned((1, 2, 3, 7, 16), case.data_seed):
        if splits != case.hints.num_splits:
            yield {"hints": replace(case.hints, num_splits=splits)}


def _other_splits(first: First) -> Twin | None:
    return _one_of(_splits)(first) if first.declared.splits else None


def _private(first: First) -> Twin | None:
    """Each sequence has blocks of its own with the same numbers in them."""
    if not shares(first.case):
        return None
    case = first.changed(seqs=tuple(Seq(query_len=s.query_len, kv_len=s.kv_len, tag=s.tag) for s in first.case.seqs))
    if case is None:
        return None
    second = materialise(case)
    for index in range(len(case.seqs)):
        for name in caches(case):
            put_tokens(second, name, index, tokens(first.materials, name, index))
    return Twin(second)


#: Who chooses another kernel or tile for other strides adds in another order.
SAME_TILES = ("layout_invariant",)
LAYOUT_LAWS = (
    Law(
        "other block size", _one_of(_block_sizes), "the same tokens lay in blocks of another size",
        "a tile that is taken for a block", recompiles=True, ops=ATTENTION, any_batch=True,
    ),
    Law(
        "other cache layout", _one_of(_layouts), "the same tokens lay in a cache of other strides",
        "the strides of K or of V", "bitwise", SAME_TILES, recompiles=True, ops=READING, any_batch=True,
    ),
    Law(
        "other strides of q", _fields("q_layout", "contiguous", "fused_qkv", "transposed_heads"),
        "q had other strides", "the strides of q", "bitwise", SAME_TILES, recompiles=True, ops=ATTENTION,
        any_batch=True,
    ),
    Law(
        "other output buffer", _fields("out_layout", "allocated", "given", "padded"),
        "the output went to another buffer", "the strides of the output", "bitwise", SAME_TILES, recompiles=True,
        ops=(*ATTENTION, "merge"), any_batch=True,
    ),
    Law(
        "other table", _one_of(_tables), "the block table was wider, or of another integer type",
        "the strides or the type of the block table", "bitwise", SAME_TILES, recompiles=True, ops=READING,
        any_batch=True,
    ),
    Law(
        "private copies", _private, "sequences had copies of the blocks that they share",
        "an assumption that no two sequences share a block", "bitwise",
    ),
    Law(
        "loose maximum", _fields("max_len_slack", 0, 1, 100), "max_kv_len and max_query_len were looser or tighter",
        "the grid, or a split that depends on the largest length", "bitwise", ("fixed_splits",),
        ops=ATTENTION, any_batch=True,
    ),
    Law(
        "other number of splits", _other_splits, "the keys were split into another number of parts",
        "the merge of the splits", ops=ATTENTION, any_batch=True,
    ),
)  # fmt: skip
