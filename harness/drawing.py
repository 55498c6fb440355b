"""Drawings of a page as inline SVG: blocks of the cache, the error as a heat map, weights as bars."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from markupsafe import Markup

from harness.listing import listed
from harness.pictures import DEAD, FINE, FREE, MISSED, NEW, READ, SHARED, USED, WRITTEN, Block, Heat, Weight, Weights

#: What a slot is, in words, in the order of the legend.
SLOTS = {
    USED: "holds a token",
    NEW: "holds a token that is new in this call",
    SHARED: "holds a token of several sequences",
    DEAD: "dead: no token lies there",
    FREE: "in a block of nobody's",
}
#: What went wrong at a slot, in words, and its sign in the drawing.
MARKS = {
    READ: ("read or given a weight, though it is dead or another's", "×"),
    MISSED: ("should have a weight and has none", "0"),
    WRITTEN: ("written wrongly, or not written", "W"),
}
#: Signs of slots that are fine.
SIGNS = {NEW: "n", SHARED: "s", DEAD: "·"}

#: Multiples of the bound: up to which, the class of its colour, its sign, and the words for it.
LEVELS: tuple[tuple[float, str, str, str], ...] = (
    (0.0, "w0", "", "no error at all"),
    (0.1, "w1", "", "up to a tenth of the bound"),
    (0.5, "w2", "", "up to half of the bound"),
    (1.0, "w3", "", "up to the bound, which is right"),
    (10.0, "b1", "1", "beyond the bound, up to 10 times"),
    (100.0, "b2", "2", "up to 100 times the bound"),
    (1000.0, "b3", "3", "up to 1000 times the bound"),
    (float("inf"), "b4", "4", "more than 1000 times the bound"),
)
NOT_FINITE = ("bn", "N", "not a finite number, or wrong where only one number is right")
#: Classes whose fill is so strong that their sign is drawn in the other colour.
STRONG = ("b4", "bn")

#: Slots of a line; in pixels, the side of a square, the height of the labels above, and the width of a character.
PER_LINE, SIDE, TOP, CHARACTER = 16, 16, 18, 6.8


def _tag(name: str, content: object = "", **attributes: object) -> Markup:
    """An element; a trailing underscore of an attribute's name is dropped, others become hyphens."""
    named = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()]
    told = Markup("").join(Markup(' {}="{}"').format(key, value) for key, value in named)
    return Markup("<{}{}>{}</{}>").format(name, told, content, name)


def _svg(key: str, title: str, about: str, size: tuple[float, float], parts: Iterable[Markup]) -> Markup:
    """A drawing with its name and its description, which a screen reader says."""
    width, height = (f"{side:.0f}" for side in size)
    inside = (_tag("title", title, id=f"{key}-title"), _tag("desc", about, id=f"{key}-desc"), *parts)
    labels = {"role": "img", "aria_labelledby": f"{key}-title", "aria_describedby": f"{key}-desc"}
    return _tag("svg", Markup("").join(inside), **labels, viewBox=f"0 0 {width} {height}", width=width, height=height)


def swatch(kind: str, sign: str = "", tone: str = "") -> Markup:
    """A square for a legend, beside whose words it says nothing more."""
    parts = (*_cells([[kind]], (1, 1), SIDE), *_signs([[(sign, tone)]], (1, 1), SIDE))
    return _tag("svg", Markup("").join(parts), viewBox="0 0 18 18", width=18, height=18, aria_hidden="true")


def _cells(rows: Sequence[Sequence[str]], corner: tuple[float, float], side: int) -> Iterator[Markup]:
    """Squares by their class: thick strokes, one path for all of a class, and the lines between them on top."""
    x, y = corner
    paths: dict[str, list[str]] = {}
    for row, kinds in enumerate(rows):
        column = 0
        for kind, same in groupby(kinds):
            count = len(list(same))
            middle = y + row * side + side / 2
            paths.setdefault(kind, []).append(f"M{x + column * side:g} {middle:g}h{count * side}")
            column += count
    for kind, path in paths.items():
        yield _tag("path", d="".join(path), class_=f"cell {kind}")
    yield _tag("path", d="".join(_lines(rows, corner, side)), class_="lines")


def _lines(rows: Sequence[Sequence[str]], corner: tuple[float, float], side: int) -> Iterator[str]:
    """Between and round squares; rows of one length share their lines."""
    x, top = corner
    for columns, same in groupby(map(len, rows)):
        count = len(list(same))
        yield from (f"M{x:g} {top + row * side:g}h{columns * side}" for row in range(count + 1))
        yield from (f"M{x + column * side:g} {top:g}v{count * side}" for column in range(columns + 1))
        top += count * side


def _signs(rows: Sequence[Sequence[tuple[str, str]]], corner: tuple[float, float], side: int) -> Iterator[Markup]:
    """Signs (sign, tone) in the middle of squares, one text for all of a line and tone."""
    x, y = corner
    for row, signs in enumerate(rows):
        for tone in dict.fromkeys(tone for sign, tone in signs if sign):
            line = [(column, sign) for column, (sign, of) in enumerate(signs) if sign and of == tone]
            across = " ".join(f"{x + (column + 0.5) * side:g}" for column, _ in line)
            said = "".join(sign for _, sign in line)
            yield _tag("text", said, x=across, y=f"{y + row * side + side / 2 + 4:g}", class_=f"glyph {tone}".strip())


# --- the cache ---------------------------------------------------------------------------------------------------


