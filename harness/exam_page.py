"""The page of an exam: one HTML file that needs nothing else."""

from pathlib import Path

import jinja2

from harness import comparison_figure, comparison_table, thresholds
from harness.comparison import compared
from harness.exam_table import COLUMNS, found_by, row, score_lines, worst_first
from harness.folders import PACKAGE
from harness.verdicts import Exam


def page(exam: Exam) -> str:
    """The HTML; everything that comes from mutants and findings is escaped."""
    loader = jinja2.FileSystemLoader(PACKAGE / "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("exam.html").render(
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


def write(file: Path, exam: Exam) -> None:
    """Write the page."""
    file.write_text(page(exam), encoding="utf-8")
