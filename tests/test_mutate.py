"""Systematic mutants: what each operator makes of a small kernel, and what it leaves alone."""

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from harness.folders import folder
from harness.mutate import Change, Equivalent, changes, equivalents, faults
from harness.operators import OPERATORS
from harness.subjects import WrongUse

KERNELS = folder("kernels")
EQUIVALENT = folder("mutants") / "equivalent.toml"
#: The files that the exam changes everywhere, and the one that it changes where it is asked for gather.
FILES = ("decode.py", "extend.py", "tile.py", "splits.py", "paged_tile.py", "cache_write.py")
of_ours = cache(lambda name: changes(KERNELS / name))
every_file = pytest.mark.parametrize("name", FILES)


def kernel(body: str, parameters: str = "x_ptr, y_ptr, n, m") -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef kernel({parameters}):\n{lines}\n"


def made(folder: Path, text: str) -> list[Change]:
    file = folder / "small.py"
    file.write_text(text)
    return changes(file)


def lines_of(found: Sequence[Change], operator: str) -> list[str]:
    """What the changed line reads after each change of one operator."""
    return [
        change.text.splitlines()[change.number - 1].strip() for change in found if change.operator == operator
    ]  # fmt: skip


OFFSET = "y = tl.load(x_ptr + n * stride_x_row + m[None, :] * stride_x_dim)"


@pytest.mark.parametrize(
    ("operator", "line", "expected"),
    [
        ("comparison", "y = n < m", ["y = n <= m"]),
        ("comparison", "y = (n) >= (m)", ["y = (n) > (m)"]),
        ("comparison", "y = n == m", ["y = n != m"]),
        ("comparison", "y = x_ptr is None", []),
        ("arithmetic", "y = n + m", ["y = n - m"]),
        ("arithmetic", "y = n - (m + 1)", ["y = n + (m + 1)", "y = n - (m - 1)"]),
        ("arithmetic", "y = n // m", ["y = n % m"]),
        ("arithmetic", "y = n % m", ["y = n // m"]),
        ("arithmetic", "n += m", ["n -= m"]),
        ("arithmetic", "y = n * m", []),
        ("arithmetic", "y = tl.load(x_ptr + n)", []),  # `index` stands for that
        ("factor", "y = (n + m) * tl.exp(n)", ["y = (n + m)"]),
        ("factor", "y = n / m", ["y = n"]),
        ("factor", "y = n + m", []),
        ("conjunct", "y = (n < 1) & (m < 2)", ["y = (n < 1)", "y = (m < 2)", "y = (n < 1) | (m < 2)"]),
        (
            "conjunct", "y = (n < 1) & (m < 2) & (m > 0)",
            ["y = (n < 1) & (m > 0)", "y = (m < 2) & (m > 0)", "y = (n < 1) & (m < 2)",
             "y = (n < 1) | (m < 2) & (m > 0)", "y = (n < 1) & (m < 2) | (m > 0)"],
        ),
        ("negation", "y = -n", ["y = n"]),
        ("negation", "y = -1 + -float('inf')", []),
        ("mask", "y = tl.load(x_ptr, mask=n < m, other=0.0)", ["y = tl.load(x_ptr)"]),
        ("mask", "tl.store(x_ptr, n, mask=n < m)", ["tl.store(x_ptr, n)"]),
        ("mask", "y = tl.load((x_ptr), mask=(n < m), volatile=n)", ["y = tl.load((x_ptr), volatile=n)"]),
        ("mask", "y = tl.load(x_ptr)", []),
        ("other", "y = tl.load(x_ptr, mask=(n < m), other=0.0)", ["y = tl.load(x_ptr, mask=(n < m))"]),
        ("other", "y = tl.load(x_ptr, mask=n < m)", []),
        ("index", "y = tl.load(x_ptr + n)", ["y = tl.load(x_ptr + n + 1)"]),
        ("index", "y = tl.exp(n)", []),
        ("constant", "y = n + 0.0", ["y = n + 1.0"]),
        ("constant", "y = n - 1", ["y = n - 0"]),
        ("constant", "y = n * 0.625", ["y = n * 1.25"]),
        ("constant", "y = tl.program_id(2)", ["y = tl.program_id(1)"]),
        ("constant", "y = -float('inf')", ["y = 0.0"]),
        ("constant", "y = tl.load(x_ptr, mask=n, other=0)", ["y = tl.load(x_ptr, mask=n, other=1)"]),
        ("constant", "y = tl.sum(n, axis=1) + tl.arange(0, 16) + m[0, :] + tl.zeros([1], n)", []),
        ("constant", "y = True", []),
        ("cast", "y = tl.load(x_ptr).to(tl.int64)", ["y = tl.load(x_ptr)"]),
        ("cast", "y = (n + m).to(y_ptr.dtype.element_ty)", ["y = (n + m)"]),
        ("extreme", "y = tl.maximum(n, tl.min(m))", ["y = tl.minimum(n, tl.min(m))", "y = tl.maximum(n, tl.max(m))"]),
        ("base", "y = tl.exp(n) + tl.log2(m)", ["y = tl.exp2(n) + tl.log2(m)", "y = tl.exp(n) + tl.log(m)"]),
        ("bound", "y = tl.cdiv(n + 1, m)", ["y = (n + 1) // (m)"]),
    ],
)  # fmt: skip
def test_an_operator_changes_this_and_nothing_else(
    operator: str, line: str, expected: list[str], tmp_path: Path
) -> None:
    assert sorted(lines_of(made(tmp_path, kernel(line)), operator)) == sorted(expected)


