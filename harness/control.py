"""The control: a kernel known to be good tells a fault of the platform from one of the subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.case import Case
from harness.results import JUDGED_KINDS, PLATFORM, Finding
from harness.subjects import SUBJECTS

if TYPE_CHECKING:
    from harness.campaign import Campaign

#: Our own kernel by the operation that it is the control of.
CONTROLS = {"decode": "ours.decode", "extend": "ours.extend", "step": "ours.step", "merge": "ours.merge"}


def platform_fault(campaign: Campaign, subject: str, case: Case, finding: Finding) -> Finding | None:
    """The finding that the platform is at fault; None where it is not: the control is right on this case.

    Our kernels share code, so none is a control of another: for them, and where the control does not take the case,
    the probes of the platform decide.
    """
    if finding.kind not in JUDGED_KINDS or campaign.interrupted:
        return None
    evidence = None if subject in SUBJECTS else _of_control(campaign, case)
    if evidence is None:
        failing = [] if campaign.out_of_time else campaign.failing_probes()
        evidence = f"a probe of the platform fails: {failing[0]}" if failing else ""
    return _finding(subject, evidence) if evidence else None


def _of_control(campaign: Campaign, case: Case) -> str | None:
    """What is wrong with the control, in words, nothing where it is right; None where it gave no verdict."""
    if case.op not in CONTROLS:
        return None
    result = campaign.runner.run(case, CONTROLS[case.op], campaign.limit())
    wrong = [found for found in result.findings if found.kind in JUDGED_KINDS]
    if result.declined or result.harness_fault or (result.findings and not wrong):
        return None
    return f"{result.subject} fails on the same case: {wrong[0].message}" if wrong else ""


def _finding(subject: str, evidence: str) -> Finding:
    message = (
        f"{subject} is not to blame: {evidence}. The platform, or what is assumed of it, is at fault; "
        "python -m harness.doctor says more"
    )
    return Finding(kind=PLATFORM, message=message)
