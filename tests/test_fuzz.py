"""`fuzz`, as its users call it: what it finds, what it prints, when it ends, and what wrong use gets."""

import json
import time

import pytest
from invoked import be_impatient, one_line

from harness import corpus, fuzz, mix
from harness.case import Case, Seq
from harness.subjects import SUBJECTS
from harness.traits import traits

FIELDS = {"cases", "cases_per_second", "findings", "declined"}


def test_a_right_subject_gives_exit_code_0_and_a_report_in_plain_lines(commands, tmp_path):
    result = commands.fuzz("right", tmp_path, "--max-cases", 30)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == f"kvetch: {commands.subject('right')} on gridsim, 0.5 min, seed 1"
    assert lines[-1] == "no new findings"
    assert "30 cases in" in result.stdout
    assert "\x1b" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_object_on_standard_output_and_the_rest_goes_to_standard_error(commands, tmp_path):
    result = commands.fuzz("right", tmp_path, "--max-cases", 5, "--json")
    summary = json.loads(result.stdout)
    assert set(summary) >= FIELDS
    assert (summary["cases"], summary["findings"], summary["declined"]) == (5, [], {})
    assert summary["platform"] == "gridsim"
    assert result.stderr.startswith("kvetch: ")


def test_the_same_seed_draws_the_same_cases(commands, tmp_path):
    def drawn(seed: int) -> dict:
        summary = commands.summary("right", tmp_path, "--max-cases", 20, "--seed", seed)
        return {name: summary[name] for name in ("passed", "worst_margin", "behaviours", "runs")}

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_two_faults_in_one_subject_are_told_apart_and_each_shrunk_on_its_own(commands, tmp_path):
    summary = commands.summary("two_faults", tmp_path, "--max-cases", 400)
    found = {finding["finding"]["kind"]: finding for finding in summary["findings"]}
    assert summary["exit"] == 1
    assert len(summary["findings"]) == 2, [f["needs"] for f in summary["findings"]]
    assert found["accuracy"]["needs"] == ["float16"]
    assert found["exception"]["needs"] == ["GQA"]
    for finding in summary["findings"]:
        case = corpus.read(tmp_path.joinpath(finding["file"])).case
        assert traits(case) <= {*finding["needs"], "partly filled block"}
        assert (len(case.seqs), case.head_dim, case.num_kv_heads) == (1, 16, 1)
        assert finding["again"] == "3 of 3"


@pytest.mark.parametrize(("name", "kind"), [("raises", "exception"), ("dies", "crash"), ("hangs", "hang")])
def test_a_subject_that_raises_dies_or_hangs_is_one_finding_and_shrunk(commands, tmp_path, monkeypatch, name, kind):
    be_impatient(monkeypatch)
    summary = commands.summary(name, tmp_path, "--max-cases", 80, "--minutes", 0.2)
    (finding,) = summary["findings"]
    assert finding["finding"]["kind"] == kind
    assert [seq.get("kv_len", 1) for seq in finding["case"]["seqs"]] == [4]
    assert finding["case"].get("num_q_heads", 1) == 1
    assert summary["exit"] == 1
    assert summary["restarts"] > 0 or kind == "exception"
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_the_time_budget_holds_within_seconds_shrinking_included(commands, tmp_path):
    began = time.monotonic()
    result = commands.fuzz("two_faults", tmp_path, "--minutes", 0.05)
    assert result.exit_code == 1
    assert time.monotonic() - began < 3 + 3


def test_a_subject_that_always_hangs_cannot_outlast_the_budget(commands, tmp_path):
    began = time.monotonic()
    result = commands.fuzz("sleeps", tmp_path, "--minutes", 0.05)
    assert time.monotonic() - began < 3 + 4
    assert result.exit_code in (1, 5)


