"""FlexAttention's PagedAttention: `erase` leaves the pages of a sequence marked as its own.

Sequence 0 has pages of 32 tokens, is erased and comes back with 20 tokens in another page, while sequence 1 has the
pages that it gave back. Compared with softmax(q k^T) v in float64. Needs torch 2.13 only; compiling takes some 20
seconds on a CPU. Exits 1 where an output is wrong.
"""

import math
import sys

import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAGES, SIZE, DIM, LENS = 6, 32, 16, (20, 20)
torch.manual_seed(0)


def tensor(number):
    return torch.tensor([number], device=DEVICE)


pages = PagedAttention(n_pages=PAGES, page_size=SIZE, max_batch_size=2, device=DEVICE)
pages.reserve(tensor(0), tensor(SIZE))
pages.erase(tensor(0))
print("pages of sequence 0 after erase:", (pages.physical_to_logical[0] >= 0).nonzero()[:, 0].tolist())
k_cache = torch.zeros(1, 1, PAGES * SIZE, DIM, device=DEVICE)
v_cache = torch.zeros_like(k_cache)
tokens = {}
for seq in (1, 0):  # sequence 1 gets the page that sequence 0 gave back
    k, v = torch.randn(2, 1, 1, LENS[seq], DIM, device=DEVICE)
    pages.reserve(tensor(seq), tensor(LENS[seq]))
    pages.assign(tensor(seq), torch.arange(LENS[seq], device=DEVICE)[None], k, v, k_cache, v_cache)
    tokens[seq] = k[0].double(), v[0].double()

q = torch.randn(2, 1, 1, DIM, device=DEVICE)
lens = torch.tensor(LENS, device=DEVICE)


def bounded(b, h, q_idx, kv_idx):
    return kv_idx < lens[b]


logical = create_block_mask(bounded, 2, None, 1, SIZE, device=DEVICE, BLOCK_SIZE=(128, SIZE))
physical = pages.convert_logical_block_mask(logical, kv_len=lens)
wrong = False
for name, attend in (("eager", flex_attention), ("compiled", torch.compile(flex_attention))):
    out = attend(q, k_cache, v_cache, score_mod=pages.get_score_mod(None, lens), block_mask=physical)
    for seq, (k, v) in sorted(tokens.items()):
        scores = q[seq].double() @ k.transpose(-1, -2) / math.sqrt(DIM)
        error = (out[seq].double() - scores.softmax(-1) @ v).abs().max().item()
        print(f"{name}, sequence {seq}: largest error {error:.2g}")
        wrong |= not error < 1e-4
sys.exit(wrong)
