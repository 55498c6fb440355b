"""`replay`: one verdict per case and subject, and what wrong use gets."""

import json

import pytest
from invoked import REPLAY, one_line

from harness.case import Case, Seq, to_json
from harness.corpus import Corpus, Entry
from harness.replay import Verdict, exit_code, judge
from harness.results import Finding, Result

LONG = Case(seqs=(Seq(kv_len=9),), head_dim=16)
WRONG = Finding(kind="accuracy", message="out is 1, but should be 0")
TOLERATED = '[[known]]\nsubject = "{}"\nfamily = "wrong output"\nreason = "being mended"\nowner = "ana"\nexpires = {}\n'


@pytest.fixture
def saved(commands, tmp_path):
    """Save the case as found with a subject; gives the file."""

    def save(name: str, case: Case = LONG):
        found = Entry(why="by hand", case=case, subject=commands.subject(name), executor="gridsim", finding=WRONG)
        return Corpus(tmp_path).add(found)

    return save


def verdicts(commands, corpus, *arguments):
    result = commands("replay", *arguments, "--corpus", corpus, "--json")
    said = json.loads(result.stdout)
    assert said["exit_code"] == result.exit_code
    return [row["verdict"] for row in said["verdicts"]], result.exit_code, said


def test_a_case_that_still_fails_is_failed_and_one_that_failed_before_is_fixed(commands, tmp_path, saved):
    path = saved("mended")
    assert verdicts(commands, tmp_path, path)[:2] == (["FAILED"], 1)
    (commands.folder / "mended").touch()
    assert verdicts(commands, tmp_path, path)[:2] == (["FIXED"], 0)
    (commands.folder / "mended").unlink()


def test_a_case_that_fails_is_explained(commands, tmp_path, saved):
    path = saved("wrong")
    arguments = (path, "--subject", commands.subject("wrong"), "--corpus", tmp_path)
    (row,) = verdicts(commands, tmp_path, *arguments[:3])[2]["verdicts"]
    assert row["explains"]
    lines = commands("replay", *arguments).stdout.splitlines()
    assert lines[1] == f"         explained: {row['explains'][0]}"


def test_a_case_that_did_not_fail_for_this_subject_before_is_passed(commands, tmp_path, saved):
    path = saved("wrong")
    assert verdicts(commands, tmp_path, path, "--subject", commands.subject("right"))[:2] == (["PASSED"], 0)


def test_a_case_that_fails_now_and_then_is_flaky(commands, tmp_path, saved):
    names, code, said = verdicts(commands, tmp_path, saved("flaky"))
    assert (names, code) == (["FLAKY"], 1)
    assert "of 3 times: " in said["verdicts"][0]["detail"]


def test_a_tolerated_finding_is_known_and_one_that_passes_again_or_has_expired_is_told(commands, tmp_path, saved):
    path = saved("mended")
    known = tmp_path / "known.toml"
    known.write_text(TOLERATED.format(commands.subject("mended"), "2999-12-31"))
    assert verdicts(commands, tmp_path, path)[:2] == (["KNOWN"], 0)
    (commands.folder / "mended").touch()
    names, _, said = verdicts(commands, tmp_path, path)
    assert names == ["FIXED"]
    assert "known.toml still tolerates it (being mended): take the entry out" in said["verdicts"][0]["detail"]
    (commands.folder / "mended").unlink()
    known.write_text(TOLERATED.format(commands.subject("mended"), "2020-12-31"))
    names, code, said = verdicts(commands, tmp_path, path)
    assert (names, code) == (["FAILED"], 1)
    assert "was tolerated until 2020-12-31" in said["expired"][0]


def test_a_case_outside_the_declaration_is_declined_and_nothing_ran_is_5(commands, tmp_path, saved):
    names, code, said = verdicts(commands, tmp_path, saved("right", Case(head_dim=40)))
    assert (names, code) == (["DECLINED"], 5)
    assert said["verdicts"][0]["detail"] == "declares head_dims=(16,)"


def test_a_fault_of_the_harness_is_an_error_and_3(commands, tmp_path, saved):
    sabotage = "import harness.judge\nharness.judge.disagreement = lambda *_: 'sdpa has 1, float64 has 2'\n"
    (commands.folder / "sabotage.py").write_text(sabotage + commands.file.read_text())
    arguments = (saved("right"), "--subject", f"{commands.folder}/sabotage.py:right")
    names, code, said = verdicts(commands, tmp_path, *arguments)
    commands.renew()
    assert (names, code) == (["ERROR"], 3)
    assert said["verdicts"][0]["detail"] == "sdpa has 1, float64 has 2"


@pytest.mark.parametrize(("name", "told"), [("dies", "crash: "), ("hangs", "hang: No answer for ")])
def test_a_case_that_takes_the_worker_down_is_failed(commands, tmp_path, saved, monkeypatch, name, told):
    monkeypatch.setattr(REPLAY, "SECONDS", 2.0)
    names, code, said = verdicts(commands, tmp_path, saved(name))
    assert (names, code) == (["FAILED"], 1)
    assert said["verdicts"][0]["detail"].startswith(told)


