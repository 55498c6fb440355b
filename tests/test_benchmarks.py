"""The benchmark of the CPU road: its set is sound, and its command gives every figure."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.case import Case, decode
from harness.folders import load_file
from harness.results import Finding, Result

ROOT = Path(__file__).parent.parent
BENCHMARK = ROOT / "benchmarks" / "gridsim.py"
RATIOS = {"pipeline_ratio", "pipeline_ratio_median", "kernel_ratio"}
RATES = {"cases_per_second", "cases_per_second_worker"}


@pytest.fixture(scope="module")
def gridsim():
    return load_file(BENCHMARK, "kvetch_benchmark_gridsim")


def test_the_set_has_forty_cases_of_every_operation_in_two_types(gridsim):
    drawn = decode(gridsim.SET.read_bytes(), list[gridsim.Drawn], str(gridsim.SET))
    assert len(drawn) == gridsim.CASES == 40
    assert {one.case.op for one in drawn} == {"decode", "extend", "step", "cache_write", "gather", "merge"}
    assert {one.case.dtype for one in drawn} == {"float32", "float16"}


def test_the_command_gives_every_figure_of_both_passes():
    command = [sys.executable, str(BENCHMARK), "--json", "--cases", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    figures = json.loads(done.stdout)
    assert figures["cases"] == 4
    for name in RATIOS | RATES:
        assert figures[name] > 0
        assert figures[f"{name}_cold"] > 0
    assert figures["pipeline_ratio"] > 1
    assert figures["cases_per_second"] > figures["cases_per_second_cold"]


def test_launches_of_few_programs_do_not_count_as_large_ones(gridsim):
    few_and_many = gridsim.Timed(seconds=1.0, launches=[(63, 100.0), (64, 1.0), (128, 3.0)])
    assert gridsim.mean_launch(few_and_many) == 2.0
    assert gridsim.mean_launch(gridsim.Timed(seconds=1.0, launches=[(1, 1.0)])) == 0.0


def test_ratios_are_of_the_slow_road_over_the_fast_one(gridsim):
    slow = [gridsim.Timed(seconds, [(64, seconds)]) for seconds in (10.0, 20.0, 60.0)]
    fast = [gridsim.Timed(seconds, [(64, 0.5), (64, 0.5)]) for seconds in (1.0, 1.0, 2.0)]
    found = gridsim.figures(list(zip(slow, fast, [2.0, 2.0, 2.0], strict=True)))
    assert found["pipeline_ratio"] == 22.5
    assert found["pipeline_ratio_median"] == 20.0
    assert found["kernel_ratio"] == 60.0
    assert (found["cases_per_second"], found["cases_per_second_worker"]) == (0.75, 0.5)


def test_a_case_that_is_not_clean_ends_the_run_with_its_story(gridsim):
    wrong = Result(
        case=Case(), subject="s", executor="gridsim", findings=(Finding(kind="accuracy", message="out is off"),)
    )
    with pytest.raises(gridsim.Unclean, match="s on gridsim: out is off"):
        gridsim.check(wrong)
    with pytest.raises(gridsim.Unclean, match="cannot"):
        gridsim.check(Result(case=Case(), subject="s", executor="gridsim", declined="cannot"))


def test_the_cost_of_recording_is_told_for_looks_and_for_none():
    command = [sys.executable, str(ROOT / "benchmarks" / "recording.py"), "--times", "2"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    lines = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.splitlines()
    looks, none = (
        [float(line.split(": ")[1].split()[0]) for line in lines[:-1]],
        float(lines[-1].split(": ")[1].split()[0]),
    )
    assert len(looks) == 2
    assert 0 < none < min(looks)
