"""Some rows of an output that is too large to be judged whole, each held against the truth and the derived bound."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from harness.arithmetic import Arithmetic
from harness.bounds import Bound, attention_bound, exceeds, margin, untrusted
from harness.executors.base import to_numpy
from harness.inputs import Inputs
from harness.platforms import Platform
from harness.tensors import Array
from harness.workloads import Workload

#: Rows that are judged at most, and keys that they see together: a second or two of NumPy.
MOST_ROWS, MOST_KEYS = 32, 2**18
#: Of each row one dim in so many is judged, beginning elsewhere in each: a bound costs by the numbers of V.
DIMS_APART = 16


@dataclass(frozen=True)
class Place:
    """A query token and a KV head: the query heads of its group are judged together, in some of their dims."""

    sequence: int
    row: int  # of q
    seen: int  # keys that it sees
    kv_head: int
    first_dim: int

    @property
    def dims(self) -> slice:
        """The dims that are judged."""
        return slice(self.first_dim, None, DIMS_APART)


def places(workload: Workload) -> tuple[Place, ...]:
    """Which rows are judged: of every sequence in turn its last token, then its first one, then any; all KV heads."""
    found: dict[Place, None] = {}
    keys = 0
    for place in _candidates(workload):
        if len(found) == MOST_ROWS or (found and keys + place.seen > MOST_KEYS):
            break
        keys += 0 if place in found else place.seen
        found.setdefault(place)
    return tuple(found)


def _candidates(workload: Workload) -> Iterator[Place]:
    dice = random.Random(0)  # noqa: S311  (a sample, not secrecy)
    starts = list(accumulate((new for new, _ in workload.seqs), initial=0))
    order = list(range(len(workload.seqs)))
    dice.shuffle(order)
    apart = min(DIMS_APART, workload.head_dim)
    for turn in range(max(workload.num_kv_heads, MOST_ROWS)):
        for number, sequence in enumerate(order):
            new, kv_len = workload.seqs[sequence]
            token = (new - 1, 0)[turn] if turn < 2 else dice.randrange(new)
            head = (number + turn) % workload.num_kv_heads
            yield Place(sequence, starts[sequence] + token, kv_len - new + token + 1, head, dice.randrange(apart))


def bound(inputs: Inputs, place: Place, arithmetic: Arithmetic, platform: Platform) -> Bound:
    """Truth and bound of one place: out [1, group, dims]."""
    group = inputs.q.shape[1] // inputs.k_cache.shape[2]
    heads = slice(place.kv_head * group, (place.kv_head + 1) * group)
    found = attention_bound(
        to_numpy(inputs.q[place.row : place.row + 1, heads]),
        _keys(inputs, place, inputs.k_cache),
        _keys(inputs, place, inputs.v_cache[..., place.dims]),
        scale=inputs.scale,
        causal=True,
        window=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        sinks=None,
        arithmetic=arithmetic,
        platform=platform,
        out_dtype="bfloat16",
    )
    return found if platform.trusted else untrusted(found)


def _keys(inputs: Inputs, place: Place, cache: Any) -> Array:
    """The rows [seen, 1, head_dim] of a cache that the place sees."""
    size = cache.shape[1]
    blocks = inputs.block_tables[place.sequence, : -(-place.seen // size)].long()
    return to_numpy(cache[blocks, :, place.kv_head].flatten(0, 1)[: place.seen, None])


def complaint(out: Any, judged: dict[Place, Bound]) -> tuple[str, float]:
    """What is wrong with an output [tokens, heads, dim] in words, and its largest error as a multiple of the bound."""
    if count := int((~out.isfinite()).sum()):
        return f"{count} of {out.numel()} elements are not finite", 0.0
    worst = 0.0
    for place, right in judged.items():
        group = right.truth.shape[1]
        first = place.kv_head * group
        seen = to_numpy(out[place.row : place.row + 1, first : first + group, place.dims])
        if exceeds(seen, right).any():
            return _words(seen, right, place, first), float(margin(seen, right).max())
        worst = max(worst, float(margin(seen, right).max()))
    return "", worst


def _words(seen: Array, right: Bound, place: Place, first: int) -> str:
    margins = margin(seen, right)
    at = tuple(int(i) for i in np.unravel_index(int(margins.argmax()), margins.shape))
    dim = place.first_dim + DIMS_APART * at[2]
    where = f"out[sequence {place.sequence}, token {place.row}, head {first + at[1]}, dim {dim}]"
    limit = float(right.out[at])
    return f"{where} is {float(seen[at]):.6g}, but should be {float(right.truth[at]):.6g} ± {limit:.2g}"
