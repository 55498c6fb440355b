"""SGLang 0.5.23: xai_temperature_len means something else in the one-stage kernel than in the other two.

python sglang_temperature.py    sglang from a wheel
"""

import math

import torch
from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd, extend_attention_fwd_unified

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM, TOKENS, LENGTH = 64, 33, 4  # the last token is at position 32
torch.manual_seed(0)
q = torch.randn(1, 1, DIM, dtype=torch.float16, device=DEVICE)
k, v = (torch.randn(TOKENS, 1, DIM, dtype=torch.float16, device=DEVICE) for _ in range(2))
slots = torch.arange(TOKENS, device=DEVICE)


def starts(tokens: int) -> torch.Tensor:
    return torch.tensor([0, tokens], dtype=torch.int32, device=DEVICE)


def expected(factor: float) -> torch.Tensor:
    scores = (k[:, 0].double() @ q[0, 0].double()) / DIM**0.5 * factor
    return scores.softmax(0) @ v[:, 0].double()


decode, two_stages, one_stage = (torch.empty_like(q) for _ in range(3))
partial, lses = torch.empty(1, 1, 1, DIM, device=DEVICE), torch.empty(1, 1, 1, device=DEVICE)
splits = torch.ones(1, dtype=torch.int32, device=DEVICE)
decode_attention_fwd(
    q, k, v, decode, starts(TOKENS), slots, partial, lses, splits, 1, DIM**-0.5, 1.0, 1.0, xai_temperature_len=LENGTH
)
extend_attention_fwd(
    q, k[-1:], v[-1:], two_stages, k, v, starts(1), starts(TOKENS - 1), slots[:-1], None, True, None, 1, 1.0, 1.0,
    xai_temperature_len=LENGTH,
)  # fmt: skip
extend_attention_fwd_unified(
    q,
    one_stage,
    k,
    v,
    1.0,
    1.0,
    starts(1),
    starts(TOKENS),
    slots,
    starts(TOKENS - 1)[1:],
    1,
    xai_temperature_len=LENGTH,
)
log, ratio = math.log2(TOKENS - 1) / math.log2(LENGTH), LENGTH / TOKENS
for name, out in (("decode", decode), ("extend, two stages", two_stages), ("extend, one stage", one_stage)):
    errors = [(out[0, 0].double() - expected(factor)).abs().max().item() for factor in (log, ratio)]
    print(f"{name}: error {errors[0]:.2g} for a factor of log2(32) / log2(4), {errors[1]:.2g} for one of 4 / 33")
