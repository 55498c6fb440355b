"""Injected errors go down each ladder until one is missed; each can be planted, and the largest are found."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from harness import exam, exam_page, exam_table, thresholds
from harness.case import Case, Seq, replace
from harness.injections import BITS, INJECTIONS, RELATIVE, Injection, Step, Threshold, blank, next_mutant
from harness.mutants import Mutant, mutated, plant
from harness.pool import Worker
from harness.verdicts import Exam, Verdict, exit_code, from_file

SCALE = INJECTIONS[0]


def first(mutants: list[Mutant], found: int) -> Iterator[Verdict]:
    """The first so many errors of each ladder are found; in the wrong order, since verdicts come in any."""
    for mutant in reversed(mutants):
        depth = int(mutant.name.split("-")[-2])
        yield Verdict(name=mutant.name, found=depth < found, kind="accuracy", cases=10 + depth, seconds=0.5)


def ended(injections: tuple[Injection, ...], found: int) -> dict[tuple[str, str], Threshold]:
    """All thresholds after the last step."""
    known = {}
    for one in thresholds.measured(blank(injections), lambda mutants: first(mutants, found)):
        known[one.injection, one.dtype] = one
    return known


@pytest.mark.parametrize("injection", INJECTIONS, ids=lambda injection: injection.name)
def test_every_error_can_be_planted_and_changes_the_kernel(injection: Injection) -> None:
    texts = {mutated(injection.mutant(error, "float32"))[injection.file] for error in injection.errors}
    assert len(texts) == len(injection.errors)
    assert not any("ERROR" in text for text in texts)


def test_names_are_unique_and_numbers_are_what_they_are_told_to_be() -> None:
    mutants = [one.mutant(error, "float32") for one in INJECTIONS for error in one.errors]
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    assert all(float(text) == pytest.approx(float(error.removesuffix(" %")) / 100) for error, text in RELATIVE.items())


@pytest.mark.parametrize("bits", [8, 11, 17])
def test_splitting_rounds_to_so_many_bits(bits: int) -> None:
    p = np.random.default_rng(1).uniform(0.5, 1, 1000).astype(np.float32)
    product = p * np.float32(BITS[f"{bits} bits"])
    rounded = product - (product - p)
    assert np.array_equal(rounded * 2.0**bits, np.round(rounded * 2.0**bits))  # numbers from 1/2 to 1
    assert np.abs(rounded - p).max() <= 2.0 ** -(bits + 1)
    assert (rounded != p).any()


def test_a_ladder_ends_at_the_first_error_that_is_missed() -> None:
    known = ended((SCALE,), 3)
    assert set(known) == {(SCALE.name, dtype) for dtype in ("float32", "float16", "bfloat16")}
    one = known[SCALE.name, "float16"]
    assert [step.found for step in one.steps] == [True, True, True, False]
    assert (one.smallest, one.missed) == (one.steps[2], one.steps[3])
    assert thresholds.row(one) == ("scale-off", "float16", "0.1 %", "accuracy", "12", "0.01 %", "13")
    assert next_mutant(one) is None


def test_a_ladder_of_which_all_is_found_or_nothing_is_told() -> None:
    whole, nothing = ended((SCALE,), 99)[SCALE.name, "float32"], ended((SCALE,), 0)[SCALE.name, "float32"]
    assert (len(whole.steps), whole.missed) == (len(SCALE.errors), None)
    assert thresholds.row(whole)[5:] == ("none", "")
    assert (len(nothing.steps), nothing.smallest) == (1, None)
    assert thresholds.row(nothing)[2:] == ("none", "", "", "10 %", "10")


def test_a_ladder_that_was_interrupted_says_so() -> None:
    broken_off = Threshold(injection=SCALE.name, dtype="float32", steps=(Step(error="10 %", found=True),))
    assert thresholds.row(broken_off)[5:] == ("not reached", "")


def test_the_errors_of_a_ladder_are_hunted_in_their_dtype() -> None:
    found = next_mutant(Threshold(injection=SCALE.name, dtype="bfloat16", steps=(Step(error="10 %", found=True),)))
    assert found is not None
    error, mutant = found
    assert (error, mutant.dtypes) == ("1 %", ("bfloat16",))
    assert "(scale * (1.0 + 1e-2))" in mutant.new


# --- what is told ------------------------------------------------------------------------------------------------

EXAM = Exam(executor="gridsim", thresholds=tuple(ended((SCALE,), 3).values()))


def test_the_document_and_the_page_get_the_table(tmp_path: Path) -> None:
    exam_table.write_into(tmp_path / "exam.md", EXAM)
    document = (tmp_path / "exam.md").read_text()
    assert "| scale-off | float16 | 0.1 % | accuracy | 12 | 0.01 % | 13 |" in document
    assert document.count("* scale-off: the softmax scale is off by so much of itself (ours.decode).") == 1
    assert "## A run" not in document
    exam_table.write_into(tmp_path / "exam.md", EXAM)
    assert (tmp_path / "exam.md").read_text() == document
    assert '<td data-name="smallest found">0.1 %</td>' in exam_page.page(EXAM)


def test_a_run_without_them_says_nothing_of_them() -> None:
    assert list(thresholds.lines(Exam())) == []
    assert "smallest errors" not in exam_page.page(Exam())


def test_a_fault_of_the_harness_is_exit_code_3_and_told() -> None:
    broken = Threshold(injection="scale-off", dtype="float32", steps=(Step(error="10 %", fault="Traceback"),))
    assert exit_code(EXAM) == 0
    assert exit_code(replace(EXAM, thresholds=(broken,))) == 3
    assert "FAULT OF THE HARNESS: scale-off float32 10 %: Traceback" in list(
        thresholds.lines(Exam(thresholds=(broken,)))
    )


def test_scores_rounded_before_the_scale_are_no_rounding_of_q_and_our_kernel_is_silent(tmp_path: Path) -> None:
    (injection,) = (one for one in INJECTIONS if one.name == "scores-in-16-bits")
    subject = plant(injection.mutant("float16", "float32"), tmp_path)
    case = Case(seqs=(Seq(kv_len=40),), head_dim=64)
    with Worker("gridsim") as worker:
        assert [finding.kind for finding in worker.run(case, subject, 60.0).findings] == ["accuracy"]
        assert worker.run(case, "ours.decode", 60.0).findings == ()


# --- the command -------------------------------------------------------------------------------------------------


def test_a_large_error_is_found_and_one_below_the_last_bit_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = replace_errors(SCALE, {"10 %": "1e-1", "nothing": "0.0"})
    monkeypatch.setattr("harness.injections.INJECTIONS", (two,))
    monkeypatch.setattr(thresholds, "CASES", 10)
    arguments = ["--sensitivity", "--json", "--executor", "gridsim", "--workers", "1"]
    done = CliRunner().invoke(exam.main, [*arguments, "--markdown", str(tmp_path / "exam.md")])
    assert done.exit_code == 0, done.stderr
    (tmp_path / "run.json").write_text(done.stdout)
    found = from_file(tmp_path / "run.json").thresholds
    assert [(one.dtype, [step.found for step in one.steps]) for one in found] == [
        (dtype, [True, False]) for dtype in ("float32", "float16", "bfloat16")
    ]
    assert all(one.steps[1].cases == 10 for one in found)
    assert json.loads(done.stdout)["thresholds"][0]["steps"][1]["error"] == "nothing"
    assert "scale-off, float32, nothing: missed in 10 cases" in done.stderr
    assert "| scale-off | float32 | 10 % |" in (tmp_path / "exam.md").read_text()


@pytest.mark.nightly
def test_the_largest_error_of_every_ladder_is_found_in_every_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = tuple(replace_errors(one, dict([next(iter(one.errors.items()))])) for one in INJECTIONS)
    monkeypatch.setattr("harness.injections.INJECTIONS", largest)
    done = CliRunner().invoke(exam.main, ["--sensitivity", "--json", "--executor", "gridsim"])
    assert done.exit_code == 0, done.stderr
    steps = [step for one in json.loads(done.stdout)["thresholds"] for step in one["steps"]]
    assert len(steps) == 3 * len(INJECTIONS)
    assert all(step["found"] for step in steps), done.stderr


def replace_errors(injection: Injection, errors: dict[str, str]) -> Injection:
    return dataclasses.replace(injection, errors=errors)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--name", "scale-of"), "no injected error is named 'scale-of'; there are scale-off, scale-off-in-extend"),
        (("--others",), "--others does not go with --sensitivity"),
        (("--subject", "ours.decode"), "--subject does not go with --sensitivity"),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(exam.main, ["--sensitivity", "--executor", "gridsim", *arguments])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
