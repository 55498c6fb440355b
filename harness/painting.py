"""What a worker sees of one more call of a finding's smallest case: the records that a page draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness import blocks, pictures, probe
from harness.blocks import Place
from harness.bounds import Bound, margin
from harness.case import Case
from harness.excerpt import excerpt
from harness.executors.base import BadAccess, Conditions, Observed, bits
from harness.inputs import Materials, materialise
from harness.operations import gathered_tile
from harness.pictures import MISSED, READ, WRITTEN, Heat, Picture, Weight
from harness.pipeline import Session, the_executor
from harness.results import RELATIONAL_KINDS, Finding
from harness.rows import Row
from harness.subjects import load
from harness.tensors import Array
from harness.writes import CACHES
from harness.xray import wrong_row

#: Rows and columns of a heat map, and weights of a row, that are shown at most.
MOST_ROWS, MOST_COLUMNS, MOST_WEIGHTS = 24, 64, 24


@dataclass(frozen=True)
class Told:
    """The row of an output whose weights are told; of a merge, no row of tokens."""

    found: probe.Weights
    row: Row | None
    token: int
    head: int

    @property
    def name(self) -> str:
        """The row in words."""
        return self.row.place if self.row else f"token {self.token}, head {self.head}"

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The token of the row's sequence that lies in each cell, -1 for none; of a merge, the state."""
        return self.row.mine if self.row else self.found.cells.blocks

    def place(self, cell: int) -> str:
        """Where a cell is, in words."""
        cells, token = self.found.cells, int(self.tokens[cell])
        if token >= 0:
            return f"{'token' if self.row else 'state'} {token}"
        block, offset, head = int(cells.blocks[cell]), int(cells.offsets[cell]), int(cells.heads[cell])
        where = f"row {offset} of v_new" if block == probe.DENSE else f"slot {offset} of block {block}"
        return f"{where}, KV head {head}" if self.found.materials.case.num_kv_heads > 1 else where


def laid_out(case: dict[str, Any]) -> Picture:
    """The table and the cache of a case, without a call."""
    return blocks.layout(materialise(msgspec.convert(case, Case)), {})


def painted(case: dict[str, Any], subject: str, finding: dict[str, Any], executor: str) -> Picture:
    """Call the subject again, x-ray a wrong output, and put together what there is to see."""
    drawn, found = msgspec.convert(case, Case), msgspec.convert(finding, Finding)
    where = the_executor(executor)
    session = Session(drawn, load(subject, drawn.op), where, thorough=True)
    materials = materialise(drawn)
    observed = session.observe_on(where.under(Conditions(owners=True)) or where, materials)
    told = _told_row(session, found) if observed.out is not None else None
    seen = blocks.layout(materials, _marks(materials, observed, told), _columns(observed))
    heats = tuple(_heats(materials, observed, session.bound(materials, observed)))
    return msgspec.structs.replace(
        seen,
        heats=heats,
        weights=_weights(told) if told else None,
        source=excerpt(observed.ttir, _lines(found, observed)),
        notes=(*seen.notes, *_notes(found, observed, heats)),
    )


def _notes(finding: Finding, observed: Observed, heats: tuple[Heat, ...]) -> Iterator[str]:
    if observed.failure is not None:
        yield f"the call gives no output: {observed.failure.type}: {observed.failure.message}"
    elif finding.kind in RELATIONAL_KINDS and not any(heat.wrong for heat in heats):
        yield "this one call is right: the finding comes from its comparison with a second call"
    for heat in heats:
        if len(heat.rows) < heat.all_rows:
            yield f"{len(heat.rows)} of {heat.all_rows} rows of {heat.name} are drawn, those with the largest errors"


# --- what was read and written -----------------------------------------------------------------------------------


def _marks(materials: Materials, observed: Observed, told: Told | None) -> dict[Place, str]:
    """What went wrong at each slot of the cache, the more certain over the less."""
    found = dict(_weighed(materials, told)) if told else {}
    for access in _of(observed, CACHES):
        letter = {"read": READ, "write": WRITTEN}.get(access.kind.rpartition(" ")[2])
        found |= {(row[0], row[1]): letter for row in access.rows if letter}
    for written in observed.changed:
        if written.tensor in CACHES:
            found |= {(row[0], row[1]): WRITTEN for row in written.rows}
    return found


def _of(observed: Observed, names: tuple[str, ...]) -> list[BadAccess]:
    """Bad accesses of these tensors, or of the one that some of them share."""
    return [access for access in observed.accesses if set(access.tensor.split(" or ")) & set(names)]


