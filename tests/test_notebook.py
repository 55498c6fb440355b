"""The notebook in examples/ runs from top to bottom in a folder of its own, and prints what it is shown to print."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
FILE = ROOT / "examples" / "notebook.ipynb"


def outputs(notebook: nbformat.NotebookNode) -> list[str]:
    """What each cell of code prints."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.text for output in cell.outputs if output.name == "stdout") for cell in cells]


@pytest.fixture
def rerun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nbformat.NotebookNode:
    """The notebook after its cells ran."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    notebook = nbformat.read(FILE, as_version=4)
    for cell in notebook.cells:
        cell.update({"outputs": []} if cell.cell_type == "code" else {})
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    return notebook


def test_the_notebook_prints_what_it_is_shown_to_print(rerun: nbformat.NotebookNode) -> None:
    shown = nbformat.read(FILE, as_version=4)
    nbformat.validate(shown)
    assert outputs(rerun) == outputs(shown)
    assert "FINDING 1 (new): accuracy in decode, on gridsim" in outputs(shown)[1]
    assert "scores are summed at my_kernel.py:" in outputs(shown)[1]
    assert outputs(shown)[2] == "nothing to complain about in 60 cases\n"


def test_a_reader_needs_no_gpu_and_no_more_than_a_screen_or_two() -> None:
    text = FILE.read_text()
    assert 'executor=\\"gridsim\\"' in text
    assert len(text) < 10_000
