"""Pages to look at: that of a campaign which finds a fault, and that of a case with wide drawings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import browser

from harness.case import Case, Seq
from harness.corpus import Corpus, Entry
from harness.results import Finding

ROOT = Path(__file__).parents[2]
WRONG = "examples/my_decode_wrong.py:my_decode_wrong"
#: Several sequences and heads, a shared block, an empty row, and finite numbers behind the last token.
WIDE = Case(
    seqs=(
        Seq(kv_len=37),
        Seq(kv_len=53, tag=1, shares_prefix_with=0, shared_blocks=1),
        Seq(kv_len=0, tag=2),
        Seq(kv_len=9, tag=3),
    ),
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=64,
    dtype="float16",
    placement="shuffled",
    spare_blocks=3,
    extra_columns=2,
    k_poison="zero",
    v_poison="zero",
    geometry_seed=4,
)


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Name of a page to its file, each written by the command that users run."""
    folder = tmp_path_factory.mktemp("pages")
    finding = Finding(kind="accuracy", message="out is 1, but should be 0", where=(1, 1, 2, 3))
    kept = Corpus(folder / "wide").add(Entry(why="wide", case=WIDE, subject=WRONG, finding=finding))
    campaign = ["fuzz", "--subject", WRONG, "--minutes", "5", "--max-cases", "60", "--seed", "3"]
    _write(folder / "campaign.html", 1, *campaign, "--corpus", str(folder / "corpus"))
    _write(folder / "case.html", 0, "show", str(kept))
    return {name: folder / f"{name}.html" for name in ("campaign", "case")}


def _write(file: Path, code: int, verb: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"harness.{verb}", *arguments, "--html", str(file)]
    env = os.environ | {"XDG_CACHE_HOME": str(file.parent / "cache")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests."""
    with browser() as started:
        yield started


@pytest.fixture
def look(chromium, pages):
    """Open a page in a window of a size and a colour scheme; it must not ask for anything, nor complain."""
    opened = []

    def open_page(name, width=1000, height=900, scheme="light"):
        page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        asked, said = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.goto(pages[name].as_uri())
        opened.append((page, pages[name].as_uri(), asked, said))
        return page

    yield open_page
    for page, url, asked, said in opened:
        page.close()
        assert asked == [url]
        assert said == []
