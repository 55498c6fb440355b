"""FlexAttention's PagedAttention: a short sequence lists page -1, and the compiled kernel visits it.

Two sequences of 20 and 100 tokens in pages of 32, and a mask without a bound of its own: `kv_len` is given to
`convert_logical_block_mask` and to `get_score_mod`. Compared with softmax(q k^T) v in float64, sequence by sequence.
Needs torch 2.13 only; compiling takes some 20 seconds on a CPU. Exits 1 where an output is wrong.
"""

import math
import sys

import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAGES, SIZE, HEADS, DIM, LENS = 6, 32, 2, 16, (20, 100)
torch.manual_seed(0)

pages = PagedAttention(n_pages=PAGES, page_size=SIZE, max_batch_size=len(LENS), device=DEVICE)
pages.empty_pages.reverse()  # so that the first sequence gets the last page
k_cache = torch.zeros(1, HEADS, PAGES * SIZE, DIM, device=DEVICE)
v_cache = torch.zeros_like(k_cache)
tokens = []
for seq, length in enumerate(LENS):
    k, v = torch.randn(2, 1, HEADS, length, DIM, device=DEVICE)
    batch = torch.tensor([seq], device=DEVICE)
    pages.reserve(batch, torch.tensor([length], device=DEVICE))
    pages.assign(batch, torch.arange(length, device=DEVICE)[None], k, v, k_cache, v_cache)
    tokens.append((k[0].double(), v[0].double()))

q = torch.randn(len(LENS), HEADS, 1, DIM, device=DEVICE)
lens = torch.tensor(LENS, device=DEVICE)
longest = -(-max(LENS) // SIZE) * SIZE


def everything(b, h, q_idx, kv_idx):
    return kv_idx >= 0


logical = create_block_mask(everything, len(LENS), None, 1, longest, device=DEVICE, BLOCK_SIZE=(128, SIZE))
physical = pages.convert_logical_block_mask(logical, kv_len=lens)
print("pages listed:", physical.kv_indices[:, 0, 0, : longest // SIZE].tolist())

wrong = False
for name, attend in (("eager", flex_attention), ("compiled", torch.compile(flex_attention))):
    out = attend(q, k_cache, v_cache, score_mod=pages.get_score_mod(None, lens), block_mask=physical)
    for seq, (k, v) in enumerate(tokens):
        scores = q[seq].double() @ k.transpose(-1, -2) / math.sqrt(DIM)
        error = (out[seq].double() - scores.softmax(-1) @ v).abs().max().item()
        print(f"{name}, {LENS[seq]} tokens: largest error {error:.2g}")
        wrong |= not error < 1e-4
sys.exit(wrong)
