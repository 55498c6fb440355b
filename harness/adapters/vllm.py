"""vLLM's Triton kernels over a paged cache."""

import enum
from types import SimpleNamespace
from typing import Any

from harness.adapters.adapter import Project, Stubs
from harness.adapters.translate import aligned_table, freed_blocks, generation, output, starts_without_padding
from harness.case import Case
from harness.profiles import EXTREME


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
    limits = torch.finfo(torch.float8_e4m3fn)
    quantised = {"FP8_DTYPE": torch.float8_e4m3fn, "get_fp8_min_max": lambda: (limits.min, limits.max)}
    return {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1.kv_cache_interface": {
            "KVQuantMode": KVQuantMode,
            "is_quantized_kv_cache": lambda name: name.startswith("fp8"),
        },
        "vllm.model_executor.layers.quantization.utils.quant_utils": quantised,
    }


VLLM = Project("vllm", "vllm", "vllm", ">=0.33,<0.34", "https://github.com/vllm-project/vllm", stubs=_stubs)


OPS = "vllm.v1.attention.ops"
SOURCE = f"{VLLM.url}/blob/v0.33.0/vllm/v1/attention/ops"
#: Block tables are as wide as a multiple of so many tokens: v1/worker/block_table.py, get_block_table_width.
TABLE_TOKENS = 128
#: The names that `kv_cache_dtype` has for what lies in a cache.
CACHE_NAMES = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
HOPPER = (9, 0)


def _nobodys_are_0(out: Any, starts: Any) -> Any:
    """The output with 0 in the rows of a graph's padding, which the kernel leaves alone."""
    if int(starts[-1]) < len(out):
        out[int(starts[-1]) :] = 0
    return out


def _cache_name(inputs: Any) -> str:
    return CACHE_NAMES.get(str(inputs.k_cache.dtype).removeprefix("torch."), "auto")


def _scales(inputs: Any) -> tuple[Any, Any]:
    """The scales of K and of V, each one number, 1 where the cache has none."""
    if inputs.k_scale is not None:
        return inputs.k_scale, inputs.v_scale
    one = inputs.k_cache.new_ones(1).float()
    return one, one


def _cache_limits(case: Case) -> str | None:
    if case.scale_granularity == "head":
        return "the kernel has one scale per cache, not one per head"
    if (case.dtype, case.kv_dtype, case.values) == ("float16", "e5m2", "edges") and max(case.k_scale, case.v_scale) > 1:
        return "what lies in the cache is made float16 and must fit, its scale included"
    return None


def _bytes() -> Any:
    import torch

    return torch.uint8


# --- unified_attention -------------------------------------------------------------------------------------------

_UNIFIED = (
    "q k v out cu_seqlens_q max_seqlen_q seqused_k max_seqlen_k softmax_scale causal window_size block_table softcap "
    "q_descale k_descale v_descale alibi_slopes sinks kv_quant_mode"
)
_SPLIT = "seq_threshold_3D num_par_softmax_segments softmax_segm_output softmax_segm_max softmax_segm_expsum"
#: As the server has it: NUM_PAR_SOFTMAX_SEGMENTS in v1/attention/backends/triton_attn.py.
SEGMENTS = 16
#: The longest query that is split: MAX_3D_QUERY_LEN in the kernel's file.
LONGEST_SPLIT = 8


def _unified_limits(case: Case) -> str | None:
    left, right = case.window
    if not case.causal and left >= 0 and right != left:
        return "without causality a window is as wide to the right as to the left"
    if not case.causal and right >= 0 and left < 0:
        return "a window is given by its left side"
    if case.alibi and not case.causal:
        return "ALiBi is a multiple of key - query, also for keys behind the query"
    if case.alibi and case.sinks and any(seq.query_len > 1 for seq in case.seqs):
        return "ALiBi counts from the first query of a chunk, so that a sink weighs otherwise in later rows"
    return _cache_limits(case)


def _split_limits(case: Case) -> str | None:
    longest = max(seq.query_len for seq in case.batch) + case.max_len_slack
    if longest > LONGEST_SPLIT:
        return f"more than {LONGEST_SPLIT} queries of a sequence are not split"
    if longest > 1 and not case.causal:
        return "several queries that are not causal are not split"
    return _unified_limits(case)


