"""Which exponential overflows, told by how large scores and lse are."""

import numpy as np

from harness.case import Case, replace
from harness.inputs import Materials, gathered, materialise
from harness.probe import Look, quiet

#: exp of more than this is beyond float32.
LARGEST = 88.7
#: The largest number of float16.
LARGEST_FLOAT16 = 65504.0


def told(case: Case, look: Look) -> str:
    """What makes an output not finite that would be so for K = 0."""
    largest = _largest(case)
    if case.softcap and largest > case.softcap and finite(quiet(replace(case, softcap=0.0)), look):
        times = f"a score is {largest / case.softcap:.3g} times the softcap"
        return f"{times}, and without the softcap it is finite: an exponential in its tanh overflows"
    if largest > LARGEST:
        what = "an lse" if case.op == "merge" else "a score"
        return f"{what} is {largest:.4g}: its exp overflows where the largest is not subtracted" + _in_float16(
            case, largest
        )
    return "a score is not, or what is read"


def _in_float16(case: Case, largest: float) -> str:
    """What else may overflow: a sum of products, before the scale makes it smaller."""
    product = largest / case.softmax_scale
    if case.op == "merge" or case.dtype != "float16" or product <= LARGEST_FLOAT16:
        return ""
    return f", and q·k, which is {product:.4g} before the scale, where it is summed in float16"


def of_lse(lse: float) -> tuple[str, ...]:
    """What to say of a number that should be this lse, and is not finite."""
    words = f"exp of an lse of {lse:.4g} overflows: the largest score is added to the logarithm of the rest"
    return (words,) if np.isfinite(lse) and abs(lse) > LARGEST else ()


def finite(materials: Materials, look: Look) -> bool:
    """Whether the output is; no output counts as such."""
    seen = look(materials)
    return seen is None or bool(np.isfinite(np.asarray(seen.out).astype(np.float64)).all())


def _largest(case: Case) -> float:
    """The largest size of a score before the softcap, or of an lse."""
    materials = materialise(case)
    if case.op == "merge":
        lses = materials.inputs.state_lses.view
        return float(np.abs(lses[np.isfinite(lses)]).max(initial=0.0))
    found = [gathered(materials, index)[:2] for index in range(len(case.seqs))]
    per_head = [(q.astype(np.float64), np.repeat(k.astype(np.float64), case.group, axis=1)) for q, k in found]
    scores = [np.abs(np.einsum("qhd,khd->hqk", q, np.nan_to_num(k))).max(initial=0.0) for q, k in per_head]
    return float(max(scores) * case.softmax_scale)
