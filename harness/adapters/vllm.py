"""vLLM's Triton kernels over a paged cache."""

import enum
from types import SimpleNamespace
from typing import Any

from harness.adapters.adapter import Project, Stubs


def _stubs() -> Stubs:
    """What the kernels ask of vLLM; the platform is an NVIDIA GPU of the Hopper generation."""
    import logging

    import torch
    import triton
    import triton.language as tl

    class KVQuantMode(enum.IntEnum):
        NONE = 0
        FP8_PER_TENSOR = 1
        INT8_PER_TOKEN_HEAD = 2
        FP8_PER_TOKEN_HEAD = 3
        INT4_PER_TOKEN_HEAD = 4

    platform = SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        is_cuda=lambda: True,
        has_device_capability=lambda wanted: wanted <= 90,
        get_device_capability=lambda: (9, 0),
        is_device_capability_family=lambda family: family == 90,
    )
    return {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": KVQuantMode},
    }


VLLM = Project("vllm", "vllm", "vllm", ">=0.33,<0.34", "https://github.com/vllm-project/vllm", stubs=_stubs)


@VLLM.adapter(
    {
        "vllm.v1.attention.ops.triton_unified_attention:unified_attention": (
            "q k v out cu_seqlens_q max_seqlen_q seqused_k max_seqlen_k softmax_scale causal window_size block_table "
            "softcap q_descale k_descale v_descale alibi_slopes sinks"
        )
    },
    op="extend",
    not_drawn=("tree masks (qq_bias)",),
    window=True,
    softcap=True,
    alibi=True,
    sinks=True,
    out=True,
    dtypes=("float16", "bfloat16"),
    q_layouts=("contiguous",),
)
def unified_attention(kernel: Any, inputs: Any) -> Any:
    """The unsplit kernel (2D)."""
    out = inputs.q.new_empty(*inputs.q.shape[:2], inputs.v_cache.shape[3]) if inputs.out is None else inputs.out
    kernel(
        q=inputs.q,
        k=inputs.k_cache,
        v=inputs.v_cache,
        out=out,
        cu_seqlens_q=inputs.query_starts,
        max_seqlen_q=inputs.max_query_len,
        seqused_k=inputs.kv_lens,
        max_seqlen_k=inputs.max_kv_len,
        softmax_scale=inputs.scale,
        causal=inputs.causal,
        window_size=inputs.window,
        block_table=inputs.block_tables,
        softcap=inputs.softcap,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        alibi_slopes=inputs.alibi_slopes,
        sinks=inputs.sinks,
    )
    return out
