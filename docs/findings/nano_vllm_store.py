"""nano-vllm 0.2.0: what store_kvcache does with far slots and with K and V that take turns in one buffer.

python nano_vllm_store.py    needs 5 GiB on a GPU; nano-vllm and flash-attn, or a checkout of nano-vllm on PYTHONPATH
"""

import torch
from nanovllm.layers.attention import store_kvcache

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE, HEADS, DIM = 256, 8, 128
torch.manual_seed(0)
k, v = (torch.randn(1, HEADS, DIM, dtype=torch.float16, device=DEVICE) for _ in range(2))

pairs = torch.zeros(2, 2, SIZE, HEADS, DIM, dtype=torch.float16, device=DEVICE)  # [blocks, K or V, ...]
k_cache, v_cache = pairs[:, 0], pairs[:, 1]
store_kvcache(k, v, k_cache, v_cache, torch.tensor([SIZE], dtype=torch.int32, device=DEVICE))
print(f"K and V in turns, slot 0 of block 1 has its K: {torch.equal(k_cache[1, 0], k[0])}")
print(f"K and V in turns, slot 0 of block 0, which is another's, has V as it was: {not v_cache[0, 0].any()}")

blocks = 2**31 // (SIZE * HEADS * DIM) + 1
cache = torch.zeros(blocks, SIZE, HEADS, DIM, dtype=torch.float16, device=DEVICE)
for dtype in (torch.int64, torch.int32):
    cache[-1, 0] = 0
    store_kvcache(k, k, cache, cache, torch.tensor([(blocks - 1) * SIZE], dtype=dtype, device=DEVICE))
    if DEVICE == "cuda":
        torch.cuda.synchronize()  # an illegal access shows here
    print(f"a slot of {dtype} 2**31 elements from the first is written: {torch.equal(cache[-1, 0], k[0])}")
