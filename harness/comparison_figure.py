"""The figure of who finds what: bars in SVG, one for the harness and one for each project, with its text."""

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from harness.comparison import Row, compared, ours, projects
from harness.comparison_table import alternative
from harness.files import write_atomically
from harness.verdicts import Exam

WIDTH, NAME, TEXT, BAR, STEP = 760, 100, 230, 22, 34
STYLE = """\
  <style>
    text { font: 14px system-ui, sans-serif; fill: #222; }
    .tried { fill: #cfd6de; } .found { fill: #5b6b7d; } .ours { fill: #176639; }
    @media (prefers-color-scheme: dark) {
      text { fill: #ddd; }
      .tried { fill: #3a424b; } .found { fill: #93a5b8; } .ours { fill: #7fd8a4; }
    }
  </style>"""


def svg(exam: Exam) -> str:
    """A light bar is what each was tried on, the dark part of it what was found; all of one scale."""
    kvetch, others = ours(exam), projects(exam)
    words = escape(alternative(others, kvetch))
    bars = [line for number, row in enumerate([kvetch, *others]) for line in _bar(row, number, len(compared(exam)))]
    height = STEP * (1 + len(others))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{words}">'
    return "\n".join([head, f"  <title>{words}</title>", STYLE, *bars, "</svg>"]) + "\n"


def _bar(row: Row, number: int, most: int) -> Iterator[str]:
    top, scale = number * STEP + (STEP - BAR) // 2, (WIDTH - NAME - TEXT) / most
    tried, found = round(row.planted * scale, 1), round(row.found * scale, 1)
    kind, base = "found" if number else "ours", top + BAR - 6
    place = f'x="{NAME}" y="{top}" height="{BAR}"'
    yield f'  <text x="{NAME - 10}" y="{base}" text-anchor="end">{escape(row.who)}</text>'
    yield f'  <rect class="tried" {place} width="{tried}"/>'
    yield f'  <rect class="{kind}" {place} width="{found}"/>'
    yield f'  <text x="{NAME + tried + 10:g}" y="{base}">{row.found} of {row.planted} that it was tried on</text>'


def write(file: Path, exam: Exam) -> None:
    """Write the figure."""
    write_atomically(file, svg(exam))
