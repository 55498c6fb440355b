"""Whether the kernel or its compiler is at fault: the smallest case is run again on the machine's other executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.case import Case
from harness.results import Result

if TYPE_CHECKING:
    from harness.campaign import Campaign

#: Seconds that the case may take there, a compilation included; a subject is imported before that.
SECONDS = 60.0


def attribution(campaign: Campaign, subject: str, case: Case, family: str) -> str:
    """In words, nothing where there is no other executor, no time, or no verdict there."""
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
