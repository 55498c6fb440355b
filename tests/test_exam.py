"""An exam counts what was found as it was meant to be, tells what was missed, and refuses what it cannot hunt."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from hunting import changed
from invoked import SUBJECTS
from parsed import parse

from harness import exam, exam_page, exam_table, examiner
from harness.campaign import Plan
from harness.case import Case, Seq, replace
from harness.crew import Crew
from harness.examiner import Job
from harness.mutants import Mutant, home
from harness.page import render
from harness.pool import Worker
from harness.results import Finding
from harness.selection import Wanted, kernel_files, select
from harness.subjects import SUBJECTS as SUBJECTS_OF_OURS
from harness.subjects import WrongUse
from harness.summary import Found, Summary
from harness.verdicts import Exam, Verdict, exit_code, faulty, from_file, to_builtins, verdict

FAULTS = """
[[mutant]]
name = "first-head-for-all"
class = "GQA"
subject = "ours.decode"
file = "kernels/decode.py"
old = "kv_head = head // group"
new = "kv_head = head * 0"
finds = ["wrong output"]
says = ["attends to KV head 0"]
story = "every query head reads the first KV head"

[[mutant]]
name = "no-fault"
class = "GQA"
subject = "ours.decode"
file = "kernels/decode.py"
old = "kv_head = head // group"
new = "kv_head = (head // group)"
finds = ["wrong output"]
story = "nothing is changed"
"""

#: In torch, and so without a kernel that could be changed systematically.
THEIRS = """
[[mutant]]
name = "not-normalised"
class = "EXTREME"
file = "mine.py"
old = "p = torch.softmax("
new = "p = 1.5 * torch.softmax("
finds = ["wrong output"]
story = "the weights do not sum to 1"
"""
KEYS = {"planted", "found", "systematic", "systematic_found", "median_seconds", "explained", "mutants"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(exam.main, list(arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the faults are written, and a subject of a user's."""
    made = tmp_path_factory.mktemp("exam")
    (made / "faults.toml").write_text(FAULTS)
    (made / "theirs.toml").write_text(THEIRS)
    (made / "mine.py").write_text(SUBJECTS)
    return made


@pytest.fixture(scope="module")
def examined(folder: Path) -> Result:
    """The faults above, hunted once for all tests."""
    written = {"--html": folder / "page.html", "--markdown": folder / "document.md"}
    files = [str(part) for pair in written.items() for part in pair]
    return run("--mutants", str(folder / "faults.toml"), "--seconds", "4", "--workers", "2", "--json", *files)


# --- a whole exam ------------------------------------------------------------------------------------------------


def test_a_planted_fault_is_found_and_what_changes_nothing_is_not(examined: Result) -> None:
    plain = json.loads(examined.stdout)
    assert plain.keys() >= KEYS
    assert (plain["planted"], plain["found"], plain["explained"], plain["systematic"]) == (2, 1, 1, 0)
    one, nothing = sorted(plain["mutants"], key=lambda mutant: mutant["name"])
    assert (one["found"], one["meant"], one["kind"], one["again"]) == (True, True, "accuracy", "3 of 3")
    assert (one["class"], one["sequences"], one["blocks"], one["explained"]) == ("GQA", 1, 1, True)
    assert 1 <= one["cases"] < 50
    assert 0 < one["seconds"] < one["total"]
    assert plain["median_seconds"] == one["seconds"]
    assert (nothing["found"], nothing["kind"], nothing["sequences"]) == (False, "", 0)
    assert nothing["cases"] >= 1
    assert nothing["seconds"] >= 4
    assert (one["others"], "others" in plain) == ([], False)  # nobody asked


def test_a_score_that_is_too_low_is_exit_code_1(examined: Result) -> None:
    assert examined.exit_code == 1
    assert "1 of 2 planted faults found (50.0%, which is less than 98.0%)" in examined.stderr


def test_what_was_missed_is_told_with_its_diff_and_the_command_that_reproduces(examined: Result) -> None:
    assert "MISSED: no-fault: nothing is changed" in examined.stderr
    assert "+    kv_head = (head // group)" in examined.stderr
    assert "python -m harness.exam --name no-fault --mutants " in examined.stderr
    assert "--seconds 4 " in examined.stderr


def test_the_missed_come_first_in_the_table(examined: Result) -> None:
    table = [line.split()[0] for line in examined.stderr.splitlines() if "MISSED  " in line or "accuracy  " in line]
    assert table == ["no-fault", "first-head-for-all"]


