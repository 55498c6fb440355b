"""The control: a finding on a platform that is at fault is the platform's, on a right one it is the subject's."""

import numpy as np
import pytest

from harness import suite
from harness.campaign import Campaign, Plan
from harness.case import Case
from harness.control import platform_fault
from harness.corpus import Corpus
from harness.executors.gridsim import arith, launch
from harness.report import finding_lines, summary_lines
from harness.results import Finding, Result
from harness.running import InProcess
from harness.subjects import from_function, load
from harness.summary import Found, exit_code, merge_findings

WRONG = Finding(kind="accuracy", message="out is 2, but should be 1 ± 0.1")


class Runner:
    """Answers for the control as it is told to, and counts what it was asked."""

    restarts = 0

    def __init__(self, control: dict | None = None, probes: tuple[str, ...] = ()) -> None:
        self.control, self.probes = control or {}, probes
        self.asked: list[str] = []

    def run(self, case, subject, limit_seconds, **options):
        self.asked.append(subject)
        return Result(case=case, subject=subject, executor="gridsim", **self.control)

    def failing_probes(self):
        self.asked.append("probes")
        return list(self.probes)


def blamed(runner: Runner, subject: str = "mine.py:f", finding: Finding = WRONG, op: str = "decode") -> Finding | None:
    campaign = Campaign(Plan({}, "gridsim", 60.0), runner)
    return platform_fault(campaign, subject, Case(op=op), finding)


# --- who is to blame ----------------------------------------------------------------------------------------------


def test_a_control_that_is_right_leaves_the_blame_on_the_subject_and_no_probe_runs():
    runner = Runner(probes=("exp2 fails",))
    assert blamed(runner) is None
    assert runner.asked == ["ours.decode"]


def test_a_control_that_is_wrong_too_puts_the_blame_on_the_platform():
    found = blamed(Runner({"findings": (WRONG,)}))
    assert found.kind == "platform"
    assert found.message.startswith("mine.py:f is not to blame: ours.decode fails on the same case: out is 2, but")


@pytest.mark.parametrize("control", [
    {"declined": "head_dim_v"}, {"harness_fault": "sdpa disagrees"},
    {"findings": (Finding(kind="hang", message="no answer"),)},
])  # fmt: skip
def test_where_the_control_gives_no_verdict_the_probes_decide(control):
    assert blamed(Runner(control)) is None
    found = blamed(Runner(control, ("eps_exp: exp2 is 3",)))
    assert "a probe of the platform fails: eps_exp: exp2 is 3" in found.message


def test_our_kernels_share_code_so_for_them_the_probes_decide():
    runner = Runner({"findings": (WRONG,)})
    assert blamed(runner, "ours.split_decode") is None
    assert runner.asked == ["probes"]
    assert blamed(Runner(probes=("x",)), "ours.extend", op="extend").kind == "platform"


def test_what_needs_no_bound_is_never_the_platforms():
    runner = Runner({"findings": (WRONG,)}, ("x",))
    for kind in ("bad read", "not repeatable", "hang", "wrong shape", "race"):
        assert blamed(runner, finding=Finding(kind=kind, message="m")) is None
    assert not runner.asked


# --- a planted platform -------------------------------------------------------------------------------------------


def textbook():
    """Somebody's decode, which is as right as ours."""
    right = load("ours.decode")

    def decode(inputs):
        return right.run(inputs)

    decode.__kvetch__, decode.validate = right.declaration, right.validate
    return from_function(decode)


def campaign(tmp_path, subject=None):
    subject = subject or textbook()
    plan = Plan({subject.name: subject.declaration}, "gridsim", 60.0, seed=3, max_cases=40, corpus=Corpus(tmp_path))
    return Campaign(plan, InProcess(subject, "gridsim")).run()


@pytest.fixture
def broken_exp(monkeypatch):
    """gridsim with an exponential that errs by one per cent of its argument; what it had prepared is forgotten."""
    launch.translate.cache_clear()
    for name, right in (("math.exp", np.exp), ("math.exp2", np.exp2)):
        monkeypatch.setitem(arith.ROUNDED, name, lambda x, right=right: right(x * np.float32(1.01)).astype(x.dtype))
    yield
    launch.translate.cache_clear()


def test_a_platform_whose_exponential_is_wrong_is_blamed_and_not_the_subject(broken_exp, tmp_path):
    summary = campaign(tmp_path)
    assert [found.finding.kind for found in summary.findings] == ["platform"]
    (found,) = summary.findings
    assert found.others[0].kind == "accuracy"
    assert found.again == "3 of 3"
    assert exit_code(summary) == 3
    assert not summary.new_findings
    assert not list(tmp_path.rglob("*.json"))
    text = "\n".join(summary_lines(summary))
    assert "FINDING 1 (not the subject's): platform in" in text
    assert "LIMIT" not in text
    assert text.endswith("no verdict: the platform gridsim is at fault, see above")


def test_our_own_kernel_on_that_platform_is_not_blamed_either(broken_exp, tmp_path):
    summary = campaign(tmp_path, load("ours.decode"))
    assert [found.finding.kind for found in summary.findings] == ["platform"]
    assert "eps_exp: exp" in summary.findings[0].finding.message


def test_on_the_platform_as_it_is_the_same_kernel_has_no_finding(tmp_path):
    summary = campaign(tmp_path)
    assert not summary.findings
    assert exit_code(summary) == 0


def test_on_a_right_platform_a_wrong_kernel_is_blamed(tmp_path):
    right = load("ours.decode").run

    def decode(inputs):
        return right(inputs) * 1.5

    summary = campaign(tmp_path, from_function(decode))
    assert [found.finding.kind for found in summary.findings] == ["accuracy"]
    assert exit_code(summary) == 1


# --- a platform's fault among others ------------------------------------------------------------------------------


def found(kind: str, needs: tuple[str, ...] = ()) -> Found:
    return Found(subject="mine", case=Case(), finding=Finding(kind=kind, message="m"), needs=needs)


def test_a_platforms_fault_explains_every_wrong_value_and_nothing_else():
    platform = found("platform", ("GQA",))
    assert platform.explains("another", Finding(kind="accuracy", message=""), ())
    assert platform.explains("another", Finding(kind="platform", message=""), ())
    assert not platform.explains("mine", Finding(kind="bad read", message=""), ("GQA",))


def test_a_platforms_fault_takes_no_confirmed_finding_away():
    kept = merge_findings([found("platform"), found("accuracy", ("GQA",)), found("platform", ("GQA",))])
    assert [f.finding.kind for f in kept] == ["accuracy", "platform"]
    assert kept[1].met == 2


def test_in_a_test_suite_a_platforms_fault_is_no_assertion_error(broken_exp):
    with pytest.raises(RuntimeError, match="FINDING 1 \\(not the subject's\\): platform in"):
        suite.check(textbook().run, op="decode", cases=30, seed=1, executor="gridsim")


def test_a_platforms_fault_is_told_with_what_was_wrong():
    both = Found(subject="mine", case=Case(), finding=Finding(kind="platform", message="p"), others=(WRONG,))
    lines = list(finding_lines(both, 1))
    assert "  also: accuracy: out is 2, but should be 1 ± 0.1" in lines
