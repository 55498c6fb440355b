"""Laws of the batch: a row is what it is whoever else is there; heads and rows keep to themselves."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from harness.case import Case, Seq
from harness.editing import caches, fill, inherit, put_tokens, rows, tokens
from harness.inputs import materialise
from harness.laws import First, Image, Law, Twin
from harness.layout_laws import shares
from harness.tensors import Array

SCALES = ("k_scale", "v_scale")


def _rows(case: Case, indices: Iterable[int]) -> Array:
    """The tokens of some sequences."""
    token = np.arange(sum(seq.query_len for seq in case.seqs))
    return np.concatenate([token[rows(case, i)] for i in indices])


def _regrouped(first: First, seqs: tuple[Seq, ...], origin: Sequence[int], queries: Array) -> Twin | None:
    """Other sequences with the tokens of the first call's, sequence by sequence, and the queries that are named."""
    case = None if shares(first.case) else first.changed(seqs=seqs)
    if case is None:
        return None
    second = materialise(case)
    inherit(first.materials, second, origin, queries)
    return Twin(second, Image(first=queries))


def _alone(first: First) -> Twin | None:
    """One of several sequences; one with new tokens, if any."""
    seqs = first.case.seqs
    if len(seqs) < 2:
        return None
    index = max(range(len(seqs)), key=lambda i: (seqs[i].query_len * seqs[i].kv_len > 0, i))
    return _regrouped(first, (seqs[index],), [index], _rows(first.case, [index]))


def _other_order(first: First) -> Twin | None:
    order = range(len(first.case.seqs) - 1, -1, -1)
    return _regrouped(first, first.case.seqs[::-1], order, _rows(first.case, order)) if len(order) > 1 else None


def _twice(first: First) -> Twin | None:
    """The first sequence again, behind all others, with the same numbers."""
    seqs = first.case.seqs
    order = [*range(len(seqs)), 0]
    return _regrouped(first, (*seqs, _new(seqs, seqs[0])), order, _rows(first.case, order))


def _new(seqs: tuple[Seq, ...], like: Seq) -> Seq:
    return Seq(query_len=like.query_len, kv_len=like.kv_len, tag=max(seq.tag for seq in seqs) + 1)


def _with_padding(first: First) -> Twin | None:
    """An empty sequence with a query, as a server pads its batches."""
    seqs = first.case.seqs
    case = first.changed(seqs=(*seqs, _new(seqs, Seq(query_len=1, kv_len=0))))
    return None if case is None else Twin(materialise(case), Image(second=_rows(case, range(len(seqs)))))


# --- rows of one sequence ----------------------------------------------------------------------------------------


def _chunk_of(seq: Seq) -> Seq:
    cut = seq.query_len // 2
    return msgspec.structs.replace(seq, query_len=seq.query_len - cut, kv_len=seq.kv_len - cut)


def _cuts(case: Case) -> bool:
    """Whether a chunk can be cut into two that do not depend on each other's keys."""
    whole = all(seq.kv_len >= seq.query_len for seq in case.seqs)
    return whole and case.causal and not shares(case) and any(seq.query_len > 1 for seq in case.seqs)


def _first_chunk(first: First) -> Twin | None:
    """Only the first half of each sequence's new tokens."""
    seqs = first.case.seqs
    if not _cuts(first.case):
        return None
    return _regrouped(first, tuple(map(_chunk_of, seqs)), range(len(seqs)), _leading(first.case))


def _leading(case: Case) -> Array:
    """The rows of the first half of each sequence's new tokens."""
    token = np.arange(sum(seq.query_len for seq in case.seqs))
    return np.concatenate([token[rows(case, i)][: _chunk_of(seq).query_len] for i, seq in enumerate(case.seqs)])


