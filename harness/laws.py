"""Laws: how the output of a changed call follows from that of the first, whatever the right output is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from harness.arithmetic import Arithmetic
from harness.bounds import Bound, exceeds
from harness.case import Case, InvalidCase, replace
from harness.checks import Run, base_findings
from harness.executors.base import Observed, bits
from harness.inputs import Materials
from harness.results import Finding
from harness.subjects import Declaration, Subject
from harness.tensors import Array
from harness.traits import traits

Expect = Literal["bitwise", "bound", "exact"]


class Caller(Protocol):
    """Who calls the subject again."""

    subject: Subject

    def takes(self, case: Case) -> bool:
        """Whether subject and executor do the case."""

    def compiles(self) -> bool:
        """Whether the executor lets a compiler reorder what the kernel's source says."""

    def again(self, materials: Materials, subject: Subject | None = None) -> Observed:
        """Call the subject, or another one in its place."""

    def bound(self, materials: Materials, observed: Observed) -> Bound | None:
        """Truth and bound of that call."""


@dataclass(frozen=True)
class First:
    """The first call, which was found right."""

    run: Run
    arithmetic: Arithmetic
    caller: Caller

    @property
    def case(self) -> Case:
        """The case that ran."""
        return self.run.case

    @property
    def materials(self) -> Materials:
        """Its tensors; only to be read."""
        return self.run.materials

    @property
    def declared(self) -> Declaration:
        """What the subject says of itself."""
        return self.caller.subject.declaration

    def changed(self, **changes: Any) -> Case | None:
        """The case with other fields, None where that is no case or the subject does not take it."""
        try:
            case = replace(self.case, **changes)
        except InvalidCase:
            return None
        return case if self.caller.takes(case) else None


@dataclass(frozen=True)
class Image:
    """Where the second output is to be found in the first: second[second] = first[first, heads] * factor."""

    first: Any = ...  # tokens; all of them
    second: Any = ...
    heads: Any = ...
    factor: float = 1.0
    lse_shift: Any = 0.0  # number or [compared tokens, heads]

    def out(self, array: Array) -> Array:
        """What the second `out`, or its tolerance, follows from."""
        return np.asarray(array[self.first][:, self.heads])


@dataclass(frozen=True)
class Twin:
    """The second call; with an `answer`, [tokens, heads, dim] in float64, it need not be compared."""

    materials: Materials
    image: Image = field(default_factory=Image)
    answer: Callable[[Bound], Array] | None = None