STRIDED = "x_ptr, stride_x_row, stride_x_dim, stride_y_row, n, m"


def test_a_stride_gives_way_to_the_next_of_the_same_tensor(tmp_path: Path) -> None:
    lines = lines_of(made(tmp_path, kernel(OFFSET, STRIDED)), "stride")
    assert lines == [
        "y = tl.load(x_ptr + n * stride_x_dim + m[None, :] * stride_x_dim)",
        "y = tl.load(x_ptr + n * stride_x_row + m[None, :] * stride_x_row)",
    ]


def test_indices_change_their_strides(tmp_path: Path) -> None:
    (line,) = lines_of(made(tmp_path, kernel(OFFSET, STRIDED)), "operands")
    assert line == "y = tl.load(x_ptr + m[None, :] * stride_x_row + n * stride_x_dim)"


def test_what_is_of_k_gives_way_to_what_is_of_v_where_there_is_such_a_thing(tmp_path: Path) -> None:
    found = made(tmp_path, kernel("y = stride_k_row + k_ptr + v_ptr", "stride_k_row, k_ptr, v_ptr"))
    assert lines_of(found, "twin") == ["y = stride_k_row + v_ptr + v_ptr", "y = stride_k_row + k_ptr + k_ptr"]


def test_a_loop_begins_and_ends_one_early_and_one_late(tmp_path: Path) -> None:
    found = made(tmp_path, kernel("for i in range(n, n + m, 16):\n    n += m"))
    assert lines_of(found, "bound") == [
        f"for i in range({bounds}, 16):" for bounds in ("n + 1, n + m", "n - 1, n + m", "n, n + m + 1", "n, n + m - 1")
    ]


def test_a_branch_is_taken_where_it_should_not_be_but_for_one_that_asks_for_none(tmp_path: Path) -> None:
    found = made(tmp_path, kernel("if n >= 0:\n    m = n\nif x_ptr is not None:\n    m = n"))
    assert lines_of(found, "branch") == ["if not (n >= 0):"]


def test_a_statement_is_deleted_only_where_all_names_stay_bound(tmp_path: Path) -> None:
    body = "y = n\nfor i in range(n):\n    z = y\n    y, i = i, z\n    tl.store(x_ptr, y)\nn += 1\nz = n"
    found = [change for change in made(tmp_path, kernel(body)) if change.operator == "deletion"]
    assert [change.line for change in found] == ["y, i = i, z", "tl.store(x_ptr, y)", "n += 1"]
    assert all(change.text.splitlines()[change.number - 1].strip() == "pass" for change in found)


def test_a_branch_of_several_statements_is_deleted_as_a_whole(tmp_path: Path) -> None:
    found = made(tmp_path, kernel("if n:\n    m = n\n    n = 2\nif m:\n    n = m\nif n:\n    y = 1\n    n = y"))
    says = [change.says for change in found if change.operator == "deletion"]
    gone = ("if n: m = n n = 2", "m = n", "n = 2", "n = m", "n = y")
    assert says == [f'without "{statement}"' for statement in gone]


def test_what_only_informs_the_compiler_is_left_alone(tmp_path: Path) -> None:
    body = "tl.static_assert(n + 1 < m)\nn = tl.multiple_of(n + 1, 16)\ntl.device_print('x', n + 1)"
    assert lines_of(made(tmp_path, kernel(body)), "arithmetic") == []


def test_only_functions_that_triton_compiles_are_changed(tmp_path: Path) -> None:
    text = kernel("y = n + m") + "\n\ndef wrapper(n, m):\n    return n + m\n"
    text += "\n\n@triton.autotune([], [])\n@triton.jit(debug=True)\ndef other(n, m=1 + 2):\n    y = n + m\n"
    assert [change.function for change in made(tmp_path, text)] == ["kernel", "other"]


