"""The block table and the cache of a case as a page draws them, slot by slot."""

from collections.abc import Iterable

import numpy as np

from harness.case import NEW_TOKENS, Case, Seq
from harness.inputs import Materials
from harness.pictures import DEAD, FINE, FREE, NEW, SHARED, USED, Block, Picture, Pool, TableRow, letter

#: Rows of the table, columns of a row, slots and blocks of the cache that are drawn at most.
MOST_ROWS, MOST_COLUMNS, MOST_SLOTS, MOST_BLOCKS = 16, 24, 512, 24

#: A place in the cache, block and slot.
Place = tuple[int, int]


def layout(materials: Materials, marks: dict[Place, str], columns: Iterable[Place] = ()) -> Picture:
    """Table and pool with what went wrong at (block, slot), and the (row, column) of entries that were wrongly read."""
    case = materials.case
    if case.op == "merge":
        return Picture(notes=("a merge takes partial states: there is no cache to draw",))
    pool = _pool(materials, marks)
    notes = []
    if len(case.batch) > MOST_ROWS:
        notes.append(f"{MOST_ROWS} of {len(case.batch)} rows of the block table are shown")
    if len(pool.blocks) < pool.num_blocks:
        notes.append(f"{len(pool.blocks)} of {pool.num_blocks} blocks are drawn, those with marks and in use first")
    return Picture(table=_table(materials, set(columns)), pool=pool, notes=tuple(notes))


def _table(materials: Materials, read: set[Place]) -> tuple[TableRow, ...]:
    case, entries = materials.case, materials.inputs.block_tables.view
    rows = []
    for number, table in enumerate(materials.geometry.tables[:MOST_ROWS]):
        shown = entries[number, :MOST_COLUMNS].tolist()
        name = f"sequence {number}" if number < len(case.seqs) else "padding row"
        rows.append(
            TableRow(
                name=f"{letter(number)}: {name}",
                kv_len=case.batch[number].kv_len,
                used=tuple(shown[: len(table)]),
                padding=tuple(shown[len(table) :]),
                more=entries.shape[1] - len(shown),
                read=tuple(column for row, column in sorted(read) if row == number and column < len(shown)),
            )
        )
    return tuple(rows)


def _pool(materials: Materials, marks: dict[Place, str]) -> Pool:
    kinds, owners = _kinds(materials), _owners(materials)
    size, count = materials.case.block_size, materials.geometry.num_blocks
    drawn = _drawn(materials, {block for block, _ in marks})
    blocks = [
        Block(
            number=block,
            slots="".join(kinds.get((block, slot), DEAD if block in owners else FREE) for slot in range(size)),
            marks="".join(marks.get((block, slot), FINE) for slot in range(size)),
            owners=tuple(owners.get(block, ())),
        )
        for block in drawn
    ]
    return Pool(num_blocks=count, blocks=tuple(blocks))


def _drawn(materials: Materials, marked: set[int]) -> list[int]:
    """The blocks that are drawn, ascending: if there are too many, marked ones before used before free."""
    count, most = materials.geometry.num_blocks, max(min(MOST_SLOTS // materials.case.block_size, MOST_BLOCKS), 1)
    used = materials.geometry.used.tolist()
    free = range(count) if count <= MOST_SLOTS else ()
    ranked = dict.fromkeys((*sorted(block for block in marked if 0 <= block < count), *used, *free))
    return sorted(list(ranked)[:most])


def _owners(materials: Materials) -> dict[int, list[Place]]:
    """Block to the (sequence, column) of those that read it."""
    found: dict[int, list[Place]] = {}
    for number, table in enumerate(materials.geometry.tables):
        for column, block in enumerate(table.tolist()):
            found.setdefault(block, []).append((number, column))
    return found


def _kinds(materials: Materials) -> dict[Place, str]:
    """What each slot that holds a token is."""
    case, found = materials.case, {}
    for seq, table in zip(case.batch, materials.geometry.tables, strict=True):
        tokens = np.arange(case.paged_len(seq))
        places = zip(table[tokens // case.block_size].tolist(), (tokens % case.block_size).tolist(), strict=True)
        for token, place in enumerate(places):
            found[place] = SHARED if place in found else NEW if token >= _first_new(case, seq) else USED
    return found


def _first_new(case: Case, seq: Seq) -> int:
    """The first token of a sequence that is new in this call; a gather has none."""
    has_new = case.op in (*NEW_TOKENS, "decode")
    return seq.kv_len - seq.query_len if has_new else seq.kv_len