def test_a_known_finding_is_tolerated_and_told_and_an_expired_one_is_not(commands, tmp_path):
    entry = '[[known]]\nsubject = "{}"\nfamily = "wrong output"\nreason = "being mended"\nowner = "ana"\nexpires = {}\n'
    (tmp_path / "known.toml").write_text(entry.format(commands.subject("wrong"), "2999-12-31"))
    result = commands.fuzz("wrong", tmp_path, "--max-cases", 10)
    assert result.exit_code == 0
    assert "FINDING 1 (known: being mended): accuracy in " in result.stdout
    assert result.stdout.endswith("no new findings, 1 known\n")
    assert not (tmp_path / "decode").exists()
    (tmp_path / "known.toml").write_text(entry.format(commands.subject("wrong"), "2020-12-31"))
    result = commands.fuzz("wrong", tmp_path, "--max-cases", 10)
    assert result.exit_code == 1
    assert f"EXPIRED in known.toml: wrong output of {commands.subject('wrong')} was tolerated until" in result.stdout


def test_a_fault_of_the_harness_is_exit_code_3(commands, tmp_path):
    sabotage = "import harness.judge\nharness.judge.disagreement = lambda *_: 'sdpa has 1, float64 has 2'\n"
    (commands.folder / "sabotage.py").write_text(sabotage + commands.file.read_text())
    result = commands(
        "fuzz", "--subject", f"{commands.folder}/sabotage.py:wrong", "--corpus", tmp_path, "--max-cases", 9
    )
    commands.worker._replace()  # the next test gets a worker that is whole
    assert result.exit_code == 3
    assert "FAULT OF THE HARNESS: sdpa has 1, float64 has 2" in result.stdout


def test_nothing_ran_is_exit_code_5_and_says_why(commands, tmp_path):
    summary = commands.summary("not_written", tmp_path, "--minutes", 0.2)
    assert (summary["exit"], summary["cases"]) == (5, 0)
    assert all(reason.startswith("not written yet (kernels.py:") for reason in summary["declined"])
    assert summary["declined"]


def test_a_case_that_cannot_be_saved_is_still_told(commands, tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus, "write_atomically", full)
    result = commands.fuzz("wrong", tmp_path, "--max-cases", 5)
    assert result.exit_code == 1
    assert "NOTE: a case could not be saved: [Errno 28] No space left on device" in result.stdout
    assert "FINDING 1 (new): accuracy in " in result.stdout


def test_the_report_folder_holds_the_lines_and_the_json(commands, tmp_path):
    result = commands.fuzz("right", tmp_path / "corpus", "--max-cases", 3, "--report", tmp_path / "a" / "b")
    report = tmp_path / "a" / "b"
    assert (report / "report.txt").read_text().splitlines()[-1] == "no new findings"
    assert json.loads((report / "summary.json").read_text())["cases"] == 3
    assert len(list(report.iterdir())) == 2
    assert result.exit_code == 0


def test_list_shows_what_each_subject_declares(commands):
    result = commands("fuzz", "--list")
    assert result.stdout.startswith("ours.decode: op=decode, window=True, ")
    listed = json.loads(commands("fuzz", "--list", "--json", "--subject", commands.subject("wrong")).stdout)
    assert listed[commands.subject("wrong")]["groups"] == [1]


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        ("ours.deocde", f"is neither one of ours ({', '.join(SUBJECTS)}) nor FILE.py:FUNCTION"),
        ("{folder}/missing.py:f", "there is no file {folder}/missing.py"),
        ("{folder}/kernels.py:nothing", "has no function 'nothing'"),
        ("{folder}/syntax.py:f", "cannot be imported: SyntaxError: invalid syntax (syntax.py, line 1)"),
        ("{folder}/raising.py:f", "cannot be imported: ImportError: no such vendor"),
        ("{folder}/exiting.py:f", "cannot be imported: "),
        ("{folder}/declaring.py:f", "@subject has no declaration 'headdims'; there are: op, "),
        ("{folder}/typed.py:f", "@subject: Expected `array | null`, got `int` - at `$.head_dims`"),
    ],
)
def test_a_subject_that_does_not_import_is_one_line(commands, tmp_path, subject, told):
    files = {
        "syntax": "def f(:\n",
        "raising": "raise ImportError('no such vendor')\n",
        "exiting": "import os\nos._exit(7)\n",
        "declaring": "from harness import subject\n\n@subject(headdims=(16,))\ndef f(inputs): ...\n",
        "typed": "from harness import subject\n\n@subject(head_dims=16)\ndef f(inputs): ...\n",
    }
    for name, text in files.items():
        (commands.folder / f"{name}.py").write_text(text)
    name = subject.format(folder=commands.folder)
    line = one_line(commands("fuzz", "--subject", name, "--corpus", tmp_path / "corpus", "--minutes", 0.05))
    assert line.startswith(f"kvetch: subject {name!r}")
    assert told.format(folder=commands.folder) in line
    assert not (tmp_path / "corpus").exists()


