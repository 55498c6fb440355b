"""`check` and `replay` inside somebody's test suite."""

import subprocess
import sys

import pytest
import theirs
from invoked import ROOT, SUBJECTS

from harness import check, replay, suite
from harness.case import Case, Seq
from harness.corpus import Corpus, Entry
from harness.results import Finding, Result
from harness.subjects import WrongUse
from harness.summary import Summary

SUITE = """
from harness import replay
from kernels import dies, right, wrong

test_right = replay("corpus", right)
test_wrong = replay("corpus", wrong)
test_dies = replay("corpus", dies)
test_by_name = replay("corpus", "kernels.py:right")
test_ours = replay("corpus", "ours.decode")
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The subjects as functions of this process."""
    scope: dict = {"__file__": str(tmp_path_factory.mktemp("suite") / "kernels.py"), "__name__": "kernels"}
    exec(SUBJECTS, scope)
    return scope


def test_check_returns_for_a_right_function(kernels):
    assert check(kernels["right"], op="decode", cases=20, seed=1, executor="gridsim") is None


def test_check_raises_one_readable_assertion_error_for_a_wrong_one(kernels):
    with pytest.raises(AssertionError) as raised:
        check(kernels["wrong"], op="decode", cases=20, seed=1, executor="gridsim")
    lines = str(raised.value).splitlines()
    assert lines[0] == "FINDING 1 (new): accuracy in wrong, on gridsim"
    assert lines[2] == "  explained: the output is 1 where V is 0 everywhere: something is added to it that is no V"
    assert "  smallest case: decode, 1 sequence of kv_len 1; 1 query and 1 KV heads of dim 16" in lines[3]
    assert len(lines) < 10
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


def test_check_is_not_content_when_nothing_ran():
    with pytest.raises(AssertionError, match=r"nothing ran: \{'the executor cannot: far': 3\}"):
        suite.complain(Summary(declined={"the executor cannot: far": 3}))


def test_check_says_that_a_function_is_not_written_yet_and_asks_no_more(kernels):
    with pytest.raises(AssertionError, match=r"^not_written: not written yet \("):
        check(kernels["not_written"], cases=5, executor="gridsim")


def test_check_tells_a_fault_of_the_harness_apart():
    with pytest.raises(RuntimeError, match="the harness is at fault: sdpa disagrees"):
        suite.complain(Summary(cases=3, harness_faults=("sdpa disagrees",)))


def test_check_does_not_swallow_ctrl_c():
    def interrupted(inputs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(interrupted, cases=5, executor="gridsim")


def test_replay_skips_what_the_executor_cannot_run_with_its_reason(kernels, tmp_path, monkeypatch):
    Corpus(tmp_path).add(Entry(why="plain", case=Case()))
    (mark,) = replay(tmp_path, kernels["right"]).pytestmark
    entry = mark.args[1][0]
    said = {"declined": "the executor cannot: far"}
    monkeypatch.setattr(suite, "_replayed", lambda entry, *_: Result(case=entry.case, subject="", executor="", **said))
    with pytest.raises(pytest.skip.Exception, match="the executor cannot: far"):
        replay(tmp_path, kernels["right"])(entry)
    said["declined"] = "not written yet (mine.py:3)"
    with pytest.raises(AssertionError, match="not written yet"):
        replay(tmp_path, kernels["right"])(entry)


@pytest.fixture
def project(tmp_path):
    """Somebody's folder with kernels, tests and a corpus of two cases, one of which killed a process."""
    (tmp_path / "kernels.py").write_text(SUBJECTS)
    (tmp_path / "test_kernels.py").write_text(SUITE)
    crash = Finding(kind="crash", detail="SIGSEGV", message="The worker ended with SIGSEGV")
    corpus = Corpus(tmp_path / "corpus")
    corpus.add(Entry(why="plain", case=Case()))
    corpus.add(Entry(why="it died", case=Case(seqs=(Seq(kv_len=9),)), finding=crash))
    corpus.add(Entry(why="declined by most", case=Case(head_dim=40)))
    return tmp_path


def test_replay_gives_one_test_per_case_that_the_subject_supports_and_survives_a_crash(project):
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", f"--rootdir={project}"]
    env = {"PYTHONPATH": f"{ROOT}:{project}", "PATH": "/usr/bin:/bin", "HOME": str(project)}
    ran = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 1
    assert lines[-1].startswith("3 failed, 8 passed"), ran.stdout
    failed = [line for line in lines if line.startswith("FAILED")]
    assert [line.split("::")[1].split("[")[0] for line in failed] == ["test_wrong", "test_wrong", "test_dies"]
    assert "AssertionError: The worker ended with SIGSEGV" in ran.stdout
    assert any(line.startswith("PASSED test_kernels.py::test_ours[declined-by-most-") for line in lines)


@pytest.fixture(scope="module")
def suite_of_theirs(tmp_path_factory):
    """A suite that makes errors of warnings, with a Hypothesis profile, marks and a default type of its own."""
    folder = tmp_path_factory.mktemp("theirs")
    texts = {"pytest.ini": theirs.INI, "conftest.py": theirs.CONFTEST, "test_theirs.py": theirs.TESTS}
    for name, text in (texts | {"kernels.py": SUBJECTS}).items():
        (folder / name).write_text(text)
    corpus = Corpus(folder / "corpus")
    corpus.add(Entry(why="plain", case=Case()))
    corpus.add(Entry(why="longer", case=Case(seqs=(Seq(kv_len=9),))))
    return folder


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        ((), "9 passed"),
        (("-n", "2"), "9 passed"),
        (("-k", "corpus and longer"), "2 passed, 7 deselected"),
        (("-m", "slow"), "3 passed, 6 deselected"),
        (("-p", "no:hypothesispytest", "-k", "kernel"), "2 passed, 7 deselected"),
    ],
    ids=" ".join,
)
def test_a_suite_keeps_its_profiles_marks_and_selections_beside_check_and_replay(suite_of_theirs, arguments, outcome):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    env = {"PYTHONPATH": f"{ROOT}:{suite_of_theirs}", "PATH": "/usr/bin:/bin", "HOME": str(suite_of_theirs)}
    ran = subprocess.run(command, cwd=suite_of_theirs, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.splitlines()[-1].startswith(outcome), ran.stdout


def test_the_function_replay_is_not_hidden_by_the_command_of_that_name():
    import harness.replay  # as `show` does

    assert harness.replay is suite.replay
    assert callable(sys.modules["harness.replay"].main)


def test_replay_of_a_folder_that_is_not_there_is_refused(tmp_path, kernels):
    with pytest.raises(WrongUse, match="but there is no such folder"):
        replay(tmp_path / "none", kernels["right"])


def test_a_worker_imports_module_level_functions_of_files_only(kernels):
    def nested(inputs): ...

    assert suite._name(test_check_does_not_swallow_ctrl_c) == f"{__file__}:test_check_does_not_swallow_ctrl_c"
    assert suite._name(nested) == ""
    assert suite._name(kernels["right"]) == ""  # of an exec'd text
    assert suite._name(lambda inputs: None) == ""
