"""The planted faults themselves are sound, and what is wrong in their files is told in one line."""

import ast
from collections import Counter
from pathlib import Path

import pytest
from hunting import MUTANTS, changed
from smallest import SEQUENCES, SMALLEST

from harness import ours
from harness.case import Case, replace
from harness.folders import folder
from harness.mutants import BEYOND_A_CALL, CLASSES, Edit, Mutant, home, mutated, plant, read
from harness.results import Finding
from harness.subjects import WrongUse, load, operation

#: How many faults each class that a call can show must have, and how many there must be in all.
REQUIRED: dict[str, int] = {name: 2 for name in CLASSES if name not in BEYOND_A_CALL}
REQUIRED_IN_ALL = 190
#: How many of the strongest CI hunts.
STRONGEST = 20

every_fault = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)

FAULT = """
[[mutant]]
name = "one"
class = "GQA"
subject = "ours.decode"
file = "kernels/decode.py"
old = "kv_head = head // group"
new = "kv_head = 0"
finds = ["wrong output"]
says = []
story = "every head reads the first"
"""


def written(folder: Path, text: str) -> Path:
    (folder / "faults.toml").write_text(text)
    return folder


# --- ours --------------------------------------------------------------------------------------------------------


@every_fault
def test_every_old_text_occurs_exactly_once(mutant: Mutant) -> None:
    assert (home(mutant) / mutant.file).read_text().count(mutant.old) == 1
    assert set(mutated(mutant)) == {edit.file for edit in mutant.edits}  # which raises where another one does not


@every_fault
def test_every_mutated_file_compiles_and_differs(mutant: Mutant) -> None:
    for file, text in mutated(mutant).items():
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse((home(mutant) / file).read_text()))


@every_fault
def test_a_planted_subject_declares_what_ours_declares(mutant: Mutant, tmp_path: Path) -> None:
    subject = load(plant(mutant, tmp_path), operation(mutant.subject))
    original = getattr(ours, mutant.subject.removeprefix("ours."))
    declared = original.__kvetch__
    assert subject.declaration == (replace(declared, dtypes=mutant.dtypes) if mutant.dtypes else declared)
    assert (subject.validate is None) == (getattr(original, "validate", None) is None)


@every_fault
def test_every_fault_is_named_by_its_finding_unless_it_is_not_found(mutant: Mutant) -> None:
    assert all(mutant.says)
    assert bool(mutant.says) != bool(mutant.unfound)


@every_fault
def test_every_fault_has_a_story_and_a_class_that_a_call_can_show(mutant: Mutant) -> None:
    assert mutant.story
    assert mutant.bug_class in CLASSES
    assert mutant.bug_class not in BEYOND_A_CALL


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_case_of_a_fault_is_a_case_that_its_subject_takes(name: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    case = Case(**{"op": operation(mutant.subject)} | SMALLEST[name])
    assert load(mutant.subject).declines(case) is None


def test_names_are_told_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert set(SEQUENCES) <= set(SMALLEST)


def test_every_class_that_a_call_can_show_has_its_faults() -> None:
    counts = Counter(mutant.bug_class for mutant in MUTANTS)
    missing = {name: (counts[name], most) for name, most in REQUIRED.items() if counts[name] < most}
    assert missing == {}
    assert len(MUTANTS) >= REQUIRED_IN_ALL


def test_the_strongest_are_each_of_another_class() -> None:
    classes = [mutant.bug_class for mutant in MUTANTS if mutant.strongest]
    assert len(classes) == len(set(classes)) == STRONGEST


def test_ours_are_shipped_beside_the_harness() -> None:
    assert {mutant.name for mutant in read(folder("mutants"))} == {mutant.name for mutant in MUTANTS}


# --- reading -----------------------------------------------------------------------------------------------------


def test_a_fault_is_read_as_it_is_written(tmp_path: Path) -> None:
    edit = '\nalso = [{file = "kernels/merge.py", old = "a", new = "b"}]'
    (mutant,) = read(written(tmp_path, FAULT + 'dtypes = ["float16"]\nafter = ["vllm #1"]' + edit))
    assert (mutant.bug_class, mutant.dtypes, mutant.after) == ("GQA", ("float16",), ("vllm #1",))
    assert [edit.file for edit in mutant.edits] == ["kernels/decode.py", "kernels/merge.py"]
    assert (mutant.strongest, mutant.unfound) == (False, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[mutant]", "faults.toml: "),
        (FAULT.replace("story", "tale"), "faults.toml: Object contains unknown field `tale`"),
        (FAULT.replace('story = "every head reads the first"', ""), "missing required field `story`"),
        (FAULT.replace("GQA", "GQB"), "faults.toml: mutant 'one': class is 'GQB', expected one of ORACLE, STALEMETA"),
        (FAULT.replace("ours.decode", "ours.code"), "subject is 'ours.code', expected FILE.py:FUNCTION or one of ours"),
        (FAULT.replace("wrong output", "wrong"), "finds holds 'wrong', expected some of accuracy"),
        (FAULT.replace('["wrong output"]', "[]"), "finds is empty"),
        (FAULT.replace('"one"', '"One fault"'), "mutant 'One fault': name should be a slug"),
        (FAULT.replace("kernels/", "harness/"), "file is 'harness/decode.py', expected kernels/NAME.py"),
        (FAULT + 'dtypes = ["float8"]', "Invalid enum value 'float8'"),
        (FAULT + FAULT, "faults.toml: the name 'one' is there 2 times, expected once"),
    ],
)
def test_bad_input_is_one_message_with_file_and_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse) as told:
        read(written(tmp_path, text))
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"no-such.*but there is no such file or folder"):
        read(tmp_path / "no-such")


