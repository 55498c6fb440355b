"""docs/record.md: what it tells people to type is there, and its words are the program's."""

import re
from pathlib import Path

import pytest
from test_ci import command_of

from harness.parameters import ROLES
from harness.scaling import MOST_ELEMENTS, MOST_SCORES

PAGE = (Path(__file__).parent.parent / "docs" / "record.md").read_text()
COMMANDS = sorted(set(re.findall(r"^    python -m harness\.(\w+)(.*)$", PAGE, flags=re.M)))


@pytest.mark.parametrize(("verb", "rest"), COMMANDS)
def test_every_command_takes_the_options_that_are_told(verb, rest):
    words = rest.split()
    command = command_of(verb, words)
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_page_has_commands():
    assert {verb for verb, _ in COMMANDS} == {"recorded", "replay", "corpus", "fuzz", "kvsize"}


def test_every_role_is_in_the_table():
    told = set(re.findall(r"`(\w+)`", "".join(line for line in PAGE.splitlines() if line.startswith("| `"))))
    assert set(ROLES) <= told


def test_the_limits_are_those_of_the_program():
    assert (MOST_ELEMENTS, MOST_SCORES) == (2**24, 2**25)
    assert "2^24 elements of K and V, or 2^25 scores" in PAGE
