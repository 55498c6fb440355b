"""Who finds what is counted over the faults that a recipe was tried on, and told with what was left out."""

from pathlib import Path

import pytest

from harness import comparison_figure, comparison_table, exam_page, exam_table
from harness.comparison import by_recipe, compared, figures, ours, outcome, projects, until_found, without_recipe
from harness.trials import Outcome, Trial
from harness.verdicts import Exam, Verdict

UNIFIED, FP8, SGLANG = "vLLM unified, decode", "vLLM unified FP8, decode", "SGLang decode"


def trial(recipe: str, became: Outcome, seconds: float = 1.0) -> Trial:
    return Trial(recipe=recipe, outcome=became, seconds=seconds, cases=1)


def planted(name: str, *others: Trial, found: bool = True, **fields: str) -> Verdict:
    return Verdict(name=name, found=found, meant=found, seconds=0.5, message="wrong", others=others, **fields)


EXAM = Exam(
    mutants=(
        planted("both", trial(UNIFIED, "found", 2.0), trial(FP8, "found", 1.0), trial(SGLANG, "missed")),
        planted("second", trial(UNIFIED, "missed", 2.0), trial(FP8, "found", 4.0), trial(SGLANG, "declined")),
        planted("neither", trial(UNIFIED, "missed"), trial(FP8, "missed"), trial(SGLANG, "missed"), found=False),
        planted("open", trial(UNIFIED, "out of time"), trial(FP8, "missed"), trial(SGLANG, "fails as it is")),
        planted("gather", trial("", "no recipe"), subject="ours.gather"),
        planted("judge", bug_class="ORACLE"),
        Verdict(name="systematic", systematic=True, found=True, meant=True),
    )
)


def test_the_faults_that_have_a_recipe_are_compared_and_no_others() -> None:
    assert [verdict.name for verdict in compared(EXAM)] == ["both", "second", "neither", "open"]
    assert without_recipe(EXAM) == {"ours.gather": 1}
    kvetch = ours(EXAM)
    assert (kvetch.who, kvetch.planted, kvetch.found, kvetch.median_seconds) == ("Kvetch", 4, 3, 0.5)
    assert kvetch.operations == ("decode",)


def test_a_recipe_is_counted_on_the_faults_on_which_it_came_to_a_verdict() -> None:
    unified, fp8, sglang = by_recipe(EXAM)
    assert (unified.who, unified.planted, unified.found, unified.ours, unified.out_of_time) == (UNIFIED, 3, 1, 2, 1)
    assert (fp8.planted, fp8.found, fp8.ours, fp8.median_seconds) == (4, 2, 3, 2.5)
    assert (sglang.planted, sglang.found, sglang.declined, sglang.fails_as_it_is) == (2, 0, 1, 1)
    assert unified.source.startswith("vLLM 0.33.0")
    assert "every value of each axis" in unified.reduced


def test_a_project_finds_what_any_of_its_recipes_finds_one_after_the_other() -> None:
    vllm, sglang = projects(EXAM)
    assert (vllm.who, vllm.planted, vllm.found, vllm.out_of_time) == ("vLLM", 3, 2, 1)
    assert vllm.median_seconds == 4.0  # of 2, and of 2 + 4
    assert (sglang.who, sglang.planted, sglang.found) == ("SGLang", 2, 0)


@pytest.mark.parametrize(
    ("became", "together"),
    [
        (("missed", "found", "out of time"), "found"),
        (("missed", "out of time"), "out of time"),
        (("declined", "missed", "fails as it is"), "missed"),
        (("declined", "fails as it is"), "fails as it is"),
        (("declined",), "declined"),
    ],
)
def test_several_recipes_together_make_the_best_of_a_fault(became: tuple[Outcome, ...], together: str) -> None:
    assert outcome([trial(UNIFIED, one) for one in became]) == together


def test_seconds_of_a_project_are_those_until_a_recipe_finds_it() -> None:
    trials = [trial(UNIFIED, "missed", 2.0), trial(FP8, "found", 3.0), trial(FP8, "found", 9.0)]
    assert until_found(trials) == 5.0


def test_the_table_begins_with_ours_and_says_what_was_left_out() -> None:
    lines = list(comparison_table.lines(EXAM))
    names = [line.split("  ")[0] for line in lines[2:]]
    assert names[1:7] == ["Kvetch", "vLLM", "SGLang", UNIFIED, FP8, SGLANG]
    assert lines[-2] == "left out, since no recipe can see a fault of the judge: planted there (ORACLE), 1"
    assert lines[-1] == "left out, since there is no recipe of the operation: planted in ours.gather, 1"
    assert "1 declined, 1 fails as it is" in next(line for line in lines if line.startswith(SGLANG))


def test_the_document_gets_the_section_and_its_figure(tmp_path: Path) -> None:
    exam_table.write_into(tmp_path / "exam.md", EXAM)
    document, figure = (tmp_path / "exam.md").read_text(), (tmp_path / "exam.svg").read_text()
    assert "## A run" in document
    assert "| vLLM | decode | 3 | 2 | 2 | 4.0 | 1 out of time |" in document
    assert "![Planted faults found of those that each was tried on: Kvetch 3 of 4, vLLM 2 of 3" in document
    assert "(exam.svg)" in document
    assert f"* {SGLANG}: read in SGLang (00f6b51), test_triton_attention_kernels.py; nothing is smaller" in document
    assert "<title>Planted faults found of those that each was tried on: Kvetch 3 of 4, vLLM 2 of 3, " in figure
    assert figure.count("<rect") == 2 * 3
    exam_table.write_into(tmp_path / "exam.md", EXAM)
    assert (tmp_path / "exam.md").read_text() == document


def test_bars_are_as_long_as_their_numbers() -> None:
    lines = [line for line in comparison_figure.svg(EXAM).splitlines() if "<rect" in line]
    widths = [float(line.partition('width="')[2].partition('"')[0]) for line in lines]
    whole = widths[0] / 4  # Kvetch was tried on four
    assert widths == pytest.approx([number * whole for number in (4, 3, 3, 2, 2, 0)], abs=0.1)


def test_the_page_has_table_and_figure() -> None:
    page = exam_page.page(EXAM)
    assert "<h2>Who finds what</h2>" in page
    assert '<svg xmlns="http://www.w3.org/2000/svg"' in page
    assert f'<td data-name="who">{SGLANG}</td>' in page


def test_an_exam_without_others_says_nothing_of_them(tmp_path: Path) -> None:
    alone = Exam(mutants=(planted("a"),))
    assert figures(alone) == {}
    assert list(comparison_table.lines(alone)) == []
    assert "Who finds what" not in exam_page.page(alone)
    exam_table.write_into(tmp_path / "exam.md", alone)
    assert "Who finds what" not in (tmp_path / "exam.md").read_text()
    assert not (tmp_path / "exam.svg").exists()
