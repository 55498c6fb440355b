"""The fixed Cases of a gate: drawn beforehand from a seed, so that two gates of one change run the same ones."""

import hashlib
import itertools
import random
from typing import TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from harness.campaign import LADDER
from harness.case import Case, digest
from harness.frames import nothing_from_sources
from harness.hunt import FRESH
from harness.profiles import Profile, profile
from harness.strategies import cases
from harness.subjects import Declaration

T = TypeVar("T")

#: Cases that one pool of compile-time constants is drawn for; fewer would compile more, more would vary less.
ROUND = 30
#: Rounds without a new case after which nothing new is to be expected of so narrow a declaration.
PATIENCE = 20


def seed_of(base: str, subject: str) -> int:
    """Of the merge base and the subject: what is drawn does not depend on the change, nor on the day."""
    return int.from_bytes(hashlib.sha256(f"{base} {subject}".encode()).digest()[:6], "big")


def fixed_cases(declared: Declaration, from_seed: int, count: int) -> list[Case]:
    """So many different cases, in an order that is theirs; fewer where the declaration allows no more."""
    found: dict[Case, None] = {}
    idle = 0
    for number in itertools.count():
        before = len(found)
        found |= dict.fromkeys(_round(declared, f"{from_seed} {number}", LADDER[number % len(LADDER)] or 6))
        idle = idle + 1 if len(found) == before else 0
        if len(found) >= count or idle >= PATIENCE:
            return list(found)[:count]
    raise AssertionError("unreachable")


def _round(declared: Declaration, name: str, rungs: int) -> list[Case]:
    round_seed = random.Random(name).getrandbits(32)  # noqa: S311  (drawing, not secrecy)
    options = profile(declared, round_seed, rungs)
    return [case for turn in range(ROUND // FRESH) for case in _run(options, round_seed + turn)]


def _run(options: Profile, run_seed: int) -> list[Case]:
    drawn: list[Case] = []

    @seed(run_seed)
    @settings(
        max_examples=FRESH,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(cases(options))
    def draw(case: Case) -> None:
        drawn.append(case)

    with nothing_from_sources():
        draw()
    return drawn


def shard_of(trials: list[T], part: int, parts: int) -> list[T]:
    """Every n-th one, so that each shard has its share of every round; part counts from 1."""
    return trials[part - 1 :: parts]


def digest_of(cases: list[Case]) -> str:
    """Names the list: two gates with the same one have run the same cases."""
    return hashlib.sha256(" ".join(map(digest, cases)).encode()).hexdigest()[:12]