@dataclass(frozen=True)
class Law:
    """What is changed, and what must come of it.

    `bitwise` holds for a subject that is deterministic and promises all that the law `requires`; where a compiler may
    make another kernel of the changed call (`recompiles`), or the subject chooses another number of splits for it, and
    for everybody else, the law is held to the bound:
    |second - first| <= B1 + B2, each the derived bound of its own call. `exact` knows the answer, within B2.
    """

    name: str
    make: Callable[[First], Twin | None]  # None where the law says nothing about this call
    says: str
    accuses: str
    expect: Expect = "bound"
    requires: tuple[str, ...] = ()
    recompiles: bool = False
    signed_zeros: bool = True  # whether -0 is to be told from 0
    ops: tuple[str, ...] = ("decode", "extend")
    weight: int = 1
    any_batch: bool = False  # whether it speaks of padding rows, and of new tokens outside the cache, too

    def ask(self, first: First) -> list[Finding] | None:
        """What breaks this law; None where it does not apply."""
        speaks = first.case.op in self.ops and (self.any_batch or _plain(first.case))
        twin = self.make(first) if speaks else None
        return None if twin is None else beyond(first, twin.materials, self._asked(first, twin))

    def _asked(self, first: First, twin: Twin) -> list[Finding]:
        second = first.caller.again(twin.materials)
        if second.failure is not None and second.failure.unsupported:
            return []
        found = told(self.says, base_findings(Run(twin.materials, second, None, first.arithmetic)))
        return found if found or second.out is None else self._compared(first, twin, second)

    def is_bitwise(self, first: First) -> bool:
        """Whether this subject, here, is held to every bit."""
        kept = all(getattr(first.declared, name) for name in ("deterministic", *self.requires))
        other_kernel = first.caller.compiles() and (self.recompiles or self._may_split(first))
        return self.expect == "bitwise" and kept and not other_kernel

    def _may_split(self, first: First) -> bool:
        """Whether the changed call may have another number of splits."""
        return bool(self.requires) and first.declared.own_splits and not first.case.hints.num_splits

    def _compared(self, first: First, twin: Twin, second: Observed) -> list[Finding]:
        if self.is_bitwise(first):
            return self._moved(first, twin, second)
        bound = first.caller.bound(twin.materials, second)
        if bound is None or first.run.bound is None:
            return []
        if twin.answer is not None:
            return self._answered(twin.answer(bound), second, bound)
        return self._apart(first, twin, second, bound)

    def _moved(self, first: First, twin: Twin, second: Observed) -> list[Finding]:
        image = twin.image
        pairs = [("out", _scaled(image.out(first.run.observed.out), image.factor), second.out[image.second])]
        if first.run.observed.lse is not None and second.lse is not None:
            pairs.append(("lse", image.out(first.run.observed.lse), second.lse[image.second]))
        for name, wanted, got in pairs:
            moved = bits(wanted) != bits(got)
            moved &= np.bool_(self.signed_zeros) | ~((wanted == 0) & (got == 0))
            if moved.any():
                bound = first.caller.bound(twin.materials, second)
                return [self._finding(name, got, wanted, None, moved, inside=_inside(second, bound))]
        return []

    def _apart(self, first: First, twin: Twin, second: Observed, bound: Bound) -> list[Finding]:
        image, before, ours = twin.image, first.run.observed, first.run.bound
        assert ours is not None
        wanted = image.out(before.out).astype(np.float64) * image.factor
        room = image.out(ours.out) * abs(image.factor) + bound.out[image.second]
        excused = ~exceeds(second.out, bound)[image.second]
        pairs = [("out", wanted, second.out[image.second], room, excused)]
        if before.lse is not None and second.lse is not None:
            wanted = image.out(before.lse).astype(np.float64) + image.lse_shift
            room = image.out(ours.lse) + bound.lse[image.second]
            excused = ~exceeds(second.lse, bound.truth_lse, bound.lse)[image.second]
            pairs.append(("lse", wanted, second.lse[image.second], room, excused))
        for name, wanted, got, room, excused in pairs:
            apart = _apart(wanted, got.astype(np.float64), room, excused)
            if apart.any():
                return [self._finding(name, got, wanted, room, apart, inside=False)]
        return []

    def _answered(self, answer: Array, second: Observed, bound: Bound) -> list[Finding]:
        wrong = exceeds(second.out, answer, bound.out)
        return [self._finding("out", second.out, answer, bound.out, wrong, inside=False)] if wrong.any() else []

    def _finding(
        self, name: str, got: Array, wanted: Array, room: Array | None, wrong: Array, *, inside: bool
    ) -> Finding:
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        within = f" ± {float(room[at]):.2g}" if room is not None else " to the bit"
        message = (
            f"when {self.says}, {name}{list(at)} is {float(got[at]):.9g}, but should be {float(wanted[at]):.9g}"
            f"{within}; {int(wrong.sum())} of {wrong.size} elements differ"
        )
        return Finding(kind="determinism" if inside else "relation", message=message, accuses=self.accuses, where=at)


def _plain(case: Case) -> bool:
    """Whether every row of the batch is a sequence whose tokens all lie in the cache."""
    return not case.padding_rows and case.new_kv == "in_cache"


def _scaled(array: Array, factor: float) -> Array:
    return array if factor == 1.0 else np.asarray((array.astype(np.float64) * factor).astype(array.dtype))


def _inside(second: Observed, bound: Bound | None) -> bool:
    return bound is not None and not exceeds(second.out, bound).any()


def _apart(wanted: Array, got: Array, room: Array, excused: Array) -> Array:
    """Where two numbers are too far apart; an infinity is right where the call's own bound says so."""
    with np.errstate(invalid="ignore"):
        near = np.abs(got - wanted) <= room
    overflow = ~(np.isfinite(got) & np.isfinite(wanted)) & excused
    return np.asarray(~(near | (got == wanted) | overflow))


def beyond(first: First, changed: Materials, findings: list[Finding]) -> list[Finding]:
    """Findings of a changed call, with the traits that only the changed case has: they may be what is at fault."""
    more = tuple(sorted(traits(changed.case) - traits(first.case)))
    return [msgspec.structs.replace(found, beyond=more) for found in findings]


def told(says: str, findings: list[Finding]) -> list[Finding]:
    """Findings of a changed call, in words that say so."""
    return [msgspec.structs.replace(found, message=f"when {says}, {found.message}") for found in findings]
