"""vLLM 0.33.0: what is read behind the end of a block table that is as wide as its sequences need.

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer python vllm_block_table_reads.py    needs a GPU

One sequence of 1 cached token and 1 new one: in blocks of 16 a row of 1 entry, where a tile of 32 tokens asks for 2; in
blocks of 1 a row of 2 entries, where it asks for 32.
"""

import torch
from vllm.v1.attention.ops.prefix_prefill import context_attention_fwd
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM = 64
HALF = {"dtype": torch.float16, "device": DEVICE}


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def ask(kv_len: int, block: int) -> None:
    """One new token, both kernels."""
    q, new = torch.randn(1, 1, DIM, **HALF), torch.randn(1, 1, DIM, **HALF)
    cache = torch.randn(4, block, 1, DIM, **HALF)
    table = ints(*range(-(-kv_len // block)))[None]
    one = torch.ones(1, device=DEVICE)
    context_attention_fwd(
        q=q, k=new, v=new, o=torch.empty_like(q), kv_cache_dtype="auto",
        k_cache=cache.unflatten(3, (-1, 8)).permute(0, 2, 3, 1, 4).contiguous(),
        v_cache=cache.permute(0, 2, 3, 1).contiguous(), b_loc=table, b_start_loc=ints(0, 1), b_seq_len=ints(kv_len),
        max_seq_len=kv_len, max_input_len=1, k_scale=one, v_scale=one,
    )  # fmt: skip
    unified_attention(
        q=q, k=cache, v=cache, out=torch.empty_like(q), cu_seqlens_q=ints(0, 1), max_seqlen_q=1,
        seqused_k=ints(kv_len), max_seqlen_k=kv_len, softmax_scale=DIM**-0.5, causal=True, window_size=(-1, -1),
        block_table=table, softcap=0.0, q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    print(f"kv_len {kv_len}, blocks of {block}: a table of {table.shape[1]} entries was used")


ask(2, 16)
ask(2, 1)