def test_the_whole_corpus_runs_on_our_own_kernels_one_line_each(commands, tmp_path, saved):
    path = saved("wrong")
    result = commands("replay", "--corpus", tmp_path)
    ours = [f"PASSED   {path.name}  {name}" for name in ("ours.decode", "ours.split_decode")]
    assert result.stdout.splitlines() == [*ours, "2 PASSED"]
    assert commands("replay", path.name[-12:], "--corpus", tmp_path, "--subject", "ours.decode").exit_code == 0


WRITTEN = Case(op="cache_write", seqs=(Seq(query_len=2, kv_len=3),))


def test_a_case_runs_on_our_kernels_of_its_operation_and_on_no_other(commands, tmp_path):
    names = []
    for case in (WRITTEN, Case(op="step"), Case(op="gather"), Case(op="merge", want_lse=True), Case(op="extend")):
        path = Corpus(tmp_path / case.op).add(Entry(why="by hand", case=case))
        *lines, total = commands("replay", "--corpus", tmp_path / case.op).stdout.splitlines()
        assert (total, lines[0].split()[:2]) == ("1 PASSED", ["PASSED", path.name])
        names.append(lines[0].split()[2])
    assert names == ["ours.cache_write", "ours.step", "ours.gather", "ours.merge", "ours.extend"]


def test_a_subject_of_another_operation_that_was_asked_for_declines(commands, tmp_path):
    Corpus(tmp_path).add(Entry(why="by hand", case=WRITTEN))
    names, code, said = verdicts(commands, tmp_path, "--subject", "ours.decode")
    assert (names, code) == (["DECLINED"], 5)
    assert said["verdicts"][0]["detail"] == "it is a subject for decode, the case is for cache_write"


def test_an_empty_corpus_is_never_green(commands, tmp_path):
    result = commands("replay", "--corpus", tmp_path)
    assert (result.exit_code, result.stdout) == (5, "nothing to replay\n")


def test_ctrl_c_ends_with_the_verdicts_so_far(commands, tmp_path, saved, monkeypatch):
    saved("right"), saved("right", Case())
    done = []

    def interrupted(worker, path, *rest):
        if done:
            raise KeyboardInterrupt
        done.append(path)
        return Verdict(path, "ours.decode", "PASSED", "")

    monkeypatch.setattr(REPLAY, "replay", interrupted)
    result = commands("replay", "--corpus", tmp_path)
    assert result.stderr == "kvetch: interrupted after 1 of 4\n"  # two cases, each on both of our decodes
    assert result.stdout.endswith("1 PASSED\n")
    assert result.exit_code == 0


def test_the_worst_verdict_decides_and_declined_ones_do_not_count():
    def code(*names: str) -> int:
        return exit_code([Verdict(None, "s", name, "") for name in names])

    assert code("PASSED", "FIXED", "KNOWN", "DECLINED") == 0
    assert code("PASSED", "FLAKY") == code("FAILED") == 1
    assert code("FAILED", "ERROR") == 3
    assert code("DECLINED") == code() == 5


def test_one_clean_run_among_failing_ones_is_flaky_not_fixed():
    clean = Result(case=LONG, subject="s", executor="gridsim")
    failing = Result(case=LONG, subject="s", executor="gridsim", findings=(WRONG,))
    entry = Entry(why="", case=LONG, subject="s", finding=WRONG)
    assert judge(entry, "s", [clean, clean, failing], ())[0] == "FLAKY"
    assert judge(entry, "s", [clean, clean, clean], ())[0] == "FIXED"
    assert judge(entry, "t", [clean, clean, clean], ())[0] == "PASSED"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (to_json(LONG)[:-9], "truncated"),
        ('{"head_dims": 3}', "unknown field `head_dims`"),
        ('{"head_dim": "3"}', "Expected `int`, got `str` - at `$.head_dim`"),
        ("\xff", "x.json: "),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(commands, tmp_path, text, told):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    line = one_line(commands("replay", path))
    assert line.startswith(f"kvetch: {path}: ")
    assert told in line


def test_a_path_that_is_not_there_a_subject_that_is_none_and_no_gpu_are_one_line_each(commands, tmp_path, saved):
    told = f"kvetch: '{tmp_path}/no.json' is neither a file nor part of the name of a case in {tmp_path}\n"
    assert one_line(commands("replay", tmp_path / "no.json", "--corpus", tmp_path)) == told
    assert "'theirs'" in one_line(commands("replay", saved("right"), "--subject", "theirs"))
    assert "executor is 'gpu'" in one_line(commands("replay", saved("right"), "--executor", "gpu"))


def test_a_case_that_is_too_large_to_be_judged_is_declined_with_what_helps(commands, tmp_path):
    seqs = tuple(Seq(kv_len=8192, tag=i) for i in range(65))
    path = Corpus(tmp_path).add(Entry(why="recorded", case=Case(seqs=seqs, num_q_heads=8, num_kv_heads=8)))
    names, code, said = verdicts(commands, tmp_path, path, "--subject", commands.subject("right"))
    assert (names, code) == (["DECLINED"], 5)
    assert said["verdicts"][0]["detail"] == (
        "has 136314880 elements of K and V, but at most 16777216 are run; "
        "`python -m harness.recorded FOLDER --smaller INTO` makes it smaller"
    )
