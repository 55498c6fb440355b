"""The control: a kernel known to be good tells a fault of the platform from one of the subject."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.case import Case
from harness.results import JUDGED_KINDS, PLATFORM, Finding, Result
from harness.subjects import same

if TYPE_CHECKING:
    from harness.campaign import Campaign

#: Our own kernels by the operation that they are the control of.
CONTROLS = {
    "decode": ("ours.decode", "ours.split_decode"),
    "extend": ("ours.extend",),
    "step": ("ours.step",),
    "merge": ("ours.merge",),
}


def platform_fault(campaign: Campaign, subject: str, case: Case, finding: Finding) -> Finding | None:
    """The finding that the platform is at fault, None where it is not: the control is right on this case.

    Where no other kernel of ours takes the case, the probes of the platform decide.
    """
    if finding.kind not in JUDGED_KINDS or campaign.interrupted:
        return None
    heard = next(_heard(campaign, subject, case), None)
    if heard is not None:
        wrong = [f for f in heard.findings if f.kind in JUDGED_KINDS]
        return _finding(subject, f"{heard.subject} fails on the same case: {wrong[0].message}") if wrong else None
    failing = [] if campaign.out_of_time else campaign.failing_probes()
    return _finding(subject, f"a probe of the platform fails: {failing[0]}") if failing else None


def _heard(campaign: Campaign, subject: str, case: Case) -> Iterator[Result]:
    """The verdicts on the controls that take the case; one that dies or is at fault itself tells nothing."""
    for name in CONTROLS.get(case.op, ()):
        if same(name, subject):
            continue
        result = campaign.runner.run(case, name, campaign.limit())
        if not result.declined and not result.harness_fault:
            yield result


def _finding(subject: str, evidence: str) -> Finding:
    message = (
        f"{subject} is not to blame: {evidence}. The platform, or a constant that is assumed of it, is at fault; "
        "python -m harness.doctor tells which"
    )
    return Finding(kind=PLATFORM, message=message)
