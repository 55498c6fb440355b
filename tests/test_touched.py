"""Which files a subject uses."""

from pathlib import Path

import pytest

from harness.case import InvalidCase
from harness.settings import Accepted, Settings, joined, read
from harness.touched import mapped, used

FILES = {
    "mine.py": "import beside\nfrom pack.inner import kernel\nimport torch\ndef f():\n    import lazy\n",
    "beside.py": "",
    "lazy.py": "import beside",
    "unused.py": "import beside",
    "pack/__init__.py": "",
    "pack/inner.py": "from . import cousin\nfrom .deep.down import thing\nfrom .. import nothing\n",
    "pack/cousin.py": "",
    "pack/deep/__init__.py": "",
    "pack/deep/down.py": "import laid_out\n",
    "src/laid_out/__init__.py": "from laid_out import table\n",
    "src/laid_out/table.py": "",
    "data/tuned.json": "{}",
    "data/deep/er.json": "{}",
    "broken.py": "def (",
}
ALL = set(FILES) - {"unused.py", "data/tuned.json", "data/deep/er.json", "broken.py"}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def names(paths):
    return {str(path) for path in paths}


def test_imports_are_followed_absolute_relative_lazy_and_below_src(root):
    assert names(used(root, "mine.py:f", Settings())) == ALL


def test_settings_name_what_is_not_imported_and_its_imports_are_followed_too(root):
    whole = Settings(paths={"mine.py:*": ("data/**/*.json",), "other.py:f": ("unused.py",)})
    assert names(used(root, "mine.py:f", whole)) == ALL | {"data/tuned.json", "data/deep/er.json"}
    lazy = Settings(paths={"unused.py:f": ("lazy.py",)})
    assert names(used(root, "unused.py:f", lazy)) == {"unused.py", "lazy.py", "beside.py"}


def test_a_file_that_is_broken_or_gone_is_no_error_here(root):
    assert names(used(root, "broken.py:f", Settings())) == {"broken.py"}
    assert used(root, "gone.py:f", Settings()) == set()


def test_a_circle_of_imports_ends(root):
    (root / "beside.py").write_text("import mine")
    assert names(used(root, "mine.py:f", Settings())) == ALL


def test_the_judge_is_no_part_of_our_own_subjects(root):
    (root / "harness").mkdir()
    (root / "harness" / "ours.py").write_text("from harness.folders import load\n")
    (root / "harness" / "folders.py").write_text("")
    whole = Settings(paths={"ours.decode": ("lazy.py",)})
    assert names(used(root, "ours.decode", whole)) == {"harness/ours.py", "lazy.py", "beside.py"}


def test_a_glob_matches_files_that_are_gone():
    paths = {Path("kernels/a.py"), Path("kernels/deep/b.py"), Path("docs/a.py")}
    assert mapped(paths, ("kernels/*.py",)) == {Path("kernels/a.py")}
    assert mapped(paths, ("kernels/**/*.py",)) == {Path("kernels/a.py"), Path("kernels/deep/b.py")}
    assert mapped(paths, ()) == set()


# --- the settings -------------------------------------------------------------------------------------------------

TEXT = 'subjects = ["a.py:f"]\n[{0}paths]\n"a.py:f" = ["b.py"]\n[[{0}accept]]\nsubject="s"\nfield="f"\nreason="r"\n'
READ = Settings(
    subjects=("a.py:f",), paths={"a.py:f": ("b.py",)}, accept=(Accepted(subject="s", field="f", reason="r"),)
)


def test_settings_are_read_from_either_file_and_are_bare_without_one(tmp_path):
    assert read(tmp_path) == Settings()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert read(tmp_path) == Settings()
    (tmp_path / "pyproject.toml").write_text("[tool.kvetch]\n" + TEXT.format("tool.kvetch."))
    assert read(tmp_path) == READ
    (tmp_path / "kvetch.toml").write_text("")
    assert read(tmp_path) == Settings()
    (tmp_path / "kvetch.toml").write_text(TEXT.format(""))
    assert read(tmp_path) == READ


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("subject = []", "unknown field `subject`"),
        ("subjects = 3", "Expected `array`, got `int` - at `$.subjects`"),
        ("[[accept]]\nsubject='s'\nfield='f'\n", "missing required field `reason`"),
        ("[", "Invalid"),
    ],
)
def test_bad_settings_are_told_with_file_and_field(tmp_path, text, told):
    (tmp_path / "kvetch.toml").write_text(text)
    with pytest.raises(InvalidCase) as refused:
        read(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/kvetch.toml: ")
    assert told in str(refused.value)


def test_what_a_change_takes_away_is_gated_all_the_same():
    whole = joined(
        Settings(subjects=("a", "b"), paths={"a": ("x",)}), Settings(subjects=("c", "b"), paths={"a": ("y",)})
    )
    assert (whole.subjects, whole.paths) == (("a", "b", "c"), {"a": ("x", "y")})
