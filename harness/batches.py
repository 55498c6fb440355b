"""The sequences of a recorded call: their lengths, and where the block table or the slots put their tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from harness.calls import Call, Inexpressible, Part
from harness.case import Seq, Slots
from harness.layouts import FAR
from harness.placing import Ids, Shared, owned, padding, placement, shared_prefixes, twice

#: Spare blocks that a case keeps of a pool: enough for a stray read to land in.
SPARE = 8

#: (query_len, kv_len) of each sequence.
Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Pool:
    """The blocks of the cache: how many, how many slots each, and how far apart in elements."""

    num_blocks: int
    block_size: int
    stride: int


def lengths(call: Call, op: str) -> Rows:
    """(query_len, kv_len) of each sequence; raises Inexpressible where rows and lengths do not fit together."""
    new = _new_tokens(call, op)
    role = "kv_lens" if "kv_lens" in call.arrays else "prefix_lens"
    lens = call.arrays[role].reshape(-1)[: len(new)].astype(np.int64)
    if len(lens) < len(new):
        raise Inexpressible(f"{role} has {len(lens)} entries, but there are {len(new)} sequences")
    if lens.min(initial=0) < 0:
        raise Inexpressible(f"{role} holds {lens.min()}, but a length is never negative")
    kv_lens = lens + new if role == "prefix_lens" else lens
    return tuple(zip(new.tolist(), kv_lens.tolist(), strict=True))


def _new_tokens(call: Call, op: str) -> Ids:
    shape = call.views["q"].shape
    if "query_starts" in call.arrays:
        starts = call.arrays["query_starts"].reshape(-1).astype(np.int64)
        count = len(call.arrays["kv_lens" if "kv_lens" in call.arrays else "prefix_lens"].reshape(-1))
        starts = np.append(starts, shape[0]) if len(starts) == count else starts
        if len(starts) < 2 or (np.diff(starts) < 0).any() or starts[0] or starts[-1] > shape[0]:
            raise Inexpressible(f"query_starts is {starts.tolist()}, but should ascend from 0 to at most {shape[0]}")
        return np.diff(starts)
    each = shape[1] if len(shape) == 4 else 1
    if op != "decode" and len(shape) != 4:
        raise Inexpressible(f"op is {op!r}, but nothing says which rows of q are whose: query_starts is missing")
    return np.full(shape[0], each, np.int64)


def batch(call: Call, op: str, pool: Pool, dense: bool, window_left: int) -> Part:
    """Sequences, padding rows and placement of a call that has a block table."""
    found = _read(call, op, pool, dense, window_left)
    seqs = tuple(_seq(i, row, other) for i, (row, other) in enumerate(zip(found.rows, found.shared, strict=True)))
    fields = {"seqs": seqs} | ({"padding_rows": found.padding_rows} if found.padding_rows else {})
    fields |= {"slid_out": True} if found.slid_out else {}
    blocks = owned(found.tables, found.shared)
    parts = (
        Part({}, tuple(_more_shared(found, pool))),
        _placed(blocks[blocks[:, 0] >= 0], pool),
        _columns(call, found.counts, pool),
        _slots(call, op, found, pool),
        Part({}, tuple(_left_over(call, found))),
    )
    for part in parts:
        fields |= part.fields
    return Part(fields, tuple(words for part in parts for words in part.lost))


@dataclass(frozen=True)
class _Batch:
    """The sequences in the order of the call, without a graph's padding rows."""

    rows: Rows
    padding_rows: int
    cached: list[int]  # tokens of each that are in the cache before the call
    counts: list[int]  # blocks of each
    slid_out: bool
    tables: list[Ids]
    shared: tuple[Shared | None, ...]


