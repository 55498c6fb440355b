"""Drawing near recorded calls: their lengths and a step from them, their layouts and features, hostile poison."""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from harness.case import Case, InvalidCase, Seq, replace
from harness.profiles import FP8_VALUES, Profile

Draw = Callable[[st.SearchStrategy[Any]], Any]

#: What a Case does not know of a call, since it holds no values; of what it knows, lengths and padding move as well.
UNKNOWN = ("values", "data_seed", "geometry_seed", "k_poison", "v_poison", "spare_poison", "row_poison")


def neighbour(draw: Draw, options: Profile) -> Case:
    """A recorded call with lengths in the neighbourhood of its own, and anew what no Case holds of a call."""
    base = draw(st.sampled_from(options.recorded))
    known = tuple(name for name in options.values if name not in FP8_VALUES or base.kv_dtype != "same")
    poisons = {name: draw(st.sampled_from(options.poisons)) for name in UNKNOWN if name.endswith("_poison")}
    case = replace(
        base,
        values=draw(st.sampled_from(known)),
        data_seed=draw(st.integers(0, 2**16)),
        geometry_seed=draw(st.integers(0, 255)),
        table_pad=draw(st.sampled_from((base.table_pad, *options.table_pads))),
        **poisons,
    )
    return _moved(draw, case)


def _moved(draw: Draw, case: Case) -> Case:
    """Some sequences a little longer or shorter; each stays as it was where that contradicts another."""
    for place, seq in enumerate(case.seqs):
        moved = _near(draw, case, seq)
        try:
            case = replace(case, seqs=(*case.seqs[:place], moved, *case.seqs[place + 1 :]))
        except InvalidCase:
            continue
    return case


def _near(draw: Draw, case: Case, seq: Seq) -> Seq:
    """As long as it was, a token or a block away, or at a block's edge; the cached tokens change, not the new ones."""
    block, filled = case.block_size, seq.kv_len // case.block_size * case.block_size
    steps = (0, 0, 1, -1, block, -block)
    kv_len = draw(st.sampled_from((*(seq.kv_len + step for step in steps), filled, filled + 1, filled + block)))
    least = max(min(seq.query_len, seq.kv_len), 1)
    return msgspec.structs.replace(seq, kv_len=kv_len) if kv_len >= least else seq
