"""One more look at some clean cases: a law, lifting, sensitivity or contract, chosen by the seed of the case."""

import zlib
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from harness.batch_laws import BATCH_LAWS
from harness.case import Case
from harness.contract import APART, CONTRACT
from harness.feature_laws import FEATURE_LAWS
from harness.laws import First
from harness.layout_laws import LAYOUT_LAWS
from harness.lifting import Lifting
from harness.results import Finding
from harness.sensitivity import SENSITIVITIES
from harness.value_laws import VALUE_LAWS


class Look(Protocol):
    """A question that takes another call, and what a reader wants to know of it."""

    @property
    def name(self) -> str:
        """Unique; with the seed it decides whose turn it is."""

    @property
    def says(self) -> str:
        """What is changed, in words."""

    @property
    def expect(self) -> str:
        """What must come of it: "bitwise", "bound" or "exact" of a law, "moves" or "refused"."""

    @property
    def requires(self) -> tuple[str, ...]:
        """Promises of the declaration without which less is expected, or nothing is asked."""

    @property
    def accuses(self) -> str:
        """The part of a kernel that a finding points at."""

    @property
    def weight(self) -> int:
        """How often it comes before others."""

    def ask(self, first: First) -> list[Finding] | None:
        """What is wrong; None where the question cannot be asked of this call."""


#: What a row owes to its neighbours shows in few batches, and nothing else asks for it.
NEIGHBOURS: tuple[Look, ...] = tuple(law for law in BATCH_LAWS if "batch_invariant" in law.requires)
OTHERS = tuple(law for law in BATCH_LAWS if law not in NEIGHBOURS)
CALLS: tuple[Look, ...] = (*LAYOUT_LAWS, *OTHERS, *VALUE_LAWS, *FEATURE_LAWS, Lifting(), *SENSITIVITIES)
LOOKS: tuple[Look, ...] = (*NEIGHBOURS, *CALLS, *APART, *CONTRACT)
#: One clean case in so many is asked so many of these; a call that is refused costs little.
DRAWN: tuple[tuple[Sequence[Look], int, int], ...] = (
    (CALLS, 16, 1), (NEIGHBOURS, 8, 1), (APART, 8, 3), (CONTRACT, 4, 3)
)  # fmt: skip


def due(case: Case) -> list[tuple[Sequence[Look], int]]:
    """From which questions how many are asked of this case; of a plain case, with the seed 0, none."""
    return [(questions, many) for questions, every, many in DRAWN if case.data_seed % every == every - 1]


def look(first: First) -> list[Finding]:
    """Ask the questions that are due."""
    return [finding for questions, many in due(first.case) for finding in ask(first, questions, many)]


def ask(first: First, questions: Sequence[Look], many: int) -> list[Finding]:
    """Ask the first questions that apply, until one of them finds something."""
    answers = (asked.ask(first) for asked in in_turn(first.case, questions))
    return next((found for found in islice((a for a in answers if a is not None), many) if found), [])


def in_turn(case: Case, questions: Sequence[Look]) -> list[Look]:
    """The questions in an order that depends on the seed alone: what applies to a simpler case stays the same."""
    return sorted(questions, key=lambda asked: _turn(case.data_seed, asked))


def _turn(seed: int, asked: Look) -> int:
    return min(zlib.crc32(f"{seed} {asked.name} {ticket}".encode()) for ticket in range(asked.weight))
