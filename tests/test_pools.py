"""Pools of compile-time constants: they stay for some rounds where kernels take long to compile, and then change."""

from typing import Any

from harness.campaign import STAYS, Campaign, Plan
from harness.case import Case
from harness.frames import framed
from harness.profiles import profile, whole_profile
from harness.results import Result
from harness.strategies import COMPILED_IN, constants_of
from harness.subjects import load

DECLARED = load("ours.decode").declaration


class Runner:
    """Every case passes, and is remembered."""

    restarts = 0

    def __init__(self) -> None:
        self.drawn: list[Case] = []

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        self.drawn.append(case)
        return Result(case=case, subject=subject, executor="gpu")


def drawn(executor: str, cases: int) -> list[Case]:
    runner = Runner()
    Campaign(Plan({"ours.decode": DECLARED}, executor, 1e9, seed=3, max_cases=cases), runner).run()
    return runner.drawn


def seeds(executor: str, step: int = 6) -> list[int]:
    campaign = Campaign(Plan({"ours.decode": DECLARED}, executor, 1e9, seed=3), Runner())
    campaign.subject = "ours.decode"
    return [campaign._pool_seed(number, step) for number in range(3 * STAYS["gpu"])]


def test_on_a_gpu_a_pool_stays_for_some_rounds_and_then_changes() -> None:
    first, second, third = (
        seeds("gpu")[start : start + STAYS["gpu"]] for start in range(0, 3 * STAYS["gpu"], STAYS["gpu"])
    )
    assert [len(set(part)) for part in (first, second, third)] == [1, 1, 1]
    assert len({*first, *second, *third}) == 3
    assert set(seeds("gpu", 4)).isdisjoint(seeds("gpu")), "each rung has pools of its own"


def test_campaigns_side_by_side_share_their_pools_and_draw_cases_of_their_own() -> None:
    def side(part: int) -> tuple[list[int], list[Case]]:
        plan = Plan({"ours.decode": DECLARED}, "gpu", 1e9, seed=3000 + part, pools=3, first=part, max_cases=300)
        runner = Runner()
        campaign = Campaign(plan, runner)
        campaign.run()
        return [campaign._seed_of("ours.decode", step, 0) for step in (6, 3)], runner.drawn

    (one_pool, one), (other_pool, other) = side(0), side(1)
    assert one_pool == other_pool == [seeds("gpu")[0], seeds("gpu", 3)[0]]
    assert len(set(one) & set(other)) < 0.1 * len(one)


def test_where_compiling_is_quick_every_round_has_its_own_pool() -> None:
    assert seeds("gridsim") == list(range(3 * STAYS["gpu"]))


def test_a_staying_pool_compiles_less_and_repeats_no_case() -> None:
    stays, changes = drawn("gpu", 700), drawn("gridsim", 700)
    assert len({constants_of(case) for case in stays}) < 0.7 * len({constants_of(case) for case in changes})
    assert len(set(stays)) > 0.9 * len(stays)


def test_the_first_pools_that_stay_have_every_feature() -> None:
    pools = [profile(DECLARED, number, 6).constants for number in dict.fromkeys(seeds("gpu"))]
    assert {name for pool in pools for constants in pool for name in constants.features} == set(
        whole_profile(DECLARED).features
    )


def test_on_a_gpu_a_pool_has_few_frames_and_all_else_varies() -> None:
    cases = [case for case in drawn("gpu", 800) if case.op == "decode"]
    frames = {tuple(getattr(case, name) for name in (*COMPILED_IN, "num_q_heads", "num_kv_heads")) for case in cases}
    assert len(frames) < len(cases) / 8
    assert len({case.seqs for case in cases}) > len(cases) / 2
    assert len({case.values for case in cases}) > 10


def test_frames_depend_on_the_seed_alone() -> None:
    framed.cache_clear()
    first = framed(profile(DECLARED, 7), 7).frames
    framed.cache_clear()
    assert framed(profile(DECLARED, 7), 7).frames == first
    assert framed(profile(DECLARED, 8), 8).frames != first
    assert {constants_of(case) for case in first} <= set(profile(DECLARED, 7).constants)
