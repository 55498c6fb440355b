"""A witness: decode over the paged cache by flash-attn on a GPU, or by the flash attention that PyTorch brings."""

import importlib.util
import inspect

import torch

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
EMPTY_ROW = "flash attention leaves a sequence without keys unspecified"


def available() -> str | None:
    """None where this witness can run, else why not, in words."""
    if not torch.cuda.is_available():
        return "not available: flash attention needs a CUDA GPU"
    return (
        None if _installed() or _torch_takes_blocks() else "not available: no flash-attn, and torch is older than 2.13"
    )


def declines(
    *, dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int, head_dim_v: int, block_size: int, shortest: int,
    query_len: int = 1, softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None, **_: object,
) -> str | None:  # fmt: skip
    """Why this witness cannot answer, in words, or None; `shortest` is the least kv_len of the batch."""
    own = not _installed()
    reasons = {
        "flash attention here is for one query token per sequence": query_len != 1,
        f"flash attention takes float16 and bfloat16, not {dtype}": dtype not in SIXTEEN_BITS,
        "flash attention here takes a cache of q's type": kv_dtype != dtype,
        "flash attention takes one head_dim, a multiple of 8 up to 256": (
            head_dim != head_dim_v or head_dim % 8 != 0 or head_dim > 256
        ),
        "flash attention takes blocks of a multiple of 256 slots": block_size % 256 != 0,
        "flash-attn has no sinks": sinks is not None,
        "torch's flash attention has no softcap": own and softcap > 0,
        "torch's flash attention has no ALiBi": own and alibi_slopes is not None,
        EMPTY_ROW: shortest < 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_tables: torch.Tensor, kv_lens: torch.Tensor, *,
    scale: float, window: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Decode: out [sequences, num_q_heads, head_dim] in q's type and the natural-log lse [sequences, num_q_heads].

    q [sequences, num_q_heads, head_dim], caches [num_blocks, block_size, num_kv_heads, head_dim], block_tables
    [sequences, columns], kv_lens [sequences]; all on one CUDA device. Raises RuntimeError where not available.
    """
    missing = available()
    if missing:
        raise RuntimeError(missing)
    tables, lens = block_tables.clamp(min=0).to(torch.int32), kv_lens.to(torch.int32)
    sides = (window[0], 0)  # the only query is the last token: nothing lies to its right
    if not _installed():
        return _by_torch(q, k_cache, v_cache, tables, lens, scale, sides)
    from flash_attn import flash_attn_with_kvcache

    slopes = None if alibi_slopes is None else alibi_slopes.to(torch.float32)
    out, lse = flash_attn_with_kvcache(
        q[:, None], k_cache, v_cache, cache_seqlens=lens, block_table=tables, softmax_scale=scale, causal=True,
        window_size=sides, softcap=softcap, alibi_slopes=slopes, return_softmax_lse=True,
    )  # fmt: skip
    return out[:, 0], lse[:, :, 0]


def _by_torch(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, tables: torch.Tensor, lens: torch.Tensor,
    scale: float, sides: tuple[int, int],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    out, lse = varlen_attn(
        q, k_cache, v_cache, starts, None, 1, tables.shape[1] * k_cache.shape[1], scale=scale, window_size=sides,
        enable_gqa=q.shape[1] != k_cache.shape[2], seqused_k=lens, block_table=tables,
        return_aux=AuxRequest(lse=True),
    )  # fmt: skip
    return out, lse if lse.shape == out.shape[:2] else lse.T


def _installed() -> bool:
    """Whether the package is there: this file has its name, but is loaded by path and under another."""
    return importlib.util.find_spec("flash_attn") is not None


def _torch_takes_blocks() -> bool:
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    return "block_table" in inspect.signature(varlen_attn).parameters
