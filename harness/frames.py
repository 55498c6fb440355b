"""Frames: cases whose compiled parts are kept while all else is drawn anew, where a kernel takes long to compile."""

import itertools
from contextlib import AbstractContextManager
from functools import lru_cache
from unittest.mock import patch

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import HypothesisProvider

from harness.case import Case
from harness.profiles import POOL, Profile
from harness.strategies import cases

#: Pools whose frames are remembered: those of all subjects and rungs of a campaign.
KEPT = 256


@lru_cache(KEPT)
def framed(options: Profile, pool_seed: int) -> Profile:
    """The profile with one frame for each combination of its constants, or as many where it has few."""
    constants = tuple(itertools.islice(itertools.cycle(options.constants), POOL))
    narrow = [msgspec.structs.replace(options, constants=(one,)) for one in constants]
    drawn: list[tuple[Case, ...]] = []

    @seed(pool_seed)
    @settings(
        max_examples=2,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(st.tuples(*map(cases, narrow)))
    def draw(together: tuple[Case, ...]) -> None:
        drawn.append(together)

    with nothing_from_sources():
        draw()
    simplest, others = drawn[0][0], drawn[-1][1:]
    return msgspec.structs.replace(options, frames=tuple(dict.fromkeys((simplest, *others))))


def nothing_from_sources() -> AbstractContextManager[object]:
    """Hypothesis takes one number in twenty from the sources of modules that are loaded: other ones, other cases."""
    return patch.object(HypothesisProvider, "_maybe_draw_constant", lambda *_, **__: None, create=True)
