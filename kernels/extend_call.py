"""What a call of `paged_extend` must be like: what its wrapper refuses, and what only the values tell."""

import itertools

import torch
from decode import (
    INDEX_DTYPES,
    check_block_ids,
    check_dtype,
    check_dtypes,
    check_heads,
    check_lens,
    check_rank,
    check_shape,
    window_start,
)

# --- what the wrapper refuses ------------------------------------------------------------------------------------


def check_paged(q, k_cache, v_cache, block_tables, query_starts, kv_lens):
    check_shapes(q, k_cache, v_cache, block_tables, query_starts, kv_lens)
    check_dtypes(q, k_cache, v_cache, block_tables, kv_lens)
    check_dtype("query_starts", query_starts, INDEX_DTYPES)


def check_shapes(q, k_cache, v_cache, block_tables, query_starts, kv_lens):
    check_rank("q", q, "[tokens, num_q_heads, head_dim]")
    check_rank("k_cache", k_cache, "[num_blocks, block_size, num_kv_heads, head_dim]")
    check_rank("v_cache", v_cache, "[num_blocks, block_size, num_kv_heads, head_dim_v]")
    check_rank("block_tables", block_tables, "[num_seqs, columns]")
    num_seqs = len(block_tables)
    check_shape("k_cache", k_cache, (*k_cache.shape[:3], q.shape[2]), "to have q's head_dim")
    check_shape("v_cache", v_cache, (*k_cache.shape[:3], v_cache.shape[3]), "to be like k_cache in all but head_dim")
    check_shape("query_starts", query_starts, (num_seqs + 1,), "to have one more than block_tables has rows")
    check_shape("kv_lens", kv_lens, (num_seqs,), "to have a length per row of block_tables")
    check_heads(q.shape[1], k_cache, v_cache)


def check_new(q, v_cache, k_new, v_new):
    if (k_new is None) != (v_new is None):
        there, absent = ("v_new", "k_new") if k_new is None else ("k_new", "v_new")
        raise ValueError(f"{absent} is None, but expected a tensor as {there} is one")
    if k_new is not None:
        tokens, num_kv_heads = len(q), v_cache.shape[2]
        check_shape("k_new", k_new, (tokens, num_kv_heads, q.shape[2]), "to have q's tokens and k_cache's heads")
        check_shape("v_new", v_new, (tokens, num_kv_heads, v_cache.shape[3]), "to have q's tokens and v_cache's heads")
        check_dtype("k_new", k_new, (q.dtype,))
        check_dtype("v_new", v_new, (q.dtype,))


# --- what only the values tell -----------------------------------------------------------------------------------


def validate(inputs):
    """Refuse starts, lengths and block ids that point outside; reads the values, so a GPU has to be waited for."""
    num_blocks, block_size = inputs.k_cache.shape[:2]
    check_query_starts(inputs.query_starts, len(inputs.q), inputs.max_query_len)
    lens = paged_lens(inputs.kv_lens, inputs.query_starts, inputs.k_new)
    check_lens(lens, inputs.block_tables.shape[1] * block_size)
    first_keys = window_start(inputs.kv_lens - inputs.query_starts.diff(), inputs.window)
    check_block_ids(inputs.block_tables, lens, block_size, num_blocks, first_keys)


def paged_lens(kv_lens, query_starts, k_new):
    """How many tokens of each sequence are in the cache; a negative kv_len stays one."""
    if k_new is None:
        return kv_lens
    new = query_starts.diff()
    return torch.where(kv_lens > new, kv_lens - new, kv_lens.clamp(max=0))


def check_query_starts(query_starts, tokens, max_query_len):
    starts = query_starts.tolist()
    if starts[0] != 0 or starts[-1] != tokens:
        raise ValueError(f"query_starts go from {starts[0]} to {starts[-1]}, but expected 0 to q's {tokens} tokens")
    for seq, (start, end) in enumerate(itertools.pairwise(starts)):
        if end < start:
            raise ValueError(f"query_starts[{seq + 1}] is {end}, but expected at least the {start} before it")
        if max_query_len is not None and end - start > max_query_len:
            raise ValueError(f"max_query_len is {max_query_len}, but sequence {seq} has {end - start} new tokens")
