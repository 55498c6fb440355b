"""docs/your-kernel.md: each mistake that it shows leads to its line in one run, with the very words that it quotes."""

from pathlib import Path

import pytest
from mistaken import blocks, change, mistaken, naive

ROOT = Path(__file__).parent.parent
PAGE, CHINESE = ((ROOT / "docs" / name).read_text() for name in ("your-kernel.md", "your-kernel.zh.md"))
MISTAKES = list(zip(blocks(PAGE, "diff"), blocks(PAGE, "text"), strict=True))
COMMAND = "--minutes 1 --max-cases 60 --seed 1"


def ran(commands, subject: str, corpus: Path):
    return commands("fuzz", *COMMAND.split(), "--subject", subject, "--corpus", corpus)


def test_the_page_shows_five_mistakes_and_the_command() -> None:
    assert len(MISTAKES) == 5
    assert f"    python -m harness.fuzz {COMMAND} --subject my_kernel.py:decode\n" in PAGE


@pytest.mark.parametrize("number", range(5))
def test_a_mistake_leads_to_its_line_with_the_quoted_words_in_one_run(commands, tmp_path: Path, number: int) -> None:
    diff, quoted = MISTAKES[number]
    old, new = change(diff)
    result = ran(commands, mistaken(tmp_path, old, new), tmp_path / "corpus")
    assert result.exit_code == 1
    told = result.stdout.replace(f"{tmp_path}/", "").splitlines()
    for line in quoted.splitlines():
        assert line in told, result.stdout
    text, place = naive(), naive().index(old)
    first, last = (text[:end].count("\n") + 1 for end in (place, place + len(old) - 1))
    near = [f"my_kernel.py:{n}" for n in range(first - 1, last + 3)]  # an offset is used two lines further on
    assert any(line in quoted for line in near), (near, quoted)


def test_the_kernel_without_a_mistake_is_complained_of_nowhere(commands, tmp_path: Path) -> None:
    result = ran(commands, mistaken(tmp_path, "acc = acc / ", "acc = acc / "), tmp_path / "corpus")
    assert result.exit_code == 0
    assert "no new findings" in result.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(5))
def test_a_mistake_takes_less_than_a_minute_in_a_process_of_its_own(commands, tmp_path: Path, number: int) -> None:
    subject = mistaken(tmp_path, *change(MISTAKES[number][0]))
    process = commands.popen("fuzz", *COMMAND.split(), "--subject", subject, "--corpus", tmp_path / "corpus")
    assert process.wait(timeout=60) == 1


def test_the_chinese_page_has_the_same_commands_changes_and_outputs() -> None:
    for language in ("diff", "text", "python"):
        assert blocks(CHINESE, language) == blocks(PAGE, language)
    commands = [line for line in PAGE.splitlines() if line.startswith("    python -m")]
    assert [line for line in CHINESE.splitlines() if line.startswith("    python -m")] == commands
    assert PAGE.count("\n## ") + 1 == CHINESE.count("\n## ")  # and a table of words


def test_the_words_of_the_other_rescale_are_those_that_are_said(commands, tmp_path: Path) -> None:
    words = "the normaliser is not rescaled when the maximum moves"
    subject = mistaken(tmp_path, "l = l * rescale + tl.sum(p)", "l = l + tl.sum(p)")
    told = ran(commands, subject, tmp_path / "corpus").stdout
    assert words in PAGE
    assert words in told
    assert "the normaliser is summed at my_kernel.py:53" in told
