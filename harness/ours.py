"""Our own kernels as subjects."""

from typing import Any

from harness.folders import load
from harness.subjects import subject

_decode = load("kernels", "decode")


@subject(op="decode", window=True, softcap=True, alibi=True, sinks=True, lse=True, out=True, non_causal=True)
def decode(inputs: Any) -> Any:
    """The textbook kernel of `kernels/decode.py`."""
    return _decode.paged_decode(
        inputs.q,
        inputs.k_cache,
        inputs.v_cache,
        inputs.block_tables,
        inputs.kv_lens,
        scale=inputs.scale,
        window=inputs.window,
        causal=inputs.causal,
        softcap=inputs.softcap,
        alibi_slopes=inputs.alibi_slopes,
        sinks=inputs.sinks,
        out=inputs.out,
        return_lse=inputs.want_lse,
    )


decode.validate = _decode.validate  # type: ignore[attr-defined]
