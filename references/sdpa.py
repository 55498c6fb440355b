"""A witness: PyTorch's scaled_dot_product_attention in float64 by its MATH backend, one gathered sequence at a time."""

from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def declines(*, softcap: float = 0.0, sinks: object = None, want_lse: bool = False, **_: object) -> str | None:
    """Why this witness cannot answer, in words, or None: it has no softcap, no sinks and gives no lse."""
    if softcap > 0:
        return "scaled_dot_product_attention has no softcap"
    if sinks is not None:
        return "scaled_dot_product_attention has no sinks"
    return "scaled_dot_product_attention gives no lse" if want_lse else None


def attention(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool = True, window: tuple[int, int] = (-1, -1),
    alibi_slopes: Any = None,
) -> torch.Tensor:  # fmt: skip
    """Attention of one sequence in float64, out [query_len, num_q_heads, head_dim_v]; a row that sees no key gives 0.

    q [query_len, num_q_heads, head_dim], k [kv_len, num_kv_heads, head_dim], v [kv_len, num_kv_heads, head_dim_v],
    alibi_slopes [num_q_heads], tensors or NumPy arrays; causal, window and ALiBi as in the float64 reference, all in
    one explicit bias.
    """
    heads = q.shape[1]
    q, k, v = (_heads_first(_float64(x), heads) for x in (q, k, v))
    ahead = _ahead(q.shape[1], k.shape[1], q.device)
    bias = q.new_zeros(heads, *ahead.shape)
    if alibi_slopes is not None:
        bias -= _float64(alibi_slopes).to(q.device)[:, None, None] * ahead.abs()
    hidden = _hidden(ahead, causal, window)
    empty, unused = hidden.all(dim=1), hidden.all(dim=0)
    # A row that is hidden everywhere would be NaN: it is computed unmasked and then replaced by the contract's 0.
    bias.masked_fill_(hidden & ~empty[:, None], -torch.inf)
    k, v = (x.masked_fill(unused[:, None], 0.0) for x in (k, v))  # a key that nobody sees may be NaN
    if k.shape[1] == 0:
        return torch.zeros(q.shape[1], heads, v.shape[2], dtype=torch.float64, device=q.device)
    with sdpa_kernel(SDPBackend.MATH):
        out = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=bias[None], scale=scale)
    tokens_first: torch.Tensor = out[0].transpose(0, 1)
    return tokens_first.masked_fill(empty[:, None, None], 0.0)


def _float64(x: Any) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x.to(torch.float64)
    return torch.from_numpy(np.asarray(x).astype(np.float64))


def _heads_first(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[tokens, some heads, dim] as contiguous [heads, tokens, dim], key-value heads repeated over the group."""
    return x.transpose(0, 1).repeat_interleave(heads // x.shape[1], dim=0).contiguous()


def _ahead(query_len: int, kv_len: int, device: torch.device) -> torch.Tensor:
    """How far each key lies ahead of each query, [query_len, kv_len]; the last query stands at the last key."""
    position = torch.arange(kv_len - query_len, kv_len, device=device)
    return torch.arange(kv_len, device=device) - position[:, None]


def _hidden(ahead: torch.Tensor, causal: bool, window: tuple[int, int]) -> torch.Tensor:
    left, right = window
    hidden = (ahead > 0) if causal else torch.zeros_like(ahead, dtype=torch.bool)
    hidden = hidden | (ahead < -left) if left >= 0 else hidden
    return hidden | (ahead > right) if right >= 0 else hidden
