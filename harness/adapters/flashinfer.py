"""FlashInfer's kernels over a paged cache: CUDA, so they run on a GPU alone."""

import math
from typing import Any

from harness.adapters.adapter import Project
from harness.adapters.translate import page_lists
from harness.case import Case

FLASHINFER = Project(
    "flashinfer", "flashinfer", "flashinfer-python", ">=0.7,<0.8", "https://github.com/flashinfer-ai/flashinfer"
)

#: Bytes that its examples lend a wrapper.
WORKSPACE = 128 * 2**20

_CUDA = "CUDA kernels"
_HEAD_DIMS = (64, 128, 256)
_PLAN = "num_qo_heads num_kv_heads page_size sm_scale window_left logits_soft_cap q_data_type kv_data_type"
_RUN = "q paged_kv_cache out return_lse sinks"
_DECLARED: dict[str, Any] = {
    "window": True,
    "softcap": True,
    "lse": True,
    "out": True,
    "empty_rows": False,
    "dtypes": ("float16", "bfloat16"),
    "head_dims": _HEAD_DIMS,
    "layouts": ("nhd", "hnd", "kv_stacked", "kv_interleaved"),
    "kv_strides_apart": False,
    "q_layouts": ("contiguous", "fused_qkv", "transposed_heads"),
    "table_dtypes": ("int32",),
    "executors": ("gpu",),
    "corners": {
        "empty_rows": "last_page_len is from 1 to page_size, so that every sequence has a token",
        "executors": _CUDA,
        "kv_strides_apart": "it refuses K and V whose strides differ",
        "q_layouts": "rows of q are read in pieces of 16 bytes: one that begins between two is a misaligned address",
    },
}


def _no_empty_state(case: Case) -> str | None:
    """Of one state the merge is a copy."""
    return "what an empty state holds reaches the output" if case.states.empty else None


def _packed_output(case: Case) -> str | None:
    """Nothing checks the strides of an output that is given."""
    if case.out_layout not in ("allocated", "given"):
        return "it writes rows of the output one after the other, whatever the strides of the one that is given"
    return None


def _cache(inputs: Any) -> tuple[tuple[Any, Any], str]:
    """K and V as it takes them, and its name for their layout: HND where heads lie before slots."""
    caches = inputs.k_cache, inputs.v_cache
    if all(cache.stride(2) > cache.stride(1) for cache in caches):
        return (caches[0].transpose(1, 2), caches[1].transpose(1, 2)), "HND"
    return caches, "NHD"


def _planned(inputs: Any) -> dict[str, Any]:
    return {
        "num_qo_heads": inputs.q.shape[1],
        "num_kv_heads": inputs.k_cache.shape[2],
        "page_size": inputs.k_cache.shape[1],
        "sm_scale": inputs.scale,
        "window_left": inputs.window[0],
        "logits_soft_cap": inputs.softcap or None,
        "q_data_type": inputs.q.dtype,
        "kv_data_type": inputs.k_cache.dtype,
    }


def _workspace(inputs: Any) -> Any:
    import torch

    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=inputs.q.device)


def _natural(returned: Any, inputs: Any) -> Any:
    """The output, and where it is asked for the lse, its base changed from 2 to e."""
    out, lse = returned if isinstance(returned, tuple) else (returned, None)
    return (out, lse * math.log(2)) if inputs.want_lse else out


_DECODE = "flashinfer.decode:BatchDecodeWithPagedKVCacheWrapper"


@FLASHINFER.adapter(
    {
        _DECODE: "float_workspace_buffer kv_layout",
        f"{_DECODE}.plan": f"indptr indices last_page_len head_dim {_PLAN}",
        # `plan` takes any keyword and hands it on: what it takes stands here
        f"{_DECODE}._plan_impl": f"indptr indices last_page_len head_dim {_PLAN}",
        f"{_DECODE}.run": "q paged_kv_cache out return_lse",
    },
    op="decode",
    limits=_packed_output,
    not_drawn=("rotary positions", "ALiBi (its slopes are its own)", "sinks", "FP8 and FP4 caches"),
    **_DECLARED | {"groups": (1, 2, 3, 4, 8)},
)
def decode(wrapper: Any, inputs: Any) -> Any:
    """The wrapper for one token per sequence, planned anew for each call."""
    cache, layout = _cache(inputs)
    starts, pages, last = page_lists(inputs.block_tables, inputs.kv_lens, inputs.k_cache.shape[1])
    made = wrapper(float_workspace_buffer=_workspace(inputs), kv_layout=layout)
    made.plan(indptr=starts, indices=pages, last_page_len=last, head_dim=inputs.q.shape[2], **_planned(inputs))
    returned = made.run(q=inputs.q, paged_kv_cache=cache, out=inputs.out, return_lse=inputs.want_lse)
    return _natural(returned, inputs)


