"""`doctor`: what a machine can run, whether its arithmetic is as assumed, and the table that it saves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import machine
from harness.doctor import conclusion, exit_code, fact_line
from harness.machine import Fact
from harness.platforms import corrected, platform
from harness.tables import Measured, Table, read

ROOT = Path(__file__).resolve().parents[1]
#: Where the GPU test leaves its table; otherwise it is lost.
TABLE_FILE = "KVETCH_TABLE"


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "harness.doctor", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | environment, timeout=300
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The text and the table of one run on gridsim."""
    file = tmp_path_factory.mktemp("doctor") / "new" / "gridsim.json"
    done = doctor("--executor", "gridsim", "--save", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, read(file)


def test_it_says_what_the_machine_can_run(saved):
    text, _ = saved
    facts = ["python", "processor", "cache", "corpus", "tables", "versions", "executor gpu",
             "witness sdpa", "witness flash_attn", "witness varlen", "executor gridsim"]  # fmt: skip
    begins = [line[8:28].strip() for line in text.splitlines() if line.startswith(("ok ", "missing "))]
    assert begins == facts
    assert "ok      executor gridsim    its self-test is right" in text


def test_every_probe_holds_on_gridsim_and_says_what_it_measured(saved):
    text, table = saved
    assert {found.verdict for found in table.probes} == {"holds"}
    assert f"{len(table.probes)} holds" in text.splitlines()
    assert text.count("\nholds   ") == len(table.probes)


def test_the_table_names_hardware_versions_date_and_command(saved):
    _, table = saved
    assert (table.platform, table.executor) == ("gridsim", "gridsim")
    assert {"python", "torch", "triton", "numpy"} <= set(table.versions)
    assert table.date.startswith("20")
    assert table.command == "python -m harness.doctor --executor gridsim"


def test_a_table_on_which_everything_holds_changes_nothing(saved):
    _, table = saved
    assert corrected("gridsim", [("mine", table)]) == platform("gridsim")


def test_json_is_one_object_with_facts_table_and_exit_code():
    done = doctor("--executor", "gridsim", "--json")
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode == 0
    assert {fact["what"] for fact in found["facts"]} > {"python", "executor gpu"}
    assert len(found["table"]["probes"]) > 30


def test_a_file_that_cannot_be_written_is_wrong_use_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    done = doctor("--executor", "gridsim", "--save", str(tmp_path / "file" / "table.json"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "file is no folder" in done.stderr


# --- words and codes ----------------------------------------------------------------------------------------------


def table(*verdicts: str) -> Table:
    probes = tuple(Measured(probe="p", constant="eta", verdict=verdict) for verdict in verdicts)
    return Table(platform="sm90", executor="gpu", probes=probes)


def test_the_exit_code_is_that_of_the_worst_verdict():
    assert exit_code(table("holds", "could not be probed")) == 0
    assert exit_code(table("holds", "FAILS")) == 1
    assert exit_code(table("could not be probed")) == 5


def test_a_constant_that_fails_is_told_with_what_to_do():
    text = "\n".join(conclusion(table("holds", "FAILS"), None))
    assert "1 holds, 1 FAILS" in text
    assert "sm90 is not as the error bound assumes" in text
    assert "--save" in text
    assert "--save" not in "\n".join(conclusion(table("holds"), None))


def test_what_is_missing_is_told_with_what_to_do():
    assert fact_line(Fact(what="cache", says="no", missing=True, remedy="set it")) == (
        "missing cache               no (set it)"
    )


def test_a_cache_folder_that_cannot_be_written_to_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not machine._cache_folder().missing
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert machine._cache_folder().missing


def test_a_corpus_that_is_not_there_is_missing_and_one_that_is_is_counted(tmp_path):
    assert machine._corpus(tmp_path / "none").missing
    assert machine._corpus(ROOT / "corpus").says.split()[0] == str(len(list((ROOT / "corpus").rglob("*.json"))))


def test_a_fact_that_cannot_be_told_says_why():
    def _sdpa():
        raise ImportError("no such module")

    assert machine._made(_sdpa) == Fact(what="sdpa", says="ImportError: no such module", missing=True)


# --- a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_every_constant_holds_on_this_gpu_and_the_table_is_saved(tmp_path):
    file = Path(os.environ.get(TABLE_FILE, tmp_path / "table.json"))
    done = doctor("--executor", "gpu", "--save", str(file))
    assert file.is_file(), done.stdout + done.stderr
    table = read(file)
    assert [found for found in table.probes if found.verdict != "holds"] == [], done.stdout
    assert (done.returncode, table.executor) == (0, "gpu")
    assert table.hardware
    assert sum(found.seconds for found in table.probes) < 40
