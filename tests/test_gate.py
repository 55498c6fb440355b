"""`python -m harness.gate`: red only for something new and real that the change did, and the same when run again."""

import os
import subprocess
import sys
import tempfile
import time

import pytest
from gated import (
    LONG,
    MINE,
    NOBODY,
    ROOT,
    SETTINGS,
    TWICE,
    edit,
    mine,
    racing,
    repository,
    tiled,
    with_our_kernels,
)
from parsed import parse

from harness import paired
from harness.outcome import Tally

FEW, MORE = ("--base", "main", "--cases", 12), ("--base", "main", "--cases", 60)


@pytest.fixture
def project(tmp_path):
    """A repository with a right `mine.py`; HEAD is on a branch that has left main."""
    made = repository(tmp_path / "project")
    made.commit(mine_py=mine(), kvetch_toml=SETTINGS)
    made.git("switch", "--quiet", "--create", "change")
    return made


def words(gate):
    return [verdict.word for verdict in gate.verdicts]


# --- a planted fault in our kernels -------------------------------------------------------------------------------


def test_a_planted_fault_is_one_new_finding_that_names_it_and_the_fix_is_green(tmp_path):
    made = with_our_kernels(tmp_path / "ours")
    made.git("switch", "--quiet", "--create", "change")
    length = "kv_len = tl.load(kv_lens_ptr + seq * stride_lens_seq).to(tl.int64)"
    edit(made.folder / "kernels/decode.py", length, f"{length} - 1")
    made.commit("the last token is dropped")
    gate, code = made.outcome(*FEW, "--shard", "1/2")
    assert (words(gate), code) == (["NEW"], 1)
    (verdict,) = gate.verdicts
    assert (verdict.change, verdict.base) == (Tally(failed=20, runs=20), Tally(failed=0, runs=20))
    assert any("has weight 0: the last of" in said for said in verdict.found.finding.explains)
    assert gate.gated[0].because == ("kernels/decode.py",)
    assert gate.gated[0].asked == 6  # the shard's half of 12
    assert (made.folder / verdict.found.file).is_file()
    edit(made.folder / "kernels/decode.py", f"{length} - 1", length)
    made.commit("it is not")
    gate, code = made.outcome(*FEW, "--all", "--shard", "1/2")
    assert (words(gate), code) == ([], 0)
    assert gate.gated[0].shifts
    assert not any(shift.changed for shift in gate.shifts)


# --- whose a finding is -------------------------------------------------------------------------------------------


def test_a_fault_that_the_base_has_is_pre_existing_and_green(project):
    project.git("switch", "--quiet", "main")
    project.commit(mine_py=mine(LONG))
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=mine(LONG) + "# a comment\n")
    gate, code = project.outcome(*FEW)
    assert (words(gate), code) == (["PRE-EXISTING"], 0)
    assert gate.verdicts[0].base == Tally(failed=20, runs=20)


@pytest.mark.nightly  # the same is held without a worker in test_gating.py
def test_a_new_fault_beside_one_that_the_base_has_is_red_and_is_told_apart(project):
    project.git("switch", "--quiet", "main")
    project.commit(mine_py=mine(LONG))
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=mine(LONG + '    if inputs.q.shape[0] == 2:\n        raise KeyError("two")\n'))
    gate, code = project.outcome("--base", "main", "--cases", 30)
    assert (words(gate), code) == (["NEW", "PRE-EXISTING"], 1)
    assert gate.verdicts[0].found.finding.kind == "exception"


def test_a_race_that_shows_three_times_in_twenty_on_the_change_only_is_red(project, tmp_path):
    project.commit(mine_py=racing(tmp_path))
    gate, code = project.outcome(*FEW)
    assert (words(gate), code) == (["FLAKY ON THE CHANGE"], 1)
    (verdict,) = gate.verdicts
    assert 0 < verdict.change.failed < verdict.change.runs == 20
    assert verdict.base.failed == 0
    assert verdict.base.runs > 20  # until its silence says something


