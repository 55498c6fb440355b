"""The fields that a parameter of somebody's kernel may be: how each is had from `inputs`, and what it opens."""

from dataclasses import dataclass, field

from harness.case import WRITING


@dataclass(frozen=True)
class Field:
    """What a parameter may be: how it is had from `inputs`, in words, and what the subject then declares."""

    value: str
    words: str
    declares: dict[str, object] = field(default_factory=dict)
    ops: tuple[str, ...] = ()  # where it makes sense; everywhere where none is named

    def is_of(self, op: str) -> bool:
        """Whether a call of the operation has it."""
        return not self.ops or op in self.ops


ATTENTION = ("decode", "extend", "step")
_NEW = ("extend", "step")
_DENSE = {"layouts": ("nhd",), "kv_strides_apart": False}

FIELDS: dict[str, Field] = {
    "q": Field("inputs.q", "queries [tokens, q_heads, head_dim]", ops=ATTENTION),
    "k_cache": Field("inputs.k_cache", "K [blocks, block_size, kv_heads, head_dim]"),
    "v_cache": Field("inputs.v_cache", "V [blocks, block_size, kv_heads, head_dim]"),
    "k_cache_hnd": Field("inputs.k_cache.transpose(1, 2)", "K [blocks, kv_heads, block_size, head_dim]"),
    "v_cache_hnd": Field("inputs.v_cache.transpose(1, 2)", "V [blocks, kv_heads, block_size, head_dim]"),
    "k_slots": Field("views.slots(inputs.k_cache)", "K [slots, kv_heads, head_dim]", _DENSE),
    "v_slots": Field("views.slots(inputs.v_cache)", "V [slots, kv_heads, head_dim]", _DENSE),
    "kv_stacked": Field(
        "views.stacked(inputs)", "[2, blocks, block_size, kv_heads, head_dim]", {"layouts": ("kv_stacked",)}
    ),
    "kv_interleaved": Field(
        "views.interleaved(inputs)", "[blocks, 2, block_size, kv_heads, head_dim]", {"layouts": ("kv_interleaved",)}
    ),
    "block_tables": Field("inputs.block_tables", "blocks [seqs, columns]", ops=(*ATTENTION, "gather")),
    "slot_tables": Field("views.slot_tables(inputs)", "slot of each token [seqs, columns]", ops=(*ATTENTION, "gather")),
    "block_starts": Field("views.block_starts(inputs)", "where each sequence's blocks begin [seqs + 1]"),
    "block_ids": Field("views.block_ids(inputs)", "blocks of all sequences in one list"),
    "last_block_lens": Field("views.last_block_lens(inputs)", "tokens in each last block [seqs]"),
    "slot_starts": Field("views.slot_starts(inputs)", "where each sequence's slots begin [seqs + 1]"),
    "slot_ids": Field("views.slot_ids(inputs)", "slots of all sequences in one list"),
    "kv_lens": Field("inputs.kv_lens", "tokens of each sequence, the new ones included [seqs]"),
    "prefix_lens": Field("views.prefix_lens(inputs)", "tokens of each sequence before its new ones [seqs]", ops=_NEW),
    "query_starts": Field("inputs.query_starts", "where each sequence's queries begin [seqs + 1]", ops=_NEW),
    "kv_starts": Field("views.starts(inputs.kv_lens)", "where each sequence's keys begin [seqs + 1]"),
    "query_lens": Field("views.query_lens(inputs)", "new tokens of each sequence [seqs]", ops=_NEW),
    "slot_mapping": Field("inputs.slot_mapping", "slot of each new token, -1: none [tokens]", ops=WRITING),
    "k_new": Field("inputs.k_new", "new K [tokens, kv_heads, head_dim]", ops=("extend", *WRITING)),
    "v_new": Field("inputs.v_new", "new V [tokens, kv_heads, head_dim]", ops=("extend", *WRITING)),
    "scale": Field("inputs.scale", "the factor of q * k", ops=ATTENTION),
    "max_query_len": Field("inputs.max_query_len", "most new tokens of a sequence", ops=_NEW),
    "max_kv_len": Field("inputs.max_kv_len", "most tokens of a sequence"),
    "causal": Field("inputs.causal", "whether later keys are hidden", {"non_causal": True}, ATTENTION),
    "window": Field("inputs.window", "(left, right), the query itself not counted", {"window": True}, ATTENTION),
    "window_left": Field(
        "inputs.window[0]", "keys before the query, itself not counted, -1: all", {"window": True}, ATTENTION
    ),
    "window_tokens": Field(
        "inputs.window[0] + 1", "keys up to the query, itself counted, 0: all", {"window": True}, ATTENTION
    ),
    "softcap": Field("inputs.softcap", "0: none", {"softcap": True}, ATTENTION),
    "alibi_slopes": Field("inputs.alibi_slopes", "[q_heads] float32 or None", {"alibi": True}, ATTENTION),
    "sinks": Field("inputs.sinks", "[q_heads] float32 or None", {"sinks": True}, ATTENTION),
    "k_scale": Field("inputs.k_scale", "of an FP8 cache, [1] or [kv_heads] float32 or None"),
    "v_scale": Field("inputs.v_scale", "of an FP8 cache, [1] or [kv_heads] float32 or None"),
    "out": Field("out", "the output [tokens, q_heads, head_dim], written in place", {"out": True}, ATTENTION),
    "lse": Field("lse", "log-sum-exp [tokens, q_heads] float32, written in place", {"lse": True}, ATTENTION),
    "want_lse": Field("inputs.want_lse", "whether (out, lse) is to be returned", {"lse": True}, ATTENTION),
    "num_splits": Field("inputs.hints.num_splits or 1", "splits of the keys", {"splits": True}, ATTENTION),
    "tile_start": Field("inputs.tile_start", "the first token", ops=("gather",)),
    "tile_end": Field("inputs.tile_end", "the token behind the last", ops=("gather",)),
    "state_outs": Field("inputs.state_outs", "[states, tokens, q_heads, head_dim]", ops=("merge",)),
    "state_lses": Field("inputs.state_lses", "[states, tokens, q_heads] float32", ops=("merge",)),
    "num_seqs": Field("len(inputs.kv_lens)", "sequences"),
    "num_q_heads": Field("inputs.q.shape[1]", "query heads", ops=ATTENTION),
    "num_kv_heads": Field("inputs.k_cache.shape[2]", "KV heads"),
    "group": Field("inputs.q.shape[1] // inputs.k_cache.shape[2]", "query heads per KV head", ops=ATTENTION),
    "head_dim": Field("inputs.k_cache.shape[3]", "head dim"),
    "block_size": Field("inputs.k_cache.shape[1]", "tokens of a block"),
}
