"""SGLang: its Triton kernels over a cache of token slots."""

from types import SimpleNamespace
from typing import Any

from harness.adapters.adapter import Project, Stubs
from harness.adapters.translate import flat, lengths, output, starts_of, token_slots
from harness.case import FP8, Case

#: Into so many parts a server cuts the keys of a sequence unless it is told otherwise.
SPLITS = 8


def _stubs() -> Stubs:
    """What the kernels ask of SGLang: a platform, without the paths of one GPU alone, and settings that nobody set."""
    import torch

    settings = (
        "SGLANG_MLA_DECODE_TUNE",
        "SGLANG_TRITON_COMPACT_EXTEND_ATTENTION",
        "SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS",
        "SGLANG_TRITON_FP8_PREFILL_ATTN",
    )
    unset = SimpleNamespace(get=lambda: False)
    platform = {
        "is_cuda": lambda: torch.version.cuda is not None and torch.cuda.is_available(),
        "is_hip": lambda: torch.version.hip is not None,
        "is_gfx95_supported": lambda: False,
        "is_gfx1250_supported": lambda: False,
        "get_device_core_count": lambda device: torch.cuda.get_device_properties(device).multi_processor_count,
    }
    return {
        "sglang.srt.environ": {"envs": SimpleNamespace(**dict.fromkeys(settings, unset))},
        "sglang.srt.utils": platform,
    }


SGLANG = Project(
    "sglang", "sglang", "sglang", ">=0.5.23,<0.5.24", "https://github.com/sgl-project/sglang", stubs=_stubs
)
#: Of the layouts of a cache those that are rows of slots at one distance.
SLOTS = ("nhd", "kv_stacked", "offset")
#: Head dims of K, with a part for the positions, and of V for which V is taken from the tile of K.
LATENT = ((576, 512), (288, 256))
HEAD_DIMS = (16, 32, 40, 64, 72, 80, 96, 128, 192, 256, 288, 576)
SOURCE = "https://github.com/sgl-project/sglang/blob/v0.5.23/python/sglang"


def _one_scale(case: Case) -> str | None:
    """Why the kernel cannot scale a cache so."""
    return "the kernel has one scale for a cache, not one for each head" if case.scale_granularity == "head" else None


def _fp8_limits(case: Case) -> str | None:
    """Why the kernel cannot take an FP8 cache so."""
    by_matrix = case.op == "extend" or case.group > 1
    if case.kv_dtype in FP8 and case.head_dim < 32 and by_matrix:
        return "q is cast to FP8 for a matrix product, which takes a head dim of 32 or more"
    return _one_scale(case)


def _merge_limits(case: Case) -> str | None:
    """Why the kernel cannot merge such states."""
    states = len(case.states.partition) or 2
    if states != 2:
        return f"the kernel merges two states, not {states}"
    if len(case.states.empty) == 2:
        return "of two empty states the kernel makes NaN"
    return "the kernel takes its output as contiguous" if case.out_layout == "padded" else None


@SGLANG.adapter(
    {
        "sglang.kernels.ops.attention.decode_attention:decode_attention_fwd": (
            "q k_buffer v_buffer o kv_indptr kv_indices attn_logits attn_lse num_kv_splits max_kv_splits sm_scale "
            "k_scale v_scale logit_cap sinks has_mla page_size"
        )
    },
    op="decode",
    limits=_fp8_limits,
    not_drawn=(
        "score_mod",
        "a temperature by length (xai_temperature_len)",
        "a number of splits of each sequence's own",
        "the persistent kernel for AMD (lean)",
    ),
    window=True,
    slid_out=True,
    softcap=True,
    sinks=True,
    out=True,
    non_causal=True,
    head_dim_v=True,
    mla=True,
    splits=True,
    corners={
        "empty_rows": "a sequence without a token is given NaN, and a server pads with sequences of one token: "
        f"{SOURCE}/srt/layers/attention/triton_backend.py#L1440"
    },
    empty_rows=False,
    kv_dtypes=("same", "e4m3", "e5m2"),
    head_dims=HEAD_DIMS,
    layouts=SLOTS,
)
def decode_attention(kernel: Any, inputs: Any) -> Any:
    """Split decode; the window is cut out of the indices, as the server does."""
    out, (seqs, heads, _) = output(inputs), inputs.q.shape
    kv_indptr, kv_indices = _slots(inputs, inputs.kv_lens, _first_seen(inputs, inputs.kv_lens - 1))
    splits = inputs.hints.num_splits or SPLITS
    partial = inputs.kv_lens.new_empty(seqs, heads, splits, out.shape[2], dtype=_float32())
    kernel(
        q=inputs.q,
        k_buffer=flat(inputs.k_cache),
        v_buffer=flat(inputs.v_cache),
        o=out,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        attn_logits=partial,
        attn_lse=partial.new_empty(seqs, heads, splits),
        num_kv_splits=inputs.kv_lens.new_full((seqs,), splits),
        max_kv_splits=splits,
        sm_scale=inputs.scale,
        **_scales(inputs),
        logit_cap=inputs.softcap,
        sinks=inputs.sinks,
        has_mla=(inputs.q.shape[2], out.shape[2]) in LATENT,
        page_size=inputs.k_cache.shape[1],
    )
    return out


