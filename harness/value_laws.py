"""Laws of numbers: what scaling, signs, shifts, copies and neutral features do to attention and to a merge."""

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from harness.bounds import Bound
from harness.case import FP8, Case, Seq, States
from harness.editing import caches, fill, living, put_tokens, rewrite, tokens
from harness.inputs import Materials, materialise
from harness.laws import First, Image, Law, Twin
from harness.layout_laws import shares
from harness.tensors import Array
from harness.values import DTYPES

#: Scores at most this far from 0 keep every weight above 2^-70 in any split, so that no product becomes subnormal.
CALM = 12.0
#: Where a value times the number of keys stays below this, not even a sum in float16 overflows.
ROOM = 2.0**14


def _edited(first: First, *edits: tuple[str, Callable[[Array], Array]], image: Image | None = None) -> Twin:
    """The same case with some tensors rewritten."""
    second = materialise(first.case)
    for name, change in edits:
        rewrite(second, name, change)
    return Twin(second, image or Image())


def _doubled(x: Array) -> Array:
    return 2 * x


def _halved(x: Array) -> Array:
    return x / 2


# --- what may be scaled without another rounding -----------------------------------------------------------------


def _normal(materials: Materials, name: str, factor: float) -> bool:
    """Whether each number, and that times `factor`, is 0 or a normal number of its type, and no large one."""
    sizes = np.abs(living(materials, name))
    sizes = sizes[sizes > 0]
    info = ml_dtypes.finfo(DTYPES[getattr(materials.inputs, name).storage.dtype])  # type: ignore[no-untyped-call]
    least, most = float(info.smallest_normal) / min(factor, 1.0), min(float(info.max) / max(factor, 1.0), 2.0**60)
    return bool(sizes.size == 0 or (sizes.min() >= least and sizes.max() <= most))


def _calm(first: First) -> bool:
    """Whether the scores of every row lie near 0, by the lengths of q and of K."""
    case, inputs = first.case, first.materials.inputs
    k = [_longest(tokens(first.materials, "k_cache", index)) for index in range(len(case.seqs))]
    scale = 1.0 if inputs.k_scale is None else float(inputs.k_scale.view.max())
    return not (case.sinks or case.alibi) and _longest(inputs.q.view) * max(k) * scale * inputs.scale <= CALM


def _longest(vectors: Array) -> float:
    return float(np.linalg.norm(vectors.astype(np.float64), axis=-1).max(initial=0.0))


def _wide(first: First, *fields: str) -> bool:
    """Whether the kernel was read, and keeps these in a type with the range of float32."""
    narrow = any(getattr(first.arithmetic, name) in ("float16", *FP8) for name in fields)
    return not narrow and (bool(first.run.observed.ttir) or first.case.dtype != "float16")


PV = ("pv_product", "pv_accumulator", "partial_dtype", "dequant_dtype")
QK = ("qk_product", "qk_accumulator", "score_dtype", "scaled_q_dtype", "dequant_dtype")


def _doubles(first: First) -> bool:
    """Whether each number of the output is 0 in truth, or one whose double is rounded as it is itself."""
    bound, case = first.run.bound, first.case
    info = ml_dtypes.finfo(DTYPES[case.dtype])  # type: ignore[no-untyped-call]
    out = np.abs(first.run.observed.out.astype(np.float64))
    fits = (out >= 2 * float(info.smallest_normal)) & (out <= float(info.max) / 4)
    return bound is not None and bool((fits | ((out == 0) & (bound.truth == 0))).all())


def _doubled_v(first: First) -> Twin | None:
    case, fp8 = first.case, first.case.cache_dtype in FP8
    if case.v_is_k_prefix or not (_wide(first, *PV) and _calm(first) and _doubles(first)):
        return None
    if 2 * max(seq.kv_len for seq in case.seqs) * _largest_v(first) > ROOM:
        return None
    if not (fp8 or _normal(first.materials, "v_cache", 2.0)):
        return None
    return _edited(first, ("v_scale" if fp8 else "v_cache", _doubled), image=Image(factor=2.0))


def _largest_v(first: First) -> float:
    scale = first.materials.inputs.v_scale
    factor = 1.0 if scale is None else float(scale.view.max())
    return float(np.abs(living(first.materials, "v_cache")).max(initial=0.0)) * factor


def _negated_v(first: First) -> Twin | None:
    return None if first.case.v_is_k_prefix else _edited(first, ("v_cache", np.negative), image=Image(factor=-1.0))


def _negated_qk(first: First) -> Twin | None:
    if first.case.v_is_k_prefix:
        return None
    return _edited(first, ("q", np.negative), ("k_cache", np.negative))


def _doubled_q(first: First) -> bool:
    """Whether q may be doubled if something else is halved."""
    scaled = min(first.materials.inputs.scale, 1.0)
    return _wide(first, *QK) and _normal(first.materials, "q", 2.0) and _normal(first.materials, "q", scaled)


def _halved_k(first: First) -> Twin | None:
    if first.case.v_is_k_prefix or not _doubled_q(first):
        return None
    if first.case.cache_dtype in FP8:
        return _edited(first, ("q", _doubled), ("k_scale", _halved))
    return _edited(first, ("q", _doubled), ("k_cache", _halved)) if _normal(first.materials, "k_cache", 0.5) else None


def _halved_scale(first: First) -> Twin | None:
    case = first.changed(scale=first.case.softmax_scale / 2) if _doubled_q(first) else None
    if case is None:
        return None
    second = materialise(case)
    rewrite(second, "q", _doubled)
    return Twin(second)


# --- what softmax does not see -----------------------------------------------------------------------------------