def _last_row(first: First) -> Twin | None:
    """Only the last new token of each sequence: what a decode does."""
    case = first.case
    seqs = tuple(msgspec.structs.replace(seq, query_len=min(seq.query_len, 1)) for seq in case.seqs)
    if seqs == case.seqs:
        return None
    last = np.concatenate([_rows(case, [i])[-1:] for i in range(len(seqs))])
    return _regrouped(first, seqs, range(len(seqs)), last)


def _later_tokens(first: First) -> Twin | None:
    """Everything behind the first half of the new tokens becomes something else."""
    case = first.case
    if not _cuts(case):
        return None
    second, kept = materialise(case), _leading(case)
    later = np.setdiff1d(np.arange(len(second.inputs.q.view)), kept)
    second.inputs.q.view[later] = -second.inputs.q.view[later]
    for index, seq in enumerate(case.seqs):
        for name in caches(case):
            data = tokens(second, name, index)
            end = _chunk_of(seq).kv_len
            data[end:] = -data[end:]
            put_tokens(second, name, index, data)
    return Twin(second, Image(first=kept, second=kept))


# --- heads -------------------------------------------------------------------------------------------------------


def _head_order(first: First) -> Twin | None:
    """KV heads in reverse with their query heads, which are in reverse within their group: all heads in reverse."""
    case = first.case
    if case.num_q_heads < 2:
        return None
    second = materialise(case)
    fill(second, "q", first.materials.inputs.q.view[:, ::-1])
    for name in caches(case):
        for index in range(len(case.seqs)):
            put_tokens(second, name, index, tokens(first.materials, name, index)[:, ::-1])
    for name in ("alibi_slopes", "sinks", *SCALES):
        if name in second.inputs.tensors():
            fill(second, name, getattr(first.materials.inputs, name).view[::-1])
    return Twin(second, Image(heads=slice(None, None, -1)))


def _repeated_kv(first: First) -> Twin | None:
    """Each query head has a KV head of its own, a copy."""
    case = first.case
    found = first.changed(num_kv_heads=case.num_q_heads) if case.group > 1 and not case.v_is_k_prefix else None
    if found is None:
        return None
    second = materialise(found)
    for name in caches(case):
        for index in range(len(case.seqs)):
            put_tokens(second, name, index, np.repeat(tokens(first.materials, name, index), case.group, axis=1))
    if case.scale_granularity == "head":
        for name in SCALES:
            fill(second, name, np.repeat(getattr(first.materials.inputs, name).view, case.group))
    return Twin(second)


BATCH_LAWS = (
    Law(
        "sequence alone", _alone, "a sequence was alone in its batch", "rows or lengths of another sequence",
        "bitwise", ("batch_invariant",),
    ),
    Law(
        "other order of sequences", _other_order, "the sequences came in another order",
        "rows or lengths of another sequence", "bitwise", ("batch_invariant",),
    ),
    Law(
        "duplicated sequence", _twice, "a sequence came twice", "rows or lengths of another sequence",
        "bitwise", ("batch_invariant",),
    ),
    Law(
        "padding row more", _with_padding, "the batch had one empty sequence more", "the rows of a padded batch",
        "bitwise", ("batch_invariant",),
    ),
    Law(
        "first chunk", _first_chunk, "the second half of the new tokens was left for another call",
        "where a causal mask begins", ops=("extend",), weight=2,
    ),
    Law(
        "last row alone", _last_row, "the last new token was decoded by itself", "where a causal mask begins",
        ops=("extend",), weight=2,
    ),
    Law(
        "later tokens changed", _later_tokens, "tokens behind a row were changed, which it must not see",
        "the causal mask", "bitwise", signed_zeros=False, ops=("extend",), weight=2,
    ),
    Law(
        "other order of heads", _head_order, "the heads came in reverse order", "which KV head a query head reads",
        "bitwise",
    ),
    Law(
        "repeated KV heads", _repeated_kv, "every query head had a copy of its KV head",
        "which KV head a query head reads", recompiles=True,
    ),
)  # fmt: skip
