"""The page: what is told and marked where, that all is escaped, and that it needs nothing and shuts nobody out."""

import itertools
import re

import msgspec
import pytest
from invoked import one_line
from parsed import Node, parse

from harness import blocks, drawing, excerpt, page, painting
from harness.case import Case, Seq, to_json
from harness.corpus import Corpus, Entry
from harness.page import Exhibit, of_campaign, render
from harness.pictures import Block, Heat, Picture, Pool, Source, TableRow, Weight, Weights
from harness.results import PLATFORM, Finding
from harness.summary import Found, Summary

EVIL = '<script>alert("1")</script>&amp;<b class=x>'
FINDING = Finding(
    kind="accuracy",
    message=f"out is 1 {EVIL}",
    accuses=f"dead read {EVIL}",
    line="mine.py:38",
    explains=("slot 1 of block 0 has weight 0.7", f"the rest {EVIL}"),
)
FOUND = Found(
    subject=f"mine.py:f{EVIL}",
    case=Case(seqs=(Seq(kv_len=9),)),
    finding=FINDING,
    others=(Finding(kind="dead data read", message="moved", explains=("said by the other",)),),
    needs=("partly filled block",),
    met=3,
    again="3 of 3",
    attribution="also fails on gpu: the kernel is at fault",
    file="corpus/decode/a b.json",
    executor="gridsim",
)
PICTURE = Picture(
    table=(
        TableRow(name="a: sequence 0", kv_len=9, used=(5,), padding=(-1, 7), read=(2,)),
        TableRow(name="b: sequence 1", kv_len=0, padding=(), more=3),
    ),
    pool=Pool(
        num_blocks=6,
        blocks=(
            Block(number=5, slots="uund", marks="   r", owners=((0, 0), (1, 2))),
            Block(number=1, slots="ffff", marks="    "),
        ),
    ),
    heats=(Heat(name="out", rows=("token 0",), margins=((0.0, 20.0, None),), wrong=2, elements=3, all_rows=1, dims=3),),
    weights=Weights(
        row="sequence 0, head 0",
        shown=(
            Weight(place="token 0", true=1.0, got=0.25, wrong=True),
            Weight(place="token 1", true=0.0, got=None, wrong=True),
            Weight(place="token 2", true=0.5, got=0.5),
        ),
        count=9,
    ),
    source=Source(
        file="mine.py",
        first=37,
        lines=("def f(a):", f"    a < b {EVIL}", "    return"),
        marks={38: "dead read of k_cache"},
    ),
    notes=(f"a note {EVIL}",),
)
SUMMARY = Summary(
    subjects=("ours.decode", FOUND.subject),
    executor="gridsim",
    platform="gridsim",
    seed=7,
    seconds=60.0,
    cases=120,
    runs=300,
    passed={"ours.decode": {1: 100, 2: 20}, FOUND.subject: {1: 5}},
    declined={f"does not declare window {EVIL}": 4, "declares scales=False": 40},
    drawn={"op": {"decode": 120}, "block_size": {"16": 110, "1": 0, "8": 10}},
    reached={"ours.decode": {"decode.py:3 line run": 9, "decode.py:5 line run": 0}},
    findings=(FOUND,),
    witnesses={"sdpa": {"agreed": 10}},
    worst_margin=0.5,
    worst_term="which is 97% output rounding",
    arithmetic={"ours.decode": ("ieee products",)},
    notes={"ours.decode": (f"a note of one {EVIL}",)},
    harness_faults=(EVIL,),
)


@pytest.fixture(scope="module")
def html() -> str:
    return of_campaign(SUMMARY, [PICTURE])


@pytest.fixture(scope="module")
def tree(html) -> Node:
    return parse(html)


def finding(tree: Node) -> Node:
    return tree.one("article")


def fact(node: Node, name: str) -> str:
    return node.after("dt", name).text


# --- what is told ------------------------------------------------------------------------------------------------