def _columns(observed: Observed) -> set[Place]:
    """Rows and columns of the block table whose padding was read."""
    places = {access.index for access in _of(observed, ("block_tables",)) if isinstance(access.index, tuple)}
    return {(place[0], place[1]) for place in places}


def _weighed(materials: Materials, told: Told) -> Iterator[tuple[Place, str]]:
    """Slots whose weight is wrong, where the x-ray was taken of the same blocks."""
    row = told.row
    if row is None or told.found.materials.geometry.num_blocks != materials.geometry.num_blocks:
        return
    cells = row.weights.cells
    for marked, letter in ((row.lost, MISSED), (row.extra, READ)):
        for cell in np.flatnonzero(marked & (cells.blocks != probe.DENSE)):
            yield (int(cells.blocks[cell]), int(cells.offsets[cell])), letter


# --- the error ---------------------------------------------------------------------------------------------------


def _heats(materials: Materials, observed: Observed, bound: Bound | None) -> Iterator[Heat]:
    """The error of the output, and of its lse where that is wrong."""
    out, lse = observed.out, observed.lse
    if out is None:
        return
    if materials.case.op == "gather":
        yield _heat("out", _bitwise(out, gathered_tile(materials)), ("sequence", "row", "head"))
    elif bound is not None:
        yield _heat("out", margin(out, bound), ("token", "head"))
        if lse is not None and (errors := margin(lse, bound.truth_lse, bound.lse)).max(initial=0.0) > 1.0:
            yield _heat("lse", errors[..., None], ("token", "head"))


def _bitwise(out: Array, wanted: Array) -> Array:
    """A copy has no bound: right to the bit, or wrong."""
    return np.where(bits(out) == bits(wanted), 0.0, np.inf)


def _heat(name: str, margins: Array, axes: tuple[str, ...]) -> Heat:
    """Errors [*axes, dims] as rows; the rows with the largest errors, and dims in groups, where there are too many."""
    places = list(np.ndindex(margins.shape[:-1]))
    flat = margins.reshape(len(places), margins.shape[-1])
    worst = np.argsort(-flat.max(axis=1, initial=0.0), kind="stable")[:MOST_ROWS]
    kept = np.sort(worst)
    width = -(-flat.shape[1] // MOST_COLUMNS)
    columns = [flat[kept, first : first + width].max(axis=1) for first in range(0, flat.shape[1], max(width, 1))]
    return Heat(
        name=name,
        rows=tuple(", ".join(f"{axis} {i}" for axis, i in zip(axes, places[row], strict=True)) for row in kept),
        margins=tuple(tuple(map(_finite, row)) for row in np.stack(columns, axis=1).tolist()) if columns else (),
        wrong=int((flat > 1.0).sum()),
        elements=flat.size,
        all_rows=len(places),
        dims=flat.shape[1],
        per_column=max(width, 1),
    )


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


# --- the weights -------------------------------------------------------------------------------------------------


def _told_row(session: Session, finding: Finding) -> Told | None:
    """The row whose weights are told, as the x-ray of the finding chose it; None where no weight is wrong."""
    if finding.family != "wrong output" or finding.kind in RELATIONAL_KINDS:
        return None
    seen = wrong_row(session.case, session.look, finding.where)
    return Told(seen[0], None if session.case.op == "merge" else Row.of(*seen), *seen[1:]) if seen else None


def _weights(told: Told) -> pictures.Weights:
    """The most wrong and then the largest, in the order of tokens; what has none and should have none is left out."""
    got, true, wrong = (x[told.token, told.head] for x in (told.found.got, told.found.true, told.found.wrong))
    off = np.where(np.isfinite(got), np.abs(got - true), np.inf)
    there = np.flatnonzero((told.tokens >= 0) | (got != 0))
    kept = there[np.lexsort((-true[there], -off[there], ~wrong[there]))][:MOST_WEIGHTS].tolist()
    order = sorted(kept, key=lambda cell: (told.tokens[cell] < 0, told.tokens[cell], cell))
    shown = (Weight(place=told.place(i), true=float(true[i]), got=_finite(got[i]), wrong=bool(wrong[i])) for i in order)
    return pictures.Weights(row=told.name, shown=tuple(shown), count=len(there))


# --- the lines of the kernel -------------------------------------------------------------------------------------


def _lines(finding: Finding, observed: Observed) -> dict[str, str]:
    """What happened on each line, "decode.py:34" say; that of the finding first."""
    found = {finding.line: f"named by the finding ({finding.kind})"} if finding.line else {}
    for access in observed.accesses:
        words = f"{access.kind} of {access.tensor}"
        said = found.get(access.line, "")
        found[access.line] = words if said.startswith("named") or not said else f"{said}; {words}"
    return found
