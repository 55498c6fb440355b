"""vLLM 0.33.0: unified_attention with a window and a multimodal prefix range takes V behind the window for 0.

python vllm_window_with_mm_prefix.py    needs a GPU; one sequence, one range longer than the window
"""

import torch
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, DIM, BLOCK, WINDOW, RANGE = 40, 64, 16, 3, (2, 37)
HALF = {"dtype": torch.float16, "device": DEVICE}


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


torch.manual_seed(0)
q = torch.randn(TOKENS, 1, DIM, **HALF)
k, v = torch.randn(8, BLOCK, 1, DIM, **HALF), torch.randn(8, BLOCK, 1, DIM, **HALF)
out = torch.empty_like(q)
unified_attention(
    q=q, k=k, v=v, out=out, cu_seqlens_q=ints(0, TOKENS), max_seqlen_q=TOKENS, seqused_k=ints(TOKENS),
    max_seqlen_k=TOKENS, softmax_scale=DIM**-0.5, causal=True, window_size=(WINDOW, 0),
    block_table=torch.arange(8, dtype=torch.int32, device=DEVICE)[None], softcap=0.0,
    q_descale=None, k_descale=None, v_descale=None, mm_prefix_range=ints(*RANGE)[None, None],
)  # fmt: skip

position = torch.arange(TOKENS, device=DEVICE)
behind = position[:, None] - position[None, :]
inside = (position >= RANGE[0]) & (position <= RANGE[1])
seen = ((behind >= 0) & (behind <= WINDOW)) | (inside[:, None] & inside[None, :])
scores = q[:, 0].double() @ k.flatten(0, 1)[:TOKENS, 0].double().T * DIM**-0.5
weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=1)
values = v.flatten(0, 1)[:TOKENS, 0].double()
# What comes out: V counts only from WINDOW keys before the first query of each tile of 16.
counted = position[:, None] // 16 * 16 - position[None, :] <= WINDOW
print(f"largest error: {(out[:, 0].double() - weights @ values).abs().max():.2g}")
as_if = (weights * counted) @ values
print(f"largest difference from the supposed cause: {(out[:, 0].double() - as_if).abs().max():.2g}")