def _read(call: Call, op: str, pool: Pool, dense: bool, window_left: int) -> _Batch:
    rows = lengths(call, op)
    padding_rows = _padding_rows(rows)
    rows = rows[: len(rows) - padding_rows]
    cached = [max(kv - new, 0) if dense or op == "step" else kv for new, kv in rows]
    counts = [-(-(length if dense else kv) // pool.block_size) for length, (_, kv) in zip(cached, rows, strict=True)]
    gone = [max(kv - new - window_left, 0) // pool.block_size if window_left >= 0 else 0 for new, kv in rows]
    table = _rows_of(call, len(rows))
    slid_out = _slid_out(table, counts, gone, pool)
    tables = _tables(table, counts, gone if slid_out else [0] * len(rows), pool)
    shared = shared_prefixes(tables, [length // pool.block_size for length in cached])
    return _Batch(rows, padding_rows, cached, counts, slid_out, tables, shared)


def _left_over(call: Call, found: _Batch) -> Iterator[str]:
    """Rows of buffers that are larger than the batch."""
    count, tokens = (size + found.padding_rows for size in (len(found.rows), sum(new for new, _ in found.rows)))
    for role in ("block_tables", "kv_lens", "prefix_lens"):
        if role in call.arrays and len(call.arrays[role]) > count:
            yield f"{role} has {len(call.arrays[role])} rows for {count} sequences: that of the case has no more"
    if len(call.views["q"].shape) == 3 and call.views["q"].shape[0] > tokens:
        yield f"q has {call.views['q'].shape[0]} rows for {tokens} tokens: that of the case has no more"


def _padding_rows(rows: Rows) -> int:
    """What a graph appends: one query and no key; of a batch of nothing else one row is a sequence."""
    real = [i for i, row in enumerate(rows) if row != (1, 0)]
    return len(rows) - 1 - (real[-1] if real else 0)


def _rows_of(call: Call, count: int) -> Ids:
    table = call.arrays["block_tables"].astype(np.int64)
    if len(table) < count:
        raise Inexpressible(f"block_tables has {len(table)} rows, but there are {count} sequences")
    return table[:count]


def _slid_out(table: Ids, counts: list[int], gone: list[int], pool: Pool) -> bool:
    """Whether blocks before the window are freed: their entries name no block, or all the same one."""
    before = [table[row, : min(number, count)] for row, (number, count) in enumerate(zip(gone, counts, strict=True))]
    return any(((ids < 0) | (ids >= pool.num_blocks)).any() or (len(ids) > 1 and len({*ids}) == 1) for ids in before)


def _tables(table: Ids, counts: list[int], gone: list[int], pool: Pool) -> list[Ids]:
    """The entries in use; those of blocks that are gone are negative, each another."""
    found = []
    for row, (count, first) in enumerate(zip(counts, gone, strict=True)):
        if count > table.shape[1]:
            raise Inexpressible(f"row {row} of block_tables has {table.shape[1]} columns, but its tokens take {count}")
        ids = table[row, :count].copy()
        ids[:first] = -1 - row * table.shape[1] - np.arange(first)
        wrong = np.flatnonzero((ids[first:] < 0) | (ids[first:] >= pool.num_blocks)) + first
        if wrong.size:
            place = f"block_tables[{row}, {wrong[0]}]"
            raise Inexpressible(f"{place} is {ids[wrong[0]]}, where tokens are, but there are {pool.num_blocks} blocks")
        found.append(ids)
    return found


def _seq(tag: int, row: tuple[int, int], other: Shared | None) -> Seq:
    alone = Seq(query_len=row[0], kv_len=row[1], tag=tag)
    if other is None:
        return alone
    return msgspec.structs.replace(alone, shares_prefix_with=other.owner, shared_blocks=other.blocks)


def _placed(blocks: Ids, pool: Pool) -> Part:
    """The placement, the spare blocks, and what of the real ids is gone."""
    ids = np.sort(blocks[:, 0])
    last, again = int(ids[-1]) if ids.size else 0, twice(ids)
    fields: dict[str, Any] = {"placement": placement(blocks)}
    lost = []
    if again:
        several = f"block {again[0]} is" if len(again) == 1 else f"{len(again)} blocks such as {again[0]} are"
        lost.append(f"{several} in several places beyond a common prefix: each has one of its own")
    if last * pool.stride >= FAR:
        fields["placement"] = "farther" if last * pool.stride >= 2 * FAR else "far"
        lost.append(
            f"block {last} lies {last * pool.stride} elements into the cache: all blocks of the case lie as far"
        )
    spare = pool.num_blocks - 1 - int((np.diff(ids) > 0).sum()) if ids.size else pool.num_blocks
    if spare > 0:
        fields["spare_blocks"] = min(spare, SPARE)
    if spare > SPARE:
        lost.append(f"{spare} of the {pool.num_blocks} blocks are spare: the case has {SPARE}")
    return Part(fields, tuple(lost))


def _columns(call: Call, counts: list[int], pool: Pool) -> Part:
    """The table's type, its spare columns and what fills them."""
    view, table = call.views["block_tables"], call.arrays["block_tables"].astype(np.int64)
    fields: dict[str, Any] = {"extra_columns": max(view.shape[1] - max(*counts, 1), 0) if counts else 0}
    lost = [] if view.strides[-1] == 1 and view.strides[0] in (view.shape[1], 1) else [
        f"block_tables has strides {list(view.strides)}: that of the case is contiguous"
    ]  # fmt: skip
    if view.dtype == "int64":
        fields["table_dtype"] = "int64"
    elif view.dtype != "int32":
        lost.append(f"block_tables is {view.dtype}: that of the case is int32")
    if filled := padding(table, counts, pool.num_blocks):
        fields["table_pad"] = filled
    return Part(fields, tuple(lost))


def _more_shared(found: _Batch, pool: Pool) -> Iterator[str]:
    """Blocks that two sequences share although they are not full: a Case shares whole ones only."""
    pairs = []
    for row, other in enumerate(found.shared):
        if other is None or min(found.cached[row], found.cached[other.owner]) // pool.block_size > other.blocks:
            continue
        mine, theirs = (found.tables[one][other.blocks : other.blocks + 1].tolist() for one in (row, other.owner))
        if mine and mine == theirs:
            pairs.append(f"{other.owner} and {row}")
    if pairs:
        several = pairs[0] if len(pairs) == 1 else f"{len(pairs)} pairs of sequences such as {pairs[0]}"
        yield f"{several} share a block that is not full: each has one of its own"


def _slots(call: Call, op: str, found: _Batch, pool: Pool) -> Part:
    """Of a step: rows behind the last token that are skipped, and slots that are not where the table has the token."""
    if op != "step" or "slot_mapping" not in call.arrays:
        return Part({})
    slots = call.arrays["slot_mapping"].reshape(-1).astype(np.int64)
    wanted = np.concatenate([_expected(row, table, pool) for row, table in zip(found.rows, found.tables, strict=True)])
    tail = len(slots) - call.views["q"].shape[0]
    odd = int((slots[: len(wanted)] != wanted).sum()) if len(slots) >= len(wanted) else len(wanted)
    lost = (f"{odd} slots are not where block_tables has the token: those of the case are",) if odd else ()
    return Part({"slots": Slots(tail_padding=tail)} if tail > 0 else {}, lost)


def _expected(row: tuple[int, int], table: Ids, pool: Pool) -> Ids:
    """The slot of each new token; -1 for one before the first position."""
    positions = np.arange(row[1] - row[0], row[1])
    slots, real = np.full(len(positions), -1), positions >= 0
    blocks, offsets = np.divmod(positions[real], pool.block_size)
    slots[real] = table[blocks] * pool.block_size + offsets
    return slots


# --- what only slots tell ----------------------------------------------------------------------------------------


def from_slots(slots: Ids, pool: Pool) -> Part:
    """Sequences of a write without a table: runs of slots that follow one another, from one block's end to the next."""
    if slots.size and slots.max() >= pool.num_blocks * pool.block_size:
        raise Inexpressible(
            f"slot_mapping holds {slots.max()}, but there are {pool.num_blocks * pool.block_size} slots"
        )
    tail = len(slots) - 1 - int(np.flatnonzero(slots >= 0)[-1]) if (slots >= 0).any() else len(slots)
    real = slots[slots >= 0]
    if not real.size:
        raise Inexpressible("slot_mapping skips every token: there is no sequence")
    runs = np.split(real, np.flatnonzero(~_follows(real, pool.block_size)) + 1)
    seqs = tuple(
        Seq(query_len=len(run), kv_len=int(run[0]) % pool.block_size + len(run), tag=i) for i, run in enumerate(runs)
    )
    placed = _placed(owned([_blocks(run, pool) for run in runs], (None,) * len(runs)), pool)
    lost = "lengths are told by slots alone: what the cache held before the first block that is written is left out"
    return Part(
        {"seqs": seqs, "slots": Slots(holes=len(slots) - len(real) - tail, tail_padding=tail)} | placed.fields,
        (lost, *placed.lost),
    )


def _follows(slots: Ids, block_size: int) -> Any:
    """For each slot but the last: whether the next one is the next token's."""
    here, there = slots[:-1], slots[1:]
    inside = (there == here + 1) & (there % block_size != 0)
    return inside | ((here % block_size == block_size - 1) & (there % block_size == 0))


def _blocks(run: Ids, pool: Pool) -> Ids:
    """Its blocks, each once, in order."""
    ids = run // pool.block_size
    return np.asarray(ids[np.append(True, np.diff(ids) != 0)])
