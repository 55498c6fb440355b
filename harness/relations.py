"""Checks that compare two runs: the second input differs only in what must not matter, so no bit may move."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.case import Case, replace
from harness.executors.base import Observed, bits, same_bits
from harness.results import Finding


@dataclass(frozen=True)
class Relation:
    """A pure function from case to case, and what a moved bit means."""

    name: str
    kind: str
    transform: Callable[[Case], Case]
    says: str  # what was changed, in words
    accuses: str


def _other(poison: str) -> str:
    return "huge" if poison == "nan" else "nan"


def _other_pad(case: Case) -> Case:
    return replace(case, table_pad="other" if case.table_pad != "other" else "minus_one")


def renumbered(case: Case) -> Case:
    """The same sequences in other physical blocks; far blocks come near."""
    placement = "shuffled" if case.placement != "shuffled" else "reversed"
    return replace(case, placement=placement, geometry_seed=case.geometry_seed + 1, spare_blocks=case.spare_blocks + 1)


#: What nobody may read, one by one: run together first, apart only to name the culprit.
DEAD = (
    Relation(
        "re-poisoned K",
        "dead data read",
        lambda case: replace(case, k_poison=_other(case.k_poison)),
        "K of slots behind the last token was changed",
        "the mask of the K load",
    ),
    Relation(
        "re-poisoned V",
        "dead data read",
        lambda case: replace(case, v_poison=_other(case.v_poison)),
        "V of slots behind the last token was changed",
        "the mask of the V load",
    ),
    Relation(
        "re-poisoned spare blocks",
        "dead data read",
        lambda case: replace(case, spare_poison=_other(case.spare_poison)),
        "blocks that no sequence owns were changed",
        "the block table's lookup",
    ),
    Relation(
        "re-poisoned table padding",
        "dead data read",
        _other_pad,
        "table entries behind the last used one were changed",
        "the bound of the loop over blocks",
    ),
)

RENUMBER = Relation(
    "renumbered blocks",
    "block order",
    renumbered,
    "the same tokens were put into other physical blocks",
    "an assumption about where blocks lie, or a 32-bit offset",
)

REPEAT = Relation("repeated", "not repeatable", lambda case: case, "nothing was changed", "a race")


def all_dead(case: Case) -> Case:
    """Every dead thing re-poisoned at once."""
    for relation in DEAD:
        case = relation.transform(case)
    return case


def compare(relation: Relation, first: Observed, second: Observed) -> Iterator[Finding]:
    """A finding when the outputs differ in any bit."""
    if second.failure is not None:
        message = f"when {relation.says}, the call raised {second.failure.type}: {second.failure.message}"
        yield Finding(kind=relation.kind, message=message, accuses=relation.accuses)
    elif moved := moved_elements(first, second):
        message = f"{moved} of {first.out.size} elements of the output moved when {relation.says}"
        yield Finding(kind=relation.kind, message=message, accuses=relation.accuses)


def moved_elements(first: Observed, second: Observed) -> int:
    """How many elements of out and lse differ in any bit."""
    if second.out is None or first.out.shape != second.out.shape:
        return int(first.out.size)
    moved = int((bits(first.out) != bits(second.out)).sum())
    if first.lse is not None and not same_bits(first.lse, second.lse):
        moved += int((bits(first.lse) != bits(second.lse)).sum())
    return moved