_UNIFIED_DECLARED: dict[str, Any] = {
    "op": "extend",
    "not_drawn": (
        "tree masks (qq_bias)",
        "causality per sequence",
        "multimodal prefixes (mm_prefix_range)",
        "R-SWA",
        "chunked windows",
        "ALiBi of square roots",
        "INT8, INT4 and FP8 caches with scales per token and head",
        "FP8 queries and outputs",
        "tensor descriptors",
    ),
    "window": True,
    "slid_out": True,
    "softcap": True,
    "alibi": True,
    "sinks": True,
    "out": True,
    "non_causal": True,
    "kv_dtypes": ("same", "e4m3", "e5m2"),
    "empty_rows": False,
}


def _unified(kernel: Any, inputs: Any, starts: Any, **split: Any) -> Any:
    out, block_size = output(inputs), inputs.k_cache.shape[1]
    seqs, heads = len(inputs.kv_lens), inputs.k_cache.shape[2]
    scales = {"k_descale": None, "v_descale": None, "kv_quant_mode": 0}
    if inputs.k_scale is not None:
        k_scale, v_scale = inputs.k_scale.expand(seqs, heads), inputs.v_scale.expand(seqs, heads)
        scales = {"k_descale": k_scale, "v_descale": v_scale, "kv_quant_mode": 1}
    kernel(
        q=inputs.q,
        k=inputs.k_cache,
        v=inputs.v_cache,
        out=out,
        cu_seqlens_q=starts,
        max_seqlen_q=inputs.max_query_len,
        seqused_k=inputs.kv_lens,
        max_seqlen_k=inputs.max_kv_len,
        softmax_scale=inputs.scale,
        causal=inputs.causal,
        window_size=inputs.window,
        block_table=aligned_table(freed_blocks(inputs.block_tables, block_size, inputs), block_size, TABLE_TOKENS),
        softcap=inputs.softcap,
        q_descale=None,
        alibi_slopes=inputs.alibi_slopes,
        sinks=inputs.sinks,
        **scales,
        **split,
    )
    return out


@VLLM.adapter(
    {f"{OPS}.triton_unified_attention:unified_attention": _UNIFIED},
    limits=_unified_limits,
    corners={
        "empty_rows": "a row before the first key is 0 / 0 where a later row of its tile sees one: "
        f"{SOURCE}/triton_unified_attention.py#L659"
    },
    padding_rows=True,
    batch_invariant=True,
    **_UNIFIED_DECLARED,
)
def unified_attention(kernel: Any, inputs: Any) -> Any:
    """The unsplit kernel (2D). Block tables are widened to 128 tokens and freed blocks called 0, as the server does."""
    return _unified(kernel, inputs, inputs.query_starts)


@VLLM.adapter(
    {f"{OPS}.triton_unified_attention:unified_attention": f"{_UNIFIED} {_SPLIT}"},
    limits=_split_limits,
    corners={
        "empty_rows": f"rows of a sequence without keys are not written: {SOURCE}/triton_unified_attention.py#L737"
    },
    padding_rows=True,
    **_UNIFIED_DECLARED,
)
def unified_attention_split(kernel: Any, inputs: Any) -> Any:
    """The split kernel (3D) and `reduce_segments`, with 16 segments; a call that would not be split is declined.

    Padding rows have no query and come after all others, as the server has them; the kernel leaves their output alone.
    """
    rows, heads, dim = inputs.q.shape
    padded = 1 << (dim - 1).bit_length()
    scratch = inputs.sinks if inputs.sinks is not None else inputs.q.new_empty(0).float()
    starts = starts_without_padding(inputs)
    out = _unified(
        kernel,
        inputs,
        starts,
        seq_threshold_3D=rows + len(inputs.kv_lens),
        num_par_softmax_segments=SEGMENTS,
        softmax_segm_output=scratch.new_empty(rows, heads, SEGMENTS, padded),
        softmax_segm_max=scratch.new_empty(rows, heads, SEGMENTS),
        softmax_segm_expsum=scratch.new_empty(rows, heads, SEGMENTS),
    )
    return _nobodys_are_0(out, starts)


# --- context_attention_fwd ---------------------------------------------------------------------------------------


def _context_limits(case: Case) -> str | None:
    if not case.causal and case.window[1] >= 0:
        return "a window has no right side"
    if case.alibi and (not case.causal or case.sinks or case.window != (-1, -1)):
        return "ALiBi comes without sinks and windows, and is causal"
    if case.alibi and case.new_kv == "in_cache":
        return "ALiBi takes new tokens from dense rows"
    if case.head_dim % _packed(case.cache_dtype):
        return "a head of K is packed in vectors of 16 bytes"
    return _cache_limits(case)


