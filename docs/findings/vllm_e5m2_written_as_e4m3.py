"""vLLM 0.33.0: triton_reshape_and_cache_flash writes the bytes of e4m3 into a cache of fp8_e5m2.

python vllm_e5m2_written_as_e4m3.py    needs a GPU; one token
"""

import torch
from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUMBERS = [3.5, 1.0, -2.0, 0.5]

token = torch.tensor(NUMBERS * 4, dtype=torch.float16, device=DEVICE).view(1, 1, 16)
k_cache, v_cache = (torch.zeros(1, 16, 1, 16, dtype=torch.float8_e5m2, device=DEVICE) for _ in "kv")
slot, one = torch.zeros(1, dtype=torch.int64, device=DEVICE), torch.ones(1, device=DEVICE)
triton_reshape_and_cache_flash(token, token, k_cache, v_cache, slot, "fp8_e5m2", one, one)
read = k_cache[0, 0, 0, :4]
print("written:", NUMBERS)
print("read as e5m2:", read.float().tolist())
print("read as e4m3:", read.view(torch.float8_e4m3fn).float().tolist())
