"""docs/checks.md says what the code declares, and every check and relation names the two tests that prove it."""

import ast
from pathlib import Path

import pytest

from harness import checks
from harness.checks_table import CHECKS, FILE, PROCESS, Row, all_relations, rows, text
from harness.looks import LOOKS
from harness.results import SEVERITY

TESTS = Path(__file__).parent


def test_the_file_is_up_to_date() -> None:
    assert FILE.read_text() == text(), "run `python -m harness.checks_table`"


def test_every_check_is_declared_once_in_the_order_of_the_base_set() -> None:
    assert tuple(check.find for check in CHECKS) == checks.BASE


def test_every_kind_has_its_severity() -> None:
    kinds = {kind for row in rows() for kind in row.kinds.split(", ")}
    assert kinds <= set(SEVERITY)


def test_every_relation_is_there() -> None:
    assert {"repeated", "renumbered blocks", "re-poisoned K", "program order"} <= {r.name for r in all_relations()}
    assert len(rows()) == len(PROCESS) + len(CHECKS) + len(all_relations()) + len(LOOKS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_the_tests_that_prove_it_are_there(row: Row) -> None:
    for named in (row.fires, row.silent):
        module, _, test = named.partition(".")
        tree = ast.parse((TESTS / f"{module}.py").read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, named