def test_the_campaign_is_told_at_a_glance(tree):
    (glance,) = [part for part in tree.all("section") if part["id"] == "at-a-glance"]
    assert fact(glance, "executor") == "gridsim (platform gridsim)"
    assert fact(glance, "seed") == "7"
    assert fact(glance, "cases") == "120, 2.0 a second; 300 runs"
    assert fact(glance, "worst margin of a right case") == "0.50 of the bound (which is 97% output rounding)"
    assert fact(glance, "witness") == "sdpa: agreed"
    assert "torch" in fact(glance, "versions")
    assert [[cell.text for cell in row.all("td")] for row in glance.one("tbody").all("tr")] == [
        ["40", "declares scales=False"],
        ["4", f"does not declare window {EVIL}"],
    ]
    assert "ieee products" in glance.one("details").text
    assert (
        tree.one("header").one("p", "verdict").text == "no verdict: the harness or a reference is at fault, see above"
    )


def test_the_ladder_marks_the_rung_that_is_wrong(tree):
    (ladder,) = [part for part in tree.all("section") if part["id"] == "how-far-it-is-right"]
    right, wrong = ladder.all("table")
    assert not right.all("td", "wrong")
    assert [row.one("th").text for row in wrong.one("tbody").all("tr") if row.all("td", "wrong")] == ["2"]
    assert wrong.one("td", "wrong").text == "0 right, 1 limit found"


def test_what_was_never_drawn_is_marked(tree):
    (drawn,) = [part for part in tree.all("section") if part["id"] == "what-was-drawn"]
    assert [item.text for item in drawn.all("li", "zero")] == ["1: 0, never"]
    assert [item.text for item in drawn.all("li")] == ["decode: 120", "1: 0, never", "8: 10", "16: 110"]
    assert "Never drawn: block_size 1" in drawn.text


def test_lines_that_were_never_run_are_told(tree):
    (reached,) = [part for part in tree.all("section") if part["id"] == "what-was-reached-in-the-source"]
    assert [item.text for item in reached.all("li")] == ["line 5 of decode.py was never run"]


def test_a_finding_is_explained_first_then_told_in_full_with_its_commands(tree):
    told = finding(tree)
    order = [node for node in told.inside if isinstance(node, Node)]
    assert [node.tag for node in order[:5]] == ["h3", "p", "ul", "dl", "pre"]
    assert order[0].text == f"1. accuracy in {FOUND.subject}, on gridsim"
    assert order[1].text == "new"
    assert [item.text for item in order[2].all("li")] == [*FINDING.explains, "said by the other"]
    assert fact(told, "seen") == FINDING.message
    assert fact(told, "accused") == FINDING.accuses
    assert fact(told, "also") == "dead data read: moved"
    assert fact(told, "needs") == "partly filled block"
    assert fact(told, "run again") == "failed 3 of 3 when run again; met 3 times"
    assert fact(told, "attribution") == FOUND.attribution
    assert "python -m harness.replay 'corpus/decode/a b.json' --subject 'mine.py:f<script>" in order[4].text
    assert told.all("pre")[1].text == " ".join(to_json(FOUND.case).split())


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({}, "new"),
        ({"known": "being mended"}, "known: being mended"),
        ({"finding": Finding(kind=PLATFORM, message="m")}, "not the subject's"),
    ],
)
def test_a_finding_says_whether_it_is_news(change, label):
    assert page.label(msgspec.structs.replace(FOUND, **change)) == label


# --- what is marked ----------------------------------------------------------------------------------------------


def test_the_table_parts_padding_and_marks_what_was_read(tree):
    table = finding(tree).all("table")[0]
    first, second = table.one("tbody").all("tr")
    entries = first.all("td")[1]
    assert entries.text == "5 (-1) ×(7)"
    assert entries.one("span", "padding").text == "(-1) ×(7)"
    assert entries.one("span", "wrong").text == "×(7)"
    assert first.one("th").text == "a: sequence 0"
    assert second.all("td")[1].text == "nothing and 3 more"


