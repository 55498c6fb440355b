"""Chromium for the browser tests and the screenshots of docs: `python tests/browser/browsing.py PAGE.html FOLDER`."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Names under which systems keep it.
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1000, "height": 900}
#: File name, size of the window, scheme, and the element from which on it is shown.
SHOTS = (
    ("page-light.png", DESK | {"height": 1600}, "light", "#f1 h4"),
    ("page-dark.png", DESK | {"height": 1300}, "dark", "#findings"),
    ("page-phone.png", PHONE | {"height": 1500}, "light", "#f1 h4"),
)


def chromium() -> str | None:
    """Where the system's Chromium is."""
    return next((found for name in CHROMIUM if (found := shutil.which(name))), None)


def is_there() -> bool:
    """Whether a page can be looked at on this machine."""
    return find_spec("playwright") is not None and chromium() is not None


@contextmanager
def browser() -> Iterator[Any]:
    """A headless browser. Chromium refuses to be root inside its sandbox."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield started
        started.close()


def shoot(file: Path, folder: Path) -> None:
    """Write the screenshots of docs."""
    with browser() as started:
        for name, size, scheme, first in SHOTS:
            page = started.new_page(viewport=size, color_scheme=scheme)
            page.goto(file.resolve().as_uri())
            page.locator(first).first.evaluate("node => node.scrollIntoView()")
            page.screenshot(path=str(folder / name))
            page.close()


if __name__ == "__main__":
    shoot(Path(sys.argv[1]), Path(sys.argv[2]))
