"""What a drawing marks where, by colour and by a sign of its own, and what it says in words."""

import re

import pytest
from parsed import Node, parse

from harness import drawing
from harness.drawing import SIDE
from harness.pictures import Block, Heat, Weight, Weights

BLOCK = Block(number=7, slots="uuuuuuuuuuuuuuuun" + "d" * 15, marks=" " * 17 + "r" + " " * 14, owners=((0, 0),))
HEAT = Heat(
    name="out",
    rows=("token 0, head 0", "token 0, head 1"),
    margins=((0.0, 1.0, 1.0001, None), (0.05, 11.0, 5000.0, 0.5)),
    wrong=4,
    elements=8,
    all_rows=2,
    dims=4,
)


def squares(drawn: Node) -> dict[tuple[float, float], str]:
    """Corner of each square to its class; runs of one class are one stroke."""
    found = {}
    for path in drawn.all("path", "cell"):
        for x, y, length in re.findall(r"M([\d.]+) ([\d.]+)h(\d+)", path["d"]):
            for column in range(int(length) // SIDE):
                corner = float(x) + column * SIDE, float(y) - SIDE / 2
                assert corner not in found, "two squares lie on each other"
                found[corner] = (path.classes - {"cell"}).pop()
    return found


def lines(drawn: Node) -> set[tuple[float, float, str, int]]:
    """Start, direction and length of each line between squares."""
    found = re.findall(r"M([\d.]+) ([\d.]+)([hv])(\d+)", drawn.one("path", "lines")["d"])
    return {(float(x), float(y), way, int(length)) for x, y, way, length in found}


def signs(drawn: Node) -> dict[tuple[float, float], str]:
    """Corner of each square that has a sign."""
    found = {}
    for text in drawn.all("text", "glyph"):
        across = text["x"].split()
        assert len(across) == len(text.text)
        for x, sign in zip(across, text.text, strict=True):
            found[float(x) - SIDE / 2, float(text["y"]) - SIDE / 2 - 4] = sign
    return found


def test_a_slot_that_was_wrongly_read_is_marked_where_it_lies():
    drawn = parse(str(drawing.block(BLOCK, "b"))).one("svg")
    found = squares(drawn)
    assert len(found) == 32
    assert [place for place, kind in found.items() if kind == "r"] == [(1 + SIDE, 1 + SIDE)]
    assert [place for place, kind in found.items() if kind == "n"] == [(1, 1 + SIDE)]
    assert [place for place, sign in signs(drawn).items() if sign == "×"] == [(1 + SIDE, 1 + SIDE)]
    assert [place for place, sign in signs(drawn).items() if sign == "n"] == [(1, 1 + SIDE)]


def test_lines_part_the_slots_of_a_block_whose_last_line_is_short():
    drawn = parse(str(drawing.block(Block(number=0, slots="u" * 18, marks=" " * 18), "b"))).one("svg")
    found = lines(drawn)
    assert {line for line in found if line[2] == "h"} == {
        (1, 1, "h", 16 * SIDE), (1, 1 + SIDE, "h", 16 * SIDE),
        (1, 1 + SIDE, "h", 2 * SIDE), (1, 1 + 2 * SIDE, "h", 2 * SIDE),
    }  # fmt: skip
    assert len([line for line in found if line[2:] == ("v", SIDE)]) == 17 + 3
    assert drawn["viewbox"] == f"0 0 {16 * SIDE + 2} {2 * SIDE + 2}"


def test_a_block_says_what_it_shows_wrong_slots_first():
    svg = parse(str(drawing.block(BLOCK, "b"))).one("svg")
    assert (svg["role"], svg.one("title").text) == ("img", "Block 7")
    assert svg.one("desc").text == (
        "read or given a weight, though it is dead or another's: slot 17; holds a token: slots 0-15; "
        "holds a token that is new in this call: slot 16; dead: no token lies there: slots 17-31"
    )


def test_every_kind_of_slot_and_mark_has_a_sign_or_is_plain_in_its_own_way():
    assert len({*drawing.SIGNS.values(), *(sign for _, sign in drawing.MARKS.values())}) == 6
    assert set(drawing.SLOTS) - set(drawing.SIGNS) == {"u", "f"}  # filled, and empty
    told = [words for _, words in drawing.slot_legend([BLOCK])]
    assert told == [drawing.MARKS["r"][0], *(drawing.SLOTS[kind] for kind in "und")]


def test_a_block_without_faults_has_no_mark():
    fine = Block(number=0, slots="uuuu", marks="    ")
    drawn = parse(str(drawing.block(fine, "b"))).one("svg")
    assert set(squares(drawn).values()) == {"u"}
    assert not signs(drawn)


@pytest.mark.parametrize(
    ("multiple", "kind", "sign"),
    [
        (0.0, "w0", ""), (0.1, "w1", ""), (0.5, "w2", ""), (1.0, "w3", ""), (1.0 + 2**-52, "b1", "1"),
        (10.0, "b1", "1"), (100.0, "b2", "2"), (1000.0, "b3", "3"), (1e300, "b4", "4"), (None, "bn", "N"),
    ],
)  # fmt: skip
def test_only_what_is_beyond_the_bound_has_a_sign(multiple, kind, sign):
    assert drawing.level(multiple)[:2] == (kind, sign)


def test_a_heat_map_has_a_square_for_each_element_and_a_sign_where_it_is_wrong():
    drawn = parse(str(drawing.heat(HEAT, "h"))).one("svg")
    found, there = squares(drawn), signs(drawn)
    left = min(x for x, _ in found)
    kinds = [[found[left + column * SIDE, drawing.TOP + row * SIDE] for column in range(4)] for row in range(2)]
    assert kinds == [["w0", "w3", "b1", "bn"], ["w1", "b2", "b4", "w2"]]
    wrong = {place: sign for place, sign in there.items() if found[place][0] == "b"}
    assert there == wrong
    assert [there[place] for place in sorted(there, key=lambda place: (place[1], place[0]))] == ["1", "N", "2", "4"]
    assert [text.text for text in drawn.all("text", "label")] == [*HEAT.rows, "dim 0"]


def test_a_heat_map_says_how_much_is_wrong_and_its_legend_has_the_levels_that_occur():
    assert drawing.about_heat(HEAT) == (
        "4 of 8 elements are beyond the bound; the largest finite error is 5e+03 times the bound"
    )
    told = [words for _, words in drawing.heat_legend([HEAT])]
    assert told[:2] == ["no error at all", "up to a tenth of the bound"]
    assert told[4] == "1: beyond the bound, up to 10 times"
    assert told[-1].startswith("N: ")
    assert len(told) == 8


def test_columns_that_stand_for_several_dims_say_so():
    wide = Heat(name="out", rows=("r",), margins=((0.0,) * 9,), wrong=0, elements=18, all_rows=1, dims=18, per_column=2)
    assert drawing.about_heat(wide).endswith("each column the largest of 2 dims")
    assert [text.text for text in parse(str(drawing.heat(wide, "h"))).all("text", "label")] == [
        "r",
        "dim 0",
        "16",
    ]


def test_bars_are_as_long_as_their_weights_and_one_that_is_not_finite_has_none():
    told = Weights(
        row="r", shown=(Weight(place="a", true=0.5, got=0.25), Weight(place="b", true=0.1, got=None)), count=2
    )
    assert drawing.largest(told) == 0.5
    lengths = [[rect["width"] for rect in parse(str(drawing.bar(weight, 0.5))).all("rect")] for weight in told.shown]
    assert lengths == [["100.00", "50.00"], ["20.00", "0.00"]]


def test_words_inside_a_drawing_are_escaped():
    heat = Heat(name='o"<b>', rows=("<i>",), margins=((0.0,),), wrong=0, elements=1, all_rows=1, dims=1)
    drawn = parse(str(drawing.heat(heat, 'k"<')))
    assert not drawn.all("b")
    assert not drawn.all("i")
    assert drawn.one("svg").one("title").text == 'Error of o"<b> in multiples of its bound'