@pytest.mark.nightly  # the same is held without a worker in test_gating.py
def test_a_race_on_both_sides_is_flaky_and_green(project, tmp_path):
    project.git("switch", "--quiet", "main")
    project.commit(mine_py=racing(tmp_path))
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=racing(tmp_path) + "# a comment\n")
    gate, code = project.outcome(*FEW)
    assert (set(words(gate)), code) == ({"FLAKY ON BOTH"}, 0)


BROKEN_PLATFORM = """
import numpy
from harness.executors.gridsim import arith, launch
from harness.subjects import load

for name, right in (("math.exp", numpy.exp), ("math.exp2", numpy.exp2)):
    arith.ROUNDED[name] = lambda x, right=right: right(x * numpy.float32(1.01)).astype(x.dtype)
launch.translate.cache_clear()
"""
SOMEBODYS = """
from harness.subjects import load, subject

@subject(op="decode", dtypes=("float32",), head_dims=(16,), block_sizes=(16,))
def mine(inputs):
    return load("ours.decode").run(inputs)
"""


def test_a_fault_that_a_known_good_kernel_shows_as_well_is_the_platforms_and_green(project):
    project.git("switch", "--quiet", "main")
    project.commit(mine_py=SOMEBODYS)
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=BROKEN_PLATFORM + SOMEBODYS)
    gate, code = project.outcome(*FEW)
    assert (set(words(gate)), code) == ({"PLATFORM"}, 0)
    assert "is not to blame" in gate.verdicts[0].found.finding.message


def test_a_subject_that_the_base_does_not_have_is_gated_by_itself(project):
    project.commit(theirs_py=mine(TWICE), kvetch_toml='subjects = ["mine.py:mine", "theirs.py:mine"]\n')
    gate, code = project.outcome(*FEW)
    assert (words(gate), code) == (["NEW"], 1)
    assert gate.gated[0].is_new
    assert gate.verdicts[0].base is None
    assert gate.untouched == (MINE,)


# --- the same verdict again ---------------------------------------------------------------------------------------


def test_twice_in_a_row_gives_the_same_verdict_and_the_same_cases(project):
    project.commit(mine_py=mine(LONG))
    (first, code), (second, code_again) = project.outcome(*FEW), project.outcome(*FEW)
    assert code == code_again == 1
    assert first.gated[0].digest == second.gated[0].digest
    assert words(first) == words(second) == ["NEW"]
    assert first.verdicts[0].found.case == second.verdicts[0].found.case


@pytest.mark.nightly  # its parts are held in test_fixed.py
def test_in_a_process_of_its_own_the_cases_are_the_same(project):
    project.commit(mine_py=mine() + "# a comment\n")
    whole = project.outcome(*FEW)[0].gated[0]
    command = [sys.executable, "-P", "-m", "harness.gate", *map(str, FEW), "--executor", "gridsim"]
    environ = os.environ | NOBODY | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=project.folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"cases {whole.digest}" in done.stdout
    assert done.stdout.splitlines()[-1] == "green: nothing new"


def test_a_cut_is_said_and_is_not_green(project):
    project.commit(mine_py=mine("    time.sleep(0.4)\n"))
    gate, code = project.outcome("--base", "main", "--cases", 40, "--minutes", 0.2)
    assert code == 5
    assert gate.gated[0].ran < 40
    assert gate.cut == (f"{MINE}: cut at {gate.gated[0].ran} of 40",)


# --- it cannot be gamed -------------------------------------------------------------------------------------------

ACCEPT = '[[accept]]\nsubject = "{}"\nfield = "{}"\nreason = "it never had any"\n'


def test_a_narrowed_declaration_is_red_until_the_change_acknowledges_it(project):
    project.commit(mine_py=mine(groups=(1,)))
    gate, code = project.outcome(*FEW)
    assert code == 1
    (narrowing,) = gate.narrowings
    assert narrowing.cases > 0
    assert narrowing.words == f"groups was None and is (1,): {narrowing.cases} of 12 cases no longer run"
    project.commit(kvetch_toml=SETTINGS + ACCEPT.format(MINE, "groups"))
    gate, code = project.outcome(*FEW)
    assert (gate.narrowings[0].accepted, code) == ("it never had any", 0)


