"""SGLang 0.5.23: the lse of extend_attention_fwd is inf where a sink is 89 or more above every score.

python sglang_sink_lse.py    sglang from a wheel
"""

import torch
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM = 64
q = torch.zeros(1, 1, DIM, dtype=torch.float16, device=DEVICE)
k, v = torch.zeros_like(q), torch.ones_like(q)
q[..., 0], k[..., 0] = 1.0, -1.0
ends = torch.tensor([0, 1], dtype=torch.int32, device=DEVICE)
none = torch.zeros(2, dtype=torch.int32, device=DEVICE)
slots = torch.empty(0, dtype=torch.int64, device=DEVICE)

for scale in (80.0, 88.0, 89.0, 200.0):
    out, lse = torch.empty_like(q), torch.empty(1, 1, device=DEVICE)
    sinks = torch.zeros(1, device=DEVICE)
    extend_attention_fwd(
        q,
        k,
        v,
        out,
        k,
        v,
        ends,
        none,
        slots,
        None,
        True,
        None,
        1,
        1.0,
        1.0,
        sm_scale=scale,
        sinks=sinks,
        lse_extend=lse,
    )
    score = (q.double() @ k.double().transpose(1, 2)).item() * scale
    expected = torch.logsumexp(torch.tensor([score, 0.0], dtype=torch.float64), 0).item()
    print(f"score {score}, sink 0: lse is {lse.item()}, but should be {expected:.3g}")
