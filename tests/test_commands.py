"""What all commands share: wrong use is one line and exit code 2, and nothing unexpected looks like a finding."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness import commands as shared
from harness.__main__ import VERBS
from harness.__main__ import main as kvetch
from harness.case import InvalidCase
from harness.pool import HarnessFault
from harness.subjects import WrongUse

ROOT = Path(__file__).parent.parent


def outcome(raised: BaseException | int):
    @click.command(cls=shared.Verb)
    @click.option("--number", type=int)
    @shared.one_line_errors
    def command(number) -> int:
        if isinstance(raised, BaseException):
            raise raised
        return raised

    return CliRunner().invoke(command, [])


@pytest.mark.parametrize("code", [0, 1, 3, 5])
def test_a_command_returns_its_exit_code(code):
    assert outcome(code).exit_code == code


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (WrongUse("subject 'x' is nothing"), 2, "kvetch: subject 'x' is nothing\n"),
        (InvalidCase("x.json: truncated"), 2, "kvetch: x.json: truncated\n"),
        (PermissionError(13, "Permission denied", "/root/x"), 2, "kvetch: /root/x: Permission denied\n"),
        (KeyboardInterrupt(), 5, "kvetch: interrupted before anything ran\n"),
        (HarnessFault("no worker"), 3, "kvetch: the harness is at fault: no worker\n"),
    ],
)
def test_what_can_be_foreseen_is_one_line(error, code, told):
    result = outcome(error)
    assert (result.exit_code, result.stderr, result.stdout) == (code, told, "")


@pytest.mark.parametrize("error", [ValueError("oops"), OSError("no file is to blame")])
def test_what_nobody_expected_is_a_fault_of_the_harness_with_its_traceback(error):
    result = outcome(error)
    assert result.exit_code == 3
    assert result.stderr.startswith("kvetch: the harness is at fault: Traceback")
    assert str(error) in result.stderr


TALKING = """
import os, sys
import click
from harness.commands import Verb, one_line_errors
@click.command(cls=Verb)
@one_line_errors
def command():
    while True:
        click.echo("and so on")
command()
"""


def test_a_reader_that_goes_away_is_no_fault_of_the_harness():
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", TALKING], stdout=write, stderr=subprocess.PIPE, cwd=ROOT) as talking:
        os.close(write)
        assert os.read(read, 9) == b"and so on"
        os.close(read)
        assert (talking.wait(30), talking.stderr.read()) == (141, b"")


def test_another_pipe_that_breaks_is_one(monkeypatch):
    monkeypatch.setattr(shared, "_is_unread", lambda: False)
    result = outcome(BrokenPipeError("a worker's"))
    assert result.exit_code == 3
    assert "a worker's" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fuzz", "--minutes", "-1"], "Invalid value for '--minutes': -1 is not a positive number of minutes"),
        (["fuzz", "--minutes", "nan"], "Invalid value for '--minutes': nan is not a positive number of minutes"),
        (["fuzz", "--minutes", "inf"], "Invalid value for '--minutes': inf is not a positive number of minutes"),
        (["fuzz", "--minutes", "0"], "Invalid value for '--minutes': 0 is not a positive number of minutes"),
        (["fuzz", "--minutes", "abc"], "Invalid value for '--minutes': 'abc' is not a number of minutes"),
        (["fuzz", "--executor", "foo"], "Invalid value for '--executor': 'foo' is not one of 'gridsim', 'gpu',"),
        (["fuzz", "--op", "deocde"], "Invalid value for '--op': 'deocde' is not one of 'decode',"),
        (["fuzz", "--workers", "0"], "Invalid value for '--workers': 0 is not in the range x>=1"),
        (["fuzz", "--max-cases", "0"], "Invalid value for '--max-cases'"),
        (["fuzz", "--seed", "-3"], "Invalid value for '--seed'"),
        (["fuzz", "--corpus", __file__], "Invalid value for '--corpus'"),
        (["fuzz", "--minuets", "1"], "No such option"),
        (["show"], "Missing argument 'CASE...'"),
        (["fzuz"], "No such command 'fzuz'"),
    ],
)
def test_a_wrong_option_is_one_line_with_value_and_expectation(arguments, told):
    result = CliRunner().invoke(kvetch, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"kvetch: {told}")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_gpu_is_refused_where_there_is_none_and_chosen_where_there_is_one(monkeypatch, tmp_path):
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr(shared, "DEVICES", (device,))
    assert shared.chosen_executor(None) == "gridsim"
    with pytest.raises(WrongUse, match=f"executor is 'gpu', but this machine has none: there is neither {device}"):
        shared.chosen_executor("gpu")
    device.touch()
    assert shared.chosen_executor(None) == "gpu"
    assert shared.chosen_executor("gridsim") == "gridsim"


def test_a_folder_that_cannot_be_made_is_refused_and_nothing_is_made(tmp_path):
    shared.check_writable("--corpus", tmp_path / "new" / "corpus")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(WrongUse, match=r"--corpus is '.*/file/corpus', but .*/file is no folder"):
        shared.check_writable("--corpus", tmp_path / "file" / "corpus")


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(WrongUse, match=r"--report is '.*', but .* cannot be written to"):
        shared.check_writable("--report", tmp_path)


def test_every_verb_explains_itself():
    for verb in VERBS:
        result = CliRunner().invoke(kvetch, [verb, "--help"])
        assert result.exit_code == 0
        assert "Exit code" in result.stdout or verb == "show"
    assert all(verb in CliRunner().invoke(kvetch, ["--help"]).stdout for verb in VERBS)