def test_an_acknowledgement_of_an_earlier_change_does_not_count(project):
    project.git("switch", "--quiet", "main")
    project.commit(kvetch_toml=SETTINGS + ACCEPT.format(MINE, "*"))
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=mine(empty_rows=False))
    gate, code = project.outcome(*FEW)
    assert (gate.narrowings[0].accepted, code) == ("", 1)
    assert gate.stale == (f"[[accept]] * of {MINE}: the base acknowledges it already; take it out",)


KNOWN = (
    f'[[known]]\nsubject = "{MINE}"\nfamily = "wrong output"\nreason = "being mended"\nowner = "ana"\n'
    "expires = 2999-12-31\n"
)


def test_a_finding_that_the_change_itself_tolerates_is_known_and_red_until_acknowledged(project):
    project.commit(mine_py=mine(LONG), corpus__known_toml=KNOWN)
    gate, code = project.outcome(*FEW)
    assert (words(gate), code) == (["KNOWN"], 1)
    assert [narrowing.field for narrowing in gate.narrowings] == ["known wrong output"]
    project.commit(kvetch_toml=SETTINGS + ACCEPT.format(MINE, "known *"))
    assert project.outcome(*FEW)[1] == 0


def test_a_kept_case_is_run_and_one_that_is_gone_is_red(project):
    project.git("switch", "--quiet", "main")
    case = f'{{"why": "by hand", "subject": "{MINE}", "case": {{"head_dim": 16, "seqs": [{{"kv_len": 5}}]}}}}'
    project.commit(corpus__decode__long_json=case)
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=mine(LONG))
    gate, code = project.outcome(*FEW, "--cases", 1)
    assert (words(gate), code, gate.gated[0].kept) == (["NEW"], 1, 1)
    assert gate.verdicts[0].origin == "decode/long.json"
    project.git("rm", "--quiet", "corpus/decode/long.json")
    project.commit(mine_py=mine())
    gate, code = project.outcome(*FEW)
    assert [narrowing.field for narrowing in gate.narrowings] == ["corpus decode/long.json"]
    assert code == 1


@pytest.mark.nightly  # its parts are held in test_narrowing.py
def test_a_subject_that_is_no_longer_gated_is_red_and_is_gated_all_the_same(project):
    project.commit(mine_py=mine(LONG), kvetch_toml="")
    gate, code = project.outcome(*FEW)
    assert (words(gate), code) == (["NEW"], 1)
    assert [narrowing.field for narrowing in gate.narrowings] == ["subjects"]


# --- accuracy -----------------------------------------------------------------------------------------------------


def test_twice_as_inaccurate_is_told_with_other_bits_and_red_though_within_the_bound(project):
    coarse = "    bits = out.view(torch.int32)\n    out = (bits + 2).view(torch.float32) * (out != 0)\n"
    project.commit(mine_py=mine(coarse))
    gate, code = project.outcome("--base", "main", "--cases", 60)
    assert (words(gate), code) == ([], 1)
    (shift,) = gate.shifts
    assert shift.lost
    assert shift.changed > 40
    assert shift.errors_now[0] > 2 * shift.errors_before[0]
    assert gate.reasons == ("1 loss of accuracy",)


# --- builds -------------------------------------------------------------------------------------------------------