_PREFILL = "flashinfer.prefill:BatchPrefillWithPagedKVCacheWrapper"


@FLASHINFER.adapter(
    {
        _PREFILL: "float_workspace_buffer kv_layout",
        f"{_PREFILL}.plan": (
            f"qo_indptr paged_kv_indptr paged_kv_indices paged_kv_last_page_len head_dim_qk head_dim_vo causal {_PLAN}"
        ),
        f"{_PREFILL}.run": "q paged_kv_cache out return_lse lse_base",
    },
    op="extend",
    limits=_packed_output,
    not_drawn=(
        "rotary positions",
        "ALiBi (its slopes are its own)",
        "sinks",
        "masks",
        "causal=False",
        "FP8 and FP4 caches",
    ),
    **_DECLARED,
)
def prefill(wrapper: Any, inputs: Any) -> Any:
    """The wrapper for any number of tokens per sequence."""
    cache, layout = _cache(inputs)
    starts, pages, last = page_lists(inputs.block_tables, inputs.kv_lens, inputs.k_cache.shape[1])
    made = wrapper(float_workspace_buffer=_workspace(inputs), kv_layout=layout)
    made.plan(
        qo_indptr=inputs.query_starts,
        paged_kv_indptr=starts,
        paged_kv_indices=pages,
        paged_kv_last_page_len=last,
        head_dim_qk=inputs.q.shape[2],
        head_dim_vo=inputs.v_cache.shape[3],
        causal=inputs.causal,
        **_planned(inputs),
    )
    # It can change the base itself, but the base that everybody gets is the one to test.
    returned = made.run(q=inputs.q, paged_kv_cache=cache, out=inputs.out, return_lse=inputs.want_lse, lse_base="log2")
    return _natural(returned, inputs)


@FLASHINFER.adapter(
    {
        "flashinfer.page:append_paged_kv_cache": (
            "append_key append_value batch_indices positions paged_kv_cache kv_indices kv_indptr kv_last_page_len "
            "kv_layout"
        )
    },
    op="cache_write",
    not_drawn=("FP4 caches", "several sequences: our writes name slots, so each is a page list of its own"),
    dtypes=("float16", "bfloat16"),
    head_dims=_HEAD_DIMS,
    layouts=("nhd", "hnd", "kv_stacked", "kv_interleaved"),
    kv_strides_apart=False,
    executors=("gpu",),
    corners={"executors": _CUDA, "kv_strides_apart": "it refuses K and V whose strides differ"},
)
def append(kernel: Any, inputs: Any) -> None:
    """The append, to one sequence that has every block of the cache in order: a token's position is its slot."""
    import torch

    cache, layout = _cache(inputs)
    blocks, size = inputs.k_cache.shape[:2]
    written = (inputs.slot_mapping >= 0).nonzero()[:, 0]
    whole = {"dtype": torch.int32, "device": inputs.k_new.device}
    kernel(
        append_key=inputs.k_new[written],
        append_value=inputs.v_new[written],
        batch_indices=torch.zeros(len(written), **whole),
        positions=inputs.slot_mapping[written].to(torch.int32),
        paged_kv_cache=cache,
        kv_indices=torch.arange(blocks, **whole),
        kv_indptr=torch.tensor([0, blocks], **whole),
        kv_last_page_len=torch.tensor([size], **whole),
        kv_layout=layout,
    )


@FLASHINFER.adapter(
    {"flashinfer.cascade:merge_states": "v s"},
    op="merge",
    limits=_no_empty_state,
    lse=True,
    dtypes=("float16", "bfloat16"),
    head_dims=_HEAD_DIMS,
    executors=("gpu",),
    corners={"executors": _CUDA},
)
def merge(kernel: Any, inputs: Any) -> Any:
    """The merge of any number of states; it takes tokens before states, and an lse of base 2."""
    outs, lses = inputs.state_outs.transpose(0, 1).contiguous(), inputs.state_lses.transpose(0, 1).contiguous()
    return _natural(kernel(v=outs, s=lses / math.log(2)), inputs)
