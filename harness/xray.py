"""The x-ray of a wrong output: the weights that the kernel really gave to each slot, and what they say of the fault."""

from collections.abc import Iterator

import numpy as np

from harness import factors, misreadings, overflows, states, suppositions
from harness.arithmetic import Arithmetic
from harness.bounds import exceeds
from harness.case import FAR, Case, replace
from harness.inputs import materialise
from harness.judge import judge
from harness.landmarks import Landmarks, at, told
from harness.listing import listed
from harness.operations import ATTENTION
from harness.platforms import platform
from harness.probe import DIM_CYCLE, Look, Make, Seen, Weights, dim_pattern, dims, padded, plain, quiet, weights
from harness.rows import Row
from harness.traits import BY_NAME

#: What is not live, and what it means that it must be finite.
POISONED = {
    "k_poison": "K of {slots} is finite: it is read, and its scores are not masked well enough",
    "v_poison": "V of {slots} is finite: it is multiplied by a weight of 0, and 0 times NaN is NaN",
    "spare_poison": "blocks that no sequence owns hold finite numbers: one of them is read",
    "row_poison": "rows that are nobody's, such as a graph's padding or empty states, are finite: "
    "they are computed with",
}
#: The rest of what a row is accused of adds little.
MOST_SENTENCES = 4
#: Two outputs that come so near, in parts of the largest element, are the same.
ALIKE = 0.02
#: How far a weight that was recovered may move the logarithm of a sum.
LOOSE = 1e-4


def explain(case: Case, look: Look, where: tuple[int, ...] = (), known: Landmarks | None = None) -> tuple[str, ...]:
    """Sentences on the row at `where` (sequence, token, head), or on the first whose weights are wrong.

    Nothing where V cannot be changed alone (a prefix of K), or where no output comes back.
    """
    return tuple(told(sentence, known or {}) for sentence in _sentences(case, look, where))


def _sentences(case: Case, look: Look, where: tuple[int, ...]) -> tuple[str, ...]:
    if not _applies(case):
        return ()
    tame = plain(case)
    if added := _added(tame, look):
        return (added,)
    words = _supposed(tame, look)
    if not words and (mixed := _mixed_dims(tame, look)):
        return (mixed,)
    row = _first_wrong_row(tame, look, where)
    told = () if row is None else _told(case, row)
    if words:
        return (words, *told)[:MOST_SENTENCES]
    return told or _nothing_wrong(case, look, where)


def _supposed(case: Case, look: Look) -> str:
    """What the output is right for, in words."""
    materials = materialise(case)
    seen = look(materials) if case.op != "merge" else None
    return "" if seen is None else suppositions.explain(case, materials, *seen)


def _told(case: Case, row: tuple[Weights, int, int]) -> tuple[str, ...]:
    return tuple(_of_states(*row) if case.op == "merge" else _of_row(Row.of(*row)))[:MOST_SENTENCES]


def wrong_row(case: Case, look: Look, where: tuple[int, ...] = ()) -> tuple[Weights, int, int] | None:
    """The weights with the token and the head whose row `explain` tells of; None where it tells of something else."""
    tame = plain(case)
    if not _applies(case) or _added(tame, look) or _mixed_dims(tame, look):
        return None
    return _first_wrong_row(tame, look, where)


def _applies(case: Case) -> bool:
    """V can be changed alone, and makes the output."""
    return case.op in (*ATTENTION, "merge") and not case.v_is_k_prefix


def _first_wrong_row(case: Case, look: Look, where: tuple[int, ...]) -> tuple[Weights, int, int] | None:
    rows = (_wrong_row(case, look, make, where) for make in (quiet, padded))
    return next((row for row in rows if row is not None), None)


def _wrong_row(case: Case, look: Look, make: Make, where: tuple[int, ...]) -> tuple[Weights, int, int] | None:
    """The weights that were probed so, and a row with a wrong and no infinite one."""
    if make is padded and (case.op == "merge" or case.placement in FAR):
        return None
    found = weights(case, look, make)
    if found is None or not found.wrong.any():
        return None
    token, head = _worst_row(found, where)
    return (found, token, head) if np.isfinite(found.got[token, head]).all() else None