def test_the_blocks_name_their_owners_and_mark_their_slots(tree):
    first, second = finding(tree).one("ul", "blocks").all("li")
    assert first.one("span").text == "block 5: a, column 0; b, column 2"
    assert second.one("span").text == "block 1: nobody’s"
    assert [path["class"] for path in first.all("path", "cell")] == ["cell u", "cell n", "cell r"]
    assert "×" in [text.text for text in first.all("text")]
    assert not [path for path in second.all("path") if "r" in path.classes]


def test_the_weights_that_are_wrong_are_marked_with_their_numbers(tree):
    rows = finding(tree).all("table")[1].one("tbody").all("tr")
    told = [[row.one("th").text, *(cell.text for cell in row.all("td")[:2])] for row in rows]
    assert told == [["token 0", "1", "0.25 ×"], ["token 1", "0", "not finite ×"], ["token 2", "0.5", "0.5"]]
    assert [bool(row.all("td", "wrong")) for row in rows] == [True, True, False]
    (about,) = [p for p in finding(tree).all("p") if p.attributes.get("id") == "f1-weights"]
    assert "3 of 9 are shown" in about.text


def test_the_line_of_the_source_is_marked(tree):
    source = finding(tree).one("ol", "source")
    (marked,) = source.all("li", "marked")
    assert marked.text == f"38 a < b {EVIL}▲ dead read of k_cache".replace("38 a", "38 a")
    assert [item.one("span", "no").text for item in source.all("li")] == ["37", "38", "39"]


def test_a_finding_without_a_picture_has_no_drawings():
    told = finding(parse(of_campaign(SUMMARY, [Picture(notes=("it hangs",))])))
    assert not told.all("h4")
    assert not told.all("svg")
    assert "it hangs" in told.text


def test_other_sections_and_verdicts_can_be_shown_as_well():
    rows = [(True, ("NEW", "a.json", EVIL)), (False, ("KNOWN", "b.json", ""))]
    gate = page.table("Verdicts", ("verdict", "case", "why"), rows)
    told = page.findings([Exhibit(FOUND, PICTURE, "NEW: 3 of 20 on the change", more=(("base", "0 of 20"),))])
    seen = parse(render("Kvetch: the gate", "red", [gate, told]))
    assert [part["id"] for part in seen.all("section")] == ["verdicts", "findings"]
    assert [cell.text for cell in seen.all("section")[0].all("td", "wrong")] == ["NEW"]
    assert fact(finding(seen), "base") == "0 of 20"
    assert finding(seen).one("p", "verdict").text == "NEW: 3 of 20 on the change"


# --- safe, and for everybody -------------------------------------------------------------------------------------


def test_whatever_a_subject_says_is_escaped(html, tree):
    assert not tree.all("script")
    assert not tree.all("b")
    assert html.count("alert(") >= 8
    assert "<script" not in html
    assert f"a note {EVIL}" in finding(tree).text


def test_the_page_needs_nothing_from_elsewhere(html, tree):
    for node in tree.walk():
        assert node.tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image"}
        for name, value in node.attributes.items():
            assert name not in {"src", "srcset", "xlink:href", "style", "action", "data"}
            assert not name.startswith("on")
            assert name != "href" or value.startswith("#")
    style = tree.one("style").text
    assert not re.search(r"url\(|@import|@font-face|https?:|//", style)
    assert "http" not in html


def test_links_and_labels_point_to_what_is_there_and_no_name_is_given_twice(tree):
    names = [node["id"] for node in tree.walk() if "id" in node.attributes]
    assert len(names) == len(set(names))
    wanted = [node["href"].removeprefix("#") for node in tree.all("a")]
    wanted += [
        node[at] for node in tree.walk() for at in ("aria-labelledby", "aria-describedby") if at in node.attributes
    ]
    assert set(wanted) <= set(names)
    assert [link.text for link in tree.one("nav").all("a")] == [part.one("h2").text for part in tree.all("section")]