def test_page_and_document_are_written(examined: Result, folder: Path) -> None:
    page, document = (folder / "page.html").read_text(), (folder / "document.md").read_text()
    assert "every query head reads the first KV head" in page
    assert "http" not in page  # it needs nothing else
    assert "| first-head-for-all | GQA | accuracy |" in document
    assert "```diff" in document


def test_a_run_can_be_read_again_and_its_table_put_into_a_document(examined: Result, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(examined.stdout)
    again = from_file(tmp_path / "run.json")
    assert json.loads(json.dumps(to_builtins(again))) == json.loads(examined.stdout)
    command = [sys.executable, "-m", "harness.exam_table", "run.json", "exam.md"]
    environment = os.environ | {"PYTHONPATH": str(Path(exam.__file__).parents[1])}
    subprocess.run(command, cwd=tmp_path, check=True, env=environment)
    assert exam_table.markdown(again) in (tmp_path / "exam.md").read_text()


def test_others_are_tried_on_the_same_faults(tmp_path: Path) -> None:
    names = [part for name in ("merged-in-base-two", "at-most-four-states") for part in ("--name", name)]
    written = ["--markdown", str(tmp_path / "exam.md"), "--executor", "gridsim"]
    done = run("--others", "--no-systematic", *names, "--seconds", "10", "--workers", "1", "--json", *written)
    assert done.exit_code == 0, done.stderr
    plain = json.loads(done.stdout)
    tried = {mutant["name"]: mutant["others"][0]["outcome"] for mutant in plain["mutants"]}
    assert tried == {"merged-in-base-two": "found", "at-most-four-states": "missed"}
    (vllm,) = plain["others"]["projects"]
    assert (vllm["who"], vllm["planted"], vllm["found"], vllm["operations"]) == ("vLLM", 2, 1, ["merge"])
    assert (plain["others"]["kvetch"]["found"], plain["others"]["recipes"][0]["who"]) == (2, "vLLM merge")
    assert "who finds what, of 2 planted faults" in done.stderr
    assert "| vLLM | merge | 2 | 1 | 2 |" in (tmp_path / "exam.md").read_text()
    assert "vLLM 1 of 2" in (tmp_path / "exam.svg").read_text()


def test_a_users_subject_is_copied_and_its_faults_are_found(folder: Path) -> None:
    before = {file: file.read_bytes() for file in folder.glob("*.py")}
    name = f"{folder / 'mine.py'}:right"
    done = run(
        "--subject", name, "--mutants", str(folder / "theirs.toml"), "--seconds", "3", "--workers", "1", "--json"
    )
    assert done.exit_code == 0, done.stderr
    plain = json.loads(done.stdout)
    assert [(mutant["subject"], mutant["kind"]) for mutant in plain["mutants"]] == [(name, "accuracy")]
    assert f"hunting in {name} as it is" in done.stderr
    assert {file: file.read_bytes() for file in folder.glob("*.py")} == before


def test_a_subject_that_fails_as_it_is_is_said_to_before_anything_is_hunted(folder: Path) -> None:
    name = f"{folder / 'mine.py'}:wrong"
    done = run("--subject", name, "--mutants", str(folder / "theirs.toml"), "--seconds", "20", "--workers", "1")
    assert done.exit_code == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("kvetch: "))
    assert f"{name} fails as it is: accuracy: " in line
    assert "planted faults" not in done.output


def test_a_subject_that_cannot_be_loaded_is_told_in_one_line(folder: Path) -> None:
    name = f"{folder / 'mine.py'}:no_such"
    done = run("--subject", name, "--mutants", str(folder / "theirs.toml"), "--workers", "1")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("kvetch: "))
    assert (done.exit_code, line.endswith("mine.py has no function 'no_such'")) == (2, True)