def test_a_change_leaves_all_other_text_as_it_is(tmp_path: Path) -> None:
    text = kernel("y = n + m  # é: ≥ 0\nz = 'ü' if n < m else 'ß'  # same")
    (change,) = [change for change in made(tmp_path, text) if change.operator == "comparison"]
    assert change.text == text.replace("n < m", "n <= m")


# --- names, order, texts -----------------------------------------------------------------------------------------


def test_a_name_tells_the_place_and_what_is_done(tmp_path: Path) -> None:
    found = made(tmp_path, kernel("y = (n < m) & (m < n)"))
    names = [change.name for change in found if change.operator == "comparison"]
    assert names == ['small.py:7 "<" to "<="', 'small.py:7 "<" to "<=" (2)']


def test_two_edits_that_come_to_the_same_are_one_mutant(tmp_path: Path) -> None:
    found = made(tmp_path, kernel("y = n & m\ny = y & n"))
    assert len({ast.dump(ast.parse(change.text)) for change in found}) == len(found)


@every_file
def test_mutants_of_our_kernels_parse_and_are_told_apart(name: str) -> None:
    found = of_ours(name)
    original = ast.dump(ast.parse((KERNELS / name).read_text()))
    trees = [ast.dump(ast.parse(change.text)) for change in found]
    assert len({original, *trees}) == len(found) + 1
    assert len({change.name for change in found}) == len(found)


@every_file
def test_mutants_come_in_the_order_of_the_text_and_always_the_same(name: str) -> None:
    found = of_ours(name)
    assert [change.name for change in found] == [change.name for change in changes(KERNELS / name)]
    starts = [change.edit.start for change in found]
    assert starts == sorted(starts)


@every_file
def test_old_and_new_text_are_whole_lines_and_the_old_one_occurs_once(name: str) -> None:
    for change in of_ours(name):
        old, new = change.texts
        assert change.source.text.count(old) == 1
        assert change.source.text.replace(old, new) == change.text
        assert old.endswith("\n")


def test_every_operator_has_its_place_in_our_kernels() -> None:
    assert {change.operator for name in FILES for change in of_ours(name)} == set(OPERATORS)


def test_a_diff_shows_the_change_and_little_else(tmp_path: Path) -> None:
    (change,) = [change for change in made(tmp_path, kernel("y = n < m")) if change.operator == "comparison"]
    assert change.diff.splitlines()[:2] == ["--- a/small.py", "+++ b/small.py"]
    assert "-    y = n < m\n+    y = n <= m\n" in change.diff


# --- those that are no faults ------------------------------------------------------------------------------------


def test_every_record_matches_exactly_one_mutant() -> None:
    found = {name: of_ours(name) for name in FILES}
    for record in equivalents(EQUIVALENT):
        assert record.file.startswith("kernels/"), record
        assert len([change for change in found[Path(record.file).name] if record.is_of(change)]) == 1, record


def test_every_record_says_why() -> None:
    records = equivalents(EQUIVALENT)
    assert len(set(records)) == len(records) > 0
    assert all(len(record.reason) > 20 for record in records)


def test_a_recorded_mutant_is_no_fault(tmp_path: Path) -> None:
    found = made(tmp_path, kernel("y = n < m\ny = n > m"))
    record = Equivalent(file="small.py", function="kernel", line="y = n < m", change='"<" to "<="', reason="why not")
    assert faults(found, [record]) == [change for change in found if change.line != "y = n < m"]
    assert faults(found, []) == found


# --- bad input ---------------------------------------------------------------------------------------------------


def test_a_file_without_a_kernel_is_told(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"small\.py has no function decorated with triton\.jit"):
        made(tmp_path, "def wrapper():\n    return 1 + 2\n")


def test_a_file_that_is_no_python_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"small\.py:2: .*, but expected Python"):
        made(tmp_path, "x = 1\ndef (:\n")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"nowhere\.py, but there is no such file"):
        changes(tmp_path / "nowhere.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[equivalent]]\nfile = 'x.py'\n", "missing required field `function`"),
        ("[[equivalent]]\nfile = 1\n", "Expected `str`, got `int`"),
        ("[[equivalent]\n", "Expected ']]'"),
    ],
)
def test_a_wrong_record_is_told_with_its_file(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "equivalent.toml"
    file.write_text(text)
    with pytest.raises(WrongUse, match=message) as told:
        equivalents(file)
    assert str(file) in str(told.value)
