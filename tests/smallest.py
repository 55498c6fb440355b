"""What our first planted faults shrink to: the fields of the smallest case, and how many sequences it takes."""

from collections.abc import Mapping
from typing import Any

from harness.case import Seq, Slots, States

#: What a case shrinks to when the fault needs nothing special.
PLAIN: Mapping[str, Any] = {
    "num_q_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 16,
    "causal": True,
    "window": (-1, -1),
    "softcap": 0.0,
    "alibi": False,
    "sinks": False,
    "scale": None,
    "want_lse": False,
    "placement": "in_order",
    "extra_columns": 0,
    "spare_blocks": 0,
    "layout": "nhd",
    "v_layout": "same",
    "q_layout": "contiguous",
    "out_layout": "allocated",
}


def without(*names: str) -> dict[str, Any]:
    """PLAIN less the fields that the fault needs, or that are one of two equally small ways to show it."""
    return {name: value for name, value in PLAIN.items() if name not in names}


#: The fields that the smallest case must have, by the fault's name; the other faults are held to their size alone.
SMALLEST: Mapping[str, Mapping[str, Any]] = {
    "last-token-dropped": PLAIN,
    "window-off-by-one": without("window") | {"window": (0, -1)},
    "group-by-modulo": without("num_q_heads", "num_kv_heads") | {"num_q_heads": 4, "num_kv_heads": 2},
    "k-strides-for-v": without("layout", "v_layout", "placement"),  # a far block shows it, or a second token
    "l-not-rescaled": without("sinks"),  # two tiles show it, or a sink and one tile
    "offset-in-32-bits": without("placement") | {"placement": "far", "table_dtype": "int32"},
    "table-padding-used": PLAIN,
    "stale-v-times-zero": PLAIN,
    "empty-row-nan": PLAIN,
    "scale-off-by-one-per-cent": PLAIN | {"dtype": "float16"},
    "one-scale-for-all-rows": PLAIN | {"padding_rows": 1},
    "raises": PLAIN | {"block_size": 24},
    "dies": PLAIN,
    "hangs": without("sinks") | {"sinks": True},
    "rows-behind-a-block-lost": PLAIN | {"block_size": 16},
    "causal-top-left": PLAIN | {"seqs": (Seq(kv_len=2),)},
    "past-counted-twice": PLAIN | {"seqs": (Seq(query_len=2, kv_len=3),)},
    "slot-minus-one-written": PLAIN | {"seqs": (Seq(),)},
    "slot-in-32-bits": without("placement") | {"placement": "far"},
    "k-strides-for-v-written": without("layout", "v_layout", "num_q_heads", "num_kv_heads"),
    "empty-split-weighs-one": PLAIN,
    "merged-in-base-two": without("want_lse") | {"states": States()},
    "all-states-empty-nan": without("want_lse") | {"states": States(partition=(1,), empty=(0,))},
    "v-scale-dropped": PLAIN | {"scale_granularity": "tensor"},
    "padding-row-writes": PLAIN | {"slots": Slots(tail_padding=1)},
    "query-offset-of-the-sequence-before": PLAIN,
    "window-start-inside-a-block": without("window") | {"window": (0, -1)},
    "new-rows-by-position": PLAIN | {"new_kv": "dense", "seqs": (Seq(kv_len=2),)},
    "prefix-read-over": PLAIN | {"new_kv": "dense", "seqs": (Seq(kv_len=2),)},
    "k-strides-for-new-v": without("layout", "v_layout", "num_q_heads", "num_kv_heads") | {"new_kv": "dense"},
    "new-k-scaled": PLAIN | {"new_kv": "dense", "scale_granularity": "tensor"},
}
#: How many sequences a fault needs, where it is not one.
SEQUENCES = {"query-offset-of-the-sequence-before": 2}
