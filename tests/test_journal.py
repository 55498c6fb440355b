"""The journal: a case in flight outlives the supervisor that launched it, and only that."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from harness import files
from harness.case import Case, InvalidCase, Seq
from harness.files import write_atomically
from harness.journal import Journal, discard, leftovers

CASE = Case(seqs=(Seq(kv_len=5), Seq(kv_len=9, tag=1)), num_q_heads=4, softcap=2.0)

DYING_SUPERVISOR = """
import os, sys
from pathlib import Path
from harness.case import from_json
from harness.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.begin(from_json(sys.argv[2]), "k.py:f", "gridsim")
os.kill(os.getpid(), 9)
"""


def die_in_flight(folder: Path) -> None:
    command = [sys.executable, "-c", DYING_SUPERVISOR, str(folder), msgspec.json.encode(CASE).decode()]
    assert subprocess.run(command, cwd=Path(__file__).parent.parent).returncode == -9


def test_a_case_that_was_in_flight_when_the_supervisor_died_is_left_over(tmp_path):
    before = time.time()
    die_in_flight(tmp_path)
    (entry,) = leftovers(tmp_path)
    assert (entry.case, entry.subject, entry.executor) == (CASE, "k.py:f", "gridsim")
    assert before <= entry.time <= time.time()


def test_a_leftover_stays_until_it_is_discarded(tmp_path):
    die_in_flight(tmp_path)
    die_in_flight(tmp_path)
    first, second = leftovers(tmp_path)
    assert first.time <= second.time
    discard(tmp_path, first)
    discard(tmp_path, first)  # another run may have been quicker
    assert leftovers(tmp_path) == [second]


def test_the_case_of_a_living_supervisor_is_not_left_over(tmp_path):
    Journal(tmp_path).begin(CASE, "k.py:f", "gpu")
    assert len(list(tmp_path.iterdir())) == 1
    assert leftovers(tmp_path) == []


def test_an_answered_case_leaves_nothing_behind(tmp_path):
    journal = Journal(tmp_path)
    for _ in range(3):
        journal.begin(CASE, "k.py:f", "gpu")
        journal.end()
    journal.end()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_given_the_same_pid_does_not_pass_for_the_supervisor(tmp_path):
    Journal(tmp_path).begin(CASE, "k.py:f", "gpu")
    (path,) = tmp_path.iterdir()
    fields = msgspec.json.decode(path.read_bytes())
    assert fields["pid"] == os.getpid()
    path.write_bytes(msgspec.json.encode(fields | {"born": fields["born"] + "1"}))
    assert [entry.case for entry in leftovers(tmp_path)] == [CASE]


def test_a_supervisor_of_which_only_a_zombie_remains_is_dead(tmp_path):
    command = [sys.executable, "-c", DYING_SUPERVISOR, str(tmp_path), msgspec.json.encode(CASE).decode()]
    process = subprocess.Popen(command, cwd=Path(__file__).parent.parent)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert len(leftovers(tmp_path)) == 1
    process.wait()


def test_two_journals_of_one_process_do_not_share_a_file(tmp_path):
    for _ in range(2):
        Journal(tmp_path).begin(CASE, "k.py:f", "gpu")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_text_names_the_schema_so_that_a_newer_version_can_read_it(tmp_path):
    Journal(tmp_path).begin(CASE, "k.py:f", "gpu")
    (path,) = tmp_path.iterdir()
    assert msgspec.json.decode(path.read_bytes())["case"]["schema"] == CASE.schema


def test_a_journal_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "journal-1-ab.json").write_text("{")
    with pytest.raises(InvalidCase, match=r"journal-1-ab\.json"):
        leftovers(tmp_path)


def test_a_living_supervisor_of_another_version_is_left_alone_and_a_dead_one_is_named(tmp_path):
    Journal(tmp_path).begin(CASE, "k.py:f", "gpu")
    (path,) = tmp_path.iterdir()
    fields = msgspec.json.decode(path.read_bytes())
    newer = fields | {"case": fields["case"] | {"unheard_of": 1}}
    path.write_bytes(msgspec.json.encode(newer))
    assert leftovers(tmp_path) == []
    path.write_bytes(msgspec.json.encode(newer | {"born": "an earlier boot"}))
    with pytest.raises(InvalidCase, match="unheard_of"):
        leftovers(tmp_path)


def test_a_folder_that_is_not_there_holds_no_leftovers(tmp_path):
    assert leftovers(tmp_path / "never") == []


def test_a_case_costs_well_under_a_millisecond(tmp_path):
    journal = Journal(tmp_path)

    def seconds() -> float:
        began = time.perf_counter()
        journal.begin(CASE, "k.py:f", "gpu")
        journal.end()
        return time.perf_counter() - began

    assert min(seconds() for _ in range(200)) < 1e-3


def test_an_interrupted_write_leaves_the_old_text_and_no_temporary_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    monkeypatch.setattr(files.Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_a_written_file_has_the_permissions_of_any_other(tmp_path):
    write_atomically(tmp_path / "a", "é\n")
    (tmp_path / "b").write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
    assert (tmp_path / "a").read_text(encoding="utf-8") == "é\n"
