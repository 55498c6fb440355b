"""Checks that compare two runs: the second input differs only in what must not matter, so no bit may move."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from harness.bounds import Bound, exceeds
from harness.case import FAR, Case, replace
from harness.executors.base import Conditions, Observed, bits
from harness.results import Finding
from harness.subjects import has_rows_of_nobody

Takes = Callable[[Case], bool]


@dataclass(frozen=True)
class Relation:
    """Pure functions from case to case, and what a moved bit means."""

    name: str
    kind: str
    ways: Callable[[Case], Iterable[Case]]  # how the case may be changed, the most telling first
    says: str  # what was changed, in words
    accuses: str
    under: Conditions | None = None  # what else is changed, where the executor can
    expect: str = "bitwise"
    requires: tuple[str, ...] = ("deterministic",)  # promises without which only the bound is held

    def transform(self, case: Case, takes: Takes) -> Case | None:
        """The first change that the subject takes, None where it declares all of them away."""
        return next((changed for changed in self.ways(case) if takes(changed)), None)


def _others(field: str, *options: str) -> Callable[[Case], Iterable[Case]]:
    return lambda case: (replace(case, **{field: option}) for option in options if option != getattr(case, field))


def _other_rows(*options: str) -> Callable[[Case], Iterable[Case]]:
    """Of a case that can have rows which are nobody's."""
    others = _others("row_poison", *options)
    return lambda case: others(case) if has_rows_of_nobody(case) else ()


def renumbered(case: Case) -> Iterator[Case]:
    """The same sequences in other physical blocks; far blocks come near."""
    elsewhere = replace(case, geometry_seed=case.geometry_seed + 1, spare_blocks=case.spare_blocks + 1)
    for placement in ("shuffled", "reversed", "interleaved"):
        if placement != case.placement:
            yield replace(elsewhere, placement=placement)
    if case.placement in ("shuffled", "reversed", *FAR):
        yield elsewhere


def _dead(*poisons: str) -> tuple[Relation, ...]:
    return (
        Relation(
            "re-poisoned K",
            "dead data read",
            _others("k_poison", *poisons),
            "K of slots that hold no token was changed",
            "the mask of the K load",
        ),
        Relation(
            "re-poisoned V",
            "dead data read",
            _others("v_poison", *poisons),
            "V of slots that hold no token was changed",
            "the mask of the V load",
        ),
        Relation(
            "re-poisoned spare blocks",
            "dead data read",
            _others("spare_poison", *poisons),
            "blocks that no sequence owns were changed",
            "the block table's lookup",
        ),
        Relation(
            "re-poisoned rows",
            "dead data read",
            _other_rows(*poisons),
            "rows that are nobody's were changed (of q, K and V, or of an empty state)",
            "a padding row that is computed with",
        ),
        Relation(
            "re-poisoned table padding",
            "dead data read",
            _others("table_pad", "minus_one", "other", "zero"),
            "table entries that are not in use were changed",
            "the bound of the loop over blocks",
        ),
    )


#: What nobody may read, one by one: run together first, apart only to name the culprit.
DEAD = _dead("nan", "huge", "zero")
#: The same for an output that is NaN already: only something tame can move that.
TAME = _dead("zero", "huge", "nan")

#: All of them at once: names the finding when none of them alone moves a bit.
TOGETHER = Relation(
    "re-poisoned all",
    "dead data read",
    lambda case: (case,),
    "dead slots, spare blocks and unused table entries were changed together",
    "a mask or the bound of a loop",
)

RENUMBER = Relation(
    "renumbered blocks",
    "block order",
    renumbered,
    "the same tokens were put into other physical blocks",
    "an assumption about where blocks lie, or a 32-bit offset",
)

REPEAT = Relation("repeated", "not repeatable", lambda case: (case,), "nothing was changed", "a race")

#: Instead of REPEAT where the executor can choose in which order the programs of a grid run.
ORDER = Relation(
    "program order",
    "not repeatable",
    lambda case: (case,),
    "the call was repeated with the programs in another order",
    "a race",
    Conditions(order=1),
)

#: Only for a call that read what nobody had written. The byte 0x55 makes a plain positive number in every type.
REFILL = Relation(
    "refilled scratch",
    "uninitialised read",
    lambda case: (case,),
    "memory that nobody had written held something else",
    "scratch that is read before it is written",
    Conditions(fill=0x55),
)

#: Only for a call with a masked load without `other`. The byte 0xFF makes NaN of floats and -1 of integers: where a 0
#: would be harmless, such as in a product with a weight of 0, these are not.
UNDEFINED = Relation(
    "undefined lanes",
    "uninitialised read",
    lambda case: (case,),
    "lanes that a masked load without `other` shuts out held NaN instead of 0",
    "a masked load without `other`",
    Conditions(lanes=0xFF),
)


def all_dead(case: Case, takes: Takes, dead: tuple[Relation, ...] = DEAD) -> Case:
    """Every dead thing re-poisoned at once."""
    for relation in dead:
        case = relation.transform(case, takes) or case
    return case


def compare(
    relation: Relation, first: Observed, second: Observed, bound: Bound | None = None, truth: Bound | None = None
) -> Iterator[Finding]:
    """A finding when the outputs differ in any bit; with a bound, when the second output leaves it.

    Where both are within `truth`, no number is wrong: what moved is a fault of another kind.
    """
    if second.failure is not None:
        if second.failure.unsupported:
            return
        message = f"when {relation.says}, the call raised {second.failure.type}: {second.failure.message}"
        yield Finding(kind=relation.kind, message=message, accuses=relation.accuses)
    elif second.complaint and not first.complaint:
        yield Finding(kind=relation.kind, message=f"when {relation.says}, {second.complaint}", accuses=relation.accuses)
    elif moved := moved_elements(first, second, bound):
        size = first.out.size + (0 if first.lse is None else first.lse.size)
        message = f"{moved} of {size} elements of the output moved when {relation.says}"
        if truth is not None and _within(first, truth) and _within(second, truth):
            yield Finding(kind="determinism", detail=relation.kind, message=message, accuses=relation.accuses)
        else:
            yield Finding(kind=relation.kind, message=message, accuses=relation.accuses)


def _within(observed: Observed, bound: Bound) -> bool:
    if observed.out is None or observed.out.shape != bound.truth.shape or exceeds(observed.out, bound).any():
        return False
    return observed.lse is None or not exceeds(observed.lse, bound.truth_lse, bound.lse).any()


def moved_elements(first: Observed, second: Observed, bound: Bound | None = None) -> int:
    """How many elements of out and lse differ in any bit, or leave the bound that both should keep."""
    if second.out is None or first.out.shape != second.out.shape:
        return int(first.out.size)
    if bound is not None:
        moved = exceeds(second.out, bound) & ~exceeds(first.out, bound)
    else:
        moved = bits(first.out) != bits(second.out)
    if first.lse is None or second.lse is None:
        return int(moved.sum())
    if bound is not None:
        lse_moved = exceeds(second.lse, bound.truth_lse, bound.lse) & ~exceeds(first.lse, bound.truth_lse, bound.lse)
    else:
        lse_moved = bits(first.lse) != bits(second.lse)
    return int(moved.sum() + lse_moved.sum())
