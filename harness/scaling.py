"""A large case made smaller: fewer sequences and heads, and lengths that keep their remainders by block and tile."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from harness.case import Case, Seq, replace

#: What can be judged in seconds: elements of K and V, and scores of all heads, queries and keys.
MOST_ELEMENTS, MOST_SCORES = 2**24, 2**25
HELPS = "`python -m harness.recorded FOLDER --smaller INTO` makes it smaller"
#: Lengths keep their remainder by the block size and by the first of these that leaves room for it.
TILES = (128, 16, 1)
#: Padding rows that a smaller case keeps.
MOST_PADDING_ROWS = 3


@dataclass(frozen=True)
class Budget:
    """What a smaller case may have: elements of K and V, scores, sequences, programs of a plain grid."""

    elements: int
    scores: int
    seqs: int
    programs: int


#: For a case that is replayed and kept.
KEPT = Budget(2**22, 2**22, 8, 1024)


def elements(case: Case) -> int:
    """Of K and V together."""
    return sum(seq.kv_len for seq in case.seqs) * case.num_kv_heads * (case.head_dim + case.value_dim)


def scores(case: Case) -> int:
    """Of all heads, queries and keys."""
    return sum(seq.query_len * seq.kv_len for seq in case.seqs) * case.num_q_heads


def too_large(case: Case) -> str | None:
    """Why the case is not run, or None: a larger one would not be judged within minutes."""
    for what, has, most in (
        ("elements of K and V", elements(case), MOST_ELEMENTS),
        ("scores", scores(case), MOST_SCORES),
    ):
        if has > most:
            return f"has {has} {what}, but at most {most} are run; {HELPS}"
    return None


def smaller(case: Case, budget: Budget = KEPT, keep_heads: bool = True) -> Case:
    """The case within the budget; as it is where it fits. Without `keep_heads` one group of heads is left first.

    What goes first is what shows least: sequences that are like others. Ratios of heads, dims, block size, layouts,
    types and features stay, and so do order and remainders of lengths.
    """
    if case.before is not None or _fits(case, budget):
        return case
    if not keep_heads:
        case = replace(case, num_q_heads=case.group, num_kv_heads=1)
    case = replace(case, padding_rows=min(case.padding_rows, MOST_PADDING_ROWS))
    case = _fewer_sequences(case, max(min(budget.seqs, budget.programs // case.num_q_heads), 1))
    return case if _fits(case, budget) else _shorter(case, budget)


def told(case: Case, small: Case) -> tuple[str, ...]:
    """In words what became of a case that was made smaller."""
    found = []
    if len(small.seqs) < len(case.seqs):
        found.append(f"{len(small.seqs)} of {len(case.seqs)} sequences")
    if small.num_q_heads < case.num_q_heads:
        found.append(f"{small.num_q_heads}/{small.num_kv_heads} of {case.num_q_heads}/{case.num_kv_heads} heads")
    longest, before = (max(seq.kv_len for seq in one.seqs) for one in (small, case))
    if longest < before:
        found.append(f"the longest has {longest} of {before} tokens")
    return (f"made smaller: {', '.join(found)}",) if found else ()


def _fits(case: Case, budget: Budget) -> bool:
    programs = len(case.seqs) * case.num_q_heads
    sizes = (elements(case), scores(case), len(case.seqs), programs)
    limits = (budget.elements, budget.scores, budget.seqs, max(budget.programs, case.num_q_heads))
    return all(has <= most for has, most in zip(sizes, limits, strict=True))


def _fewer_sequences(case: Case, count: int) -> Case:
    """The longest, the shortest, one that shares blocks with its owner, then evenly by length; in their order."""
    chosen = set(list(dict.fromkeys(_preferred(case)))[:count])
    kept = [seq for i, seq in enumerate(case.seqs) if i in chosen]
    tags = {seq.tag for seq in kept}
    return replace(case, seqs=tuple(seq if seq.shares_prefix_with in tags else _alone(seq) for seq in kept))


def _preferred(case: Case) -> Iterator[int]:
    by_length = sorted(range(len(case.seqs)), key=lambda i: case.seqs[i].kv_len)
    yield from (by_length[-1], by_length[0])
    place = {seq.tag: i for i, seq in enumerate(case.seqs)}
    for i, seq in enumerate(case.seqs):
        if seq.shared_blocks and seq.shares_prefix_with is not None:
            yield from (i, place[seq.shares_prefix_with])
            break
    for parts in range(2, len(by_length) + 1):
        yield from (by_length[part * (len(by_length) - 1) // parts] for part in range(1, parts))
    yield from by_length


def _alone(seq: Seq) -> Seq:
    return Seq(query_len=seq.query_len, kv_len=seq.kv_len, tag=seq.tag)


def _shorter(case: Case, budget: Budget) -> Case:
    """Every sequence within its part of the budget, a window within half of the longest."""
    token = case.num_kv_heads * (case.head_dim + case.value_dim)
    cap = max(budget.elements // token // len(case.seqs), 1)
    most = max(budget.scores // case.num_q_heads // len(case.seqs), 1)
    seqs = tuple(_short(case, seq, cap, most) for seq in case.seqs)
    longest, before = (max(seq.kv_len for seq in some) for some in (seqs, case.seqs))
    left = case.window[0]
    if longest <= left < before:
        left = _within(left, max(longest // 2, 1), case.block_size)
    case = replace(case, seqs=tuple(_alone(seq) for seq in case.seqs))
    return _sharing(replace(case, window=(left, case.window[1]), seqs=tuple(_alone(seq) for seq in seqs)), seqs)


def _short(case: Case, seq: Seq, cap: int, most: int) -> Seq:
    """New tokens stay all of the tokens, or fewer, as they were."""
    if seq.query_len <= 1:
        return msgspec.structs.replace(seq, kv_len=_within(seq.kv_len, cap, case.block_size))
    if seq.query_len >= seq.kv_len:
        kv_len = _within(seq.kv_len, min(cap, math.isqrt(most)), case.block_size)
        return msgspec.structs.replace(seq, kv_len=kv_len, query_len=kv_len + seq.query_len - seq.kv_len)
    kv_len = max(_within(seq.kv_len, cap, case.block_size), 2)
    query_len = _within(seq.query_len, min(max(most // kv_len, 1), kv_len - 1), case.block_size)
    return msgspec.structs.replace(seq, kv_len=kv_len, query_len=query_len)


def _within(length: int, cap: int, block_size: int) -> int:
    """The length less so many whole blocks and tiles that it is within the cap."""
    steps = [math.lcm(block_size, tile) for tile in TILES] + [TILES[1], 1]
    step = next(step for step in steps if 2 * step <= cap or step == 1)
    return length - -(-max(length - cap, 0) // step) * step


def _sharing(case: Case, before: tuple[Seq, ...]) -> Case:
    """The case with the blocks shared that its sequences have in common still."""
    by_tag = {seq.tag: seq for seq in case.seqs}
    seqs = []
    for seq in before:
        alone = by_tag[seq.tag]
        if seq.shared_blocks and seq.shares_prefix_with is not None:
            common = min(case.cached_len(alone), case.cached_len(by_tag[seq.shares_prefix_with])) // case.block_size
            if shared := min(seq.shared_blocks, common):
                alone = msgspec.structs.replace(alone, shares_prefix_with=seq.shares_prefix_with, shared_blocks=shared)
        seqs.append(alone)
    return replace(case, seqs=tuple(seqs))