def test_systematic_mutants_are_made_of_a_users_kernel(tmp_path: Path) -> None:
    pytest.importorskip("harness.mutate")
    shutil.copy(Path(exam.__file__).parents[1] / "examples" / "my_decode.py", tmp_path)
    selected = select(Wanted(subjects=(f"{tmp_path / 'my_decode.py'}:my_decode",)))
    assert len(selected.systematic) > 10
    assert not selected.planted
    wrong = next(mutant for mutant in selected.systematic if "// group" in mutant.old and "// group" not in mutant.new)
    done = run("--subject", wrong.subject, "--name", wrong.name, "--seconds", "8", "--workers", "1", "--json")
    plain = json.loads(done.stdout)
    assert (plain["systematic"], plain["systematic_found"], done.exit_code) == (1, 1, 0)


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("[[mutant]", (), "kvetch: {file}: "),
        (FAULTS.replace("GQA", "GQB", 1), (), "class is 'GQB', expected one of ORACLE"),
        (FAULTS.replace("story", "tale", 1), (), "unknown field `tale`"),
        (
            FAULTS.replace("old = ", 'old = "in vain" #', 1),
            (),
            "'first-head-for-all': old occurs 0 times in kernels/dec",
        ),
        (FAULTS.replace("head * 0", "head *", 1), (), "kernels/decode.py:"),
        (FAULTS, ("--name", "no-vault"), "no mutant is named 'no-vault'; there are no-fault"),
        (FAULTS, ("--class", "MERGE"), "there is no mutant of MERGE"),
        (FAULTS, ("--class", "NONE"), "Invalid value for '--class': 'NONE' is not one of"),
        (FAULTS, ("--subject", "ours.code"), "subject 'ours.code' is neither one of ours"),
        (FAULTS, ("--subject", "no_such.py:fn"), "subject 'no_such.py:fn': there is no file no_such.py"),
        (FAULTS, ("--min-score", "2"), "Invalid value for '--min-score'"),
        (FAULTS, ("--html", "/dev/null/page.html"), "--html is"),
        (FAULTS, ("--others", "--executor", "interpreter"), "--others runs on gridsim alone, but the executor is 'int"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    text: str, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "faults.toml"
    file.write_text(text)
    done = run("--mutants", str(file), "--no-systematic", *arguments)
    assert done.exit_code == 2
    assert message.replace("{file}", str(file)) in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("--mutants", str(tmp_path / "none.toml"))
    assert (done.exit_code, "but there is no such file or folder" in done.stderr) == (2, True)


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"mutants": 3}')
    with pytest.raises(WrongUse, match=r"run\.json is no JSON of an exam: Expected `array`"):
        from_file(tmp_path / "run.json")


# --- what is hunted ----------------------------------------------------------------------------------------------


def test_faults_are_chosen_by_subject_class_and_name() -> None:
    merge = select(Wanted(subjects=("ours.merge",), systematic=False))
    assert {mutant.subject for mutant in merge.planted} == {"ours.merge"}
    group = select(Wanted(classes=("GQA",)))
    assert {mutant.bug_class for mutant in group.all} == {"GQA"}
    named = select(Wanted(names=("dies", "hangs"), systematic=False))
    assert {mutant.name for mutant in named.all} == {"dies", "hangs"}


def test_our_faults_are_not_planted_in_a_users_kernel(folder: Path) -> None:
    with pytest.raises(WrongUse, match="no fault is written for it, and no kernel was found to change"):
        select(Wanted(subjects=(f"{folder / 'mine.py'}:right",)))


def test_kernels_are_looked_for_in_the_subjects_file_and_then_in_those_that_it_imports(tmp_path: Path) -> None:
    (tmp_path / "adapter.py").write_text("import torch\nfrom kernel import attend\nimport helper\n")
    (tmp_path / "kernel.py").write_text("import triton\n@triton.jit\ndef attend(x): pass\n")
    (tmp_path / "helper.py").write_text("def f(): pass\n")
    (tmp_path / "other.py").write_text("import triton\n@triton.jit\ndef attend(x): pass\n")
    assert kernel_files(f"{tmp_path / 'adapter.py'}:attend") == ["kernel.py"]
    assert kernel_files(f"{tmp_path / 'kernel.py'}:attend") == ["kernel.py"]
    assert kernel_files(f"{tmp_path / 'helper.py'}:f") == []
    assert kernel_files("ours.cache_write") == ["kernels/cache_write.py"]
    assert kernel_files("ours.extend") == ["kernels/extend.py", "kernels/tile.py", "kernels/splits.py"]
    assert all((home(changed("", "", "")) / file).is_file() for name in SUBJECTS_OF_OURS for file in kernel_files(name))


def test_a_seed_is_the_mutants_own_whatever_else_is_hunted() -> None:
    one, other = (replace(changed("decode.py", "a", "b"), name=name) for name in ("one", "other"))
    assert len({exam._seed(0, one), exam._seed(0, other), exam._seed(1, one)}) == 3


