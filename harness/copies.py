"""Where wrong rows of a copy come from: of a gathered tile or a written cache, told by the values that lie there."""

from collections.abc import Iterator

import numpy as np

from harness.executors.base import Written, bits
from harness.inputs import SKIPPED, Materials
from harness.quantised import quantised
from harness.tensors import Array
from harness.writes import Stored

#: So many runs of rows are told.
MOST = 4


#: Sequence, row, and what the row holds.
Place = tuple[int, int, str]


def copied(materials: Materials, out: Array, wrong: Array) -> tuple[str, ...]:
    """What wrong rows of a gathered tile [seqs, rows, heads, dim] hold, in words; rows in a run are told once."""
    told = [
        (sequence, row, _source(materials, out[sequence, row, head], head))
        for sequence, row, head in sorted({(int(s), int(r), int(h)) for s, r, h, _ in np.argwhere(wrong)})
    ]
    return tuple(_words(materials, run) for run in _runs(told)[:MOST])


def _runs(told: list[Place]) -> list[list[Place]]:
    """Neighbouring rows of a sequence with the same fault."""
    found: list[list[Place]] = []
    for place in told:
        before = found[-1][-1] if found else None
        near = before is not None and before[0] == place[0] and place[1] - before[1] <= 1
        if near and before is not None and _shape(before[2]) == _shape(place[2]):
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _shape(source: str) -> str:
    return "slot" if source.startswith(("block", "V of block")) else source


def _source(materials: Materials, row: Array, head: int) -> str:
    """The slot whose K is in the row [dim], or what else is there."""
    if not np.asarray(row).astype(np.float64).any():
        return "zeros: nothing was loaded"
    found = _of(materials, "k_cache", row, head)
    return found or (f"V of {of_v}" if (of_v := _of(materials, "v_cache", row, head)) else "what no slot holds")


def _of(materials: Materials, name: str, row: Array, head: int) -> str:
    """The slot of a cache whose numbers are in the row."""
    cache, tables = getattr(materials.inputs, name).view, materials.geometry.tables
    for sequence, table in enumerate(tables):
        same = cache.shape[-1:] == row.shape and len(table)
        found = np.argwhere((bits(cache[table]) == bits(row)).all(axis=-1)) if same else ()
        for column, offset, other in sorted(np.asarray(found).tolist(), key=lambda place: place[2] != head):
            token = column * materials.case.block_size + offset
            wrong_head = f", KV head {other}" if other != head else ""
            return f"block {table[column]} offset {offset} (token {token} of sequence {sequence}{wrong_head})"
    return ""


def _words(materials: Materials, run: list[Place]) -> str:
    (sequence, first, source), (_, last, _) = run[0], run[-1]
    start = materials.case.tile.start
    rows = f"row {first}" if first == last else f"rows {first}-{last}"
    tokens = f"token {start + first}" if first == last else f"tokens {start + first}-{start + last}"
    verb = "holds" if first == last else "hold" if _shape(source) != "slot" else "hold, in the first of them,"
    slot = f"{_slot(materials, sequence, start + first)}{'' if first == last else ' on'}"
    return f"sequence {sequence}: {rows} ({tokens}, {slot}) {verb} {source}"


def _slot(materials: Materials, sequence: int, token: int) -> str:
    table, size = materials.geometry.tables[sequence], materials.case.block_size
    if token >= materials.case.seqs[sequence].kv_len:
        return "behind the last token"
    return f"block {table[token // size]} offset {token % size}"


# --- what was written where --------------------------------------------------------------------------------------


def misplaced(materials: Materials, written: Written) -> tuple[str, ...]:
    """What stands in a wrong place of a written cache, told by its first element, and what should stand there."""
    stored = materials.stored
    if stored is None:
        return ()
    name = "K" if written.tensor.startswith("k_cache") else "V"
    wanted = _wanted(stored, written)
    if wanted and (words := quantised(materials.case, written)):
        return (words,)
    if wanted and _is_untouched(materials, written):
        return (f"no {name} was written there: it still holds what it held before",)
    found = _whose(stored, name, written.got)
    if written.got == SKIPPED:
        instead = f", or read in place of the token for {wanted}" if wanted else ""
        return (f"it is {found}: such a token is written all the same{instead}",)
    if found == NOBODYS and not wanted:
        return tuple(_spoilt(materials, written))
    if found == NOBODYS:
        return (
            f"it should be {name} of the token for {wanted}: the row or the strides that it is read with are wrong",
        )
    should = f", but should be that of the token for {wanted}" if wanted else ""
    return (f"it is {found}{should}: the slot or the strides of the write are wrong",)


#: A value that no new token has.
NOBODYS = "no new token's"


def _wanted(stored: Stored, written: Written) -> str:
    """The cell, in words, where a new token is to be written there."""
    if isinstance(written.index, int) or len(written.index) != 4:
        return ""
    block, offset = written.index[:2]
    there = bool(((stored.blocks == block) & (stored.offsets == offset)).any())
    return f"block {block} offset {offset}" if there else ""


def _is_untouched(materials: Materials, written: Written) -> bool:
    """Whether the element is what it was before the call; NaN for NaN says so too, unless the row was read wrongly."""
    before = float(getattr(materials.inputs, written.tensor).view[written.index])
    return written.got == before or (np.isnan(written.got) and np.isnan(before))


def _whose(stored: Stored, name: str, got: float) -> str:
    """Whose K or V a value is, in words."""
    if got == SKIPPED:
        return f"{name} of a token to be skipped, whose slot is -1"
    data = (stored.k if name == "K" else stored.v).astype(np.float64)
    found = np.argwhere(data == got)
    if not len(found):
        return NOBODYS
    cell, head, dim = (int(i) for i in found[0])
    return (
        f"{name} of the token for block {stored.blocks[cell]} offset {stored.offsets[cell]}, KV head {head}, dim {dim}"
    )


def _spoilt(materials: Materials, written: Written) -> Iterator[str]:
    """What lay where nothing was to be written, and somebody wrote what is no token's."""
    if isinstance(written.index, int):
        return
    block, offset = written.index[:2]
    size, case = materials.case.block_size, materials.case
    lay = [
        f"token {column * size + offset} of sequence {sequence}"
        for sequence, table in enumerate(materials.geometry.tables)
        for column in np.flatnonzero(table == block).tolist()
        if column * size + offset < case.cached_len(case.batch[sequence])
    ]
    there = f"{' and '.join(lay)} lay there" if lay else "nobody's slot"
    yield f"no new token belongs there ({there}), and what was written is none's"
