"""What is installed of other projects: kept cases replayed, and a short campaign of each kernel that gridsim runs."""

import shutil
from pathlib import Path

import pytest
from invoked import ROOT, Commands

from harness.adapters import PROJECTS, adapters
from harness.corpus import Corpus
from harness.landscape import installed
from harness.subjects import SUBJECTS

pytestmark = pytest.mark.thirdparty

OTHERS = [name for name in installed() if name not in SUBJECTS]
KEPT = [path for path, entry in Corpus(ROOT / "corpus").entries() if entry.subject in OTHERS]


@pytest.mark.parametrize("project", ["vllm", "sglang", "flashinfer", "torch"])
def test_the_projects_that_have_wheels_are_installed(project: str) -> None:
    """Without this an environment that lacks them would pass."""
    if project in PROJECTS:
        assert all(adapter.project.installed for adapter in adapters(project).values())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_case_of_an_installed_kernel_shows_what_is_told_of_it(path: Path, commands: Commands) -> None:
    """A fault is tolerated by known.toml, a corner is declared; 5 is the exit code when all was declined."""
    result = commands("replay", path, "--corpus", ROOT / "corpus")
    assert result.exit_code in (0, 5), result.stdout


@pytest.mark.parametrize("subject", OTHERS)
def test_a_short_campaign_finds_nothing_that_is_not_told(subject: str, commands: Commands, tmp_path: Path) -> None:
    known = ROOT / "corpus" / "known.toml"
    if known.is_file():
        shutil.copy(known, tmp_path)
    result = commands("fuzz", "--subject", subject, "--max-cases", "12", "--seed", "1", "--corpus", tmp_path)
    assert result.exit_code == 0, result.stdout
