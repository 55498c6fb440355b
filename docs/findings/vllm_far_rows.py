"""vLLM 0.33.0: rows of q that lie 2**31 elements from the first are not the ones that are read.

python vllm_far_rows.py    needs 5 GiB on a GPU
"""

import torch
from vllm.v1.attention.ops.prefix_prefill import context_attention_fwd
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM, TOKENS, STRIDE = 64, 3, 2**30
HALF = {"dtype": torch.float16, "device": DEVICE}


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def report(name: str, out: torch.Tensor, right: torch.Tensor) -> None:
    error = (out[:, 0].double() - right).abs().amax(dim=1)
    print(f"{name}: largest error of each row {[f'{e:.2g}' for e in error.tolist()]}")


torch.manual_seed(0)
near = torch.randn(TOKENS, 1, DIM, **HALF)
memory = torch.empty((TOKENS - 1) * STRIDE + DIM, **HALF)
q = memory.as_strided((TOKENS, 1, DIM), (STRIDE, DIM, 1))
q.copy_(near)
k, v = torch.randn(TOKENS, 1, DIM, **HALF), torch.randn(TOKENS, 1, DIM, **HALF)
one, scale = torch.ones(1, device=DEVICE), DIM**-0.5
scores = near[:, 0].double() @ k[:, 0].double().T * scale

out = torch.empty_like(near)
empty = torch.zeros(1, 16, 1, DIM, **HALF)  # nothing is cached
context_attention_fwd(
    q=q, k=k, v=v, o=out, kv_cache_dtype="auto", k_cache=empty.unflatten(3, (-1, 8)).permute(0, 2, 3, 1, 4),
    v_cache=empty.permute(0, 2, 3, 1), b_loc=torch.zeros(1, 8, dtype=torch.int32, device=DEVICE),
    b_start_loc=ints(0, TOKENS), b_seq_len=ints(TOKENS), max_seq_len=TOKENS, max_input_len=TOKENS,
    k_scale=one, v_scale=one, sm_scale=scale,
)  # fmt: skip
hidden = torch.full_like(scores, -torch.inf).triu(1)
report("context_attention_fwd", out, (scores + hidden).softmax(dim=1) @ v[:, 0].double())

# Every row of the batch sees the same three tokens.
blocks = [torch.cat([x, x.new_zeros(16 - TOKENS, 1, DIM)])[None] for x in (k, v)]
out, lse, scratch = torch.empty_like(near), torch.empty(TOKENS, 1, device=DEVICE), torch.empty(TOKENS, 1, 1, DIM + 1)
table, lens = torch.zeros(TOKENS, 1, dtype=torch.int32, device=DEVICE), ints(*[TOKENS] * TOKENS)
decode_attention_fwd(q, *blocks, out, lse, table, lens, scratch.to(DEVICE), 1, scale, page_size=16)
report("decode_attention_fwd", out, scores.softmax(dim=1) @ v[:, 0].double())
