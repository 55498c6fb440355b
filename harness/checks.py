"""The base set of checks: from what was observed of a call to findings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from harness import exact, overflows
from harness.arithmetic import Arithmetic
from harness.bounds import Bound, exceeds, margin
from harness.case import Case
from harness.copies import copied, misplaced
from harness.executors.base import BadAccess, Observed, Written, bits
from harness.inputs import Materials
from harness.operations import gathered_tile
from harness.places import suggested
from harness.results import Finding
from harness.tensors import Array
from harness.writes import CACHES


@dataclass(frozen=True)
class Run:
    """One observed call and what it should have been."""

    materials: Materials
    observed: Observed
    bound: Bound | None  # None where there is no output to judge
    arithmetic: Arithmetic  # how the subject's kernels round

    @property
    def case(self) -> Case:
        """The case that ran."""
        return self.materials.case


def base_findings(run: Run) -> list[Finding]:
    """Everything that one call shows, without launching anything again."""
    return [finding for check in BASE for finding in check(run)]


# --- the call itself ---------------------------------------------------------------------------------------------


def raised(run: Run) -> Iterator[Finding]:
    """An exception left the subject; a lost device context is a crash."""
    failure = run.observed.failure
    if failure is None:
        return
    where = f" at {failure.line}" if failure.line else ""
    message = f"{failure.type}{where}: {failure.message}"
    if failure.poisoned:
        yield Finding(kind="crash", detail=failure.type, message=message, accuses="an illegal memory access")
    else:
        yield Finding(kind="exception", detail=f"{failure.type} {failure.line}", message=message, line=failure.line)


def misshapen(run: Run) -> Iterator[Finding]:
    """What came back is not the output of this operation."""
    if run.observed.complaint:
        yield Finding(kind="wrong shape", message=run.observed.complaint, accuses="the wrapper")


# --- memory ------------------------------------------------------------------------------------------------------


def bad_accesses(run: Run) -> Iterator[Finding]:
    """Reads and writes outside an allocation or outside what a view can reach."""
    for access in run.observed.accesses:
        if access.kind not in (*SUSPECT, *WRONG_AT_ONCE):
            kind = "bad write" if access.kind.endswith("write") else "bad read"
            words = _left_there(run, access) if kind == "bad write" else ()
            yield Finding(
                kind=kind,
                detail=access.tensor,
                message=tell_access(access),
                line=access.line,
                accuses=_accused(run.materials, access),
                explains=words,
            )


def _left_there(run: Run, access: BadAccess) -> tuple[str, ...]:
    """What lies outside the tensor since, where it is a new token's."""
    left = (written for written in run.observed.outside if access.tensor in written.tensor.split(" or "))
    return next((misplaced(run.materials, written) for written in left), ())


def _accused(materials: Materials, access: BadAccess) -> str:
    """What a place that nobody has suggests."""
    if access.story == "in a gap":
        return "strides that are not the tensor's own"
    return suggested(materials, access) or _without_query(materials.case)


def _without_query(case: Case) -> str:
    """A sequence that has no row of its own, in words."""
    idle = [index for index, seq in enumerate(case.batch) if seq.query_len == 0]
    return f"sequence {idle[0]} has no new token, and a program of it has no row" if idle else ""


def wrapped(run: Run) -> Iterator[Finding]:
    """A number that does not fit in 32 bits became an address."""
    for access in run.observed.accesses:
        if access.kind.startswith("overflow"):
            where = f"{access.kind.removeprefix('overflow ')} of {access.tensor} by program {list(access.program)}"
            message = f"at {access.line} {access.story} of a {where}{_in_all(access)}"
            accuses = "an index that is not made 64 bits wide before it is multiplied"
            yield Finding(kind=access.kind, detail=access.tensor, message=message, line=access.line, accuses=accuses)


def raced(run: Run) -> Iterator[Finding]:
    """What programs of one launch do to one place depends on which of them is first."""
    for access in run.observed.accesses:
        if access.kind == "race":
            place = f"{access.tensor} {_index(access)}"
            message = (
                f"race for {place}: program {list(access.program)} at {access.line}, {access.story}{_in_all(access)}"
            )
            accuses = "; ".join(filter(None, ("two programs without an order", _without_query(run.case))))
            yield Finding(kind="race", message=message, line=access.line, accuses=accuses)


