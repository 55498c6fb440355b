"""The page of an exam: one HTML file that needs nothing else."""

from pathlib import Path

from harness import comparison_figure, comparison_table, thresholds
from harness import page as pages
from harness.comparison import compared
from harness.exam_table import COLUMNS, found_by, row, score_lines, worst_first
from harness.verdicts import Exam


def page(exam: Exam) -> str:
    """The HTML; everything that comes from mutants and findings is escaped."""
    told = pages.section(
        "Score",
        "exam.html",
        score=list(score_lines(exam)),
        planted=worst_first(exam.of(systematic=False)),
        troubles=[verdict for verdict in worst_first(exam.mutants) if not verdict.passed],
        columns=COLUMNS,
        compared=comparison_table.rows(exam) if compared(exam) else [],
        compared_columns=comparison_table.COLUMNS,
        compared_cells=comparison_table.cells,
        compared_words=comparison_table.WORDS,
        left_out=list(comparison_table.left_out(exam)),
        notes=list(comparison_table.notes(exam)),
        figure=comparison_figure.svg(exam) if compared(exam) else "",
        thresholds=[threshold for threshold in exam.thresholds if threshold.steps],
        threshold_columns=thresholds.COLUMNS,
        threshold_row=thresholds.row,
        threshold_words=thresholds.WORDS,
        row=row,
        found_by=found_by,
    )
    return pages.render("Kvetch: the exam", next(score_lines(exam)), [told])


def write(file: Path, exam: Exam) -> None:
    """Write the page."""
    file.write_text(page(exam), encoding="utf-8")
