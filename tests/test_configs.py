"""A case names the config of an autotuned kernel: a fault of one config is found, and blamed on that config."""

from typing import Any

import torch
import triton
import triton.language as tl
from attending import lens

from harness import ours
from harness.campaign import Campaign, Plan
from harness.case import Case, Hints
from harness.pipeline import run_case
from harness.running import InProcess
from harness.subjects import Subject, declare, declines


@triton.autotune([triton.Config({"MORE": 0}), triton.Config({"MORE": 1})], key=[])
@triton.jit
def add(out_ptr, MORE: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, tl.load(out_ptr) + MORE)


def tuned(inputs: Any) -> torch.Tensor:
    """Our decode, but for the first number, to which the second config adds 1."""
    out = ours.decode(inputs)
    add[(1,)](out)
    return out


def subject(configs: int) -> Subject:
    return Subject("tuned", declare(configs=configs), tuned)


def kinds(config: int) -> set[str]:
    case = Case(seqs=lens(5), hints=Hints(config=config))
    return {finding.kind for finding in run_case(case, subject(2), "gridsim").findings}


def test_only_the_config_that_is_wrong_is_found() -> None:
    assert kinds(0) == set()
    assert kinds(1) == {"accuracy"}


def test_a_config_that_is_not_declared_is_declined() -> None:
    case = Case(hints=Hints(config=1))
    assert declines(declare(), case) == "declares configs=1"
    assert declines(declare(configs=2), case) is None


def test_a_campaign_draws_the_declared_configs_and_shrinks_to_the_wrong_one() -> None:
    plan = Plan({"tuned": subject(2).declaration}, "gridsim", 60.0, seed=1, max_cases=60, stop_at_first=True)
    (found,) = Campaign(plan, InProcess(subject(2), "gridsim")).run().findings
    assert found.case == Case(hints=Hints(config=1))
    assert found.needs == ("another config",)
    assert found.attribution == "right with config 0: the configuration, its compilation or a race is at fault"