def block(drawn: Block, key: str) -> Markup:
    """One block, its slots in lines of 16."""
    slots = [_slot(kind, mark) for kind, mark in zip(drawn.slots, drawn.marks, strict=True)]
    lines = [slots[first : first + PER_LINE] for first in range(0, len(slots), PER_LINE)]
    squares = _cells([[kind for kind, _, _ in line] for line in lines], (1, 1), SIDE)
    signs = _signs([[(sign, tone) for _, sign, tone in line] for line in lines], (1, 1), SIDE)
    size = min(len(slots), PER_LINE) * SIDE + 2, len(lines) * SIDE + 2
    return _svg(key, f"Block {drawn.number}", about_block(drawn), size, (*squares, *signs))


def _slot(kind: str, mark: str) -> tuple[str, str, str]:
    """Class, sign and tone of a slot."""
    return (kind, SIGNS.get(kind, ""), "") if mark == FINE else (mark, MARKS[mark][1], "on-mark")


def about_block(drawn: Block) -> str:
    """The slots of a block in words, wrong ones first."""
    wrong = [f"{words}: {_slots(drawn.marks, mark)}" for mark, (words, _) in MARKS.items() if mark in drawn.marks]
    fine = [f"{words}: {_slots(drawn.slots, kind)}" for kind, words in SLOTS.items() if kind in drawn.slots]
    return "; ".join((*wrong, *fine))


def _slots(letters: str, wanted: str) -> str:
    return listed((i for i, letter in enumerate(letters) if letter == wanted), "slot")


def slot_legend(blocks: Iterable[Block]) -> list[tuple[Markup, str]]:
    """Swatch and words of what occurs in these blocks."""
    drawn = list(blocks)
    kinds, marks = ({letter for each in drawn for letter in getattr(each, name)} for name in ("slots", "marks"))
    wrong = [(swatch(mark, sign, "on-mark"), words) for mark, (words, sign) in MARKS.items() if mark in marks]
    return wrong + [(swatch(kind, SIGNS.get(kind, "")), words) for kind, words in SLOTS.items() if kind in kinds]


# --- the error ---------------------------------------------------------------------------------------------------


def level(multiple: float | None) -> tuple[str, str, str]:
    """Class, sign and words of an error in multiples of the bound; None is one that is not finite."""
    if multiple is None:
        return NOT_FINITE
    return next((kind, sign, words) for limit, kind, sign, words in LEVELS if multiple <= limit)


def heat(drawn: Heat, key: str) -> Markup:
    """The error of each element: a line a row, a column a dim."""
    left = math.ceil(max(map(len, drawn.rows), default=0) * CHARACTER) + 8
    columns = max(map(len, drawn.margins), default=0)
    levels = [[level(multiple) for multiple in row] for row in drawn.margins]
    squares = _cells([[kind for kind, _, _ in row] for row in levels], (left, TOP), SIDE)
    signs = _signs([[(sign, _tone(kind)) for kind, sign, _ in row] for row in levels], (left, TOP), SIDE)
    labels = (*_row_labels(drawn.rows, left), *_column_labels(drawn, left, columns))
    size = left + max(columns * SIDE, 60) + 2, TOP + len(drawn.rows) * SIDE + 2
    title = f"Error of {drawn.name} in multiples of its bound"
    return _svg(key, title, about_heat(drawn), size, (*labels, *squares, *signs))


def _tone(kind: str) -> str:
    return "on-strong" if kind in STRONG else "on-light"


def _row_labels(rows: tuple[str, ...], left: float) -> Iterator[Markup]:
    for row, words in enumerate(rows):
        yield _tag("text", words, x=f"{left - 6:g}", y=f"{TOP + row * SIDE + 12:g}", class_="label", text_anchor="end")


def _column_labels(drawn: Heat, left: float, columns: int) -> Iterator[Markup]:
    for column in range(0, columns, 8):
        words = f"dim {column * drawn.per_column}" if column == 0 else str(column * drawn.per_column)
        yield _tag("text", words, x=f"{left + column * SIDE:g}", y=12, class_="label")


def about_heat(drawn: Heat) -> str:
    """The same in words."""
    several = f", each column the largest of {drawn.per_column} dims" if drawn.per_column > 1 else ""
    worst = max((m for row in drawn.margins for m in row if m is not None), default=None)
    told = "" if worst is None else f"; the largest finite error is {worst:.3g} times the bound"
    return f"{drawn.wrong} of {drawn.elements} elements are beyond the bound{told}{several}"


def heat_legend(heats: Iterable[Heat]) -> list[tuple[Markup, str]]:
    """Swatch and words of the levels that occur, the smallest error first."""
    found = {level(multiple) for each in heats for row in each.margins for multiple in row}
    ordered = [entry for entry in (*(level[1:] for level in LEVELS), NOT_FINITE) if entry in found]
    return [(swatch(kind, sign, _tone(kind)), f"{sign}: {words}" if sign else words) for kind, sign, words in ordered]


# --- the weights -------------------------------------------------------------------------------------------------


def largest(told: Weights) -> float:
    """What the longest bar stands for."""
    return max((max(abs(w.true), abs(w.got or 0.0)) for w in told.shown), default=0.0) or 1.0


def bar(weight: Weight, longest: float) -> Markup:
    """The true weight as an outline, the effective one filled below; the numbers stand beside them."""
    true, got = (f"{100 * abs(number or 0.0) / longest:.2f}" for number in (weight.true, weight.got))
    parts = _tag("rect", x=1, y=1.5, width=true, height=6, class_="true")
    parts += _tag("rect", x=1, y=10, width=got, height=7, class_="got")
    return _tag("svg", parts, viewBox="0 0 102 18", width=102, height=18, aria_hidden="true")
