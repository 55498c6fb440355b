"""SGLang 0.5.23: rows of q that lie 2**31 elements from the first are not the ones that are read.

python sglang_far_rows.py    needs 5 GiB on a GPU; sglang from a wheel
"""

import torch
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd, extend_attention_fwd_unified

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM, TOKENS, STRIDE = 64, 3, 2**30


def far_rows() -> torch.Tensor:
    """[3, 1, 64] with 2**30 elements from row to row: the last row begins at 2**31."""
    memory = torch.empty((TOKENS - 1) * STRIDE + DIM, dtype=torch.float16, device=DEVICE)
    return memory.as_strided((TOKENS, 1, DIM), (STRIDE, DIM, 1))


torch.manual_seed(0)
near = torch.randn(TOKENS, 1, DIM, dtype=torch.float16, device=DEVICE)
k, v = (torch.randn(TOKENS, 1, DIM, dtype=torch.float16, device=DEVICE) for _ in range(2))
q = far_rows()
q.copy_(near)
ends = torch.tensor([0, TOKENS], dtype=torch.int32, device=DEVICE)
slots = torch.arange(TOKENS, device=DEVICE)
none = torch.zeros(2, dtype=torch.int32, device=DEVICE)

two_stages, one_stage = (torch.full((TOKENS, 1, DIM), float("nan"), dtype=torch.float16, device=DEVICE) for _ in "12")
extend_attention_fwd(q, k, v, two_stages, k, v, ends, none, slots[:0], None, True, None, TOKENS, 1.0, 1.0)
extend_attention_fwd_unified(q, one_stage, k, v, 1.0, 1.0, ends, ends, slots, none[:1], TOKENS)

scores = (near[:, 0].double() @ k[:, 0].double().T) / DIM**0.5
scores += torch.full_like(scores, float("-inf")).triu(1)
expected = scores.softmax(1) @ v[:, 0].double()
for name, out in (("extend_attention_fwd", two_stages), ("extend_attention_fwd_unified", one_stage)):
    error = (out[:, 0].double() - expected).abs().amax(1)
    print(f"{name}: largest error of each row {[f'{e:.2g}' for e in error.tolist()]}")