def _packed(dtype: str) -> int:
    return {"float32": 4, "float16": 8, "bfloat16": 8}.get(dtype, 16)


@VLLM.adapter(
    {
        f"{OPS}.prefix_prefill:context_attention_fwd": (
            "q k v o kv_cache_dtype k_cache v_cache b_loc b_start_loc b_seq_len max_seq_len max_input_len k_scale "
            "v_scale alibi_slopes sliding_window sm_scale sinks causal"
        )
    },
    op="extend",
    limits=_context_limits,
    not_drawn=("FP8 outputs", "interleaved V", "tables of pointers", "skip_decode"),
    corners={
        "slid_out": f"V before the window is multiplied by 0, so it must be finite: {SOURCE}/prefix_prefill.py#L345",
    }
    | {"empty_rows": f"a sequence has as many tokens as queries, or more: {SOURCE}/prefix_prefill.py#L199"},
    padding_rows=True,
    window=True,
    alibi=True,
    sinks=True,
    out=True,
    non_causal=True,
    kv_dtypes=("same", "e4m3", "e5m2"),
    new_kv=("in_cache", "dense"),
    empty_rows=False,
    batch_invariant=True,
)
def context_attention_fwd(kernel: Any, inputs: Any) -> Any:
    """`prefix_prefill.py`: a prefix in the cache, then new tokens, dense or cached.

    The packed K is a view of ours. As the server has them, block tables are as wide as 128 tokens, and padding rows
    have no query and come after all others; the kernel leaves their output alone.
    """
    out, name, block_size = output(inputs), _cache_name(inputs), inputs.k_cache.shape[1]
    k_scale, v_scale = _scales(inputs)
    caches = inputs.k_cache, inputs.v_cache
    if name == "fp8_e5m2":  # it asks for bytes, or for e4m3
        caches = tuple(cache.view(_bytes()) for cache in caches)
    k_cache, v_cache = caches
    packed, starts = 16 // k_cache.element_size(), starts_without_padding(inputs)
    kernel(
        q=inputs.q,
        k=inputs.k_new,
        v=inputs.v_new,
        o=out,
        kv_cache_dtype=name,
        k_cache=k_cache.unflatten(3, (-1, packed)).permute(0, 2, 3, 1, 4),
        v_cache=v_cache.permute(0, 2, 3, 1),
        b_loc=aligned_table(inputs.block_tables, block_size, TABLE_TOKENS),
        b_start_loc=starts,
        b_seq_len=inputs.kv_lens,
        max_seq_len=inputs.max_kv_len,
        max_input_len=inputs.max_query_len,
        k_scale=k_scale,
        v_scale=v_scale,
        alibi_slopes=inputs.alibi_slopes,
        sliding_window=inputs.window[0] + 1,
        sm_scale=inputs.scale,
        sinks=inputs.sinks,
        causal=inputs.causal,
    )
    return _nobodys_are_0(out, starts)


# --- decode_attention_fwd ----------------------------------------------------------------------------------------

#: The splits of a call that leaves the choice to us.
SPLITS = 4


def _decode_limits(case: Case) -> str | None:
    rest = case.head_dim - case.value_dim
    if case.v_is_k_prefix and case.group > 1 and 0 < rest <= 8:
        return "of MLA, what K has beyond V goes into a tl.dot of its own, which takes no fewer than 16 dims"
    if case.dtype == "float16" and case.group == 1 and case.values in EXTREME:
        return "with one query head per KV head, q·k is summed in float16 and overflows"
    return _cache_limits(case)


