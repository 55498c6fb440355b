"""Campaigns as processes: interrupted, killed, several at once; nothing is lost and nobody is left behind."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from invoked import be_impatient

from harness.case import Case
from harness.corpus import Corpus
from harness.journal import Journal, leftovers
from harness.results import Result
from harness.running import InProcess, Journalled, journal_folder
from harness.subjects import from_function


def wait_for(condition, seconds: float = 30.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return value


def session_members(leader: int) -> set[int]:
    """The process and all that it started, whatever sessions they made for themselves."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    family = {leader}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family & set(parents)


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if session_members(pid)}


@pytest.fixture
def asleep(commands):
    """The file that the subject `sleeps` writes when its case is in flight."""
    path = commands.folder / "asleep"
    path.unlink(missing_ok=True)
    return path


def test_a_killed_supervisor_loses_nothing_the_next_run_reports_the_case_in_flight(
    commands, tmp_path, asleep, monkeypatch
):
    arguments = ("--subject", commands.subject("sleeps"), "--corpus", tmp_path, "--minutes")
    process = commands.popen("fuzz", *arguments, 1)
    wait_for(asleep.exists)
    family = session_members(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(family))
    folder = Path(commands.env["XDG_CACHE_HOME"]) / "kvetch" / "journal"
    (entry,) = leftovers(folder)
    assert entry.subject == commands.subject("sleeps")

    be_impatient(monkeypatch)
    result = commands("fuzz", *arguments, 0.06)
    assert result.exit_code == 1
    assert f"FINDING 1 (new): hang in {entry.subject}" in result.stdout
    assert leftovers(folder) == []
    assert f"an earlier run was killed during a case of {entry.subject}: running it again" in result.stdout


def test_a_leftover_that_fails_is_shrunk_saved_and_forgotten(commands, tmp_path):
    folder = tmp_path / "cache" / "kvetch" / "journal"
    journal = Journal(folder)
    journal.begin(Case(num_q_heads=4, num_kv_heads=4), commands.subject("wrong"), "gridsim")
    (path,) = folder.glob("journal-*")
    path.write_text(path.read_text().replace('"born":"', '"born":"an earlier boot, '))
    commands_env, commands.env = commands.env, {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = commands.fuzz("wrong", tmp_path, "--max-cases", 1)
    commands.env = commands_env
    assert result.exit_code == 1
    assert "FINDING 1" in result.stdout
    assert list(folder.iterdir()) == []
    assert len(list((tmp_path / "decode").iterdir())) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_with_the_result_so_far_and_leaves_nobody_behind(commands, tmp_path, workers):
    subjects = ("--subject", commands.subject("mended"), "--corpus", tmp_path, "--workers", workers)
    process = commands.popen("fuzz", *subjects, "--minutes", 2, "--json")
    family = session_members(process.pid)
    wait_for(lambda: (tmp_path / "decode").is_dir() and list((tmp_path / "decode").glob("*.json")))
    family |= session_members(process.pid)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out, err
    summary = json.loads(out)
    assert time.monotonic() - began < 5
    assert process.returncode == 1
    assert summary["interrupted"]
    assert summary["findings"]
    assert err.splitlines()[-1] == "1 new finding (interrupted)"
    assert "Traceback" not in err
    wait_for(lambda: not alive(family), 5)


def test_ctrl_c_while_a_finding_is_saved_does_not_lose_it(commands, tmp_path, monkeypatch):
    def save(corpus, found):
        os.kill(os.getpid(), signal.SIGINT)
        return tmp_path / "saved.json"

    monkeypatch.setattr(Corpus, "save", save)
    summary = commands.summary("wrong", tmp_path)
    assert summary["interrupted"]
    assert [finding["file"] for finding in summary["findings"]] == [f"{tmp_path}/saved.json"]
    assert summary["exit"] == 1


def test_ctrl_c_before_anything_ran_is_no_finding(commands, tmp_path):
    process = commands.popen("fuzz", "--subject", commands.subject("right"), "--corpus", tmp_path)
    process.stdout.readline()  # what is tested; the worker has yet to start
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 5
    assert "Traceback" not in err


def test_the_parts_of_a_killed_parent_end_as_well(commands, tmp_path):
    arguments = ("--subject", commands.subject("right"), "--corpus", tmp_path, "--workers", 2)
    process = commands.popen("fuzz", *arguments, "--minutes", 2)
    family = wait_for(lambda: len(found := session_members(process.pid)) >= 7 and found)  # two of three, and it
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(family))


def test_two_workers_add_up_and_tell_one_fault_once(commands, tmp_path):
    arguments = ("--subject", commands.subject("mended"), "--corpus", tmp_path, "--workers", 2, "--seed", 5)
    process = commands.popen("fuzz", *arguments, "--minutes", 0.5, "--max-cases", 40, "--json")
    out, err = process.communicate(timeout=60)
    summary = json.loads(out)
    assert process.returncode == 1, err
    assert summary["cases"] >= 40
    assert len(summary["findings"]) == 1
    assert summary["seed"] == 5000
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_two_workers_on_a_subject_that_does_not_import_are_one_line(commands, tmp_path):
    process = commands.popen("fuzz", "--subject", f"{tmp_path}/none.py:f", "--corpus", tmp_path, "--workers", 2)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.splitlines() == [f"kvetch: subject '{tmp_path}/none.py:f': there is no file {tmp_path}/none.py"]


def test_the_journal_holds_a_case_exactly_while_it_runs(tmp_path):
    seen = []

    class Worker:
        executor, restarts = "gridsim", 3

        def begin(self, case, subject, limit_seconds, **options):
            return lambda **more: self.answer(case, subject, **options, **more)

        def answer(self, case, subject, **options):
            seen.extend(path.name for path in tmp_path.iterdir())
            if options:
                raise KeyboardInterrupt
            return Result(case=case, subject=subject, executor="gridsim")

    runner = Journalled(Worker(), Journal(tmp_path))
    assert runner.run(Case(), "s", 1.0).subject == "s"
    with pytest.raises(KeyboardInterrupt):
        runner.run(Case(), "s", 1.0, thorough=True)
    with pytest.raises(KeyboardInterrupt), runner.begun(Case(), "s", 1.0) as result:
        result(thorough=True)  # as while another case is drawn
    assert len(seen) == 3
    assert list(tmp_path.iterdir()) == []
    assert runner.restarts == 3


def test_the_journal_lies_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert journal_folder() == tmp_path / "kvetch" / "journal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert journal_folder() == Path.home() / ".cache" / "kvetch" / "journal"


def test_a_function_that_no_worker_could_import_is_run_here():
    def nothing(inputs):
        return None

    result = InProcess(from_function(nothing), "gridsim").run(Case(), "", 1.0)
    assert [finding.kind for finding in result.findings] == ["wrong shape"]
