"""The judge of a whole case: the float64 truth with its bound, and the witnesses that must agree with it."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from harness.arithmetic import Arithmetic
from harness.bounds import Bound, attention_bound, exceeds, state_bound, untrusted
from harness.case import to_json
from harness.folders import load
from harness.inputs import Materials, gathered
from harness.platforms import Platform, platform
from harness.tensors import Array

#: Any scale other than 1 tells the bound that the kernel multiplies by one, as it may do by 1 itself.
DEQUANTISED = 2.0


def features(materials: Materials) -> dict[str, Any]:
    """The keyword arguments that every reference takes."""
    inputs = materials.inputs
    return {
        "scale": inputs.scale,
        "causal": inputs.causal,
        "window": inputs.window,
        "softcap": inputs.softcap,
        "alibi_slopes": None if inputs.alibi_slopes is None else inputs.alibi_slopes.view,
        "sinks": None if inputs.sinks is None else inputs.sinks.view,
    }


def judge(materials: Materials, arithmetic: Arithmetic, where: Platform, out_dtype: str = "") -> Bound:
    """Truth and bound of the whole batch: out [tokens, heads, dim], lse [tokens, heads]; out in q's type by default."""
    bound = _judged(materials, arithmetic, where, out_dtype)
    return bound if where.trusted else untrusted(bound)


def _judged(materials: Materials, arithmetic: Arithmetic, where: Platform, out_dtype: str) -> Bound:
    if materials.case.op == "merge":
        return _judge_merge(materials, where)
    wanted = features(materials) | {"out_dtype": out_dtype or materials.case.dtype} | _scales(materials)
    parts = [
        attention_bound(*gathered(materials, i), **wanted, arithmetic=arithmetic, platform=where)
        for i in range(len(materials.case.batch))
    ]
    return _batched(parts)


def _scales(materials: Materials) -> dict[str, Any]:
    """The bound only has to know that there are scales; K and V come dequantised."""
    if materials.inputs.k_scale is None:
        return {}
    return {"k_scale": DEQUANTISED, "v_scale": DEQUANTISED}


def _batched(parts: list[Bound]) -> Bound:
    def join(get: Callable[[Bound], Array]) -> Array:
        return np.concatenate([get(part) for part in parts])

    fields = {name: join(attrgetter(name)) for name in ("truth", "out", "truth_lse", "lse")}
    terms = {name: np.concatenate([part.terms[name] for part in parts]) for name in parts[0].terms}
    return Bound(**fields, terms=terms)


def _judge_merge(materials: Materials, where: Platform) -> Bound:
    """The merge of the states as they are stored."""
    outs, lses = materials.inputs.state_outs.view, materials.inputs.state_lses.view
    return state_bound(outs, lses, arithmetic=Arithmetic(divisions=2), platform=where, out_dtype=materials.case.dtype)


def truth(materials: Materials) -> Bound:
    """The truth, with how far float64 may be from it."""
    return judge(materials, Arithmetic.float64(), platform("float64"), out_dtype="float64")


def contradiction(materials: Materials, exact: Bound | None = None) -> str:
    """Hold the plain definition of `references/float64.py`, which has every feature, against the judge; "" if alike."""
    wanted, exact, attention = features(materials), exact or truth(materials), load("references", "float64").attention
    answers = [attention(*gathered(materials, i), **wanted) for i in range(len(materials.case.batch))]
    outs, lses = (np.concatenate(part) for part in zip(*answers, strict=True))
    for name, seen, right, limit in (("out", outs, exact.truth, exact.out), ("lse", lses, exact.truth_lse, exact.lse)):
        wrong = exceeds(seen, right, limit)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            judged = f"{float(right[at])!r} ± {limit[at]:.3g}"
            return (
                f"the plain float64 reference has {float(seen[at])!r} as {name}{list(at)}, but the judge has {judged}, "
                f"on {to_json(materials.case)}"
            )
    return ""


def blindness(materials: Materials, exact: Bound | None = None) -> str:
    """What the comparison with the bound does not see of a truth that was spoilt on purpose; "" if it sees all."""
    exact = exact or truth(materials)
    if not exact.truth.size:
        return ""
    at = tuple(int(i) for i in np.unravel_index(int(exact.out.argmax()), exact.out.shape))
    step = 3 * float(exact.out[at]) + float(np.spacing(np.abs(exact.truth[at])))
    for words, spoilt in (("NaN", np.nan), ("infinity", np.inf), ("3 times the bound off", exact.truth[at] + step)):
        out = exact.truth.copy()
        out[at] = spoilt
        if not exceeds(out, exact)[at]:
            return f"the comparison lets {words} pass as out{list(at)}, on {to_json(materials.case)}"
    wrong = exceeds(exact.truth, exact)
    return f"the comparison does not let the truth itself pass, on {to_json(materials.case)}" if wrong.any() else ""


def disagreement(materials: Materials, exact: Bound | None = None) -> str | None:
    """Hold PyTorch's SDPA in float64 against the judge; None when they agree or the witness declines."""
    wanted, sdpa = features(materials), load("references", "sdpa")
    if sdpa.declines(softcap=materials.case.softcap, sinks=wanted["sinks"], want_lse=False):
        return None
    exact = exact or truth(materials)
    seen = np.concatenate([_witness(sdpa, materials, i, wanted) for i in range(len(materials.case.batch))])
    wrong = exceeds(seen, exact)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"sdpa has {float(seen[at])!r} at {list(at)}, but float64 has {float(exact.truth[at])!r} ± "
        f"{exact.out[at]:.3g}, "
        f"on {to_json(materials.case)}"
    )


def _witness(sdpa: Any, materials: Materials, index: int, wanted: dict[str, Any]) -> Array:
    import torch  # the witness's own; the judge needs none

    tensors = [torch.from_numpy(np.ascontiguousarray(x).astype(np.float64)) for x in gathered(materials, index)]
    slopes = wanted["alibi_slopes"]
    accepted = {name: wanted[name] for name in ("scale", "causal", "window")}
    accepted["alibi_slopes"] = None if slopes is None else torch.from_numpy(slopes.copy())
    return np.asarray(sdpa.attention(*tensors, **accepted).numpy())
