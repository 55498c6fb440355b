"""Flash attention 2 and 3 over a paged cache, as subjects: CUDA kernels. Those of version 2 were not run yet.

`references/flash_attn.py` is another thing: there flash-attn, where it is installed, is a witness that is asked about
single cases of other subjects. Here it is what is tested. The two share no code.
"""

from typing import Any

from harness.adapters.adapter import Project
from harness.adapters.translate import dense, starts_of, token_slots
from harness.case import Case

URL = "https://github.com/Dao-AILab/flash-attention"
FA2 = Project("flash_attn", "flash_attn", "flash-attn", ">=2.7,<3", URL)
FA3 = Project(
    "flash_attn", "flash_attn_interface", "flash_attn_3", ">=3.0.0b1,<4", URL,
    also=("tokenspeed-fa3",),  # the same sources, built by others, with a wheel in the package index
)  # fmt: skip

_CUDA = "CUDA kernels"
_NOT_RUN = f"{_CUDA}; this adapter was written from their signatures and has not been run on a GPU yet"
_MASK = "softmax_scale causal window_size softcap"
_DECLARED: dict[str, Any] = {
    "window": True,
    "softcap": True,
    "lse": True,
    "dtypes": ("float16", "bfloat16"),
    "q_layouts": ("contiguous", "fused_qkv"),
    "table_dtypes": ("int32",),
    "executors": ("gpu",),
    "corners": {"executors": _CUDA},
}
_FA2: dict[str, Any] = _DECLARED | {
    "corners": {"executors": _NOT_RUN},
    "alibi": True,
    "head_dims": (16, 32, 40, 64, 72, 80, 96, 128, 192, 256),
}
_BY_256: dict[str, Any] = {
    "block_sizes": (256,),
    "corners": {"block_sizes": "its pages are multiples of 256 tokens, as its docstring says", "executors": _NOT_RUN},
}


def _masked(inputs: Any) -> dict[str, Any]:
    """Both sides of a window are counts of tokens beside one's own, as ours; causal takes the right one away."""
    return {
        "softmax_scale": inputs.scale,
        "causal": inputs.causal,
        "window_size": inputs.window,
        "softcap": inputs.softcap,
    }


def _packed(inputs: Any) -> dict[str, Any]:
    return {
        "q": inputs.q,
        "cu_seqlens_q": inputs.query_starts,
        "max_seqlen_q": inputs.max_query_len,
        "max_seqlen_k": inputs.max_kv_len,
    }


def _by_rows(returned: Any, inputs: Any) -> Any:
    """The output, and the lse [heads, tokens] as [tokens, heads]."""
    if not inputs.want_lse:
        return returned[0] if isinstance(returned, tuple) else returned
    return returned[0], returned[1].T.contiguous()


@FA2.adapter(
    {
        "flash_attn.flash_attn_interface:flash_attn_with_kvcache": (
            f"q k_cache v_cache cache_seqlens block_table {_MASK} alibi_slopes num_splits return_softmax_lse"
        )
    },
    op="decode",
    not_drawn=("new tokens that the kernel appends", "rotary", "cache_batch_idx", "cache_leftpad"),
    splits=True,
    padding_rows=True,
    **_FA2 | _BY_256,
)
def decode(kernel: Any, inputs: Any) -> Any:
    """Flash attention 2 with a cache: one query per sequence, lse [seqs, heads, 1]."""
    out, lse = kernel(
        q=inputs.q[:, None],
        k_cache=inputs.k_cache,
        v_cache=inputs.v_cache,
        cache_seqlens=inputs.kv_lens,
        block_table=inputs.block_tables,
        alibi_slopes=inputs.alibi_slopes,
        num_splits=inputs.hints.num_splits,
        return_softmax_lse=True,
        **_masked(inputs),
    )
    return (out[:, 0], lse[:, :, 0].contiguous()) if inputs.want_lse else out[:, 0]


_VARLEN = "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"


@FA2.adapter(
    {
        "flash_attn.flash_attn_interface:flash_attn_varlen_func": (
            f"{_VARLEN} {_MASK} alibi_slopes return_attn_probs block_table"
        )
    },
    op="extend",
    not_drawn=("dropout",),
    non_causal=True,
    padding_rows=True,
    **_FA2 | _BY_256,
)
def varlen(kernel: Any, inputs: Any) -> Any:
    """Flash attention 2 on packed rows, K and V in pages."""
    returned = kernel(
        k=inputs.k_cache,
        v=inputs.v_cache,
        cu_seqlens_k=starts_of(inputs.kv_lens),
        alibi_slopes=inputs.alibi_slopes,
        return_attn_probs=inputs.want_lse,
        block_table=inputs.block_tables,
        **_packed(inputs),
        **_masked(inputs),
    )
    return _by_rows(returned, inputs)


