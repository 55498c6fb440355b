"""One more look at some clean cases: a law, lifting, sensitivity or contract, chosen by the seed of the case."""

import zlib
from collections.abc import Sequence
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


CALLS: tuple[Look, ...] = (*LAYOUT_LAWS, *BATCH_LAWS, *VALUE_LAWS, *FEATURE_LAWS, Lifting(), *SENSITIVITIES)
LOOKS: tuple[Look, ...] = (*CALLS, *APART, *CONTRACT)
#: One clean case in so many is asked one of these; a call that is refused costs little.
DRAWN: tuple[tuple[Sequence[Look], int], ...] = ((CALLS, 16), (APART, 8), (CONTRACT, 8))


def due(case: Case) -> list[Sequence[Look]]:
    """From which questions one is asked of this case; of a plain case, with the seed 0, none."""
    return [questions for questions, every in DRAWN if case.data_seed % every == every - 1]


def look(first: First) -> list[Finding]:
    """Ask the questions that are due."""
    return [finding for questions in due(first.case) for finding in ask_one(first, questions)]


def ask_one(first: First, questions: Sequence[Look]) -> list[Finding]:
    """Ask the first question that applies."""
    answers = (asked.ask(first) for asked in in_turn(first.case, questions))
    return next((found for found in answers if found is not None), [])


def in_turn(case: Case, questions: Sequence[Look]) -> list[Look]:
    """The questions in an order that depends on the seed alone: what applies to a simpler case stays the same."""
    return sorted(questions, key=lambda asked: _turn(case.data_seed, asked))


def _turn(seed: int, asked: Look) -> int:
    return min(zlib.crc32(f"{seed} {asked.name} {ticket}".encode()) for ticket in range(asked.weight))