def _worst_row(found: Weights, where: tuple[int, ...]) -> tuple[int, int]:
    """The row that was complained of, if its weights are wrong; a finite one before others."""
    rows = np.asarray(found.wrong.any(axis=2))
    finite = rows & np.asarray(np.isfinite(found.got).all(axis=2))
    told = finite if finite.any() else rows
    if len(where) >= 3 and told[where[1], where[2]]:
        return where[1], where[2]
    token, head = np.argwhere(told)[0]
    return int(token), int(head)


def _added(case: Case, look: Look) -> str:
    """Without any V there is nothing to sum."""
    seen = look(quiet(case))
    if seen is None:
        return ""
    out = np.asarray(seen.out).astype(np.float64)
    wrong = exceeds(seen.out, seen.bound) & np.isfinite(out)
    if not wrong.any():
        return ""
    words = f"the output is {out[wrong][0]:.4g} where V is 0 everywhere"
    if _is_of_keys(case, seen):
        return f"{words}: it is the mean of K, in place of V{at('output')}"
    return f"{words}: something is added to it that is no V{at('output')}"


def _is_of_keys(case: Case, seen: Seen) -> bool:
    """Whether the output, where V is 0, is what it would be if V were K."""
    if case.op == "merge" or case.value_dim != case.head_dim or case.op == "step":
        return False
    materials = quiet(case)
    materials.inputs.v_cache.view[...] = materials.inputs.k_cache.view
    truth = judge(materials, Arithmetic.float64(), platform("float64"), out_dtype="float64").truth
    off, size = np.abs(np.asarray(seen.out).astype(np.float64) - truth), np.abs(truth).max(initial=0.0)
    return bool(size and (off <= ALIKE * size).all())


def _mixed_dims(case: Case, look: Look) -> str:
    """Each dim of V holds a number of its own, the same for all tokens: whatever the weights, the output shows it."""
    seen = dims(case, look, quiet) if case.op != "merge" else None
    if seen is None:
        return ""
    pattern = dim_pattern(case)
    share = np.asarray(seen.out).astype(np.float64) / pattern
    allowed = seen.bound.out / pattern
    first, allowed_first = share[..., :1], allowed[..., :1]
    apart = np.abs(share - first) > 4 * (allowed + allowed_first) * np.maximum(1.0, np.abs(first))
    if not (apart & np.isfinite(share)).any():
        return ""
    token, head, dim = (int(i) for i in np.argwhere(apart & np.isfinite(share))[0])
    whole = np.sort(share[token, head] * pattern)
    kept = (np.abs(whole - np.sort(pattern)) <= 4 * allowed[token, head].max() * DIM_CYCLE).all()
    mixed = "; no dim is lost: dims are mixed up, of V or of the output" if kept else ""
    k_cache, v_cache = (quiet(case).inputs.k_cache, quiet(case).inputs.v_cache)
    strides = f" (K has {k_cache.strides}, V {v_cache.strides})" if k_cache.strides != v_cache.strides else ""
    return (
        f"V is read with wrong strides{strides}: where V holds dim % {DIM_CYCLE} + 1 in every token, dim {dim} of "
        f"token {token}, head {head} is {share[token, head, dim] * pattern[dim]:.4g}, "
        f"and dim 0 is {float(first[token, head, 0]):.4g}{mixed}"
    )


def _nothing_wrong(case: Case, look: Look, where: tuple[int, ...]) -> tuple[str, ...]:
    """No weight is wrong, or none can be told."""
    if case.op != "merge" and len(where) >= 2 and case.batch[where[0]].kv_len == 0:
        return (f"sequence {where[0]} has no key: {_without_keys(case, look, where)}",)
    if case.op == "merge" and len(set(case.states.empty)) == states.count(case):
        return ("every state is empty: their weights sum to 0, and 0 is divided by that sum",)
    if filled := _filled(case, look, where):
        return filled
    found = weights(plain(case), look, quiet)
    if found is None:
        return ()
    if not np.isfinite(found.got).all():
        return (_not_finite(case, look),)
    if len(where) == 3:
        words = "every weight is right: the output is, and only its lse is wrong"
        return (words, *_of_lse(plain(case), look, found, where))
    return tuple(
        f"every weight is right while {words.format(slots=_which(case, name, look))}"
        for name, words in POISONED.items()
        if _spoils(case, name, look) and not _wrong(plain(case), look)
    ) or ("every weight is right where V is 0 or 1: what is wrong depends on the values of V",)


