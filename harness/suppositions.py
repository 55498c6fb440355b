"""What a wrong output is right for: numbers read otherwise, features in another order, another window."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from harness.bounds import Bound, exceeds
from harness.case import FP8, Case
from harness.inputs import Materials, gathered
from harness.judge import features
from harness.tensors import Array
from harness.values import DTYPES, scales

#: What is left of the error where a supposition explains it: the kernel's own rounding, and that to 16 bits.
LEFT = 0.02
#: Bits of a fraction that are kept, by the format that keeps so many.
FRACTIONS = {"TF32": 10, "bfloat16": 7}


@dataclass(frozen=True)
class Question:
    """Attention of one sequence, each of its steps open to change; q, K, V as float64 [tokens, heads, dim]."""

    case: Case
    q: Array
    k: Array
    v: Array
    cached: int  # tokens that come from the cache; dense ones follow
    reach: tuple[int, int]  # how many keys a query sees before its own and after it; -1 is all
    scale: float
    softcap: float
    slopes: Array | None
    sinks: Array | None
    logits: Callable[["Question", Array, Array], Array]  # of q*k and the distances, both [heads, queries, keys]

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.case.group

    def capped(self, scores: Array) -> Array:
        """The softcap, if there is one."""
        return self.softcap * np.tanh(scores / self.softcap) if self.softcap else scores

    def bias(self, distance: Array) -> Array:
        """What ALiBi subtracts, [heads, queries, keys]."""
        return distance if self.slopes is None else self.slopes.astype(np.float64)[:, None, None] * distance

    def biased(self, scores: Array, distance: Array) -> Array:
        """ALiBi, if there is any."""
        return scores if self.slopes is None else scores - self.bias(distance)


Change = Callable[[Question], Question]


def explain(case: Case, materials: Materials, out: Array, bound: Bound, lse: Array | None = None) -> str:
    """The first supposition that leaves next to nothing of the error of `out` and of `lse`; "" where none does."""
    outputs = [Output(out, bound.truth, bound.out)]
    outputs += [] if lse is None else [Output(lse, bound.truth_lse, bound.lse)]
    if not any(output.wrong for output in outputs):
        return ""
    questions = [_question(materials, index) for index in range(len(case.batch))]
    right = _outputs(questions, lambda question: question)
    for words, change in suppositions(case):
        supposed = _outputs(questions, change)
        if all(one.fits(*pair) for one, *pair in zip(outputs, supposed, right, strict=False)):
            return words
    return ""


@dataclass(frozen=True)
class Output:
    """`out` or `lse` as it came back, with its truth and bound."""

    got: Array
    truth: Array
    tolerance: Array

    @property
    def wrong(self) -> bool:
        """Whether it breaks its bound anywhere."""
        return bool(exceeds(self.got, self.truth, self.tolerance).any())

    def fits(self, supposed: Array, right: Array) -> bool:
        """Whether what is wrong comes next to what is supposed; what is right has to stay so."""
        if not self.wrong:
            return not exceeds(self.got, supposed, self.tolerance).any()
        off = _apart(self.got, right)
        return bool(np.isfinite(off)) and _apart(self.got, supposed) <= LEFT * off


def _question(materials: Materials, index: int) -> Question:
    case, given = materials.case, features(materials)
    q, k, v = (x.astype(np.float64) for x in gathered(materials, index))
    cached = int(case.paged_len(case.batch[index]))
    sinks = given["sinks"]
    return Question(
        case, q, k, v, cached, _reach(case), given["scale"], given["softcap"], given["alibi_slopes"], sinks, _in_order
    )  # fmt: skip


def _reach(case: Case) -> tuple[int, int]:
    left, right = case.window
    return left, 0 if case.causal else right


def _apart(got: Array, supposed: Array) -> float:
    got = np.asarray(got).astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = np.where(got == supposed, 0.0, np.abs(got - supposed))
    return float(np.where(np.isnan(off), np.inf, off).max(initial=0.0))


def _outputs(questions: list[Question], change: Change) -> tuple[Array, Array]:
    outs, lses = zip(*(_attention(change(question)) for question in questions), strict=True)
    return np.concatenate(outs), np.concatenate(lses)


def _attention(question: Question) -> tuple[Array, Array]:
    """out [queries, heads, dim], 0 where no key is seen, and lse [queries, heads], -inf there."""
    k, v = (np.repeat(x, question.group, axis=1).transpose(1, 0, 2) for x in (question.k, question.v))
    products = question.q.transpose(1, 0, 2) @ np.nan_to_num(k).transpose(0, 2, 1)
    ahead = np.arange(len(question.k)) - np.arange(len(question.k) - len(question.q), len(question.k))[:, None]
    logits = question.logits(question, products, np.broadcast_to(np.abs(ahead), products.shape).astype(np.float64))
    logits = np.where(_seen(question.reach, ahead), logits, -np.inf)
    sinks = np.full(len(k), -np.inf) if question.sinks is None else question.sinks.astype(np.float64)
    largest = np.maximum(logits.max(axis=2, initial=-np.inf), sinks[:, None])
    largest = np.where(np.isneginf(largest), 0.0, largest)[:, :, None]
    weights = np.exp(logits - largest)
    total = weights.sum(axis=2, keepdims=True) + np.exp(sinks[:, None, None] - largest)
    summed = np.asarray(weights @ np.nan_to_num(v) / np.where(total == 0, 1.0, total))
    with np.errstate(divide="ignore"):
        lse = largest + np.log(total)
    return summed.transpose(1, 0, 2), lse[:, :, 0].T


def _seen(reach: tuple[int, int], ahead: Array) -> Array:
    left, right = reach
    return np.asarray(((ahead <= right) | (right < 0)) & ((ahead >= -left) | (left < 0)))


def suppositions(case: Case) -> Iterator[tuple[str, Change]]:
    """Sentences with what they suppose, as far as the case has what they speak of."""
    if case.cache_dtype in FP8:
        yield from _of_fp8(case)
    if case.dtype == "float32" and case.kv_dtype == "same":
        yield from _of_fractions()
    yield from _of_order(case)
    yield from _of_window(case)


# --- numbers that are read otherwise -----------------------------------------------------------------------------


def _of_fp8(case: Case) -> Iterator[tuple[str, Change]]:
    other = next(name for name in FP8 if name != case.cache_dtype)
    least = float(ml_dtypes.finfo(DTYPES[case.cache_dtype]).smallest_normal)  # type: ignore[no-untyped-call]
    both = scales(case)
    for name, scale, others in (("k", both[0], both[1]), ("v", both[1], both[0])):
        word = name.upper()
        yield f"{word} of {case.cache_dtype} is read as {other}", _cached(name, scale, partial(_as, other))
        flushed = partial(_flushed, least)
        yield f"subnormal numbers of {word}, below {least:.4g}, are read as 0", _cached(name, scale, flushed)
        factors = {
            f"the scale of {word} of head 0 is taken for all heads": scale[0] / scale,
            f"the scale of {'V' if name == 'k' else 'K'} is taken for that of {word}": others / scale,
            f"the scale of {word} is not multiplied in": 1 / scale,
            f"the scale of {word} is multiplied in twice": scale,
        }
        yield from (
            (words, _cached(name, 1.0, partial(_times, by))) for words, by in factors.items() if (by != 1).any()
        )
        if case.new_kv == "dense":
            yield f"the scale of the cached {word} is multiplied into the new {word} as well", _new(name, scale)


def _cached(name: str, scale: Any, read: Callable[[Array], Array]) -> Change:
    """The tokens of the cache, as they are stored, read in some other way."""
    factor = np.asarray(scale)[..., None]

    def change(question: Question) -> Question:
        tokens = getattr(question, name).copy()
        tokens[: question.cached] = read(tokens[: question.cached] / factor) * factor
        return replace(question, **{name: tokens})

    return change


def _new(name: str, scale: Array) -> Change:
    def change(question: Question) -> Question:
        tokens = getattr(question, name).copy()
        tokens[question.cached :] *= scale[:, None]
        return replace(question, **{name: tokens})

    return change


def _as(other: str, stored: Array) -> Array:
    own = next(name for name in FP8 if name != other)
    return stored.astype(DTYPES[own]).view(DTYPES[other]).astype(np.float64)


def _flushed(least: float, stored: Array) -> Array:
    return np.where(np.abs(stored) < least, 0.0, stored)


def _times(by: Array, stored: Array) -> Array:
    return stored * by[:, None]


def _of_fractions() -> Iterator[tuple[str, Change]]:
    for format_name, kept in FRACTIONS.items():
        for names in (("k",), ("v",), ("q",), ("q", "k")):
            words = f"{' and '.join(name.upper() if name != 'q' else name for name in names)}"
            verb = "keeps" if len(names) == 1 else "keep"
            for how, rounded in (("", True), (", the rest cut off", False)):
                sentence = f"{words} {verb} {kept} bits of a fraction{how}, as in {format_name}"
                yield sentence, partial(_shortened, names=names, kept=kept, rounded=rounded)


def _shortened(question: Question, names: tuple[str, ...], kept: int, rounded: bool) -> Question:
    def shorter(x: Array) -> Array:
        bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
        lost = np.uint64(23 - kept)
        half = ((bits >> lost & np.uint64(1)) + (np.uint64(1) << (lost - np.uint64(1))) - np.uint64(1)) * rounded
        return ((bits + half) >> lost << lost).astype(np.uint32).view(np.float32).astype(np.float64)

    changes: dict[str, Any] = {name: shorter(getattr(question, name)) for name in names}
    return replace(question, **changes)


# --- features in another order -----------------------------------------------------------------------------------


def _in_order(question: Question, products: Array, distance: Array) -> Array:
    """Scale, then softcap, then ALiBi."""
    return question.biased(question.capped(question.scale * products), distance)


def _cap_after_alibi(question: Question, products: Array, distance: Array) -> Array:
    return question.capped(question.biased(question.scale * products, distance))


def _cap_before_scale(question: Question, products: Array, distance: Array) -> Array:
    return question.biased(question.scale * question.capped(products), distance)


def _cap_twice(question: Question, products: Array, distance: Array) -> Array:
    return question.biased(question.capped(question.capped(question.scale * products)), distance)


def _scaled_alibi(question: Question, products: Array, distance: Array) -> Array:
    return question.biased(question.capped(question.scale * products), question.scale * distance)


def _alibi_twice(question: Question, products: Array, distance: Array) -> Array:
    return question.biased(question.capped(question.scale * products), 2 * distance)


def _uncapped_where(new: bool, question: Question, products: Array, distance: Array) -> Array:
    scores, here = question.scale * products, (np.arange(products.shape[2]) >= question.cached) == new
    return question.biased(np.where(here, scores, question.capped(scores)), distance)


def _unbiased_where(new: bool, question: Question, products: Array, distance: Array) -> Array:
    scores, here = question.capped(question.scale * products), (np.arange(products.shape[2]) >= question.cached) == new
    return np.where(here, scores, question.biased(scores, distance))


def _of_order(case: Case) -> Iterator[tuple[str, Change]]:
    if case.softcap and case.alibi:
        yield "the softcap is applied after ALiBi, not before", _ordered(_cap_after_alibi)
    if case.softcap:
        yield "the softcap is applied before the scale, not after", _ordered(_cap_before_scale)
        yield "the softcap is applied twice", _ordered(_cap_twice)
    if case.alibi:
        yield "ALiBi is multiplied by the scale", _ordered(_scaled_alibi)
        yield "ALiBi is subtracted twice", _ordered(_alibi_twice)
    if case.new_kv == "dense":
        yield from _of_one_path(case)
    if case.sinks:
        yield "the sink is multiplied by the scale", _scaled_sinks


def _of_one_path(case: Case) -> Iterator[tuple[str, Change]]:
    for new, tokens in ((True, "the new tokens"), (False, "the cached tokens")):
        if case.softcap:
            yield f"the softcap is missing on {tokens}", _ordered(partial(_uncapped_where, new))
        if case.alibi:
            yield f"ALiBi is missing on {tokens}", _ordered(partial(_unbiased_where, new))


def _ordered(logits: Callable[[Question, Array, Array], Array]) -> Change:
    return partial(replace, logits=logits)


def _scaled_sinks(question: Question) -> Question:
    assert question.sinks is not None
    return replace(question, sinks=question.sinks.astype(np.float64) * question.scale)


# --- another window ----------------------------------------------------------------------------------------------


def _of_window(case: Case) -> Iterator[tuple[str, Change]]:
    left, right = _reach(case)
    others = {
        "the window reaches as far ahead as it does back": (left, left),
        "the window reaches as far back as it does ahead": (right, right),
        "the window reaches as far back as it should ahead, and the other way round": (right, left),
    }
    for words, reach in others.items():
        if case.window != (-1, -1) and reach != (left, right):
            yield words, partial(replace, reach=reach)