#: Accesses that are a fault whatever comes of them, told by checks of their own.
WRONG_AT_ONCE = ("overflow read", "overflow write", "race")
#: Accesses that are legal as long as no bit of the output moves: they explain what is wrong, the likeliest first.
SUSPECT = ("uninitialised read", "foreign read", "dead read", "dead write")


def tell_access(access: BadAccess) -> str:
    """An access in words."""
    place = f"{access.tensor} {_index(access)}{f' ({access.story})' if access.story else ''}"
    return f"{access.kind} of {place} by program {list(access.program)} at {access.line}{_in_all(access)}"


def _index(access: BadAccess) -> str:
    return str(list(access.index)) if isinstance(access.index, tuple) else f"element {access.index}"


def _in_all(access: BadAccess) -> str:
    return f", {access.count} elements in all" if access.count > 1 else ""


def wrote_outside(run: Run) -> Iterator[Finding]:
    """A fence or a gap between strides changed."""
    for written in run.observed.outside:
        message = f"outside {written.tensor} (its fence, or between its strides), {tell_written(written)}"
        words = misplaced(run.materials, written)
        yield Finding(kind="wrote outside", detail=written.tensor, message=message, explains=words)


def changed_inputs(run: Run) -> Iterator[Finding]:
    """Something that is only to be read was written, or a cache does not hold what it should."""
    for written in run.observed.changed:
        if run.materials.stored is not None and written.tensor in CACHES:
            yield _wrong_cache(run, written)
            continue
        message = f"{written.tensor} is an input, but {tell_written(written)}"
        yield Finding(kind="inputs changed", detail=written.tensor, message=message)


def _wrong_cache(run: Run, written: Written) -> Finding:
    place = list(written.index) if isinstance(written.index, tuple) else f"element {written.index}"
    message = f"{written.tensor} {place} is {written.got:.6g}, but should be {written.was:.6g}"
    more = f"; {written.count} elements differ" if written.count > 1 else ""
    misread = _misread(run, f"{written.tensor[0]}_new")
    kept = misread and not np.isfinite(written.got)  # what lies in a gap looks like what nobody wrote
    return Finding(
        kind="wrong cache",
        detail=written.tensor,
        message=message + more,
        accuses=misread or "the slot or the strides",
        explains=() if kept else misplaced(run.materials, written),
    )


def _misread(run: Run, name: str) -> str:
    """A read of the new K or V where nothing of it lies, in words."""
    reads = (a for a in run.observed.accesses if a.tensor == name and a.kind.endswith("read"))
    return next((tell_access(access) for access in reads), "")


def tell_written(written: Written) -> str:
    """A write in words."""
    place = list(written.index) if isinstance(written.index, tuple) else f"element {written.index}"
    times = f", {written.count} elements in all" if written.count > 1 else ""
    return f"{place} is {written.got:.6g} and was {written.was:.6g}{times}"


def unwritten(run: Run) -> Iterator[Finding]:
    """A given `out` still holds the poison it came with, or no kernel wrote into one that was allocated."""
    missing = run.observed.unwritten
    if missing is not None:
        at = tuple(int(i) for i in np.argwhere(missing)[0])
        where = at if run.case.op == "gather" else (_sequence(run.case, at[0]), *at)
        place = _place(where, ROWS if run.case.op == "gather" else TOKENS)
        whose = "out" if run.materials.inputs.out is None else "the given out"
        message = f"{int(missing.sum())} of {missing.size} elements of {whose} were never written, first out{place}"
        yield Finding(kind="unwritten output", message=message, where=where, accuses="the grid, or the mask of a store")


# --- values ------------------------------------------------------------------------------------------------------


def inaccurate(run: Run) -> Iterator[Finding]:
    """`out` and `lse` against truth and bound, element by element."""
    if run.bound is None:
        return
    out, lse, bound = run.observed.out, run.observed.lse, run.bound
    if (wrong := exceeds(out, bound)).any():
        at = _worst(margin(out, bound), wrong)
        yield _beyond(run, "out", out, (bound.truth, bound.out), wrong, at)
    if lse is not None and (wrong := exceeds(lse, bound.truth_lse, bound.lse)).any():
        at = _worst(margin(lse, bound.truth_lse, bound.lse), wrong)
        yield _beyond(run, "lse", lse, (bound.truth_lse, bound.lse), wrong, at)