@FA2.adapter(
    {"flash_attn.flash_attn_interface:flash_attn_varlen_func": (f"{_VARLEN} {_MASK} alibi_slopes return_attn_probs")},
    op="extend",
    not_drawn=("dropout", "pages: K and V are gathered before the call"),
    non_causal=True,
    padding_rows=True,
    **_FA2,
)
def varlen_gathered(kernel: Any, inputs: Any) -> Any:
    """Flash attention 2 on packed rows without a block table: the adapter gathers K and V."""
    starts, slots = token_slots(inputs.block_tables, inputs.k_cache.shape[1], inputs.kv_lens)
    returned = kernel(
        k=dense(inputs.k_cache, slots),
        v=dense(inputs.v_cache, slots),
        cu_seqlens_k=starts,
        alibi_slopes=inputs.alibi_slopes,
        return_attn_probs=inputs.want_lse,
        **_packed(inputs),
        **_masked(inputs),
    )
    return _by_rows(returned, inputs)


def _not_built(case: Case) -> str | None:
    """Builds leave out what their setup was told to."""
    from flash_attn_config import CONFIG

    if case.softcap > 0 and CONFIG["build_flags"]["FLASHATTENTION_DISABLE_SOFTCAP"]:
        return "this build of flash attention 3 has no softcap: it was made with FLASHATTENTION_DISABLE_SOFTCAP"
    return None


_ALIGNED: dict[str, Any] = {
    "head_dims": (64, 96, 128, 192, 256),
    "layouts": ("nhd", "hnd", "kv_stacked", "kv_interleaved"),
    "corners": {
        "executors": _CUDA,
        "layouts": "rows of K and V are read in pieces of 16 bytes: between two of them is a misaligned address",
    },
}


@FA3.adapter(
    {
        "flash_attn_interface:flash_attn_with_kvcache": (
            f"q k_cache v_cache cache_seqlens page_table cu_seqlens_q max_seqlen_q {_MASK} num_splits "
            "return_softmax_lse"
        )
    },
    op="extend",
    not_drawn=(
        "new tokens that the kernel appends", "rotary", "qv", "FP8", "cache_batch_idx", "cache_leftpad",
        "attention_chunk",
    ),
    limits=_not_built,
    splits=True,
    non_causal=True,
    padding_rows=True,
    **_DECLARED | _ALIGNED,
)  # fmt: skip
def fa3_paged(kernel: Any, inputs: Any) -> Any:
    """Flash attention 3 with a cache of pages of any size; packed queries."""
    returned = kernel(
        q=inputs.q,
        k_cache=inputs.k_cache,
        v_cache=inputs.v_cache,
        cache_seqlens=inputs.kv_lens,
        page_table=inputs.block_tables,
        cu_seqlens_q=inputs.query_starts,
        max_seqlen_q=inputs.max_query_len,
        num_splits=inputs.hints.num_splits,
        return_softmax_lse=inputs.want_lse,
        **_masked(inputs),
    )
    return _by_rows(returned, inputs)


@FA3.adapter(
    {"flash_attn_interface:flash_attn_varlen_func": f"{_VARLEN} {_MASK} return_attn_probs"},
    op="extend",
    not_drawn=("pages: K and V are gathered before the call", "qv", "FP8", "attention_chunk"),
    limits=_not_built,
    non_causal=True,
    padding_rows=True,
    **_DECLARED | {"head_dims": (64, 96, 128, 192, 256)},
)
def fa3_gathered(kernel: Any, inputs: Any) -> Any:
    """Flash attention 3 on packed rows: the adapter gathers K and V."""
    starts, slots = token_slots(inputs.block_tables, inputs.k_cache.shape[1], inputs.kv_lens)
    returned = kernel(
        k=dense(inputs.k_cache, slots),
        v=dense(inputs.v_cache, slots),
        cu_seqlens_k=starts,
        return_attn_probs=inputs.want_lse,
        **_packed(inputs),
        **_masked(inputs),
    )
    return _by_rows(returned, inputs)