# --- verdicts ----------------------------------------------------------------------------------------------------

WRITTEN = replace(changed("decode.py", "head // group", "head % group"), finds=("wrong write",), says=("slot 3",))


def judged(mutant: Mutant, *findings: Finding, systematic: bool = False, **fields: Any) -> Verdict:
    case = Case(seqs=(Seq(kv_len=17), Seq(kv_len=1, tag=1)), block_size=16)
    found = tuple(
        Found(subject="mine", case=case, finding=finding, after_cases=7, after_seconds=1.5) for finding in findings
    )
    return verdict(mutant, Summary(findings=found, **fields), 9.0, systematic)


def test_what_is_found_otherwise_than_meant_is_not_counted_for_a_planted_fault() -> None:
    finding = Finding(kind="accuracy", message="out is 1")
    planted, systematic = judged(WRITTEN, finding), judged(WRITTEN, finding, systematic=True)
    assert (planted.found, planted.meant, planted.passed) == (True, False, False)
    assert (systematic.found, systematic.passed) == (True, True)
    assert exam_table.found_by(planted) == "accuracy (not meant)"
    plain = to_builtins(Exam(mutants=(planted, systematic)))
    assert (plain["found"], plain["found_otherwise"], plain["systematic_found"]) == (0, 1, 1)


def test_a_verdict_has_the_time_of_the_finding_and_the_size_of_its_case() -> None:
    seen = judged(WRITTEN, Finding(kind="wrong cache", message="slot 3 of block 2", detail="cache"))
    assert (seen.passed, seen.explained, seen.check) == (True, True, "wrong cache: cache")
    assert (seen.cases, seen.seconds, seen.total) == (7, 1.5, 9.0)
    assert (seen.sequences, seen.blocks, seen.tokens) == (2, 3, 18)
    assert exam_table.smallest(seen) == "2 seqs, 3 blocks, 18 tokens"


def test_what_a_finding_does_not_say_is_told() -> None:
    seen = judged(WRITTEN, Finding(kind="wrong cache", message="block 2"))
    assert (seen.explained, seen.unsaid) == (False, ("slot 3",))
    assert "  does not say: slot 3" in list(exam_table.lines(Exam(mutants=(seen,))))


def test_a_fault_of_the_harness_is_no_verdict_and_exit_code_3() -> None:
    seen = judged(WRITTEN, harness_faults=("the judge and a witness disagree",))
    assert (seen.found, seen.fault) == (False, "the judge and a witness disagree")
    assert exit_code(Exam(mutants=(seen,), min_score=0.0)) == 3


@pytest.mark.parametrize(("least", "code"), [(0.5, 0), (0.51, 1)])
def test_the_score_is_held_for_planted_and_for_systematic_mutants_apart(least: float, code: int) -> None:
    found, missed = Verdict(name="a", found=True, meant=True), Verdict(name="b")
    assert exit_code(Exam(mutants=(found, missed), min_score=least)) == code
    systematic = tuple(replace(one, systematic=True) for one in (found, missed))
    assert exit_code(Exam(mutants=systematic, min_score=1.0, min_systematic=least)) == code


def test_an_interrupted_exam_is_not_passed() -> None:
    found = Verdict(name="a", found=True, meant=True)
    assert exit_code(Exam(mutants=(found,), interrupted=True)) == 5
    assert "interrupted: the mutants that were left are not counted" in list(exam_table.lines(Exam(interrupted=True)))


def test_what_is_accepted_as_unfound_counts_as_missed_and_its_reason_is_told() -> None:
    missed = Verdict(name="a", unfound="no call shows it")
    assert Exam(mutants=(missed,)).score(systematic=False) == 0
    assert "  accepted: no call shows it" in list(exam_table.lines(Exam(mutants=(missed,))))


# --- table and page ----------------------------------------------------------------------------------------------

SEVERAL = (
    Verdict(name="quick", found=True, meant=True, explained=True, seconds=1.0, kind="race"),
    Verdict(name="slow", found=True, meant=True, explained=True, seconds=9.0, kind="race"),
    Verdict(name="missed"),
    Verdict(name="unnamed", found=True, meant=True, kind="race"),
    Verdict(name="faulty", fault="Traceback"),
    Verdict(name="otherwise", found=True, kind="crash"),
)