@SGLANG.adapter(
    {
        "sglang.kernels.ops.attention.extend_attention:extend_attention_fwd": (
            "q_extend k_extend v_extend o_extend k_buffer v_buffer qo_indptr kv_indptr kv_indices custom_mask "
            "is_causal mask_indptr max_len_extend k_scale v_scale sm_scale logit_cap skip_prefix_custom_mask "
            "sliding_window_size sinks lse_extend page_size"
        )
    },
    op="extend",
    limits=_fp8_limits,
    new_kv=("dense",),
    not_drawn=("score_mod", "a temperature by length (xai_temperature_len)", "a prefix or a chunk alone (skip_extend)"),
    window=True,
    slid_out=True,
    softcap=True,
    sinks=True,
    lse=True,
    out=True,
    non_causal=True,
    head_dim_v=True,
    mla=True,
    kv_dtypes=("same", "e4m3", "e5m2"),
    corners={"empty_rows": "each new token is a key of its own, so that no row is without one"},
    empty_rows=False,
    head_dims=HEAD_DIMS,
    layouts=SLOTS,
)
def extend_attention(kernel: Any, inputs: Any) -> Any:
    """Two stages: the prefix in the cache, cut to the window as the server does, then the new tokens."""
    out, prefixes = output(inputs), inputs.kv_lens - lengths(inputs.query_starts)
    first = _first_seen(inputs, prefixes)
    kv_indptr, kv_indices = _slots(inputs, prefixes, first)
    lse = inputs.q.new_empty(inputs.q.shape[:2], dtype=_float32()) if inputs.want_lse else None
    kernel(
        q_extend=inputs.q,
        k_extend=inputs.k_new,
        v_extend=inputs.v_new,
        o_extend=out,
        k_buffer=flat(inputs.k_cache),
        v_buffer=flat(inputs.v_cache),
        qo_indptr=inputs.query_starts,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        max_len_extend=inputs.max_query_len,
        **_scales(inputs),
        sm_scale=inputs.scale,
        logit_cap=inputs.softcap,
        skip_prefix_custom_mask=False,
        sinks=inputs.sinks,
        lse_extend=lse,
        page_size=inputs.k_cache.shape[1],
        **_masks(inputs, first),
    )
    return out if lse is None else (out, lse)


@SGLANG.adapter(
    {
        "sglang.kernels.ops.attention.extend_attention:extend_attention_fwd_unified": (
            "q o k_buffer v_buffer k_scale v_scale qo_indptr kv_indptr kv_indices prefix_lens max_len_extend "
            "custom_mask mask_indptr sm_scale logit_cap is_causal sliding_window_size sinks window_start_pos page_size"
        )
    },
    op="extend",
    limits=_fp8_limits,
    not_drawn=("score_mod", "a temperature by length (xai_temperature_len)"),
    window=True,
    slid_out=True,
    softcap=True,
    sinks=True,
    out=True,
    non_causal=True,
    head_dim_v=True,
    mla=True,
    kv_dtypes=("same", "e4m3", "e5m2"),
    corners={"empty_rows": "each new token is a key of its own, so that no row is without one"},
    empty_rows=False,
    head_dims=HEAD_DIMS,
    layouts=SLOTS,
)
def extend_attention_unified(kernel: Any, inputs: Any) -> Any:
    """One stage, for deterministic inference: the new tokens are in the cache."""
    out, prefixes = output(inputs), inputs.kv_lens - lengths(inputs.query_starts)
    first = _first_seen(inputs, prefixes)
    kv_indptr, kv_indices = _slots(inputs, inputs.kv_lens, first)
    kernel(
        q=inputs.q,
        o=out,
        k_buffer=flat(inputs.k_cache),
        v_buffer=flat(inputs.v_cache),
        **_scales(inputs),
        qo_indptr=inputs.query_starts,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        prefix_lens=prefixes - first,
        max_len_extend=inputs.max_query_len,
        sm_scale=inputs.scale,
        logit_cap=inputs.softcap,
        sinks=inputs.sinks,
        window_start_pos=first,
        page_size=inputs.k_cache.shape[1],
        **_masks(inputs, first),
    )
    return out