def test_what_changes_nothing_is_kept_beside_the_faults_and_not_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "equivalent.toml").write_text("[[equivalent]]\n")
    assert [mutant.name for mutant in read(written(tmp_path, FAULT))] == ["one"]


def test_kinds_and_families_are_both_what_is_to_be_found() -> None:
    mutant = replace(changed("decode.py", "a", "b"), finds=("wrong write", "race", "exception"))
    means = {kind: mutant.means(Finding(kind=kind, message="")) for kind in ("wrong cache", "race", "accuracy")}
    assert means == {"wrong cache": True, "race": True, "accuracy": False}
    assert mutant.means(Finding(kind="exception", message="", detail="KeyError at decode.py:1"))


# --- planting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": "no such text"}, "mutant 'mutant': old occurs 0 times in kernels/decode.py, expected once: 'no such"),
        ({"old": "kv_len"}, "times in kernels/decode.py, expected once: 'kv_len'"),
        ({"old": ""}, "old is empty in kernels/decode.py"),
        ({"file": "kernels/code.py"}, "file is 'kernels/code.py', but there is no "),
    ],
)
def test_a_text_that_is_not_there_once_is_told(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse) as told:
        plant(replace(changed("decode.py", "kv_head = head // group", ""), **changes), tmp_path)
    assert message in str(told.value)
    assert list(tmp_path.iterdir()) == []


def test_several_edits_of_one_file_are_made_one_after_the_other(tmp_path: Path) -> None:
    twice = changed("decode.py", "kv_head = head // group", "kv_head = head + 0")
    plant(replace(twice, also=(Edit(file="kernels/decode.py", old="head + 0", new="head + 1"),)), tmp_path)
    assert "kv_head = head + 1" in (tmp_path / "decode.py").read_text()
    assert "kv_head = head // group" in (folder("kernels") / "decode.py").read_text()


USERS = """
import torch
from harness import subject
from helper import FACTOR

@subject(op="decode", head_dims=(16,))
def mine(inputs):
    return torch.zeros_like(inputs.q) * FACTOR
"""


def test_a_users_subject_is_copied_with_the_files_beside_it(tmp_path: Path) -> None:
    theirs, where = tmp_path / "theirs", tmp_path / "copy"
    for place in (theirs, where):
        place.mkdir()
    (theirs / "my.py").write_text(USERS)
    (theirs / "helper.py").write_text("FACTOR = 1\n")
    fault = changed("helper.py", "FACTOR = 1", "FACTOR = 2")
    fault = replace(fault, subject=f"{theirs / 'my.py'}:mine", file="helper.py", dtypes=("float16",))
    name = plant(fault, where)
    assert name == f"{where / 'my.py'}:mine"
    assert load(name).declaration == replace(load(fault.subject).declaration, dtypes=("float16",))
    assert (where / "helper.py").read_text() == "FACTOR = 2\n"
    assert (theirs / "helper.py").read_text() == "FACTOR = 1\n"
    assert (theirs / "my.py").read_text() == USERS


def imported(name: str) -> set[str]:
    """A kernel's file and those of `kernels/` that it imports, by name."""
    tree = ast.parse((folder("kernels") / f"{name}.py").read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    files = {other for other in names if (folder("kernels") / f"{other}.py").exists()}
    return {name}.union(*map(imported, files))


@every_fault
def test_a_fault_of_a_kernel_is_planted_in_a_file_that_its_subject_runs(mutant: Mutant) -> None:
    if not mutant.file.startswith("kernels/"):
        return
    own = mutant.subject.removeprefix("ours.")
    files = imported("extend") | imported("cache_write") if own == "step" else imported(own)
    assert {Path(edit.file).stem for edit in mutant.edits} <= files | {"ours"}