def _beyond(
    run: Run, name: str, seen: Array, expected: tuple[Array, Array], wrong: Array, at: tuple[int, ...]
) -> Finding:
    assert run.bound is not None
    got, truth, tolerance = float(seen[at]), float(expected[0][at]), float(expected[1][at])
    where = (_sequence(run.case, at[0]), *at)
    times = abs(got - truth) / tolerance if tolerance else float("inf")
    share = _dominating(run.bound, at) if name == "out" else ""
    beyond = f" ({times:.3g} times the bound{f', {share}' if share else ''})" if np.isfinite(times) else ""
    message = (
        f"{name}{_place(where)} is {got:.6g}, but should be {truth:.6g} ± {tolerance:.2g}{beyond}; "
        f"{int(wrong.sum())} of {wrong.size} elements differ"
    )
    found = Finding(
        kind="accuracy" if np.isfinite(got) else "not finite",
        message=message,
        where=where,
        times_bound=times if np.isfinite(times) else None,
        dominating=share,
        explains=overflows.of_lse(truth) if name == "lse" and not np.isfinite(got) else (),
    )
    return msgspec.structs.replace(found, **suspect(run.observed))


def suspect(observed: Observed) -> dict[str, str]:
    """Where a wrong value may come from: the first read of each kind of what nobody, or somebody else, may read."""
    first = {access.kind: access for access in reversed(observed.accesses)}
    found = [first[kind] for kind in SUSPECT if kind in first and kind.endswith("read")]
    return {"accuses": "; ".join(tell_access(access) for access in found), "line": found[0].line} if found else {}


def _worst(margins: Array, wrong: Array) -> tuple[int, ...]:
    """A finite error first: it tells more than a NaN."""
    finite = wrong & np.isfinite(margins)
    ranked = np.where(finite, margins, -1.0) if finite.any() else wrong.astype(float)
    return tuple(int(i) for i in np.unravel_index(int(ranked.argmax()), ranked.shape))


def _sequence(case: Case, token: int) -> int:
    ends = np.cumsum([seq.query_len for seq in case.batch])
    return int(np.searchsorted(ends, token, side="right"))


#: What an output is indexed by, in words: attention after its sequence, and a gathered tile.
TOKENS, ROWS = ("sequence", "token", "head", "dim"), ("sequence", "row", "head", "dim")


def _place(where: tuple[int, ...], words: tuple[str, ...] = TOKENS) -> str:
    return "[" + ", ".join(f"{word} {i}" for word, i in zip(words, where, strict=False)) + "]"


def _dominating(bound: Bound, at: tuple[int, ...]) -> str:
    name, share = bound.dominating(at)
    return f"which is {share:.0%} {name}"


def inexact(run: Run) -> Iterator[Finding]:
    """Values for which every weight is 0 or 1 leave one right output, whatever the bound would allow."""
    if run.bound is not None and run.observed.out is not None:
        for found in exact.findings(run.materials, run.observed.out, run.bound, run.arithmetic):
            yield msgspec.structs.replace(found, **suspect(run.observed))


def miscopied(run: Run) -> Iterator[Finding]:
    """A gather copies, so every bit must be the cache's."""
    out = run.observed.out
    if run.case.op != "gather" or out is None:
        return
    wanted = gathered_tile(run.materials)
    wrong = bits(out) != bits(wanted)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        got, should, count = float(out[at]), float(wanted[at]), int(wrong.sum())
        message = (
            f"out{_place(at, ROWS)} is {got:.6g}, but should be {should:.6g}; {count} of {wrong.size} elements differ"
        )
        kind = "accuracy" if np.isfinite(got) else "not finite"
        found = Finding(kind=kind, message=message, where=at, explains=copied(run.materials, out, wrong))
        yield msgspec.structs.replace(found, **suspect(run.observed))


BASE: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    raised,
    misshapen,
    bad_accesses,
    wrapped,
    raced,
    wrote_outside,
    changed_inputs,
    unwritten,
    inaccurate,
    inexact,
    miscopied,
)


def worst_margin(run: Run) -> tuple[float, str]:
    """The largest finite error in units of the bound, and the term that dominates there."""
    if run.bound is None or run.observed.out.size == 0:
        return 0.0, ""
    margins = margin(run.observed.out, run.bound)
    margins = np.where(np.isfinite(margins), margins, 0.0)
    at = tuple(int(i) for i in np.unravel_index(int(margins.argmax()), margins.shape))
    return float(margins[at]), _dominating(run.bound, at)
