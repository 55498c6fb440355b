"""vLLM 0.33.0: decode_attention_fwd with as many query heads as KV heads sums q·k in the type of q.

python vllm_scores_in_16_bits.py    needs a GPU; 64 tokens, heads of 256
"""

import torch
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, DIM, HEADS, SPLITS = 64, 256, 4, 2


def compare(dtype: torch.dtype, kv_heads: int, mean: float) -> None:
    """Print how far output and lse are from plain attention in float64 over the same numbers.

    q and K have a mean, as they may where a projection has a bias.
    """
    torch.manual_seed(1)
    q = (torch.randn(1, HEADS, DIM) + mean).to(dtype).to(DEVICE)
    k = (torch.randn(TOKENS, kv_heads, DIM) + mean).to(dtype).to(DEVICE)
    v = torch.randn(TOKENS, kv_heads, DIM).to(dtype).to(DEVICE)
    out, lse = torch.empty_like(q), torch.empty(1, HEADS, device=DEVICE)
    blocks = [x.view(4, 16, kv_heads, DIM) for x in (k, v)]
    table = torch.arange(4, dtype=torch.int32, device=DEVICE)[None]
    lens = torch.tensor([TOKENS], dtype=torch.int32, device=DEVICE)
    scratch = torch.empty(1, HEADS, SPLITS, DIM + 1, device=DEVICE)
    decode_attention_fwd(q, *blocks, out, lse, table, lens, scratch, SPLITS, DIM**-0.5, 16)

    k64, v64 = (x.double().repeat_interleave(HEADS // kv_heads, dim=1) for x in (k, v))
    products = torch.einsum("hd,thd->ht", q[0].double(), k64)
    right = torch.einsum("ht,thd->hd", (products * DIM**-0.5).softmax(dim=1), v64)
    right_lse = (products * DIM**-0.5).logsumexp(dim=1)
    error, lse_error = (out[0].double() - right).abs().max(), (lse[0].double() - right_lse).abs().max()
    print(f"{dtype!s:14} {HEADS} heads over {kv_heads}: |q·k| up to {products.abs().max():8.1f},", end=" ")
    print(f"error of out {error:.2g}, of lse {lse_error:.2g}")


for dtype in (torch.float16, torch.bfloat16):
    for mean in (0.0, 4.0, 16.0):
        compare(dtype, HEADS, mean)
        compare(dtype, HEADS // 2, mean)
