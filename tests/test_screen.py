"""The live screen: a panel in a terminal, plain lines elsewhere."""

import io

import pytest
from rich.console import Console

from harness import screen
from harness.case import Case
from harness.results import Finding
from harness.screen import Screen, write
from harness.summary import Found, Summary


def found(subject: str, *needs: str) -> Found:
    return Found(
        subject=subject, case=Case(), finding=Finding(kind="hang", message="out[0, 1] :two: [red]"), needs=needs
    )


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(screen, "PLAIN_EVERY", 0.0)
    monkeypatch.setattr(screen, "REFRESH", 10**6)


def shown(*summaries: Summary, **options) -> str:
    console = Console(file=io.StringIO(), width=100, **options)
    with Screen(console, 60.0) as shown_on:
        for summary in summaries:
            shown_on.show(lambda summary=summary: summary, "wrong output")
    return console.file.getvalue()


def test_without_a_terminal_there_are_plain_lines(at_once):
    text = shown(Summary(cases=3, seconds=2.0), Summary(cases=5, seconds=4.0))
    first, second = text.splitlines()
    assert first.startswith("2 s: 3 cases in 2 s (1.5 a second, 0 runs); worst margin 0.00 of the bound")
    assert second.endswith("; wrong output")
    assert "\x1b" not in text


def test_lines_are_told_every_few_seconds_only():
    assert shown(Summary(cases=3), Summary(cases=4)) == ""


def test_the_summary_is_not_even_made_when_nothing_is_drawn():
    with Screen(Console(file=io.StringIO()), 60.0) as quiet:
        quiet.show(lambda: pytest.fail("it was asked for"), "")


def test_each_finding_is_told_once_although_a_simpler_one_takes_the_first_place(at_once):
    a, b = found("a", "GQA"), found("b")
    text = shown(Summary(findings=(a,)), Summary(findings=(b, a)), Summary(findings=(b, a)))
    assert [line for line in text.splitlines() if line.startswith("FINDING")] == [
        "FINDING 1 (new): hang in a, on ",
        "FINDING 2 (new): hang in b, on ",
    ]


def test_names_are_printed_as_they_are_without_markup_or_emoji(at_once):
    console = Console(file=io.StringIO(), width=20)
    write(console, "kernels.py:two: is [bold]right[/bold] in more than twenty columns")
    assert console.file.getvalue() == "kernels.py:two: is [bold]right[/bold] in more than twenty columns\n"
    assert "out[0, 1] :two: [red]" in shown(Summary(findings=(found("x:two:"),)))


def test_in_a_terminal_a_panel_shows_what_matters(at_once, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    summary = Summary(
        subjects=("a[/b]:two:",), executor="gpu", cases=30, seconds=10.0, last_new=4.0, declined={"far": 7}
    )
    text = shown(summary, force_terminal=True, color_system="standard")
    for words in ("a[/b]:two: on gpu", "50 s", "30 (3.0 a second)", "6 s ago", "7 far", "shrinking: wrong output"):
        assert words in text
    assert "\x1b[1m" in text


def test_no_color_is_honoured(at_once, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(Summary(subjects=("a",)), force_terminal=True, color_system="standard")
    assert not any(f"\x1b[{code}m" in text for code in range(30, 38))
