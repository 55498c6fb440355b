"""The page in Chromium: it fits, it can be read in both schemes, and the keyboard gets everywhere; `tox -e browser`."""

import re
import subprocess
import sys

import browsing
import pytest

pytestmark = pytest.mark.browser
NAMES = ("campaign", "case")

#: For each text outside drawings, its contrast with what is behind it and its size; those below 4.5 to 1.
LOW_CONTRAST = """() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => { const [r, g, b] = parts(colour).slice(0, 3).map(x => x / 255)
    .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = node => { for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if ((parts(colour)[3] ?? 1) > 0) return colour; } return 'rgb(255, 255, 255)'; };
  const found = []; let count = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || node.closest('svg')) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
    count += 1;
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push([texts.currentNode.data.trim(), (a + 0.05) / (b + 0.05)]);
  }
  return [count, found];
}"""

#: Signs of drawings that leave the square in whose middle they stand, in pixels of the drawing.
ASTRAY = """() => {
  const found = []; let count = 0;
  for (const text of document.querySelectorAll('svg .glyph')) {
    const places = text.getAttribute('x').split(' ').map(Number);
    for (let i = 0; i < text.getNumberOfChars(); i += 1) {
      const box = text.getExtentOfChar(i); count += 1;
      if (box.x < places[i] - 8 || box.x + box.width > places[i] + 8) found.push([text.textContent[i], box.width]);
    }
  }
  return [count, found];
}"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [320, 360, 768, 1400])
def test_the_page_never_scrolls_sideways(look, name, width):
    page = look(name, width)
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("name", NAMES)
def test_with_letters_of_twice_the_size_it_fits_as_well(look, name):
    page = look(name, 640)
    page.evaluate("document.documentElement.style.fontSize = '200%'")
    assert page.evaluate("document.documentElement.scrollWidth") == 640


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast_in_both_schemes(look, name, scheme):
    page = look(name, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true })")
    count, low = page.evaluate(LOW_CONTRAST)
    assert count > 50
    assert low == []


def test_the_check_of_contrast_sees_what_is_too_pale(look):
    page = look("case")
    page.evaluate("document.querySelector('h1').style.color = '#999999'")
    assert [text for text, _ in page.evaluate(LOW_CONTRAST)[1]] == ["Kvetch: cases"]


def test_the_scheme_of_the_system_is_followed(look):
    ground = [
        look("case", scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert ground == ["rgb(255, 255, 255)", "rgb(21, 23, 26)"]


@pytest.mark.parametrize("name", NAMES)
def test_signs_stand_in_their_squares(look, name):
    count, astray = look(name).evaluate(ASTRAY)
    assert count > 10
    assert astray == []


def test_the_first_key_offers_to_skip_to_the_content(look):
    page = look("campaign")
    page.keyboard.press("Tab")
    link = page.locator(":focus")
    assert link.inner_text() == "Skip to the content"
    assert link.bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_reaches_everything_and_it_is_seen_where_it_is(look, name):
    page = look(name)
    wanted = page.locator("a[href], summary, .scroll").count()
    reached = set()
    for _ in range(wanted):
        page.keyboard.press("Tab")
        where = page.evaluate("""() => { const node = document.activeElement, style = getComputedStyle(node);
            return [[...document.querySelectorAll('*')].indexOf(node), node.tagName, style.outlineStyle,
                    parseFloat(style.outlineWidth)] }""")
        reached.add(where[0])
        assert where[2:] == ["solid", 3], where
    assert len(reached) == wanted


def test_what_is_folded_opens_by_the_keyboard(look):
    page = look("campaign")
    folded = page.locator("details").first
    folded.locator("summary").focus()
    page.keyboard.press("Enter")
    assert folded.evaluate("node => node.open")


def test_a_wide_drawing_scrolls_in_its_box_by_the_keyboard(look):
    page = look("case", 360)
    box = page.get_by_role("region", name=re.compile("Error of out"))
    assert box.evaluate("node => node.scrollWidth > 2 * node.clientWidth")
    box.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("node => node.scrollLeft > 50", arg=box.element_handle())


def test_drawings_and_tables_have_names_for_screen_readers(look):
    page = look("case")
    assert page.get_by_role("img", name="Block 2", exact=True).count() == 1
    assert page.get_by_role("img", name="Error of out in multiples of its bound").count() == 1
    assert page.get_by_role("rowheader", name="a: sequence 0").count() == 1
    assert page.get_by_role("columnheader", name="kv_len").count() == 1
    for landmark in ("banner", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1


def test_a_finding_is_told_and_drawn(look):
    page = look("campaign")
    told = page.get_by_role("article")
    assert told.count() == 1
    assert "behind the last token" in told.locator("ul.explained").inner_text()
    assert page.locator("ol.source li.marked").count() == 2
    assert "block_id" in page.locator("ol.source").inner_text()


def test_screenshots_can_be_taken(pages, tmp_path):
    done = subprocess.run(
        [sys.executable, browsing.__file__, pages["campaign"], tmp_path], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sizes = {name: (tmp_path / name).stat().st_size for name, *_ in browsing.SHOTS}
    assert all(10_000 < size < 250_000 for size in sizes.values()), sizes
