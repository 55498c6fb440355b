"""Folders beside the harness are found, and a file in them is loaded once, by path, under a private name."""

import sys
from pathlib import Path

import pytest

from harness import folders
from harness.folders import PACKAGE, folder, load, load_file


@pytest.mark.parametrize("name", ["kernels", "references", "corpus", "mutants"])
def test_in_a_checkout_the_folders_lie_beside_the_package(name: str) -> None:
    assert folder(name) == PACKAGE.parent / name
    assert folder(name).is_dir()


def test_in_a_wheel_they_lie_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PACKAGE", tmp_path / "harness")
    assert folder("kernels") == tmp_path / "kernels"
    (tmp_path / "harness" / "kernels").mkdir(parents=True)
    assert folder("kernels") == tmp_path / "harness" / "kernels"


def test_a_file_is_executed_once_under_its_private_name(tmp_path: Path) -> None:
    path = tmp_path / "a kernel.py"
    path.write_text("made = []")
    module = load_file(path, "kvetch_test_once")
    assert load_file(path, "kvetch_test_once") is module
    assert load_file(path, "kvetch_test_twice") is not module
    assert sys.modules["kvetch_test_once"] is module
    assert module.__file__ == str(path)


def test_a_file_that_raises_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise KeyError('no')")
    with pytest.raises(KeyError):
        load_file(path, "kvetch_test_broken")
    assert "kvetch_test_broken" not in sys.modules
    path.write_text("value = 3")
    assert load_file(path, "kvetch_test_broken").value == 3


def test_what_is_no_python_file_is_an_import_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "kernel.txt"
    path.write_text("")
    with pytest.raises(ImportError, match=r"kernel\.txt is not a Python file"):
        load_file(path, "kvetch_test_text")


def test_ours_are_loaded_by_folder_and_name_and_shadow_no_package() -> None:
    assert load("kernels", "decode").__name__ == "kvetch_kernels_decode"
    assert load("references", "float64") is load("references", "float64")
    assert not (folder("kernels") / "__init__.py").exists()


def test_a_file_imports_its_siblings_and_their_names_are_forgotten(tmp_path: Path) -> None:
    for folder_name, value in (("one", 1), ("two", 2)):
        (tmp_path / folder_name).mkdir()
        (tmp_path / folder_name / "kvetch_helper.py").write_text(f"value = {value}")
        (tmp_path / folder_name / "user.py").write_text("from kvetch_helper import value")
    assert load_file(tmp_path / "one" / "user.py", "kvetch_test_user_1").value == 1
    assert load_file(tmp_path / "two" / "user.py", "kvetch_test_user_2").value == 2
    assert "kvetch_helper" not in sys.modules
