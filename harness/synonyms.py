"""What the parameters of other projects' kernels are called, and which of our fields each name may mean: plain data.

The one table of names: `harness.record` reads it, and `harness.new --wrap`.
"""

#: Field to the names that it has elsewhere (vLLM, SGLang, FlashInfer, flash-attn, torch, nano-vllm, tutorials). A name
#: under several fields is ambiguous: conventions differ, or it depends on what else the function takes.
NAMES: dict[str, tuple[str, ...]] = {
    # the call
    "q": ("q", "query", "queries", "q_extend", "query_states", "xq"),
    "k_cache": (
        "k_cache", "key_cache", "kcache", "cache_k", "k_pages", "key_pages", "paged_k", "k_paged", "k", "key", "keys",
        "k_buffer", "key_buffer", "paged_k_cache", "cache",
    ),
    "v_cache": (
        "v_cache", "value_cache", "vcache", "cache_v", "v_pages", "value_pages", "paged_v", "v_paged", "v", "value",
        "values", "v_buffer", "value_buffer", "paged_v_cache",
    ),
    "k_slots": ("k_buffer", "key_buffer"),
    "v_slots": ("v_buffer", "value_buffer"),
    "kv_stacked": ("kv_cache", "paged_kv", "paged_kv_cache", "kv_pages", "kv_buffer"),
    "kv_interleaved": ("kv_cache", "paged_kv", "paged_kv_cache", "kv_pages", "kv_buffer"),
    "block_tables": (
        "block_tables", "block_table", "page_table", "page_tables", "b_loc", "req_to_token", "req_to_pages",
        "block_indices", "table",
    ),
    "slot_tables": ("req_to_token", "req_to_tokens"),
    "block_starts": ("kv_indptr", "paged_kv_indptr", "kv_page_indptr", "indptr"),
    "block_ids": ("kv_indices", "paged_kv_indices", "kv_page_indices", "indices"),
    "last_block_lens": ("kv_last_page_len", "paged_kv_last_page_len", "last_page_len", "kv_last_page_lens"),
    "slot_starts": ("kv_indptr", "indptr"),
    "slot_ids": ("kv_indices", "indices"),
    "kv_lens": (
        "kv_lens", "kv_len", "context_lens", "context_len", "seq_lens", "seq_len", "seqlens", "seqused_k", "seqlens_k",
        "b_seq_len", "cache_seqlens", "kv_seq_lens", "kv_seqlens", "sequence_lengths", "seq_lens_k", "lens",
    ),
    "prefix_lens": ("prefix_lens", "prefix_len", "cache_seqlens", "context_lens", "context_len", "cached_lens"),
    "query_starts": (
        "query_starts", "cu_seqlens_q", "cu_seq_q", "qo_indptr", "query_start_loc", "query_start_locs", "b_start_loc",
        "cu_query_lens", "q_indptr", "cu_seqlens",
    ),
    "kv_starts": ("cu_seqlens_k", "cu_seq_k", "cu_seqlens_kv"),
    "query_lens": ("query_lens", "query_len", "q_lens", "extend_seq_lens", "b_extend_len"),
    "slot_mapping": ("slot_mapping", "slot_map", "slots", "loc", "cache_loc", "out_cache_loc", "kv_loc"),
    "k_new": ("k_new", "key_new", "new_k", "k", "key", "keys", "k_extend", "append_key"),
    "v_new": ("v_new", "value_new", "new_v", "v", "value", "values", "v_extend", "append_value"),
    "scale": ("scale", "sm_scale", "softmax_scale", "scaling", "attn_scale", "scale_factor", "qk_scale"),
    "max_query_len": ("max_query_len", "max_seqlen_q", "max_q", "max_input_len", "max_len_extend", "max_q_len"),
    "max_kv_len": (
        "max_kv_len", "max_seqlen_k", "max_k", "max_seq_len", "max_context_len", "max_seqlen", "max_seq_len_k",
    ),
    # features
    "causal": ("causal", "is_causal"),
    "window": ("window", "window_size"),
    "window_left": ("window_left", "sliding_window", "window_size", "sliding_window_size"),
    "window_tokens": ("sliding_window", "window_size", "sliding_window_size"),
    "softcap": ("softcap", "soft_cap", "logit_cap", "logits_soft_cap", "logit_softcap", "logits_softcap"),
    "alibi_slopes": ("alibi_slopes", "alibi"),
    "sinks": ("sinks", "sink", "learnable_sink", "s_aux"),
    "k_scale": ("k_scale", "k_descale", "k_scales"),
    "v_scale": ("v_scale", "v_descale", "v_scales"),
    "out": ("out", "o", "output", "attn_out", "attn_output", "o_extend"),
    "lse": ("lse", "softmax_lse", "output_lse", "out_lse", "attn_lse", "lse_extend"),
    "want_lse": ("want_lse", "return_lse", "return_softmax_lse"),
    "num_splits": ("num_splits", "num_kv_splits", "max_kv_splits", "num_split"),
    # gather, merge
    "tile_start": ("tile_start", "start"),
    "tile_end": ("tile_end", "end"),
    "state_outs": ("state_outs", "outs", "partial_outs", "v_states"),
    "state_lses": ("state_lses", "lses", "partial_lses", "s_states"),
    # numbers that the shapes hold
    "num_seqs": ("num_seqs", "batch", "batch_size", "bsz", "num_sequences"),
    "num_q_heads": ("num_q_heads", "num_heads", "num_qo_heads", "num_query_heads", "n_heads"),
    "num_kv_heads": ("num_kv_heads", "n_kv_heads", "num_key_value_heads"),
    "group": ("group", "kv_group_num", "num_queries_per_kv", "gqa_group_size", "group_size"),
    "head_dim": ("head_dim", "head_size", "d_head"),
    "block_size": ("block_size", "page_size", "kv_block_size"),
}  # fmt: skip

#: Name to the fields that it may mean, the usual one first.
FIELDS: dict[str, tuple[str, ...]] = {
    name: tuple(field for field, names in NAMES.items() if name in names) for names in NAMES.values() for name in names
}


#: New tokens, and the caches one of which has to be there beside them: `k` alone is the cache itself.
CACHES = {
    "k_new": {"k_cache", "k_slots", "kv_stacked", "kv_interleaved"},
    "v_new": {"v_cache", "v_slots", "kv_stacked", "kv_interleaved"},
}


def plain(name: str) -> str:
    """The name as the table has it: `block_table_ptr` is `block_table`."""
    return name.lower().removesuffix("_ptr").removesuffix("_tensor")


def meanings(name: str) -> tuple[str, ...]:
    """The fields that a parameter of this name may mean, the usual one first."""
    return FIELDS.get(plain(name), ())
