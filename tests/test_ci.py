"""docs/ci.md and action.yml: what they tell people to type is there."""

import re
import subprocess
import tomllib
from pathlib import Path

import click
import msgspec
import pytest

from harness.__main__ import Verbs
from harness.outcome import Word
from harness.settings import Settings
from harness.subjects import Declaration

ROOT = Path(__file__).parent.parent
DOC, ACTION = (ROOT / "docs/ci.md").read_text(), (ROOT / "action.yml").read_text()
JOINED = re.sub(r"\\\n\s*", " ", DOC + ACTION)
COMMANDS = sorted(set(re.findall(r"python -m harness\.(\w+)([^`\n]*)", JOINED)))


def command_of(verb: str, words: list[str]) -> click.Command:
    found = Verbs("kvetch").get_command(None, verb)
    assert found is not None, verb
    return found.get_command(None, words[0]) if isinstance(found, click.Group) else found


@pytest.mark.parametrize(("verb", "rest"), COMMANDS)
def test_every_command_that_is_told_takes_the_options_that_are_told(verb, rest):
    words = rest.split()
    known = {name for option in command_of(verb, words).params for name in option.opts}
    told = set(re.findall(r"--[a-z-]+", rest))
    assert told <= known, told - known


def test_many_commands_are_told():
    assert len(COMMANDS) > 8
    assert {verb for verb, _ in COMMANDS} == {"gate", "replay", "fuzz", "corpus"}


def test_the_settings_that_are_told_are_read():
    (block,) = re.findall(r"Settings\n\n.*?\n\n((?:    .*\n|\n)+)", DOC)
    settings = msgspec.convert(tomllib.loads(re.sub("^    ", "", block, flags=re.MULTILINE)), Settings)
    assert settings.globs("adapters/vllm.py:decode") == ("csrc/**/*.cu", "vllm/attention/**/*.py")
    assert settings.accept[0].field in Declaration.__struct_fields__


def test_the_verdicts_and_fields_that_are_told_are_those_that_there_are():
    told = re.findall(r"^\| ([A-Z -]+) \|", DOC, flags=re.MULTILINE)
    assert sorted(told) == sorted(Word.__args__)
    for field in ("known", "corpus", "subjects", "paths", "accuracy"):
        assert f"`{field}" in DOC


def test_the_settings_of_this_project_name_files_that_are_there():
    settings = msgspec.convert(tomllib.loads((ROOT / "kvetch.toml").read_text()), Settings)
    for subject in settings.subjects:
        for glob in settings.globs(subject):
            assert list(ROOT.glob(glob)), glob


def test_the_step_of_the_action_is_a_script_that_a_shell_can_read():
    scripts = re.findall(r"^      run: (.*)$", ACTION, flags=re.MULTILINE)
    assert len(scripts) == 2
    for script in scripts:
        assert "${{" not in script  # nothing of a pull request is pasted into a script
        subprocess.run(["bash", "-n", "-c", script], check=True)