def test_gpu_where_there_is_none_a_bad_known_file_and_a_bad_corpus_are_one_line_each(commands, tmp_path):
    line = one_line(commands.fuzz("right", tmp_path, "--executor", "gpu"))
    assert line.startswith("kvetch: executor is 'gpu', but this machine has none: ")
    (tmp_path / "known.toml").write_text("[[known]]\nsubjct = 3\n")
    assert one_line(commands.fuzz("right", tmp_path)).startswith(f"kvetch: {tmp_path}/known.toml: Object ")
    assert "is no folder" in one_line(commands.fuzz("right", tmp_path / "known.toml" / "corpus"))
    assert "--report is" in one_line(commands.fuzz("right", tmp_path, "--report", tmp_path / "known.toml" / "x"))


def test_op_chooses_among_our_own_subjects():
    assert fuzz.ours(None) == tuple(SUBJECTS)
    assert fuzz.ours("decode") == ("ours.decode", "ours.split_decode")
    assert fuzz.ours("merge") == ("ours.merge",)


# --- near recorded calls -----------------------------------------------------------------------------------------

RECORDED = Case(seqs=(Seq(kv_len=40), Seq(kv_len=17, tag=1)), num_q_heads=2, num_kv_heads=2, extra_columns=4)


@pytest.fixture
def profile(tmp_path):
    """A file with one recorded call that the subjects take, and one that they decline."""
    path = tmp_path / "recorded.json"
    calls = (mix.Share(case=RECORDED, seen=3), mix.Share(case=Case(softcap=30.0), seen=1))
    path.write_text(mix.to_json(mix.Mix(calls=calls)))
    return path


def test_a_profile_draws_near_what_was_recorded_and_says_what_is_declined(commands, tmp_path, profile):
    name = commands.subject("right")
    result = commands.fuzz("right", tmp_path / "corpus", "--max-cases", 30, "--profile", profile)
    assert result.exit_code == 0
    assert f"profile: {name} takes 3 of 4 recorded calls" in result.stdout
    assert f"profile: {name} declines 1: does not declare softcap" in result.stdout
    assert ", 2/2 30, " in result.stdout
    assert "  placement: in_order 30, " in result.stdout


def test_a_profile_may_be_the_folder_itself_and_finds_what_is_wrong(commands, tmp_path):
    corpus.Corpus(tmp_path / "recorded").add(corpus.Entry(why="recorded", case=RECORDED))
    summary = commands.summary("raises", tmp_path / "corpus", "--max-cases", 20, "--profile", tmp_path / "recorded")
    assert [finding["finding"]["kind"] for finding in summary["findings"]] == ["exception"]


def test_our_own_kernels_of_what_was_recorded_are_tested_when_no_subject_is_named(profile):
    assert fuzz.ours(None, mix.read(profile)) == ("ours.decode", "ours.split_decode")
    assert fuzz.ours("extend", mix.read(profile)) == ()
    assert set(fuzz.ours(None)) == set(SUBJECTS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '{"calls": [{"case": {}, "seen": "x"}]}',
            'Expected `int`, got `str` - at `$.calls[0].seen`, where "x" stands',
        ),
        ('{"calls": []}', "there is no recorded call in it"),
        ('{"calls"', "Input data was truncated"),
        ('{"calls": [{"case": {"softcap": 3.0}}]}', "declines all of them"),
    ],
)
def test_a_spoilt_profile_is_one_line_and_2(commands, tmp_path, text, told):
    path = tmp_path / "recorded.json"
    path.write_text(text)
    result = commands.fuzz("right", tmp_path / "corpus", "--profile", path)
    assert result.exit_code == 2
    assert told in result.stderr.splitlines()[-1]
    assert len(result.stderr.splitlines()) == 1


def test_an_operation_that_was_not_recorded_is_wrong_use(commands, profile):
    assert "--op is 'extend', but no call of it is in the profile" in one_line(
        commands("fuzz", "--op", "extend", "--profile", profile)
    )
