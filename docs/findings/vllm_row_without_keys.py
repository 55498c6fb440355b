"""vLLM 0.33.0: decode_attention_fwd writes NaN for a sequence of length 0.

python vllm_row_without_keys.py    needs a GPU

triton_mla.py clamps the lengths of padding rows at 0 and says that the kernel skips them.
"""

import torch
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LATENT, ROPE, HEADS, SPLITS = 512, 64, 16, 4

torch.manual_seed(0)
cache = torch.randn(2, 16, 1, LATENT + ROPE, device=DEVICE).bfloat16()
q = torch.randn(2, HEADS, LATENT + ROPE, device=DEVICE).bfloat16()
out, lse = torch.zeros(2, HEADS, LATENT, device=DEVICE).bfloat16(), torch.zeros(2, HEADS, device=DEVICE)
table = torch.tensor([[0], [1]], dtype=torch.int32, device=DEVICE)
lens = torch.tensor([5, 0], dtype=torch.int32, device=DEVICE)
scratch = torch.empty(2, HEADS, SPLITS, LATENT + 1, device=DEVICE)
decode_attention_fwd(
    q, cache, cache[..., :LATENT], out, lse, table, lens, scratch, SPLITS, 0.1, page_size=16, is_mla=True
)
print("NaN in the row of length 5:", bool(out[0].isnan().any()))
print("NaN in the row of length 0:", f"{int(out[1].isnan().sum())} of {out[1].numel()}; lse {lse[1, 0].item()}")
