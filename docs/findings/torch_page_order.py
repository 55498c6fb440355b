"""FlexAttention's PagedAttention in eager mode: the last bits of an output depend on which pages a sequence has.

One sequence of 60 tokens in four pages, in their order and in reverse. Needs torch 2.13 only.
Exits 1 where bits differ.
"""

import sys

import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAGES, SIZE, LENGTH, DIM = 4, 16, 60, 16
torch.manual_seed(0)
k, v = torch.randn(2, 1, 1, LENGTH, DIM, device=DEVICE)
q = torch.randn(1, 1, 1, DIM, device=DEVICE)
batch, lens = torch.tensor([0], device=DEVICE), torch.tensor([LENGTH], device=DEVICE)


def bounded(b, h, q_idx, kv_idx):
    return kv_idx < LENGTH


def attended(order):
    """The output with the pages of the sequence in this order."""
    pages = PagedAttention(n_pages=PAGES, page_size=SIZE, max_batch_size=1, device=DEVICE)
    pages.empty_pages = list(order)
    pages.reserve(batch, lens)
    k_cache = torch.zeros(1, 1, PAGES * SIZE, DIM, device=DEVICE)
    v_cache = torch.zeros_like(k_cache)
    pages.assign(batch, torch.arange(LENGTH, device=DEVICE)[None], k, v, k_cache, v_cache)
    logical = create_block_mask(bounded, 1, None, 1, PAGES * SIZE, device=DEVICE, BLOCK_SIZE=(128, SIZE))
    physical = pages.convert_logical_block_mask(logical, kv_len=lens)
    return flex_attention(q, k_cache, v_cache, score_mod=pages.get_score_mod(None, lens), block_mask=physical)


first, second = attended(range(PAGES)), attended(reversed(range(PAGES)))
moved = (first - second).abs()
print(f"{int((moved > 0).sum())} of {first.numel()} elements differ, by {moved.max():.2g} at most")
sys.exit(not torch.equal(first, second))
