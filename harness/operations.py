"""What each operation gives back, and what is exact about it."""

import numpy as np

from harness.case import Case
from harness.inputs import Materials
from harness.tensors import Array
from harness.values import DTYPES

#: Operations whose output is attention, judged within the bound.
ATTENTION = ("decode", "extend", "step")


def output_shape(case: Case) -> tuple[int, ...] | None:
    """The shape of what is returned; None where the call writes in place."""
    if case.op == "cache_write":
        return None
    if case.op == "gather":
        return (len(case.seqs), case.tile.end - case.tile.start, case.num_kv_heads, case.head_dim)
    return (case.tokens, case.num_q_heads, case.value_dim)


def gathered_tile(materials: Materials) -> Array:
    """Rows [start, end) of each sequence's K as stored, [seqs, rows, heads, dim]; 0 behind the last token."""
    case = materials.case
    tile = np.zeros(output_shape(case) or (), dtype=DTYPES[case.cache_dtype])
    for index, seq in enumerate(case.seqs):
        positions = np.arange(case.tile.start, min(case.tile.end, seq.kv_len))
        blocks = materials.geometry.tables[index][positions // case.block_size]
        tile[index, : len(positions)] = materials.inputs.k_cache.view[blocks, positions % case.block_size]
    return tile
