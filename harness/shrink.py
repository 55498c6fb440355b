"""Finishes what Hypothesis has shrunk, and shrinks cases that come from files: simple passes, one loop."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from harness.case import NEW_TOKENS, WRITING, Case, InvalidCase, Seq, States, Tile, replace, without_defaults
from harness.profiles import BLOCK_SIZES, HEAD_DIMS, HEADS
from harness.traits import TRAITS, resized, traits

Fails = Callable[[Case], bool]


def size(case: Case) -> tuple[Any, ...]:
    """Smaller is simpler: fewer sequences, heads, features, tokens and dims, then fewer traits, then less to write."""
    tokens = sum(seq.kv_len + seq.query_len for seq in case.seqs) + case.tile.end + case.tile.start
    tokens += 0 if case.before is None else sum(seq.kv_len + seq.query_len for seq in case.before.seqs)
    tokens += case.slots.holes + case.slots.tail_padding + case.padding_rows + sum(case.states.partition)
    tokens += sum(2 * (seq.query_len - seq.kv_len) for seq in case.seqs if 0 < seq.kv_len < seq.query_len)
    written = len(msgspec.json.encode(without_defaults(case)))
    features = sum(trait.has(case) for trait in FEATURES)
    plain = (len(traits(case)), written, case.data_seed, case.geometry_seed)
    return (len(case.seqs), case.num_q_heads, features, tokens, case.head_dim, abs(case.block_size - 16), *plain)


FEATURES = tuple(trait for trait in TRAITS if trait.rung == 6)


def shrink(case: Case, fails: Fails) -> Case:
    """The smallest case that the passes reach; `fails` may raise to stop, so keep what it was shown last."""
    progress = True
    while progress:
        progress = False
        for candidates in PASSES:
            smaller = _first_failing(case, candidates(case), fails)
            if smaller is not None:
                case, progress = smaller, True
    return case


def _first_failing(case: Case, candidates: Iterator[Case], fails: Fails) -> Case | None:
    return next((c for c in candidates if size(c) < size(case) and fails(c)), None)


def _legal(case: Case, **changes: Any) -> Iterator[Case]:
    """The changed case, unless it contradicts itself."""
    try:
        yield replace(case, **changes)
    except InvalidCase:
        return


def _bare(case: Case) -> Iterator[Case]:
    """Everything taken away at once, or all but one trait: most faults need no more, and some cost seconds a try."""
    present = [trait for trait in TRAITS if trait.has(case)]
    for kept in (None, *present):
        bare = case
        for trait in present:
            bare = bare if trait is kept else trait.without(bare)
        yield bare


def _without_sequences(case: Case) -> Iterator[Case]:
    """One less; or the first alone with another token or block, where a second token is all that is needed.

    Of two that differ in length one may do, with a maximum that is looser than need be.
    """
    for i in range(len(case.seqs)):
        yield from _legal(case, seqs=case.seqs[:i] + case.seqs[i + 1 :])
    if len(case.seqs) > 1:
        for kv_len in (2, case.block_size + 1):
            yield from _legal(case, seqs=(resized(case.seqs[0], max(kv_len, case.seqs[0].kv_len)),))
        if case.op in NEW_TOKENS:  # where rows are what is needed, they may be those of one sequence
            rows = sum(seq.query_len for seq in case.seqs)
            yield from _legal(case, seqs=(Seq(query_len=rows, kv_len=rows, tag=case.seqs[0].tag),))
        yield from _legal(case, seqs=(resized(case.seqs[0], case.seqs[0].kv_len),), max_len_slack=1)


def _without_traits(case: Case) -> Iterator[Case]:
    for trait in TRAITS:
        if trait.has(case):
            yield trait.without(case)


def _without_features(case: Case) -> Iterator[Case]:
    """With more tokens instead: one key alone hides what a feature such as the lse shows."""
    for trait in FEATURES:
        if trait.has(case):
            seqs = tuple(resized(seq, max(seq.kv_len, case.block_size + 1)) for seq in case.seqs)
            yield replace(trait.without(case), seqs=seqs)


def _one_head_padded(case: Case) -> Iterator[Case]:
    """With one head the layouts lie alike, so a fault of strides needs a gap between tokens, and two of them.

    A gap also does where the strides differ by a V of another dim.
    """
    seqs = tuple(resized(seq, max(seq.kv_len, 2)) for seq in case.seqs)
    plain: dict[str, Any] = {"num_q_heads": case.group, "num_kv_heads": 1, "layout": "nhd", "v_layout": "padded"}
    if case.kv_layouts[0] != case.kv_layouts[1] and case.num_kv_heads > 1:
        yield from _legal(case, **plain, seqs=seqs)
    if case.value_dim != case.head_dim and not case.v_is_k_prefix:
        yield from _legal(case, **plain, seqs=seqs, head_dim_v=None)


def _fewer_heads(case: Case) -> Iterator[Case]:
    for q_heads, kv_heads in sorted(HEADS):
        yield from _legal(case, num_q_heads=q_heads, num_kv_heads=kv_heads)


def _plainer_sizes(case: Case) -> Iterator[Case]:
    for head_dim in HEAD_DIMS:
        yield from _legal(case, head_dim=head_dim)
        if case.head_dim_v is not None:  # what shows where the two differ goes on to differ
            yield from _legal(case, head_dim=head_dim, head_dim_v=2 * head_dim)
    for block_size in BLOCK_SIZES:
        yield from _legal(case, block_size=block_size)


def _shorter(case: Case) -> Iterator[Case]:
    """Each length to 1, to half, a block less and one less; without what it shares, or with as much as still fits."""
    for i, seq in enumerate(case.seqs):
        for kv_len in dict.fromkeys((1, seq.kv_len // 2, seq.kv_len - case.block_size, seq.kv_len - 1)):
            if 0 < kv_len < seq.kv_len:
                alone = resized(seq, kv_len)
                yield from _legal(case, seqs=(*case.seqs[:i], alone, *case.seqs[i + 1 :]))
                sharing = msgspec.structs.replace(seq, kv_len=kv_len, query_len=alone.query_len)
                yield from _still_sharing(case, (*case.seqs[:i], sharing, *case.seqs[i + 1 :]))


def _still_sharing(case: Case, seqs: tuple[Seq, ...]) -> Iterator[Case]:
    """The case with these sequences, where some share blocks; each shares no more than it and the owner have."""
    whole = {seq.tag: seq.kv_len // case.block_size for seq in seqs}
    fitting = [
        msgspec.structs.replace(seq, shared_blocks=min(seq.shared_blocks, whole[seq.tag], whole[owner]))
        if (owner := seq.shares_prefix_with) is not None
        else seq
        for seq in seqs
    ]
    if any(seq.shared_blocks for seq in fitting):
        yield from _legal(case, seqs=tuple(fitting))


def _fewer_queries(case: Case) -> Iterator[Case]:
    """Each query_len to 1, to half, and one less; what is longer than its sequence to two queries of one token."""
    for i, seq in enumerate(case.seqs):
        if seq.query_len > seq.kv_len > 1:
            two = Seq(query_len=2, kv_len=1, tag=seq.tag)
            yield from _legal(case, seqs=(*case.seqs[:i], two, *case.seqs[i + 1 :]))
        for query_len in dict.fromkeys((1, seq.query_len // 2, seq.query_len - 1)):
            if 0 < query_len < seq.query_len:
                fewer = msgspec.structs.replace(seq, query_len=query_len)
                yield from _legal(case, seqs=(*case.seqs[:i], fewer, *case.seqs[i + 1 :]))


def _smaller_tile(case: Case) -> Iterator[Case]:
    start, end = case.tile.start, case.tile.end
    for first, last in (
        (0, end),
        (start, start + 1),
        (start, (start + end) // 2),
        (start, end - 1),
        (start - 1, end - 1),
    ):
        if 0 <= first < last:
            yield from _legal(case, tile=Tile(start=first, end=last))


def _fewer_skipped(case: Case) -> Iterator[Case]:
    """One hole, then one row of padding less."""
    for name in ("holes", "tail_padding"):
        slots = msgspec.structs.replace(case.slots, **{name: getattr(case.slots, name) - 1})
        yield from _legal(case, slots=slots)


def _fewer_padding_rows(case: Case) -> Iterator[Case]:
    """One less; or what shows most faults of padding rows without a graph: a skipped token, a sequence without keys."""
    if not case.padding_rows:
        return
    yield from _legal(case, padding_rows=case.padding_rows - 1)
    if case.op in WRITING:
        yield from _legal(case, padding_rows=0, slots=msgspec.structs.replace(case.slots, tail_padding=1))
    yield from _legal(case, padding_rows=0, seqs=(Seq(kv_len=0),))


def _fewer_states(case: Case) -> Iterator[Case]:
    """One state less, one empty one less, plain shares."""
    partition, empty = case.states.partition, case.states.empty
    for i in range(len(partition)):
        kept = tuple(e - (e > i) for e in empty if e != i)
        yield from _legal(case, states=States(partition=partition[:i] + partition[i + 1 :], empty=kept))
    for e in empty:
        yield from _legal(case, states=States(partition=partition, empty=tuple(x for x in empty if x != e)))
    yield from _legal(case, states=States(partition=(1,) * len(partition), empty=empty))


def _plainer_tags(case: Case) -> Iterator[Case]:
    if not any(seq.shared_blocks for seq in case.seqs):
        yield replace(case, seqs=tuple(msgspec.structs.replace(seq, tag=i) for i, seq in enumerate(case.seqs)))


def _defaults(case: Case) -> Iterator[Case]:
    plain = Case()
    for name in Case.__struct_fields__:
        if name not in ("seqs", "op") and getattr(case, name) != getattr(plain, name):
            yield from _legal(case, **{name: getattr(plain, name)})
    if case.data_seed > 3:
        for data_seed in range(1, 4):
            yield replace(case, data_seed=data_seed)


def _nearer(case: Case) -> Iterator[Case]:
    """Blocks that do not fit in 32 bits with a sign, for those that do not without."""
    if case.placement == "farther":
        yield replace(case, placement="far")


def _plainer_call_before(case: Case) -> Iterator[Case]:
    """The call before it shrinks as a case does."""
    if case.before is not None:
        yield from _legal(case, before=Case(op=case.op))
        for candidates in PASSES:
            for before in candidates(case.before):
                if size(before) < size(case.before):
                    yield from _legal(case, before=before)


def _one_layout(case: Case) -> Iterator[Case]:
    """V laid out as K is and K plain as V was: that needs only one of the two named."""
    if case.v_layout == "nhd":
        yield from _legal(case, layout="nhd", v_layout=case.layout)


PASSES: tuple[Callable[[Case], Iterator[Case]], ...] = (
    _bare,
    _without_sequences,
    _without_traits,
    _without_features,
    _fewer_heads,
    _one_head_padded,
    _shorter,
    _fewer_queries,
    _smaller_tile,
    _fewer_skipped,
    _fewer_padding_rows,
    _fewer_states,
    _plainer_sizes,
    _plainer_tags,
    _defaults,
    _nearer,
    _one_layout,
    _plainer_call_before,
)
