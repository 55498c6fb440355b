"""Who is at fault, the kernel, its configuration or its compiler: the smallest case is run again in other ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from harness.case import Case, Hints, replace
from harness.results import Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.campaign import Campaign

#: Seconds that the case may take there, a compilation included; a subject is imported before that.
SECONDS = 60.0
#: Warps and stages of a launch that are tried where there are any: on a GPU.
LAUNCHES = {"1 warp": {"num_warps": 1}, "8 warps": {"num_warps": 8}, "1 stage": {"num_stages": 1}}
#: What keeps NVIDIA's assembler from optimising.
UNOPTIMISED = {"DISABLE_PTXAS_OPT": "1"}
#: How many other configs of an autotuned kernel are tried.
CONFIGS = 3


def attribution(campaign: Campaign, subject: str, case: Case, family: str) -> str:
    """In words, nothing where there is no other way to run it, no time, or no verdict there."""
    elsewhere = _on_the_other_executor(campaign, subject, case, family)
    told = [elsewhere, _configured(campaign, subject, case, family)]
    if elsewhere.startswith("right"):
        told.append(_unoptimised(campaign, subject, case))
    return "; ".join(words for words in told if words)


def _on_the_other_executor(campaign: Campaign, subject: str, case: Case, family: str) -> str:
    if campaign.elsewhere is None or campaign.out_of_time:
        return ""
    return told(campaign.elsewhere.run(case, subject, min(SECONDS, campaign.left), thorough=True), family)


def told(result: Result, family: str) -> str:
    """What the verdict of the other executor means for a finding of that family."""
    if result.declined or result.harness_fault:
        return ""
    if any(finding.family == family for finding in result.findings):
        return f"also fails on {result.executor}: the kernel is at fault"
    if result.headline is not None:
        return f"fails otherwise on {result.executor}: {result.headline.kind}: {result.headline.message}"
    return f"right on {result.executor}: the compiler, the platform, or an order of programs that was not taken there"


def _unoptimised(campaign: Campaign, subject: str, case: Case) -> str:
    """The verdict where ptxas does not optimise, of a case that is right where no ptxas was at work."""
    if campaign.unoptimised is None or campaign.out_of_time or campaign.platform.startswith("gfx"):
        return ""
    return told_of_ptxas(campaign.unoptimised.run(case, subject, min(SECONDS, campaign.left), thorough=True))


def told_of_ptxas(result: Result) -> str:
    """What that verdict means."""
    if result.declined or result.harness_fault:
        return ""
    setting = "ptxas's optimisations off (DISABLE_PTXAS_OPT=1)"
    if result.headline is not None:
        return f"fails with {setting} as well"
    return f"right with {setting}: ptxas is at fault, or a race that the slower code does not run into"


def _configured(campaign: Campaign, subject: str, case: Case, family: str) -> str:
    """The verdicts of the same case under other configurations, those without a verdict left out."""
    right: dict[str, bool] = {}
    for name, hints in _configurations(case, campaign.plan.executor, campaign.plan.subjects[subject].configs):
        if not (family == "hang" or campaign.interrupted or campaign.out_of_time):
            result = campaign.runner.run(replace(case, hints=hints), subject, campaign.limit(), thorough=True)
            if not (result.declined or result.harness_fault):
                right[name] = result.headline is None
    return told_of_configurations(right)


def _configurations(case: Case, executor: str, configs: int) -> Iterator[tuple[str, Hints]]:
    if executor == "gpu":
        for name, launch in LAUNCHES.items():
            yield name, msgspec.structs.replace(case.hints, **launch)
    for number in [number for number in range(configs) if number != case.hints.config][:CONFIGS]:
        yield f"config {number}", msgspec.structs.replace(case.hints, config=number)


def told_of_configurations(right: dict[str, bool]) -> str:
    """What it means that a case is right, or not, under each of the configurations."""
    if not right:
        return ""
    if not any(right.values()):
        return f"fails with {', '.join(right)} as well: no configuration is at fault"
    names = ", ".join(name for name, is_right in right.items() if is_right)
    return f"right with {names}: the configuration, its compilation or a race is at fault"