@SGLANG.adapter(
    {
        "sglang.kernels.ops.attention.merge_state:merge_state_triton": (
            "prefix_output prefix_lse suffix_output suffix_lse output output_lse"
        )
    },
    op="merge",
    limits=_merge_limits,
    not_drawn=("two empty states, of which it makes NaN",),
    corners={
        "q_layouts": f"outputs and lse are taken as contiguous: {SOURCE}/kernels/ops/attention/merge_state.py#L10",
        "finite_dead_slots": "what an empty state holds is multiplied by 0, and the extend kernel stores 0 there: "
        f"{SOURCE}/kernels/ops/attention/merge_state.py#L58",
    },
    finite_dead_slots=True,
    lse=True,
    out=True,
    head_dim_v=True,
    q_layouts=("contiguous",),
)
def merge_state(kernel: Any, inputs: Any) -> Any:
    """Two states merged by their natural lse [tokens, heads]."""
    (prefix, suffix), (prefix_lse, suffix_lse) = inputs.state_outs, inputs.state_lses
    return kernel(
        prefix_output=prefix,
        prefix_lse=prefix_lse,
        suffix_output=suffix,
        suffix_lse=suffix_lse,
        output=inputs.out,
        output_lse=None,
    )


@SGLANG.adapter(
    {
        "sglang.kernels.ops.kvcache.cache_ops:launch_reshape_and_cache_flash": (
            "key value key_cache value_cache slot_mapping k_scale v_scale"
        )
    },
    op="cache_write",
    limits=_one_scale,
    not_drawn=("a second table of slots (swa_slot_mapping)",),
    corners={
        "head_dim_v": "V is written with the heads and the dim of K: "
        f"{SOURCE}/srt/layers/attention/aiter_backend.py#L3428",
        "table_dtypes": "slots of int32 make places of 32 bits, and those of a server are int64: "
        f"{SOURCE}/kernels/ops/kvcache/cache_ops.py#L135",
    },
    kv_dtypes=("same", "e4m3", "e5m2"),
    padding_rows=True,
    table_dtypes=("int64",),
)
def reshape_and_cache(kernel: Any, inputs: Any) -> None:
    """A program a token and four heads; a negative slot is skipped."""
    kernel(
        key=inputs.k_new,
        value=inputs.v_new,
        key_cache=inputs.k_cache,
        value_cache=inputs.v_cache,
        slot_mapping=inputs.slot_mapping,
        k_scale=inputs.k_scale,
        v_scale=inputs.v_scale,
    )


def _masks(inputs: Any, first: Any) -> dict[str, Any]:
    """Which keys a query sees: by the arguments where these can say it, else by a mask of 0 and 1.

    They cannot say a window of a query's own token alone, since 0 is none, nor one whose right side is another than
    its left. Keys are given from `first` on, a number a sequence.
    """
    left, right = inputs.window
    said = {"is_causal": inputs.causal, "custom_mask": None, "mask_indptr": None, "sliding_window_size": -1}
    if (left, right) == (-1, -1) or (inputs.causal and left < 0):
        return said
    if left > 0 and (inputs.causal or right == left):
        return said | {"sliding_window_size": left}
    return said | _mask(inputs, first)


def _mask(inputs: Any, first: Any) -> dict[str, Any]:
    """Row by row of each sequence, [new tokens, keys given]."""
    import torch

    left, right = inputs.window
    parts, lens = [], (first, inputs.kv_lens, lengths(inputs.query_starts))
    for start, end, new in zip(*(each.tolist() for each in lens), strict=True):
        ahead = torch.arange(start, end) - torch.arange(end - new, end)[:, None]  # of a key before a query
        behind = -left if left >= 0 else -end
        most = 0 if inputs.causal else right if right >= 0 else end
        parts.append(((behind <= ahead) & (ahead <= most)).flatten())
    mask = torch.cat(parts).to(inputs.q.device, torch.uint8)
    return {"custom_mask": mask, "mask_indptr": starts_of(first.new_tensor([len(part) for part in parts])).long()}


def _scales(inputs: Any) -> dict[str, float]:
    """The scales of an FP8 cache as numbers, 1 for any other."""
    scales = inputs.k_scale, inputs.v_scale
    return {
        name: 1.0 if scale is None else scale.item() for name, scale in zip(("k_scale", "v_scale"), scales, strict=True)
    }


def _slots(inputs: Any, end: Any, first: Any) -> tuple[Any, Any]:
    """CSR of the slots of each sequence's tokens from `first` to `end`."""
    return token_slots(inputs.block_tables, inputs.k_cache.shape[1], end, first)


def _first_seen(inputs: Any, positions: Any) -> Any:
    """The first tokens [seqs] that queries at these positions [seqs] see."""
    left = inputs.window[0]
    return positions * 0 if left < 0 else (positions - left).clamp(min=0)


def _float32() -> Any:
    import torch

    return torch.float32
