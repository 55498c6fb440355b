"""vLLM 0.33.0: unified_attention with causal=False and a window takes V of some keys for 0.

python vllm_window_without_causality.py    needs a GPU; one sequence of 40 tokens, one head
"""

import torch
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, DIM, BLOCK, WINDOW = 40, 64, 16, 3
HALF = {"dtype": torch.float16, "device": DEVICE}


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


torch.manual_seed(0)
q = torch.randn(TOKENS, 1, DIM, **HALF)
k, v = torch.randn(8, BLOCK, 1, DIM, **HALF), torch.randn(8, BLOCK, 1, DIM, **HALF)
out = torch.empty_like(q)
unified_attention(
    q=q, k=k, v=v, out=out, cu_seqlens_q=ints(0, TOKENS), max_seqlen_q=TOKENS, seqused_k=ints(TOKENS),
    max_seqlen_k=TOKENS, softmax_scale=DIM**-0.5, causal=False, window_size=(WINDOW, WINDOW),
    block_table=torch.arange(8, dtype=torch.int32, device=DEVICE)[None], softcap=0.0,
    q_descale=None, k_descale=None, v_descale=None,
)  # fmt: skip

position = torch.arange(TOKENS, device=DEVICE)
distance = (position[:, None] - position[None, :]).abs()
scores = q[:, 0].double() @ k.flatten(0, 1)[:TOKENS, 0].double().T * DIM**-0.5
weights = scores.masked_fill(distance > WINDOW, -torch.inf).softmax(dim=1)
values = v.flatten(0, 1)[:TOKENS, 0].double()
right = weights @ values
# What comes out: V counts only up to WINDOW keys after the first query of each tile of 16.
ahead = position[None, :] - position[:, None] // 16 * 16
as_if = (weights * (ahead <= WINDOW)) @ values

error = (out[:, 0].double() - right).abs().amax(dim=1)
print("largest error of queries 0 to 15:", [f"{e:.1g}" for e in error[:16].tolist()])
print(f"largest error: {error.max():.2g}")
print(f"largest difference from the supposed cause: {(out[:, 0].double() - as_if).abs().max():.2g}")