@pytest.mark.nightly  # some draws take minutes on the interpreter; its parts are held in test_building.py
def test_a_kernel_that_no_longer_fits_a_gpu_that_is_not_here_is_red_until_it_is_acknowledged(project):
    project.git("switch", "--quiet", "main")
    project.commit(mine_py=tiled(16))
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=tiled(1024))
    options = ("--base", "main", "--cases", 2, "--executor", "interpreter", "--compile")
    gate, code = project.outcome(*options)
    assert (words(gate), code) == ([], 1)
    assert "that cannot be launched" in gate.reasons[0]
    (gated,) = gate.gated
    lost = {worse.build.target: worse.kind for worse in gated.rebuilt.lost}
    assert lost["gfx942"] == "no longer fits"
    assert not {"sm_80", "sm_90"} & set(lost)
    assert gated.rebuilt.counts.startswith("2 compile, ")
    accept = f'[[accept]]\nsubject = "{MINE}"\nfield = "compile"\nreason = "no such GPU of ours (#7)"\n'
    project.commit(kvetch_toml=SETTINGS + accept)
    gate, code = project.outcome(*options)
    assert (gate.reasons, gate.stale, code) == ((), (), 0)
    assert gate.gated[0].rebuilt.accepted == "no such GPU of ours (#7)"


def test_the_settings_ask_for_builds_too_and_a_change_that_takes_that_out_has_to_say_so(project):
    project.git("switch", "--quiet", "main")
    project.commit(kvetch_toml=f"compile = true\n{SETTINGS}")
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=mine() + "# a comment\n", kvetch_toml=SETTINGS)
    gate, code = project.outcome("--base", "main", "--cases", 1)
    assert ([narrowing.field for narrowing in gate.narrowings], code) == (["compile"], 1)
    assert gate.gated[0].rebuilt.counts == "nothing launched"


def test_without_being_asked_for_nothing_is_compiled_and_nothing_is_timed(project):
    project.commit(mine_py=mine() + "# a comment\n")
    gate, _ = project.outcome("--base", "main", "--cases", 1)
    assert (gate.gated[0].rebuilt, gate.gated[0].clocked) == (None, None)


# --- speed --------------------------------------------------------------------------------------------------------


def test_without_a_gpu_speed_is_wrong_use(project, monkeypatch):
    monkeypatch.setattr("harness.commands.has_gpu", lambda: False)
    told = one_line(project.gate("--base", "main", "--speed"))
    assert "--speed times kernels on a GPU, but this machine has none: there is neither /dev/nvidiactl" in told


def clock(monkeypatch, milliseconds):
    """Time by a function of the side's folder, where there is no GPU to time on."""
    monkeypatch.setattr("harness.commands.has_gpu", lambda: True)
    monkeypatch.setattr(paired.Side, "prepare", lambda *_, **__: "as told")
    monkeypatch.setattr(paired.Side, "turn", lambda side, workload: milliseconds(side.worker.home.folder, workload))


def test_what_is_slower_is_red_until_it_is_acknowledged_and_what_is_not_is_told(project, monkeypatch):
    declared = {"head_dims": (128,), "dtypes": ("bfloat16",), "max_kv_len": None, "groups": (4,), "block_sizes": (16,)}

    def milliseconds(folder, workload):
        return 1.1 if folder == project.folder and workload == "decode-8x8k-16" else 1.0

    clock(monkeypatch, milliseconds)
    project.git("switch", "--quiet", "main")
    project.commit(mine_py=mine(**declared))
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=mine(**declared) + "# slower\n")
    options = ("--base", "main", "--cases", 1, "--speed")
    gate, code = project.outcome(*options)
    assert (gate.reasons, code) == (("1 slower workload",), 1)
    (gated,) = gate.gated
    assert [compared.workload for compared in gated.clocked.slower] == ["decode-8x8k-16"]
    assert len(gated.clocked.times) == 8
    assert "decode-ragged-64 is not timed: the base: declares block_sizes=(16,)" in gated.clocked.notes
    accept = f'[[accept]]\nsubject = "{MINE}"\nfield = "speed"\nreason = "it is right now (#8)"\n'
    project.commit(kvetch_toml=SETTINGS + accept)
    gate, code = project.outcome(*options)
    assert (gate.reasons, gate.stale, code) == ((), (), 0)


