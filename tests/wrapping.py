"""Functions as other people write them, in torch, for tests of what `--wrap` makes of their parameters."""

#: Each attends by the cache of block ids and offsets that its own conventions lead to.
THEIRS = '''
import torch
import triton

RUN_BY_THE_COMMAND = open(__file__ + ".ran", "w").close()


def attend(q, k, v, scale):
    """One query [heads, dim] over K and V [tokens, kv_heads, dim]."""
    k, v = (x.double().repeat_interleave(q.shape[0] // k.shape[1], dim=1) for x in (k, v))
    if not len(k):
        return torch.zeros_like(q)
    p = torch.softmax((q.double() * k).sum(2) * scale, 0)
    return (p[:, :, None] * v).sum(0).to(q.dtype)


def rows(table, length, size):
    token = torch.arange(length)
    return table[token // size].long(), token % size


def paged_attention(query, key_cache, value_cache, block_tables, context_lens, sm_scale=None, num_warps=4):
    """As vLLM and tutorials have it."""
    found = torch.empty_like(query)
    for i, length in enumerate(context_lens.tolist()):
        at = rows(block_tables[i], length, key_cache.shape[1])
        found[i] = attend(query[i], key_cache[at], value_cache[at], sm_scale)
    return found


def one_cache(q, kv_cache, page_table, cache_seqlens, softmax_scale, out):
    """K and V in one tensor, the output given: [2, blocks, ...]."""
    out.copy_(paged_attention(q, kv_cache[0], kv_cache[1], page_table, cache_seqlens, softmax_scale))


def turned(q, kv_cache, page_table, cache_seqlens, softmax_scale):
    """The same, [blocks, 2, ...]."""
    return paged_attention(q, kv_cache[:, 0], kv_cache[:, 1], page_table, cache_seqlens, softmax_scale)


def by_slots(q, k_buffer, v_buffer, o, kv_indptr, kv_indices, sm_scale, *, BLOCK):
    """As SGLang has it: a list of slots."""
    assert BLOCK == 64
    for i in range(len(q)):
        at = kv_indices[kv_indptr[i] : kv_indptr[i + 1]].long()
        o[i] = attend(q[i], k_buffer[at], v_buffer[at], sm_scale)


def by_pages(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
    """As FlashInfer has it: a list of pages."""
    found, size = torch.empty_like(q), k_cache.shape[1]
    for i in range(len(q)):
        table = kv_indices[kv_indptr[i] : kv_indptr[i + 1]]
        at = rows(table, max(len(table) - 1, 0) * size + int(kv_last_page_len[i]), size)
        found[i] = attend(q[i], k_cache[at], v_cache[at], sm_scale)
    return found


def varlen(q, k, v, cu_seqlens_q, seqused_k, softmax_scale, causal, block_table):
    """As flash-attn has it."""
    found = torch.zeros_like(q)
    for i, length in enumerate(seqused_k.tolist()):
        first, last = cu_seqlens_q[i : i + 2].tolist()
        for token in range(first, last):
            seen = length - (last - 1 - token) if causal else length
            at = rows(block_table[i], max(seen, 0), k.shape[1])
            found[token] = attend(q[token], k[at], v[at], softmax_scale)
    return found


def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    """As nano-vllm has it."""
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            at = slot // k_cache.shape[1], slot % k_cache.shape[1]
            k_cache[at], v_cache[at] = key[token], value[token]


@triton.jit
def kernel(q_ptr): ...


def puzzling(q, k_cache, v_cache, block_table, seq_lens, sliding_window, mystery, scale): ...
'''
