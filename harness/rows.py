"""One row of an x-ray: which of its weights lie on its own tokens, on others, and on what nobody may read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.case import NEW_TOKENS, Case
from harness.inputs import Materials
from harness.landmarks import at
from harness.listing import listed
from harness.places import behind, elsewhere
from harness.probe import DENSE, Weights
from harness.tensors import Array

#: A weight that is this much smaller than it should be is none; a share of a row's weight that is next to none.
NOTHING, LITTLE = 1e-6, 1e-3
#: So many tokens further on a query may be taken to stand.
FURTHEST = 64
#: Tiles that a kernel may walk in, beside one per block.
TILES = (16, 32, 64, 128)
#: Scores below this are less than a number that some take for -inf.
FAR_BELOW = -1000.0


@dataclass(frozen=True)
class Row:
    """The weights of one query token and head; cells are those of `Weights`."""

    weights: Weights
    sequence: int
    token: int  # in the batch
    head: int
    mine: NDArray[np.int64]  # [cells]: the token of this sequence that lies there, in its KV head; else -1
    got: Array  # [cells]
    true: Array
    within: Array

    @classmethod
    def of(cls, weights: Weights, token: int, head: int) -> "Row":
        """The row of a query token of the batch."""
        starts = weights.materials.inputs.query_starts.view
        sequence = int(np.searchsorted(starts, token, side="right")) - 1
        own_head = weights.cells.heads == head // weights.materials.case.group
        mine = np.where(own_head, tokens_in(weights, sequence), -1)
        got, true, within = (x[token, head] for x in (weights.got, weights.true, weights.within))
        return cls(weights, sequence, token, head, mine, got, true, within)

    @property
    def case(self) -> Case:
        """The case that was probed."""
        return self.weights.materials.case

    @property
    def materials(self) -> Materials:
        """Its tensors."""
        return self.weights.materials

    @property
    def kv_head(self) -> int:
        """The KV head that it should read."""
        return self.head // self.case.group

    @property
    def place(self) -> str:
        """Where it is, in words."""
        new = self.case.batch[self.sequence].query_len
        which = f", query {self.query} of {new}" if new > 1 else ""
        return f"sequence {self.sequence}, head {self.head}{which}"

    @property
    def query(self) -> int:
        """Its number among the new tokens of its sequence."""
        return self.token - int(self.materials.inputs.query_starts.view[self.sequence])

    @property
    def position(self) -> int:
        """Where the query stands in its sequence."""
        seq = self.case.batch[self.sequence]
        return seq.kv_len - seq.query_len + self.query

    @property
    def visible(self) -> NDArray[np.bool_]:
        """Cells that it sees, [cells]; a weight may be too small to tell."""
        return self._sees(self.position)

    def _sees(self, position: int) -> NDArray[np.bool_]:
        """Cells that a query at a position of this sequence sees."""
        left, right = self.case.window
        right = 0 if self.case.causal else right
        ahead = self.mine - position
        seen = (self.mine >= 0) & ((ahead <= right) | (right < 0))
        return np.asarray(seen & ((ahead >= -left) | (left < 0)))

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Visible cells that should have a weight and have none."""
        none = np.abs(self.got) <= NOTHING * self.true
        return np.asarray(self.visible & (self.true > 4 * self.within) & none)

    @property
    def extra(self) -> NDArray[np.bool_]:
        """Cells that should have no weight and have one."""
        return np.asarray(~self.visible & self.weights.wrong[self.token, self.head])

    def where_is(self, tokens: NDArray[np.int64]) -> str:
        """Tokens of this sequence in words, with where they lie."""
        table, size = self.materials.geometry.tables[self.sequence], self.case.block_size
        new = int(self.case.paged_len(self.case.batch[self.sequence]))
        if tokens[-1] >= new:
            rows = listed((token - self.position + self.token for token in tokens if token >= new), "row")
            return f"{listed(tokens, 'token')} ({rows} of v_new{' and some of the cache' if tokens[0] < new else ''})"
        columns = sorted({int(token) // size for token in tokens})
        if len(columns) > 1:
            return f"{listed(tokens, 'token')} ({listed(columns, 'column')} of the table)"
        offsets = listed((token % size for token in tokens), "slot")
        block = int(table[columns[0]])
        place = f"column {columns[0]} of the table, block {block}, {offsets}{self._shared(block)}"
        return f"{listed(tokens, 'token')} ({place})"

    def _shared(self, block: int) -> str:
        """Who else has the block, in words."""
        tables = enumerate(self.materials.geometry.tables)
        others = [i for i, table in tables if i != self.sequence and block in table]
        return f"; {listed(others, 'sequence')} {'has' if len(others) == 1 else 'have'} it too" if others else ""

    # --- sentences -------------------------------------------------------------------------------------------

    def someone_elses(self) -> str:
        """All the weight lies on another KV head, or on another sequence."""
        total, kv_heads = np.abs(self.got).sum(), self.weights.cells.heads
        if not total or np.abs(self.got[self.mine >= 0]).sum() > LITTLE * total:
            return ""
        for other in range(self.case.num_kv_heads):
            of_other = (kv_heads == other) & (tokens_in(self.weights, self.sequence) >= 0)
            if other != self.kv_head and np.abs(self.got[of_other]).sum() > (1 - LITTLE) * total:
                return f"attends to KV head {other}, but should to KV head {self.kv_head}"
        for other in range(len(self.case.batch)):
            of_other = tokens_in(self.weights, other) >= 0
            if other != self.sequence and np.abs(self.got[of_other]).sum() > (1 - LITTLE) * total:
                return (
                    f"the output is that of sequence {other} (its {listed(sorted(self._of(other)), 'token')}): the "
                    f"offset of the queries, of the output or of the table's row is another sequence's{at('table')}"
                )
        return ""

    def moved(self, strides: tuple[int, ...], further: int) -> bool:
        """Whether all the weight lies where these strides, and so many elements further on, lead."""
        cells, own = self.weights.cells, np.flatnonzero(self.visible)
        axes = np.stack([cells.blocks, cells.offsets, cells.heads], axis=1)
        places, at = axes[own] @ np.array(strides[:3]) + further, axes @ np.array(self.v_strides[:3])
        moved = np.zeros(len(cells))
        for place, weight in zip(places, self.true[own], strict=True):
            moved[at == place] += weight
        off = np.abs(self.got - moved)
        fits = (off <= 2 * self.within.max()).all() and np.abs(moved - self.true).max() > 4 * self.within.max()
        return bool(fits and moved.any())  # where all of it lies outside, a weight of 0 says nothing

    @property
    def v_strides(self) -> tuple[int, ...]:
        """Those of V in the cache, in elements."""
        strides: tuple[int, ...] = self.materials.inputs.v_cache.strides
        return strides

    def _of(self, sequence: int) -> set[int]:
        """Tokens of a sequence that have a weight here."""
        tokens = tokens_in(self.weights, sequence)
        return {int(token) for token in tokens[(tokens >= 0) & (self.got != 0)]}

    def empty(self) -> str:
        """It sees no key; the mean of those that it may not see is what masked scores give that are all alike."""
        own = self.got[self.mine >= 0]
        alike = len(own) and np.ptp(own) <= 2 * self.within.max() and own[0] > NOTHING
        words = (
            ", not the mean of hidden keys, as with a finite number in place of -inf for hidden keys or a mask that "
            "does not hide them"
        )
        return f"sees no key: its output should be 0{words if alike else ''}"

    def foreign(self) -> Iterator[str]:
        """Weight on cells that are not this sequence's, or not this KV head's."""
        there = self.extra & (self.mine < 0)
        cells = self.weights.cells
        for block in dict.fromkeys(cells.blocks[there].tolist()):
            inside = there & (cells.blocks == block)
            slots = sorted(set(cells.offsets[inside].tolist()))
            words = (
                listed(slots, "row") + " of v_new" if block == DENSE else f"{listed(slots, 'slot')} of block {block}"
            )
            yield f"{words} {_weigh(slots, self.got[inside])}, but {self._whose(block, inside)}"

    def _whose(self, block: int, inside: NDArray[np.bool_]) -> str:
        """Who may read a block."""
        if block == DENSE:
            return "not of this sequence and KV head"
        tables = self.materials.geometry.tables
        owners = [i for i, table in enumerate(tables) if block in table]
        if self.sequence in owners and (self.weights.cells.heads[inside] != self.kv_head).any():
            return f"that is in KV head {self.weights.cells.heads[inside][0]}, not {self.kv_head}"
        if self.sequence in owners:
            return "that is behind the last token"
        looked_up = (elsewhere(block, self.sequence, tables), behind(block, self.sequence, tables[self.sequence]))
        words = ", or ".join(filter(None, looked_up))
        words = f"; {words}" if words else ""
        if owners:
            return f"that is sequence {owners[0]}'s: it reads the block of sequence {owners[0]}{words}{at('table')}"
        padding = self.materials.inputs.block_tables.view[self.sequence, len(tables[self.sequence]) :]
        if block in padding.tolist():
            empty = self.case.batch[self.sequence].kv_len == 0
            why = "a sequence without tokens is walked" if empty else "the loop over blocks goes one too far"
            return f"only the padding of the table names that block: {why}"
        return f"no sequence owns that block{words}{at('table')}"

    def hidden(self) -> Iterator[str]:
        """Weight on tokens of its own that it may not see."""
        there = self.extra & (self.mine >= 0)
        left, right = self.case.window
        late = there & (self.mine > self.position)
        early = there & (self.mine < self.position - left) & (left >= 0)
        if late.any():
            side = "causal limit" if self.case.causal else f"window, which ends {right} after it"
            words = f"after the query's own position {self.position}, beyond the {side}"
            yield f"{self.where_is(np.sort(self.mine[late]))} {_weigh(self.mine[late], self.got[late])} {words}"
        if early.any():
            words = f"outside the window, which begins with token {self.position - left}"
            yield f"{self.where_is(np.sort(self.mine[early]))} {_weigh(self.mine[early], self.got[early])} {words}"

    def further_on(self) -> Iterator[str]:
        """It sees what a query at a later position would see."""
        seen = (self.visible & ~self.lost) | (self.extra & (self.mine >= 0))
        if self.case.op not in NEW_TOKENS or (seen == self.visible).all():
            return
        for by in range(1, FURTHEST + 1):
            if (self._sees(self.position + by) == seen).all():
                yield f"it sees what a query {by} {'token' if by == 1 else 'tokens'} further on would see"
                return

    def missing(self) -> Iterator[str]:
        """Tokens that it should see and does not."""
        if not self.lost.any():
            return
        tokens, seen = np.sort(self.mine[self.lost]), np.sort(self.mine[self.visible])
        verb = "has weight 0" if len(tokens) == 1 else "have weight 0"
        hint = self._hint(tokens, seen)
        yield f"{self.where_is(tokens)} {verb}{f': {hint}' if hint else ''}"

    def _hint(self, tokens: NDArray[np.int64], seen: NDArray[np.int64]) -> str:
        """What the place of the missing tokens suggests."""
        lse = float(self.weights.lse[self.token, self.head])
        if np.abs(self.got).max() <= NOTHING and lse < FAR_BELOW:
            return f"their scores are near {lse:.4g}, and a finite number in place of -inf for hidden keys is larger"
        count, left = len(tokens), self.case.window[0]
        if tokens[0] >= self.case.paged_len(self.case.batch[self.sequence]):
            return "a dense new token that is not read where it lies"
        kept = seen[-count - 1] if len(seen) > count else -1
        aligned = self.case.op != "decode" and kept == self.query != self.position
        if tokens[-1] == seen[-1] and count < len(seen) and aligned:
            return f"as if the query stood at position {kept}, not {self.position}: a causal mask aligned top-left"
        if left >= 0 and count == 1 and tokens[0] == self.position - left:
            return "the first key of the window"
        if tile := self._last_tile(tokens, seen):
            return f"only the last tile of {tile} keys counts, what was summed before it is lost{at('output')}"
        if tokens[-1] == seen[-1] and np.array_equal(tokens, seen[-count:]):
            return "the last of what the query sees"
        return ""

    def _last_tile(self, tokens: NDArray[np.int64], seen: NDArray[np.int64]) -> int:
        """The tile, in keys, all but the last of which is missing; 0 where there is none."""
        kept = seen[len(tokens) :]
        sizes = (size for size in (self.case.block_size, *TILES) if len(kept) and kept[0] % size == 0)
        whole = np.array_equal(tokens, seen[: len(tokens)])
        return next((size for size in sizes if whole and kept[-1] - kept[0] < size), 0)


def _weigh(places: Iterable[int], got: Array) -> str:
    return f"{'has' if len(list(places)) == 1 else 'have'} weight {got.sum():.4g}"


def tokens_in(weights: Weights, sequence: int) -> NDArray[np.int64]:
    """For each cell, the token of the sequence that lies there in any head; -1 for none."""
    case, table = weights.materials.case, weights.materials.geometry.tables[sequence]
    columns = {int(block): column for column, block in enumerate(table)}
    column = np.array([columns.get(int(block), -1) for block in weights.cells.blocks], dtype=np.int64)
    token = column * case.block_size + weights.cells.offsets
    seq, start = case.batch[sequence], int(weights.materials.inputs.query_starts.view[sequence])
    paged = np.where((column >= 0) & (token < case.paged_len(seq)), token, -1)
    row = weights.cells.offsets - start
    new = np.where((row >= 0) & (row < seq.query_len), np.maximum(seq.kv_len - seq.query_len + row, -1), -1)
    return np.where(weights.cells.blocks == DENSE, new, paged)