def _without_keys(case: Case, look: Look, where: tuple[int, ...]) -> str:
    """What went wrong with a row that sees no key."""
    if len(where) == 3:
        return f"its lse should be {'that of the sink alone' if case.sinks else '-inf'}"
    seen = look(quiet(plain(case)))
    if seen is None or not np.isfinite(np.asarray(seen.out[where[1]]).astype(np.float64)).all():
        return "its weights sum to 0, and 0 is divided by that sum"
    return "its output should be 0, but what is no key of it counts"


def _of_lse(case: Case, look: Look, found: Weights, where: tuple[int, ...]) -> Iterator[str]:
    """What a wrong lse is instead."""
    seen, at = look(quiet(case)), where[1:]
    if seen is None or seen.lse is None:
        return
    truth, within = float(seen.bound.truth_lse[at]), 4 * float(seen.bound.lse[at])
    largest = truth + float(np.log(found.true[at].max())) if found.true[at].max() > 0 else truth
    what = "lse of a state" if case.op == "merge" else "score"
    for wanted, words in (
        (largest, f"the lse is that of the largest {what} alone: the logarithm of the sum is not added"),
        (truth / np.log(2), "the lse should be a natural logarithm: it is a logarithm in base 2"),
    ):
        if abs(wanted - truth) > 4 * within and abs(float(seen.lse[at]) - wanted) <= within + LOOSE * abs(wanted):
            yield words


def _filled(case: Case, look: Look, where: tuple[int, ...]) -> tuple[str, ...]:
    """What is wrong with the weights of full blocks: one key has weight 1 whatever is read of its K."""
    partly = BY_NAME["partly filled block"]
    if case.op == "merge" or not partly.has(case):
        return ()
    row = _wrong_row(partly.without(plain(case)), look, quiet, where)
    return () if row is None else _told(case, row)


def _not_finite(case: Case, look: Look) -> str:
    """Why an output is not finite whatever V holds: told apart by a K that gives every score 0."""
    if overflows.finite(quiet(replace(plain(case), values="uniform")), look):
        return f"the output is not finite though every slot of V holds 0 or 1: {overflows.told(plain(case), look)}"
    return (
        "the output is not finite though K and V are 0 everywhere: -inf is subtracted from -inf, as where a row sees "
        "no key of a tile or of a split, or what is read is neither K nor V"
    )


def _which(case: Case, name: str, look: Look) -> str:
    """Where the poison lies that spoils the output."""
    if case.slid_out and not _spoils(replace(case, slid_out=False), name, look):
        return "tokens that slid out, before the window,"
    return "slots behind the last token"


def _spoils(case: Case, name: str, look: Look) -> bool:
    """Whether the poison of one kind, all others taken out, is enough to make the output wrong."""
    return getattr(case, name) != "zero" and _wrong(replace(plain(case), **{name: getattr(case, name)}), look)


def _wrong(case: Case, look: Look) -> bool:
    seen = look(materialise(case))
    return seen is not None and bool(exceeds(seen.out, seen.bound).any())


# --- one row -----------------------------------------------------------------------------------------------------


def _of_row(row: Row) -> Iterator[str]:
    """What is wrong with the weights of one row, the most telling first."""
    if whole := misreadings.of_v(row) or row.someone_elses() or misreadings.lookup(row):
        yield f"{row.place}: {whole}"
        return
    if not row.visible.any():
        yield f"{row.place} {row.empty()}"
    sentences = (*row.foreign(), *row.hidden(), *row.missing(), *row.further_on(), *factors.rest(row))
    yield from (f"{row.place}: {sentence}" for sentence in sentences or (factors.worst(row),))


# --- states ------------------------------------------------------------------------------------------------------


def _of_states(found: Weights, token: int, head: int) -> Iterator[str]:
    """What is wrong with the weights of the states that are merged into one row."""
    got, true, within = (x[token, head] for x in (found.got, found.true, found.within))
    place = f"token {token}, head {head}"
    for state in np.flatnonzero((true == 0) & found.wrong[token, head]):
        yield f"{place}: state {state} counts with weight {got[state]:.4g} though it is empty"
    lost = np.flatnonzero((true > 4 * within) & (np.abs(got) <= within))
    if len(lost):
        yield f"{place}: {listed(lost, 'state')} {'has' if len(lost) == 1 else 'have'} weight 0"
    if words := factors.power(got, true, within):
        yield f"{place}: {words}"
    elif not len(lost):
        worst = int(np.abs(got - true).argmax())
        yield f"{place}: state {worst} has weight {got[worst]:.4g}, but should have {true[worst]:.4g}"
