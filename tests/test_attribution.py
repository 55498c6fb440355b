"""Attribution: what the other executor makes of the smallest case of a finding."""

import pytest
from invoked import ROOT

from harness import attribution, commands
from harness.campaign import Campaign, Plan
from harness.case import Case, Hints
from harness.pool import Worker
from harness.report import finding_lines
from harness.results import Finding, Result
from harness.running import Elsewhere, Journalled
from harness.subjects import declare
from harness.summary import Found

WRONG = Finding(kind="accuracy", message="out is 2")
BAD = Finding(kind="bad read", message="k_cache [9]")


def told(family: str = "wrong output", **outcome) -> str:
    return attribution.told(Result(case=Case(), subject="s", executor="gridsim", **outcome), family)


def test_what_fails_there_too_is_the_kernels_fault():
    assert told(findings=(WRONG,)) == "also fails on gridsim: the kernel is at fault"
    assert told(findings=(BAD,)) == "also fails on gridsim: the kernel is at fault"


def test_what_fails_otherwise_there_is_told_with_what_it_shows():
    assert told("crash AcceleratorError", findings=(BAD,)) == "fails otherwise on gridsim: bad read: k_cache [9]"


def test_what_is_right_there_is_not_the_sources_fault_alone():
    assert told().startswith("right on gridsim: the compiler, the platform, or")


@pytest.mark.parametrize("outcome", [{"declined": "far"}, {"harness_fault": "cannot be imported"}])
def test_no_verdict_there_says_nothing(outcome):
    assert told(**outcome) == ""


def test_without_another_executor_or_time_nothing_is_said():
    plan = Plan({"s": declare()}, "gridsim", 60.0)
    assert attribution.attribution(Campaign(plan, None), "s", Case(), "wrong output") == ""
    late = Campaign(Plan({"s": declare()}, "gridsim", 0.0), None, elsewhere=Elsewhere("gridsim"))
    assert attribution.attribution(late, "s", Case(), "wrong output") == ""
    assert late.elsewhere.worker is None


def test_the_other_executor_is_gridsim_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(commands, "has_gpu", lambda: True)
    assert (commands.other_executor("gpu"), commands.other_executor("gridsim")) == ("gridsim", "gpu")
    monkeypatch.setattr(commands, "has_gpu", lambda: False)
    assert commands.other_executor("gridsim") is None


def test_a_campaign_asks_the_other_executor_about_each_finding():
    """Here gridsim is both of them, so what fails on one fails on the other."""
    subject = f"{ROOT}/examples/my_decode_wrong.py:my_decode_wrong"
    with Worker("gridsim") as worker, Elsewhere("gridsim") as elsewhere:
        plan = Plan({subject: worker.describe(subject, "decode")}, "gridsim", 60.0, seed=1, stop_at_first=True)
        summary = Campaign(plan, worker, elsewhere=elsewhere).run()
        assert elsewhere.worker is not None
    assert summary.findings[0].attribution == "also fails on gridsim: the kernel is at fault"


def test_a_subject_that_the_other_executor_cannot_load_says_nothing(tmp_path):
    with Elsewhere("gridsim") as elsewhere:
        result = elsewhere.run(Case(), f"{tmp_path}/none.py:f", 5.0)
    assert "there is no file" in result.harness_fault
    assert attribution.told(result, "wrong output") == ""


class Answers:
    """A runner that is right under some hints only."""

    restarts = 0

    def __init__(self, right: set[Hints], **otherwise) -> None:
        self.right, self.otherwise, self.asked = right, otherwise or {"findings": (WRONG,)}, []

    def run(self, case, subject, limit, **options):
        self.asked.append(case.hints)
        outcome = {} if case.hints in self.right else self.otherwise
        return Result(case=case, subject=subject, executor="gpu", **outcome)


def configured(runner: Answers, executor: str, configs: int = 1, family: str = "wrong output") -> str:
    campaign = Campaign(Plan({"s": declare(configs=configs)}, executor, 60.0), runner)
    return attribution.attribution(campaign, "s", Case(hints=Hints(config=configs - 1)), family)


