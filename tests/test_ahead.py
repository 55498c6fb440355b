"""Kernels are compiled ahead as a launch would compile them, and who does it can be lost without harm."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from harness.ahead import RESTARTS, Ahead, Pool, ahead_of, idle_cores
from harness.campaign import LADDER, Campaign, Plan
from harness.case import Case
from harness.fuzz import _arguments
from harness.pool import environment
from harness.results import Result
from harness.scout import near
from harness.subjects import load

POOL = Pool(subject="ours.merge", op="merge", seed=7, rungs=6)
#: Seconds until the process has loaded what it needs and compiled a kernel, on a busy machine.
PATIENCE = 120.0


def run(command: list[str], cache: Path) -> str:
    environ = environment() | {"TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"}
    given, ended = msgspec.json.encode(POOL) + b"\n", PATIENCE
    return subprocess.run(command, input=given, env=environ, check=True, capture_output=True, timeout=ended).stdout


def test_what_is_compiled_ahead_is_what_a_launch_looks_for(tmp_path: Path) -> None:
    launched = [sys.executable, str(Path(__file__).with_name("warmed.py"))]
    hits, kernels = map(int, run(launched, tmp_path / "without").split())
    assert kernels > 3
    assert hits == 0
    run([sys.executable, "-m", "harness.scout", "--jobs", "2", "--target", "sm_90"], tmp_path / "with")
    assert list(map(int, run(launched, tmp_path / "with").split())) == [kernels, kernels]


@pytest.mark.gpu
def test_what_is_compiled_ahead_on_a_gpu_is_what_a_launch_looks_for(tmp_path: Path) -> None:
    launched = [sys.executable, str(Path(__file__).with_name("warmed.py")), "here"]
    run([sys.executable, "-m", "harness.scout", "--jobs", "2"], tmp_path)
    hits, kernels = map(int, run(launched, tmp_path).split())
    assert hits == kernels > 3


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def members(group: int) -> list[int]:
    """The processes of a group that are not zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(") ")[2].split()[:3]
        except OSError:  # it has ended
            continue
        if int(pgrp) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


def test_nothing_is_left_behind_in_the_midst_of_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with Ahead(2, target="sm_90") as ahead:
        group = ahead._process.pid
        ahead.prepare(POOL)
        deadline = time.monotonic() + PATIENCE
        while len(members(group)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(members(group)) >= 2, "it compiles in a process of its own"
    deadline = time.monotonic() + 10
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not members(group)


def test_one_that_dies_is_started_again_so_many_times_and_harms_nobody() -> None:
    with Ahead(1, target="sm_90") as ahead:
        started = set()
        for _ in range(RESTARTS + 3):
            if ahead._process is not None:
                started.add(ahead._process.pid)
                ahead._process.kill()
                ahead._process.wait()
            ahead.prepare(POOL)
        assert len(started) == RESTARTS + 1
        assert ahead._process is None
    assert not any(alive(pid) for pid in started)


def test_one_that_does_not_listen_is_not_waited_for() -> None:
    with Ahead(1, target="sm_90") as ahead:
        os.kill(ahead._process.pid, 19)  # SIGSTOP
        for _ in range(5000):
            ahead.prepare(POOL)


class Asked:
    """Takes pools, and compiles nothing."""

    def __init__(self) -> None:
        self.pools: list[Pool] = []

    def prepare(self, pool: Pool) -> None:
        self.pools.append(pool)


class Runner:
    """Every case passes; how many pools were asked for by then is noted."""

    restarts = 0

    def __init__(self, asked: Asked) -> None:
        self.asked, self.before = asked, []

    def run(self, case: Case, subject: str, limit_seconds: float, **options: object) -> Result:
        self.before.append(len(self.asked.pools))
        return Result(case=case, subject=subject, executor="gpu")


def test_each_pool_is_asked_for_long_before_its_first_case(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, begun = Asked(), []
    declared = load("ours.merge", "merge").declaration
    campaign = Campaign(Plan({"ours.merge": declared}, "gpu", 1e9, max_cases=3000), Runner(asked), ahead=asked)
    profile = campaign.profile
    monkeypatch.setattr(
        campaign, "profile", lambda seed, step: begun.append((seed, len(asked.pools))) or profile(seed, step)
    )
    campaign.run()
    places = {pool.seed: place for place, pool in enumerate(asked.pools)}
    assert len(places) == len(asked.pools), "each is asked for once"
    assert len({seed for seed, _ in begun}) > len({step or 6 for step in LADDER}), "pools have changed"
    assert all(places[seed] < asked_by_then for seed, asked_by_then in begun)
    assert all(places[seed] < asked for (seed, _), (_, asked) in zip(begun[1:], begun, strict=False))


def test_only_a_gpu_has_kernels_compiled_ahead() -> None:
    with ahead_of("gridsim", 4, None) as ahead:
        assert ahead._process is None
    with ahead_of("gpu", 0, None) as ahead:
        assert ahead._process is None


def test_campaigns_share_the_idle_cores() -> None:
    assert idle_cores(1000) == 0
    assert idle_cores(2) <= idle_cores()


def test_far_rows_are_brought_near_and_nothing_else_changes() -> None:
    far = Case(q_layout="far", out_layout="far", window=(3, -1))
    assert near(far) == Case(out_layout="given", placement="shuffled", window=(3, -1))
    assert near(Case(q_layout="fused_qkv")) == Case(q_layout="fused_qkv")


def test_of_several_workers_the_first_compiles_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    options = {
        "subjects": (), "seconds": 60.0, "op": "decode", "executor": "gpu", "seed": 7, "corpus": "corpus",
        "ahead": None, "device": None, "profile": None, "max_cases": None,
    }  # fmt: skip
    given = [" ".join(_arguments(options, number, 3)) for number in range(3)]
    assert ["--ahead 12" in words for words in given] == [True, False, False]
    assert all(f"--seed 7 --as-part {number}" in words for number, words in enumerate(given))
    assert "--ahead 5" in " ".join(_arguments(options | {"ahead": 5}, 0, 3))