def test_the_worst_come_first_and_then_the_slowest() -> None:
    order = [verdict.name for verdict in exam_table.worst_first(SEVERAL)]
    assert order == ["faulty", "missed", "otherwise", "unnamed", "slow", "quick"]


def test_a_section_replaces_the_one_of_the_same_title_and_leaves_the_rest() -> None:
    section = exam_table.markdown(Exam(mutants=SEVERAL))
    once = exam_table.into("# The exam\n\nWords.\n\n## A run\n\nold numbers\n\n## How\n\nMore.\n", section)
    assert once == f"# The exam\n\nWords.\n\n{section}\n## How\n\nMore.\n"
    assert exam_table.into(once, section) == once
    appended = exam_table.into("# The exam\n", section)
    assert appended == f"# The exam\n\n{section}"
    assert exam_table.into(appended, section) == appended


def test_the_page_escapes_what_mutants_and_findings_say() -> None:
    page = exam_page.page(Exam(mutants=(Verdict(name="a", story="x < y", diff="-if a <b> c"),)))
    assert "x &lt; y" in page
    assert "-if a &lt;b&gt; c" in page
    assert "<b>" not in page


def test_the_page_begins_with_the_score_and_has_the_style_of_the_others() -> None:
    text = exam_page.page(Exam(mutants=SEVERAL))
    seen = parse(text)
    assert seen.one("header").one("p", "verdict").text == next(exam_table.score_lines(Exam(mutants=SEVERAL)))
    assert seen.one("style").text == parse(render("another", "page", [])).one("style").text
    rows = {row.all("td")[0].text: row for row in seen.all("tr") if row.all("td")}
    assert set(rows) == {verdict.name for verdict in SEVERAL}
    assert rows["quick"].one("td", "good").text == "race"
    assert rows["missed"].one("td", "bad").text == "MISSED"


# --- processes ---------------------------------------------------------------------------------------------------


def test_an_examiner_that_dies_is_a_fault_and_the_next_mutant_is_hunted(tmp_path: Path) -> None:
    fault = replace(changed("decode.py", "kv_head = head // group", "kv_head = head * 0"), finds=("wrong output",))
    job = Job(mutant=fault, op="decode", seconds=20.0, seed=1, folder=str(tmp_path), systematic=True)
    with Crew(1, "gridsim") as crew:
        os.kill(crew._examiners[0]._process.pid, signal.SIGKILL)
        (lost,) = crew.examine([job])
        assert lost == faulty(fault, lost.fault, systematic=True)
        assert lost.fault.startswith("an examiner ended with exit code -9")
        (seen,) = crew.examine([job])
    assert (seen.passed, seen.kind, seen.sequences, seen.fault) == (True, "accuracy", 0, "")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_examiners_at_once_and_leaves_no_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.exam", "--no-systematic", "--name", "dies", "--workers", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(exam.__file__).parents[1])}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    waited = time.monotonic() + 60
    while not list(tmp_path.glob("kvetch-exam-*")) and time.monotonic() < waited:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (5, "")
    assert "interrupted: the mutants that were left are not counted" in out
    assert list(tmp_path.glob("kvetch-exam-*")) == []


def test_a_mutant_that_cannot_be_planted_is_told_by_its_examiner(tmp_path: Path) -> None:
    job = Job(mutant=changed("decode.py", "in vain", ""), op="decode", seconds=1.0, seed=1, folder=str(tmp_path))
    with Crew(1, "gridsim") as crew:
        (seen,) = crew.examine([job])
    assert seen.fault.startswith("mutant 'mutant': old occurs 0 times in kernels/decode.py, expected once: 'in vain'")


def test_no_recipe_is_tried_on_a_fault_of_the_judge_nor_on_a_systematic_mutant(tmp_path: Path) -> None:
    (judge,) = select(Wanted(classes=("ORACLE",), systematic=False)).planted[:1]
    kernel = changed("decode.py", "head // group", "head * 0")
    for mutant, systematic in ((judge, False), (kernel, True)):
        fields = {"op": "decode", "seconds": 1.0, "seed": 1, "folder": str(tmp_path), "others": True}
        job = Job(mutant=mutant, systematic=systematic, **fields)
        assert examiner._others(cast(Worker, None), job) == ()


def test_a_plan_shrinks_unless_it_says_otherwise() -> None:
    plan = Plan({}, "gridsim", 1.0)
    assert (plan.shrinks, plan.grace) == (True, 0.0)