def test_headings_are_in_order_and_there_are_landmarks(tree):
    levels = [int(node.tag[1]) for node in tree.walk() if re.fullmatch(r"h[1-6]", node.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        tree.one(landmark)
    body = [node for node in tree.one("body").inside if isinstance(node, Node)]
    assert (body[0].tag, body[0]["href"], body[0].classes) == ("a", "#main", {"skip"})
    assert tree.one("main")["tabindex"] == "-1"
    assert tree.one("html")["lang"] == "en"


def test_tables_name_their_rows_and_columns(tree):
    for table in tree.all("table"):
        assert all(cell["scope"] == "col" for cell in table.one("thead").all("th"))
        assert all(cell["scope"] == "row" for cell in table.one("tbody").all("th"))
        columns = len(table.one("thead").all("th"))
        assert all(len(row.all("td")) + len(row.all("th")) == columns for row in table.one("tbody").all("tr"))


def test_drawings_have_a_name_and_a_description_or_are_hidden_from_screen_readers(tree):
    drawings = tree.all("svg")
    assert len(drawings) > 5
    for svg in drawings:
        if svg.attributes.get("aria-hidden") != "true":
            assert svg["role"] == "img"
            assert svg["aria-labelledby"] == svg.one("title")["id"]
            assert svg["aria-describedby"] == svg.one("desc")["id"]
            assert svg.one("desc").text


def test_wide_drawings_scroll_in_a_box_that_the_keyboard_reaches(tree):
    heats = [svg for svg in finding(tree).all("svg") if svg.all("text", "label")]
    assert heats
    for heat in heats:
        boxes = [box for box in tree.all("div", "scroll") if heat in box.all("svg")]
        assert [(box["tabindex"], box["role"], bool(box["aria-label"])) for box in boxes] == [("0", "region", True)]


# --- colours -----------------------------------------------------------------------------------------------------

#: Text on its ground: 4.5 to 1, WCAG 2.2 AA.
TEXTS = [
    *itertools.product(("ink", "soft", "link", "good", "bad"), ("paper", "raised")),
    ("ink", "mark"),
    *(("ink", ground) for ground in ("used", "new", "shared", "dead")),
    *(("on-mark", ground) for ground in ("read", "missed", "written")),
    *(("on-light", f"beyond-{level}") for level in "123"),
    *(("on-strong", f"beyond-{level}") for level in "4n"),
]
#: What must be seen though it is no text: 3 to 1.
SHAPES = [
    *((mark, "paper") for mark in ("read", "missed", "written", "rule", "link", "ink")),
    *((mark, ground) for mark in ("read", "missed", "written") for ground in ("used", "new", "shared", "dead")),
]


def colours(css: str) -> dict[str, dict[str, str]]:
    """The named colours by scheme."""
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in blocks)
    return {"light": light, "dark": light | dark}


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_wcag_says():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("pairs", "least"), [(TEXTS, 4.5), (SHAPES, 3.0)], ids=["texts", "shapes"])
def test_contrast_is_enough_in_both_schemes(scheme, pairs, least):
    named = colours((page.TEMPLATES / "style.css").read_text())[scheme]
    low = {pair: round(found, 2) for pair in pairs if (found := contrast(*(named[name] for name in pair))) < least}
    assert not low


def test_every_colour_is_a_named_one_and_every_class_of_a_drawing_has_its_fill():
    css = (page.TEMPLATES / "style.css").read_text()
    assert not re.findall(r"#[0-9a-f]{3,8}\b", re.sub(r":root \{.*?\}", "", css, flags=re.DOTALL))
    kinds = {*drawing.SLOTS, *drawing.MARKS, *(level[1] for level in drawing.LEVELS), drawing.NOT_FINITE[0]}
    assert f"svg .cell {{ fill: none; stroke-width: {drawing.SIDE}; }}" in css
    assert all(re.search(rf"svg \.{kind} \{{ stroke: ", css) for kind in kinds)


# --- size --------------------------------------------------------------------------------------------------------


