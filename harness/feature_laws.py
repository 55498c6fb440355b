"""Laws of features: one that is given and does nothing, and the window that leaves one key."""

import numpy as np

from harness.editing import fill, tokens
from harness.inputs import Materials, materialise
from harness.laws import First, Law, Twin
from harness.tensors import Array


def _one_key(first: First) -> Twin | None:
    """A window of the query's own key: the output is that key's V."""
    case = first.changed(window=(0, 0)) if not first.case.sinks else None
    if case is None:
        return None
    second = materialise(case)
    parts = [_own_v(second, index) for index in range(len(case.seqs))]
    return Twin(second, answer=lambda _: np.concatenate(parts))


def _own_v(materials: Materials, index: int) -> Array:
    """V of each query's own token, [query_len, num_q_heads, dim]; 0 for a query before the first token."""
    case, seq = materials.case, materials.case.seqs[index]
    v = tokens(materials, "v_cache", index).astype(np.float64)
    if materials.inputs.v_scale is not None:
        v = v * materials.inputs.v_scale.view.astype(np.float64)[:, None]
    own = np.zeros((seq.query_len, *v.shape[1:]))
    there = min(seq.query_len, seq.kv_len)
    own[seq.query_len - there :] = v[seq.kv_len - there :]
    return np.repeat(own, case.group, axis=1)


def _wide_window(first: First) -> Twin | None:
    reach = max((seq.kv_len for seq in first.case.seqs), default=0) + 1
    case = first.changed(window=(reach, -1)) if first.case.window == (-1, -1) else None
    return None if case is None else Twin(materialise(case))


def _flat_alibi(first: First) -> Twin | None:
    case = first.changed(alibi=True) if not first.case.alibi else None
    if case is None:
        return None
    second = materialise(case)
    fill(second, "alibi_slopes", np.zeros(case.num_q_heads))
    return Twin(second)


#: exp of the sink less any score above -DEEP is 0 in float64.
DEEP, SINK = 200.0, -1200.0


def _deep_sinks(first: First) -> Twin | None:
    """Sinks so low that they weigh nothing."""
    bound = first.run.bound
    shallow = bound is not None and (bound.truth_lse > -DEEP).all()
    case = first.changed(sinks=True) if shallow and not first.case.sinks else None
    if case is None:
        return None
    second = materialise(case)
    fill(second, "sinks", np.full(case.num_q_heads, SINK))
    return Twin(second)


FEATURE_LAWS = (
    Law("one visible key", _one_key, "each query saw its own key alone", "the window", "exact", recompiles=True),
    Law(
        "window wider than all", _wide_window, "a window was given that hides nothing", "the window", recompiles=True,
        any_batch=True,
    ),
    Law("ALiBi slopes of 0", _flat_alibi, "ALiBi slopes of 0 were given", "the ALiBi bias", recompiles=True),
    Law("sinks without weight", _deep_sinks, f"sinks of {SINK:g} were given", "the sinks", recompiles=True),
)  # fmt: skip