@pytest.mark.gpu
def test_a_kernel_that_runs_twice_is_slower_on_the_gpu_and_one_that_was_not_touched_is_not(tmp_path):
    made = with_our_kernels(tmp_path / "ours")
    made.git("switch", "--quiet", "--create", "change")
    options = ("--base", "main", "--cases", 6, "--speed", "--executor", "gpu")
    with (made.folder / "kernels/decode.py").open("a") as file:
        file.write("\n\n_once = paged_decode\n\n\ndef paged_decode(*args, **kwargs):\n    _once(*args, **kwargs)\n")
        file.write("    return _once(*args, **kwargs)\n")
    made.commit("twice")
    gate, code = made.outcome(*options)
    assert code == 1, gate.gated[0].clocked
    assert all(1.8 < compared.ratio < 2.2 for compared in gate.gated[0].clocked.slower)
    assert len(gate.gated[0].clocked.slower) == len(gate.gated[0].clocked.times) >= 8
    made.git("revert", "--no-edit", "HEAD")
    gate, code = made.outcome(*options, "--all")
    assert code == 0, gate.gated[0].clocked


# --- the page -----------------------------------------------------------------------------------------------------


def test_the_page_of_a_red_gate_draws_the_new_finding_and_that_of_a_green_one_says_green(project, tmp_path):
    file = tmp_path / "page.html"
    project.commit(mine_py=mine(TWICE))
    assert project.gate(*FEW, "--executor", "gridsim", "--html", file).exit_code == 1
    seen = parse(file.read_text())
    assert seen.one("header").one("p", "verdict").text == "RED: 1 new finding"
    told = seen.one("article")
    assert told.one("p", "verdict").text == "NEW: failed 20 of 20 times on the change, 0 of 20 on the base"
    assert "Error against the bound" in told.text
    assert told.all("svg")
    assert "python -m harness.replay kvetch-findings/" in told.text
    project.commit(mine_py=mine() + "# right again\n")
    assert project.gate(*FEW, "--executor", "gridsim", "--html", file).exit_code == 0
    seen = parse(file.read_text())
    assert seen.one("header").one("p", "verdict").text == "green: nothing new"
    assert not seen.all("article")


# --- another environment ------------------------------------------------------------------------------------------


def test_another_python_is_the_base_of_the_same_kernels(project, tmp_path):
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nMARK=1 exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    project.commit(mine_py=mine('    if "MARK" not in os.environ:\n        raise RuntimeError("an old Triton")\n'))
    gate, code = project.outcome("--base-python", other, "--cases", 6)
    assert (words(gate), code) == (["NEW"], 1)
    assert set(gate.versions) == {"change", "base"}


# --- no verdict, and wrong use ------------------------------------------------------------------------------------


def test_nothing_ran_is_5(project):
    project.commit(mine_py=mine('    raise NotImplementedError("later")\n'))
    gate, code = project.outcome(*FEW)
    assert (gate.gated[0].judged, code) == (0, 5)


def test_a_change_that_touches_no_subject_is_green_and_says_so(project):
    project.commit(README_md="words")
    result = project.gate(*FEW)
    assert result.exit_code == 0
    assert result.stdout == f"green: the change touches none of {MINE}\n"


def one_line(result, code=2):
    assert result.exit_code == code, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr


def test_a_dirty_tree_is_an_error_where_a_subject_depends_on_it_and_nowhere_else(project):
    (project.folder / "notes.txt").write_text("not committed")
    assert project.gate(*FEW).exit_code == 0
    (project.folder / "mine.py").write_text(mine(TWICE))
    assert "mine.py is not committed, and mine.py:mine depends on it" in one_line(project.gate(*FEW))


def test_a_base_that_cannot_be_imported_is_an_error_that_names_it(project):
    project.git("switch", "--quiet", "main")
    project.commit(mine_py=mine().replace("import torch", "import no_such_module"))
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=mine())
    said = one_line(project.gate(*FEW), 2).replace("\n", "")
    assert f"{MINE} of the base cannot be tested" in said
    assert "no_such_module" in said
    assert len(project.git("worktree", "list").splitlines()) == 1


