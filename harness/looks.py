"""One more look at some clean cases: a law, lifting, sensitivity or contract, chosen by the seed of the case."""

import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from harness.batch_laws import BATCH_LAWS
from harness.case import Case
from harness.contract import CONTRACT
from harness.feature_laws import FEATURE_LAWS
from harness.laws import First
from harness.layout_laws import LAYOUT_LAWS
from harness.lifting import Lifting
from harness.results import Finding
from harness.sensitivity import SENSITIVITIES
from harness.value_laws import VALUE_LAWS

#: One clean case in so many is looked at once more.
EVERY = 16


class Look(Protocol):
    """A question that takes another call."""

    @property
    def name(self) -> str:
        """Unique; with the seed it decides whose turn it is."""

    @property
    def weight(self) -> int:
        """How often it comes before others."""

    def ask(self, first: First) -> list[Finding] | None:
        """What is wrong; None where the question cannot be asked of this call."""


LOOKS: tuple[Look, ...] = (*LAYOUT_LAWS, *BATCH_LAWS, *VALUE_LAWS, *FEATURE_LAWS, Lifting(), *SENSITIVITIES, *CONTRACT)


def is_sampled(case: Case) -> bool:
    """Whether this case is looked at once more."""
    return case.data_seed % EVERY == EVERY - 1


def look(first: First, looks: Sequence[Look] = LOOKS) -> list[Finding]:
    """Ask the first question that applies."""
    answers = (asked.ask(first) for asked in in_turn(first.case, looks))
    return next((found for found in answers if found is not None), [])


def in_turn(case: Case, looks: Sequence[Look] = LOOKS) -> Iterator[Look]:
    """The questions in an order that depends on the seed alone: what applies to a simpler case stays the same."""
    return iter(sorted(looks, key=lambda asked: _turn(case.data_seed, asked)))


def _turn(seed: int, asked: Look) -> int:
    return min(zlib.crc32(f"{seed} {asked.name} {ticket}".encode()) for ticket in range(asked.weight))
