"""FlexAttention's PagedAttention in eager mode: NaN in a page that is nobody's reaches every output.

One sequence of 20 tokens in two of three pages; the third page holds NaN, as memory of an earlier tensor may.
Compared with the same call on a pool whose third page holds 0. Needs torch 2.13 only. Exits 1 where the two differ.
"""

import sys

import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAGES, SIZE, LENGTH, DIM = 3, 16, 20, 16
torch.manual_seed(0)
k, v = torch.randn(2, 1, 1, LENGTH, DIM, device=DEVICE)
q = torch.randn(1, 1, 1, DIM, device=DEVICE)
batch, lens = torch.tensor([0], device=DEVICE), torch.tensor([LENGTH], device=DEVICE)


def bounded(b, h, q_idx, kv_idx):
    return kv_idx < LENGTH


def attended(held):
    """The output with `held` in every slot that was never assigned."""
    pages = PagedAttention(n_pages=PAGES, page_size=SIZE, max_batch_size=1, device=DEVICE)
    pages.reserve(batch, lens)
    k_cache = torch.full((1, 1, PAGES * SIZE, DIM), held, device=DEVICE)
    v_cache = k_cache.clone()
    pages.assign(batch, torch.arange(LENGTH, device=DEVICE)[None], k, v, k_cache, v_cache)
    logical = create_block_mask(bounded, 1, None, 1, 2 * SIZE, device=DEVICE, BLOCK_SIZE=(128, SIZE))
    physical = pages.convert_logical_block_mask(logical, kv_len=lens)
    return flex_attention(q, k_cache, v_cache, score_mod=pages.get_score_mod(None, lens), block_mask=physical)


clean, stale = attended(0.0), attended(float("nan"))
print(f"with 0: {int(clean.isnan().sum())} NaN of {clean.numel()}; with NaN: {int(stale.isnan().sum())}")
sys.exit(not torch.equal(clean, stale))
