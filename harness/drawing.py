"""A fixed number of cases for a subject, drawn from a seed: the same ones whenever it is asked again."""

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from harness.case import Case
from harness.profiles import profile
from harness.strategies import cases
from harness.subjects import Declaration

#: Cases drawn from one pool of compile-time constants; the first of them is the plainest.
POOLED = 10


def draw(declared: Declaration, round_seed: int, number: int) -> list[Case]:
    """So many different cases on every rung of the ladder, within the declaration."""
    found: dict[Case, None] = {}
    for turn in range(number):  # each turn gives the plainest case and others, so there are enough
        if len(found) >= number:
            break
        found |= dict.fromkeys(_drawn(declared, round_seed * 1000 + turn))
    return list(found)[:number]


def _drawn(declared: Declaration, round_seed: int) -> list[Case]:
    found: list[Case] = []

    @seed(round_seed)
    @settings(
        max_examples=POOLED,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(cases(profile(declared, round_seed)))
    def note(case: Case) -> None:
        found.append(case)

    note()
    return found