@VLLM.adapter(
    {
        f"{OPS}.triton_decode_attention:decode_attention_fwd": (
            "q k_buffer v_buffer o lse req_to_token b_seq_len attn_logits num_kv_splits sm_scale page_size logit_cap "
            "k_scale v_scale is_mla"
        )
    },
    limits=_decode_limits,
    corners={"empty_rows": f"a sequence without keys is 0 / 0: {SOURCE}/triton_decode_attention.py#L626"},
    softcap=True,
    lse=True,
    out=True,
    head_dim_v=True,
    mla=True,
    splits=True,
    padding_rows=True,
    kv_dtypes=("same", "e4m3", "e5m2"),
    empty_rows=False,
    batch_invariant=True,
    fixed_splits=True,
)
def decode_attention_fwd(kernel: Any, inputs: Any) -> Any:
    """`triton_decode_attention.py`: MHA, GQA and MLA, with splits of the keys and an lse."""
    out, splits = output(inputs), inputs.hints.num_splits or SPLITS
    k_scale, v_scale = _scales(inputs)
    tokens, heads, value_dim = out.shape
    lse = k_scale.new_empty(tokens, heads)
    kernel(
        q=inputs.q,
        k_buffer=inputs.k_cache,
        v_buffer=inputs.v_cache,
        o=out,
        lse=lse,
        req_to_token=inputs.block_tables,
        b_seq_len=inputs.kv_lens,
        attn_logits=k_scale.new_empty(tokens, heads, splits, value_dim + 1),
        num_kv_splits=splits,
        sm_scale=inputs.scale,
        page_size=inputs.k_cache.shape[1],
        logit_cap=inputs.softcap,
        k_scale=k_scale,
        v_scale=v_scale,
        is_mla=inputs.v_cache.data_ptr() == inputs.k_cache.data_ptr(),
    )
    return (out, lse) if inputs.want_lse else out


# --- triton_reshape_and_cache_flash ------------------------------------------------------------------------------


@VLLM.adapter(
    {
        f"{OPS}.triton_reshape_and_cache_flash:triton_reshape_and_cache_flash": (
            "key value key_cache value_cache slot_mapping kv_cache_dtype k_scale v_scale"
        )
    },
    op="cache_write",
    limits=_cache_limits,
    not_drawn=("the head-major layout of five dimensions", "interleaved V"),
    corners={
        "kv_dtypes": f"a cache of e5m2 is written as e4m3: {SOURCE}/triton_reshape_and_cache_flash.py#L423",
        "kv_strides_apart": f"V has the strides of K: {SOURCE}/triton_reshape_and_cache_flash.py#L117",
    },
    padding_rows=True,
    kv_dtypes=("same", "e4m3"),
    kv_strides_apart=False,
)
def triton_reshape_and_cache_flash(kernel: Any, inputs: Any) -> None:
    """The write of new tokens by slots."""
    k_scale, v_scale = _scales(inputs)
    with generation(inputs.k_new, HOPPER):
        kernel(
            key=inputs.k_new,
            value=inputs.v_new,
            key_cache=inputs.k_cache,
            value_cache=inputs.v_cache,
            slot_mapping=inputs.slot_mapping,
            kv_cache_dtype=_cache_name(inputs),
            k_scale=k_scale,
            v_scale=v_scale,
        )


# --- merge_attn_states -------------------------------------------------------------------------------------------


def _merge_limits(case: Case) -> str | None:
    if len(case.states.partition) not in (0, 2):
        return "it merges two states"
    return "rows of the output must not lie apart" if case.out_layout == "padded" else None


@VLLM.adapter(
    {
        f"{OPS}.triton_merge_attn_states:merge_attn_states": (
            "output prefix_output prefix_lse suffix_output suffix_lse output_lse"
        )
    },
    op="merge",
    limits=_merge_limits,
    not_drawn=("FP8 outputs", "tokens without a prefix (prefill_tokens_with_context)"),
    corners={
        "q_layouts": f"rows lie as far apart as their heads fill: {SOURCE}/triton_merge_attn_states.py#L188",
        "finite_dead_slots": f"what an empty state holds is multiplied by 0: {SOURCE}/triton_merge_attn_states.py#L206",
    },
    out=True,
    q_layouts=("contiguous",),
    finite_dead_slots=True,
    head_dim_v=True,
    lse=True,
)
def merge_attn_states(kernel: Any, inputs: Any) -> Any:
    """Two states, prefix and suffix; their lse are [heads, tokens] there."""
    (prefix, suffix), (prefix_lse, suffix_lse) = inputs.state_outs, inputs.state_lses
    out = prefix.new_empty(prefix.shape) if inputs.out is None else inputs.out
    lse = prefix_lse.new_empty(prefix_lse.shape)
    kernel(
        output=out,
        prefix_output=prefix,
        prefix_lse=prefix_lse.T,
        suffix_output=suffix,
        suffix_lse=suffix_lse.T,
        output_lse=lse.T,
    )
    return out, lse