def _all_visible(case: Case) -> bool:
    """Whether each row sees all keys of its sequence, at no distance."""
    one = all(seq.query_len == 1 for seq in case.seqs)
    return (one or not case.causal) and case.window == (-1, -1) and not case.alibi and not shares(case)


def _shifted_k(first: First) -> Twin | None:
    """1 more in every dim of K, where that is exact: each score of a row moves by the sum of its q."""
    case, inputs = first.case, first.materials.inputs
    k = living(first.materials, "k_cache")
    exact = ((k + 1).astype(DTYPES[case.cache_dtype]).astype(np.float64) == k + 1).all()
    if case.softcap or case.sinks or case.v_is_k_prefix or not exact:
        return None
    scale = np.ones(1) if inputs.k_scale is None else inputs.k_scale.view.astype(np.float64)
    per_head = np.repeat(np.broadcast_to(scale, (case.num_kv_heads,)), case.group)
    shift = inputs.q.view.astype(np.float64).sum(axis=2) * per_head * inputs.scale
    return _edited(first, ("k_cache", lambda x: x + 1), image=Image(lse_shift=shift))


def _reversed_keys(first: First) -> Twin | None:
    case = first.case
    if not _all_visible(case):
        return None
    second = materialise(case)
    for name in caches(case):
        for index in range(len(case.seqs)):
            put_tokens(second, name, index, tokens(first.materials, name, index)[::-1])
    return Twin(second)


def _doubled_keys(first: First) -> Twin | None:
    """Each sequence twice as long, the same tokens again: no weight but the normaliser is another."""
    case = first.case
    if case.sinks or not _all_visible(case) or max(seq.kv_len for seq in case.seqs) > MOST_DOUBLED:
        return None
    changed = first.changed(seqs=tuple(Seq(query_len=s.query_len, kv_len=2 * s.kv_len, tag=s.tag) for s in case.seqs))
    if changed is None:
        return None
    second = materialise(changed)
    fill(second, "q", first.materials.inputs.q.view)
    for name in caches(case):
        for index in range(len(case.seqs)):
            put_tokens(second, name, index, np.concatenate([tokens(first.materials, name, index)] * 2))
    return Twin(second, Image(lse_shift=math.log(2)))


#: Longer sequences are not doubled: the second call would be slower than a case is.
MOST_DOUBLED = 350

# --- answers that are known --------------------------------------------------------------------------------------


def _constant_v(first: First) -> Twin | None:
    """All tokens have the V of a ramp over the dims: whatever the weights are, that is the output."""
    case = first.case
    if case.v_is_k_prefix or case.sinks:
        return None
    second = materialise(case)
    ramp = 1 + np.arange(case.value_dim) % 4 / 4  # exact in every type
    for index, seq in enumerate(case.seqs):
        put_tokens(second, "v_cache", index, np.broadcast_to(ramp, (seq.kv_len, case.num_kv_heads, case.value_dim)))
    scale = second.inputs.v_scale
    factor = np.ones(case.num_kv_heads) if scale is None else np.broadcast_to(scale.view, (case.num_kv_heads,))
    wanted = np.repeat(factor, case.group)[:, None] * ramp

    def answer(bound: Bound) -> Array:
        return np.where(np.isfinite(bound.truth_lse)[..., None], wanted, 0.0)

    return Twin(second, answer=answer)


# --- merges ------------------------------------------------------------------------------------------------------


def _reversed_states(first: First) -> Twin:
    second = materialise(first.case)
    for name in ("state_outs", "state_lses"):
        tensor = getattr(second.inputs, name)
        data, state = tensor.view[::-1].copy(), tensor.state[::-1].copy()
        tensor.view[...], tensor.state[...] = data, state
    return Twin(second)


def _empty_state(first: First) -> Twin | None:
    """One more state that saw no key."""
    partition = first.case.states.partition or (1, 1)
    states = States(partition=(*partition, 1), empty=(*first.case.states.empty, len(partition)))
    case = first.changed(states=states)
    return None if case is None else Twin(materialise(case))


def _doubled_states(first: First) -> Twin | None:
    """Twice the outputs of all states, where nothing is subnormal."""
    if first.case.values == "peaked" or not _doubles(first):
        return None
    if first.case.dtype == "float16" or not _normal(first.materials, "state_outs", 2.0):
        return None
    return _edited(first, ("state_outs", _doubled), image=Image(factor=2.0))


_SCALE = "the scale or the softcap"
VALUE_LAWS = (
    Law("doubled V", _doubled_v, "V was doubled", "a constant or a scale among the values", "bitwise"),
    Law("negated V", _negated_v, "V was negated", "a bias, or a maximum of values", "bitwise", signed_zeros=False),
    Law("negated Q and K", _negated_qk, "q and K were both negated", _SCALE, "bitwise", signed_zeros=False),
    Law("doubled Q, halved K", _halved_k, "q was doubled and K halved", _SCALE, "bitwise"),
    Law("doubled Q, halved scale", _halved_scale, "q was doubled and the scale halved", _SCALE, "bitwise"),
    Law("shifted keys", _shifted_k, "1 was added to every number of K", "the maximum that is subtracted"),
    Law("reversed keys", _reversed_keys, "the keys came in reverse order", "the running maximum, or a mask"),
    Law("doubled keys", _doubled_keys, "every key came twice", "the normaliser"),
    Law("constant V", _constant_v, "all tokens had the same V", "a key that the normaliser counts otherwise", "exact"),
    Law("other order of states", _reversed_states, "the states came in reverse order", "the merge", ops=("merge",)),
    Law("empty state more", _empty_state, "there was one empty state more", "the mask of empty states", ops=("merge",)),
    Law(
        "doubled states", _doubled_states, "the outputs of all states were doubled", "the merge", "bitwise",
        ops=("merge",),
    ),
)  # fmt: skip
