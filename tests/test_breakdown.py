"""Where time goes: the phases are the whole of it, a slow one shows, an echo launches nothing and judges alike."""

import dataclasses
import json
import time

import msgspec
import pytest
from click.testing import CliRunner

from harness.breakdown import DRAWING, Breakdown, Lap, Laps, broken_down, lines, main, measured
from harness.campaign import Campaign, Plan
from harness.case import Case, Seq, replace
from harness.executors import echo
from harness.journal import Journal
from harness.pipeline import run_case
from harness.pool import Worker
from harness.results import Result
from harness.running import Journalled
from harness.subjects import load

SLOW = """
import time
from harness.subjects import subject
from harness.ours import gather

@subject(op="gather")
def slow(inputs):
    time.sleep(0.05)
    return gather(inputs)
"""
CASES = {
    "ours.decode": Case(data_seed=1),
    "ours.extend": Case(op="extend", seqs=(Seq(query_len=3, kv_len=20),), data_seed=1),
    "ours.step": Case(op="step", data_seed=1),
}


def without_times(result):
    return msgspec.structs.replace(result, seconds=0.0, compile_seconds=0.0, phases={})


def heard_and_repeated(case, subject):
    echo.listen()
    first = run_case(case, subject, "echo")
    echo.repeat()
    return first, run_case(case, subject, "echo")


@pytest.fixture(scope="module")
def worker():
    with Worker("gridsim") as worker:
        yield worker


def test_the_laps_are_the_whole_time_of_a_campaign(worker, tmp_path):
    runner = Laps(Journalled(worker, Journal(tmp_path)), looks=True)
    declared = {"ours.gather": worker.describe("ours.gather", "gather")}
    began = time.perf_counter()
    runner.last = began
    Campaign(Plan(declared, "gridsim", 60.0, max_cases=40, shrinks=False), runner).run()
    whole, found = time.perf_counter() - began, broken_down(runner.laps, "gridsim", "gridsim", 0, looks=True)
    assert found.cases == 40
    assert found.seconds == pytest.approx(whole, rel=0.05)
    assert sum(phase.share for phase in found.phases.values()) == pytest.approx(1.0, abs=0.01)
    assert found.phases["rest"].share < 0.3, "too much has no name"
    assert found.cases_per_second == pytest.approx(40 / whole, rel=0.1)


def test_a_slow_kernel_shows_as_one(tmp_path):
    file = tmp_path / "slow.py"
    file.write_text(SLOW)
    slow = measured([f"{file}:slow"], "gather", "gridsim", seconds=60.0, cases=8, looks=False)
    right = measured(["ours.gather"], "gather", "gridsim", seconds=60.0, cases=8, looks=False)
    assert slow.phases["kernel"].median > 100.0 > right.phases["kernel"].median  # two calls a case


def test_time_on_declined_cases_counts_and_they_do_not():
    judged = Result(case=Case(), subject="ours.decode", executor="gpu")
    declined = msgspec.structs.replace(judged, declined="far")
    laps = [Lap(judged, 0.0, {DRAWING: 1.0, "kernel": 2.0}), Lap(declined, 3.0, {DRAWING: 1.0})]
    found = broken_down(laps, "gpu", "sm90", 0, looks=False)
    assert (found.cases, found.declined, found.seconds, found.cases_per_second) == (1, 1, 4.0, 0.25)
    assert {name: phase.share for name, phase in found.phases.items()} == {DRAWING: 0.5, "kernel": 0.5}


@pytest.mark.parametrize("name", CASES)
def test_an_echo_judges_as_what_it_heard_and_launches_nothing(name, monkeypatch):
    case, subject = CASES[name], load(name)
    echo.listen()
    first = run_case(case, subject, "echo")
    monkeypatch.setattr(echo.gridsim, "traced", None)  # nothing can be run on gridsim from here on
    echo.repeat()
    again = run_case(case, subject, "echo")
    assert without_times(again) == without_times(first)
    assert (again.findings, again.declined, again.runs) == ((), "", first.runs)


def test_an_echo_of_a_wrong_kernel_is_wrong():
    right = load("ours.decode")

    def wrong(inputs):
        return 2 * right.run(inputs)

    first, again = heard_and_repeated(Case(data_seed=1), dataclasses.replace(right, run=wrong))
    assert [found.kind for found in again.findings] == [found.kind for found in first.findings] == ["accuracy"]


def test_an_echo_declines_far_memory():
    assert "far memory" in run_case(replace(Case(), placement="far"), load("ours.decode"), "echo").declined


def test_the_command_writes_what_it_prints(tmp_path):
    file = tmp_path / "breakdown.json"
    words = ["--subject", "ours.gather", "--cases", "5", "--warm-up", "0", "--base-set", "--json", str(file)]
    done = CliRunner().invoke(main, [*words, "--executor", "echo"])
    assert done.exit_code == 0, done.output
    found = msgspec.convert(json.loads(file.read_text()), Breakdown)
    assert list(lines(found)) == done.output.splitlines()
    assert (found.cases > 0, found.looks, "kernel" in found.phases) == (True, False, True)
    assert set(found.subjects) == {"ours.gather"}