def test_a_page_of_five_findings_with_the_largest_drawings_is_under_500_kb():
    size = blocks.MOST_SLOTS // blocks.MOST_BLOCKS
    block = Block(number=1, slots="un" * (size // 2), marks=" r" * (size // 2), owners=((0, 0),))
    entries = tuple(range(blocks.MOST_COLUMNS))
    rows = tuple(f"token {i}, head 0" for i in range(painting.MOST_ROWS))
    heat = Heat(
        name="out", rows=rows, margins=((1e9, 2.0) * 32,) * len(rows), wrong=1, elements=1, all_rows=99, dims=64
    )
    weight = Weight(place="slot 1 of block 0", true=0.123456, got=0.1)
    large = Picture(
        table=(TableRow(name="a: sequence 0", kv_len=500, padding=entries),) * blocks.MOST_ROWS,
        pool=Pool(num_blocks=64, blocks=(block,) * blocks.MOST_BLOCKS),
        heats=(heat, msgspec.structs.replace(heat, name="lse", margins=((1e9,),) * len(rows), dims=1)),
        weights=Weights(row="r", shown=(weight,) * painting.MOST_WEIGHTS, count=99),
        source=Source(file="f.py", first=1, lines=("    a = b" * 12,) * excerpt.MOST_LINES),
    )
    summary = Summary(subjects=("s",), findings=(FOUND,) * 5)
    assert len(of_campaign(summary, [large] * 5).encode()) < 500_000


# --- the commands ------------------------------------------------------------------------------------------------


def test_a_campaign_writes_its_page(commands, tmp_path):
    file = tmp_path / "page.html"
    result = commands.fuzz("wrong", tmp_path / "corpus", "--html", file, "--max-cases", 20, "--minutes", 5)
    assert result.exit_code == 1
    assert f"page: {file}" in " ".join(result.output.split())
    seen = parse(file.read_text())
    assert seen.one("header").one("p", "verdict").text == "1 new finding"
    assert finding(seen).all("svg")


def test_a_replay_writes_every_verdict_and_draws_what_fails(commands, tmp_path):
    case = Case(seqs=(Seq(kv_len=9),), num_q_heads=2, num_kv_heads=1)
    wrong, right, file = commands.subject("wrong"), commands.subject("right"), tmp_path / "page.html"
    path = Corpus(tmp_path).add(Entry(why="by hand", case=case, subject=wrong, executor="gridsim"))
    both = "--subject", wrong, "--subject", right
    assert commands("replay", path, *both, "--html", file).exit_code == 0
    seen = parse(file.read_text())
    assert [row.all("td")[0].text for row in seen.one("tbody").all("tr")] == ["DECLINED", "PASSED"]
    assert not seen.all("article")
    plain = Corpus(tmp_path).add(Entry(why="by hand", case=Case(), subject=wrong))
    assert commands("replay", path, plain, *both, "--html", file).exit_code == 1
    seen = parse(file.read_text())
    verdicts = seen.all("section")[0]
    assert [cell.text for cell in verdicts.all("td", "wrong")] == ["FAILED"]
    assert finding(seen).one("p", "verdict").text == "FAILED"
    assert "needs" not in [name.text for name in finding(seen).all("dt")]
    assert finding(seen).all("svg")


def test_cases_are_shown_on_a_page_with_why_they_are_kept(commands, tmp_path):
    entry = Entry(
        why=EVIL, case=Case(), subject=commands.subject("wrong"), executor="gridsim", date="2026-01-02", finding=FINDING
    )
    kept, bare, file = Corpus(tmp_path).add(entry), tmp_path / "bare.json", tmp_path / "page.html"
    bare.write_text(to_json(Case()))
    assert commands("show", kept, bare, "--html", file).exit_code == 0
    seen = parse(file.read_text())
    first, second = seen.all("article")
    assert [fact(first, "kept because"), fact(second, "kept because")] == [EVIL, "given by hand"]
    assert "Error against the bound" in first.text
    assert "Error against the bound" not in second.text
    assert second.all("ul", "blocks")
    assert "harness.replay" not in second.text


@pytest.mark.parametrize("verb", ["fuzz", "replay", "show"])
def test_a_place_where_no_page_can_be_written_is_told_before_anything_runs(commands, tmp_path, verb):
    bare = tmp_path / "bare.json"
    bare.write_text(to_json(Case()))
    arguments = () if verb == "fuzz" else (bare,)
    told = one_line(commands(verb, *arguments, "--html", bare / "page.html"))
    assert "--html is" in told
    assert "is no folder" in told
