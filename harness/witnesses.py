"""The witnesses of a judgement: each agrees with the judge within its own bound, declines, or is not available."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from harness import judge
from harness.arithmetic import Arithmetic
from harness.bounds import Bound, exceeds
from harness.case import Case, replace, to_json
from harness.folders import load
from harness.inputs import Materials, materialise
from harness.platforms import judging


@dataclass(frozen=True)
class Testimony:
    """What one witness says of one case; a fault is a disagreement with both values."""

    witness: str
    says: str
    fault: str = ""


def hear(materials: Materials, platform_name: str) -> tuple[Testimony, ...]:
    """Ask every witness; the judge's truth is computed once for all."""
    exact = judge.truth(materials)
    ours = _plain(materials, exact), _control(materials, exact), _sdpa(materials, exact)
    return *ours, _flash_attn(materials.case, platform_name)


def _plain(materials: Materials, exact: Bound) -> Testimony:
    """The definition in float64, head by head: the judge's own truth is computed in another way."""
    fault = judge.contradiction(materials, exact)
    return Testimony("float64", "disagreed" if fault else "agreed", fault)


def _control(materials: Materials, exact: Bound) -> Testimony:
    """Outputs that are spoilt on purpose: a comparison that cannot fail is noticed."""
    fault = judge.blindness(materials, exact)
    return Testimony("control", "disagreed" if fault else "agreed", fault)


def _sdpa(materials: Materials, exact: Bound) -> Testimony:
    sinks = judge.features(materials)["sinks"]
    reason = load("references", "sdpa").declines(softcap=materials.case.softcap, sinks=sinks, want_lse=False)
    if reason:
        return Testimony("sdpa", f"declined: {reason}")
    fault = judge.disagreement(materials, exact)
    return Testimony("sdpa", "disagreed" if fault else "agreed", fault or "")


@cache
def _flash_attn_missing() -> str | None:
    missing: str | None = load("references", "flash_attn").available()
    return missing


def _flash_attn(case: Case, platform_name: str) -> Testimony:
    if missing := _flash_attn_missing():
        return Testimony("flash_attn", missing)
    if unfit := _unfit(case):
        return Testimony("flash_attn", f"declined: {unfit}")
    # Its masked lanes may multiply dead values by 0, so it is shown tame ones: the truth is the same.
    tame = materialise(replace(case, k_poison="zero", v_poison="zero", spare_poison="zero"))
    if reason := _flash_attn_declines(tame):
        return Testimony("flash_attn", f"declined: {reason}")
    fault = _flash_attn_fault(tame, platform_name)
    return Testimony("flash_attn", "disagreed" if fault else "agreed", fault)


def _unfit(case: Case) -> str:
    """What it cannot be shown, whatever the tensors are."""
    if case.is_far:
        return "far blocks are read elsewhere"
    if case.op == "step" or case.new_kv == "dense":
        return "the new tokens are not in the cache before the call"
    return "a sequence has not just one query" if any(seq.query_len != 1 for seq in case.batch) else ""


def _on_gpu(materials: Materials) -> Any:
    from harness.executors.base import Placement

    return Placement(materials, "cuda").inputs


def _flash_attn_declines(materials: Materials) -> str | None:
    case, inputs = materials.case, _on_gpu(materials)
    reason: str | None = load("references", "flash_attn").declines(
        dtype=inputs.q.dtype,
        kv_dtype=inputs.k_cache.dtype,
        head_dim=case.head_dim,
        head_dim_v=case.value_dim,
        block_size=case.block_size,
        shortest=min(seq.kv_len for seq in case.batch),
        query_len=max(seq.query_len for seq in case.batch),
        softcap=case.softcap,
        alibi_slopes=inputs.alibi_slopes,
        sinks=inputs.sinks,
    )
    return reason


def _flash_attn_fault(materials: Materials, platform_name: str) -> str:
    """Its arithmetic is not known, so it is held to the widest bound."""
    case, inputs = materials.case, _on_gpu(materials)
    out, _ = load("references", "flash_attn").attention(
        inputs.q,
        inputs.k_cache,
        inputs.v_cache,
        inputs.block_tables,
        inputs.kv_lens,
        scale=case.softmax_scale,
        window=case.window,
        softcap=case.softcap,
        alibi_slopes=inputs.alibi_slopes,
    )
    seen = out.float().cpu().numpy().astype(np.float64)
    bound = judge.judge(materials, Arithmetic.widest(case.dtype), judging(platform_name))
    wrong = exceeds(seen, bound, dtype=case.dtype)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    truth = f"{float(bound.truth[at])!r} ± {bound.out[at]:.3g}"
    return f"flash_attn has {float(seen[at])!r} at {list(at)}, but float64 has {truth}, on {to_json(case)}"
