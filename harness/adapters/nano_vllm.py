"""nano-vllm: the one Triton kernel it has of its own, which writes new tokens into the cache."""

from typing import Any

from harness.adapters.adapter import Project, Stubs


def _stubs() -> Stubs:
    """What the file asks for that the kernel does not use."""
    return {
        "flash_attn": {"flash_attn_varlen_func": None, "flash_attn_with_kvcache": None},
        "nanovllm.utils.context": {"get_context": None},
    }


NANO_VLLM = Project(
    "nano_vllm",
    "nanovllm",
    "nano-vllm",
    ">=0.2,<0.3",
    "https://github.com/GeeeekExplorer/nano-vllm",
    stubs=_stubs,
    source="git+https://github.com/GeeeekExplorer/nano-vllm",
)

SOURCE = "https://github.com/GeeeekExplorer/nano-vllm/blob/main/nanovllm/layers/attention.py"


@NANO_VLLM.adapter(
    {"nanovllm.layers.attention:store_kvcache": "key value k_cache v_cache slot_mapping"},
    op="cache_write",
    corners={
        "head_dims": f"heads times dim is the range of a tl.arange, so a power of two: {SOURCE}#L24",
        "layouts": f"a slot is addressed as slot * heads * dim, of which an assert checks a part: {SOURCE}#L38",
    },
    padding_rows=True,
    head_dims=(16, 32, 64, 128, 256),
    layouts=("nhd", "kv_stacked", "offset"),
)
def store_kvcache(kernel: Any, inputs: Any) -> None:
    """A program a token; a slot of -1 is skipped."""
    kernel(
        key=inputs.k_new,
        value=inputs.v_new,
        k_cache=inputs.k_cache,
        v_cache=inputs.v_cache,
        slot_mapping=inputs.slot_mapping,
    )