def test_a_base_that_loads_files_of_the_change_is_an_error_and_no_comparison(project):
    lib = project.folder / "lib"
    absolute = f"import sys\nsys.path.insert(0, {str(lib)!r})\nimport far_helper\n"
    project.git("switch", "--quiet", "main")
    project.commit(mine_py=absolute + mine(), lib__far_helper_py="")
    (lib / "far.helper.py").rename(lib / "far_helper.py")
    project.commit()
    project.git("switch", "--quiet", "--create", "later")
    project.commit(mine_py=absolute + mine(TWICE))
    assert f"the base loads {lib}/far_helper.py of the change" in project.gate(*FEW).stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "neither --base nor --base-python is given"),
        (("--base", "no-such"), "--base is 'no-such', but this repository has no such revision"),
        (("--base", "main", "--subject", "no.py:f"), "subject 'no.py:f'"),
        (("--base", "main", "--shard", "3/2"), "'3/2' is not i/n"),
        (("--base-python", "/no/such/python"), "--base-python is '/no/such/python': No such file"),
        (("--base", "main", "--corpus", "/elsewhere"), "should be a path from the root"),
    ],
)
def test_wrong_use_is_one_line(project, arguments, told):
    assert told in one_line(project.gate(*arguments))
    assert project.gate(*arguments, "--bisect").exit_code == 125


def test_a_missing_git_a_folder_that_is_no_repository_and_a_shallow_clone_are_one_line_each(project, tmp_path):
    (tmp_path / "bin").mkdir()
    path = os.environ["PATH"]
    try:
        os.environ["PATH"] = str(tmp_path / "bin")
        assert "git is not on the PATH" in one_line(project.gate(*FEW))
    finally:
        os.environ["PATH"] = path
    (tmp_path / "plain").mkdir()
    outside = type(project)(tmp_path / "plain")
    assert "not a git repository" in one_line(outside.gate(*FEW))
    project.commit(mine_py=mine(TWICE))
    clone = type(project)(tmp_path / "shallow")
    project.git("clone", "--quiet", "--depth", "1", "--branch", "change", f"file://{project.folder}", clone.folder)
    assert "this clone is shallow" in one_line(clone.gate(*FEW))


def test_without_subjects_the_gate_says_how_to_name_them(project):
    project.git("switch", "--quiet", "main")
    project.commit(kvetch_toml="")
    assert "name some in kvetch.toml (subjects = [...])" in one_line(project.gate(*FEW))


# --- git bisect ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_git_bisect_run_finds_the_planted_commit_among_twenty(project):
    planted = ""
    for number in range(20):
        body = LONG if number >= 12 else "    pass\n"
        revision = project.commit(f"number {number}", mine_py=mine(body) + f"# {number}\n")
        planted = revision if number == 12 else planted
    project.git("bisect", "start", "HEAD", "main")
    command = [sys.executable, "-P", "-m", "harness.gate", *map(str, FEW), "--executor", "gridsim", "--bisect"]
    environ = os.environ | NOBODY | {"PYTHONPATH": str(ROOT)}
    run = ["git", "bisect", "run", *command]
    done = subprocess.run(run, cwd=project.folder, env=environ, capture_output=True, text=True, check=False)
    assert f"{planted} is the first bad commit" in done.stdout, done.stdout + done.stderr


@pytest.mark.nightly
def test_a_cancelled_job_leaves_no_worktree_behind(project):
    project.commit(mine_py=mine("    time.sleep(1)\n"))
    command = [sys.executable, "-P", "-m", "harness.gate", *map(str, MORE), "--executor", "gridsim"]
    environ = os.environ | NOBODY | {"PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(command, cwd=project.folder, env=environ, stderr=subprocess.DEVNULL)
    while len(project.git("worktree", "list").splitlines()) == 1:
        assert running.poll() is None
        time.sleep(0.1)
    running.terminate()
    assert running.wait() == 5
    assert len(project.git("worktree", "list").splitlines()) == 1


def test_the_worktree_of_the_base_is_gone_afterwards(project, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    project.commit(mine_py=mine() + "# a comment\n")
    assert project.gate(*FEW, "--cases", 1).exit_code == 0
    assert len(project.git("worktree", "list").splitlines()) == 1
    assert not list((tmp_path / "temporary").glob("kvetch-*"))