def test_a_launch_that_is_right_with_other_warps_blames_the_configuration():
    one_warp = Answers({Hints(num_warps=1)})
    assert configured(one_warp, "gpu") == "right with 1 warp: the configuration, its compilation or a race is at fault"
    assert one_warp.asked == [Hints(num_warps=1), Hints(num_warps=8), Hints(num_stages=1)]


def test_what_fails_in_every_configuration_blames_none():
    assert (
        configured(Answers(set()), "gpu") == "fails with 1 warp, 8 warps, 1 stage as well: no configuration is at fault"
    )
    assert (
        configured(Answers(set()), "gridsim", configs=2) == "fails with config 0 as well: no configuration is at fault"
    )


def test_the_right_configs_of_an_autotuned_kernel_are_named():
    right = Answers({Hints(config=0), Hints(config=1)})
    told = configured(right, "gridsim", configs=3)
    assert told == "right with config 0, config 1: the configuration, its compilation or a race is at fault"


def test_gridsim_has_no_warps_and_a_hang_is_not_waited_for_again():
    assert configured(Answers(set()), "gridsim") == ""
    hanging = Answers(set())
    assert (configured(hanging, "gpu", family="hang"), hanging.asked) == ("", [])


def test_a_configuration_without_a_verdict_is_left_out():
    assert configured(Answers(set(), declined="too large"), "gpu") == ""


def test_a_report_tells_the_attribution():
    found = Found(subject="s", case=Case(), finding=WRONG, attribution="also fails on gridsim: the kernel is at fault")
    assert "  also fails on gridsim: the kernel is at fault" in finding_lines(found, 1)
    assert not any("gridsim" in line for line in finding_lines(Found(subject="s", case=Case(), finding=WRONG), 1))


def test_a_runner_in_a_worker_runs_the_probes_there():
    with Worker("gridsim") as worker:
        assert Journalled(worker, None).failing_probes() == []


# --- the assembler -----------------------------------------------------------------------------------------------


class Fixed:
    """Another executor that always answers the same, and is asked once."""

    def __init__(self, **outcome) -> None:
        self.outcome, self.asked = outcome, 0

    def run(self, case, subject, limit, **options):
        self.asked += 1
        return Result(case=case, subject=subject, executor="there", **self.outcome)


def of_ptxas(elsewhere: Fixed, unoptimised: Fixed, platform: str = "sm90") -> str:
    campaign = Campaign(
        Plan({"s": declare()}, "gridsim", 60.0), None, elsewhere=elsewhere, unoptimised=unoptimised, platform=platform
    )
    return attribution.attribution(campaign, "s", Case(), "wrong output")


def test_what_is_right_on_gridsim_and_without_ptxas_optimising_is_the_assemblers_fault():
    said = of_ptxas(Fixed(), Fixed())
    assert said.endswith("right with ptxas's optimisations off (DISABLE_PTXAS_OPT=1): ptxas is at fault, or a race "
                         "that the slower code does not run into")  # fmt: skip
    assert of_ptxas(Fixed(), Fixed(findings=(WRONG,))).endswith("(DISABLE_PTXAS_OPT=1) as well")
    assert "ptxas" not in of_ptxas(Fixed(), Fixed(harness_fault="it does not start"))


def test_the_assembler_is_not_asked_where_the_kernel_is_at_fault_nor_where_there_is_none():
    asked = Fixed()
    assert "ptxas" not in of_ptxas(Fixed(findings=(WRONG,)), asked)
    assert "ptxas" not in of_ptxas(Fixed(), asked, "gfx942")
    assert asked.asked == 0


def test_a_worker_elsewhere_has_the_settings_that_it_was_given(tmp_path):
    file = tmp_path / "asking.py"
    file.write_text("import os\ndef f(inputs):\n    raise ValueError(os.environ['DISABLE_PTXAS_OPT'])\n")
    with Elsewhere("gridsim", environ=attribution.UNOPTIMISED) as elsewhere:
        result = elsewhere.run(Case(), f"{file}:f", 30.0)
    assert "ValueError" in result.headline.message
    assert result.headline.message.endswith("1")
