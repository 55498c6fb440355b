"""The two sides of a gate: each sees its own files, and the same harness."""

import os
import sys
from pathlib import Path

import pytest

from harness.folders import OTHER_KERNELS, PACKAGE
from harness.sides import Place, lone_harness, sides
from harness.subjects import WrongUse

OWN = """
import helper
from harness import subject

@subject(op="decode", head_dims=(helper.DIM,))
def f(inputs):
    pass
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A change and a base whose helpers differ; the base's lies in `src`."""
    for name, folder, dim in (("change", "", 16), ("base", "src", 32)):
        (tmp_path / name / folder).mkdir(parents=True)
        (tmp_path / name / "mine.py").write_text(OWN)
        (tmp_path / name / folder / "helper.py").write_text(f"DIM = {dim}\n")
    monkeypatch.chdir(tmp_path / "change")
    return Place("change", tmp_path / "change"), Place("base", tmp_path / "base")


def test_each_side_loads_its_own_files_and_declares_by_them(places):
    with sides(places, "gridsim", None, ("mine.py:f",)) as (change, base):
        assert change.describe("mine.py:f", "decode").head_dims == (16,)
        assert base.describe("mine.py:f", "decode").head_dims == (32,)
        assert base.strays(places[0]) == []
        assert [Path(stray).name for stray in change.strays(places[0])] == ["mine.py"]


def test_the_same_harness_judges_and_nothing_that_lies_beside_it_is_seen(places):
    with lone_harness() as judge:
        assert [path.name for path in judge.iterdir()] == [PACKAGE.name]
        home = places[1].home(judge, ("mine.py:f",))
        assert home.environ["PYTHONPATH"].split(os.pathsep)[:3] == [
            str(judge),
            str(places[1].root),
            f"{places[1].root}/src",
        ]
        assert OTHER_KERNELS not in home.environ
        assert places[1].home(judge, ("ours.decode",)).environ[OTHER_KERNELS] == str(places[1].root / "kernels")
    assert not judge.exists()


def test_a_folder_of_the_checkout_on_the_path_is_the_sides_own_and_another_stays(places, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("lib", str(places[0].root / "more"), str(tmp_path / "other"))))
    seen = places[1].home(tmp_path, ()).environ["PYTHONPATH"].split(os.pathsep)
    root = str(places[1].root)
    assert seen[-3:] == [f"{root}/lib", f"{root}/more", str(tmp_path / "other")]


def test_a_subject_is_there_when_its_file_names_it(places):
    change = places[0]
    assert change.has("mine.py:f")
    assert not change.has("mine.py:another")
    assert not change.has("gone.py:f")
    assert not change.has("ours.decode")
    (change.root / "kernels").mkdir()
    assert change.has("ours.decode")


def test_our_own_subjects_are_declared_by_the_side_that_declares_them(places):
    change = places[0]
    assert change.own_name("ours.decode") == "ours.decode"
    (change.root / "harness").mkdir()
    (change.root / "harness" / "ours.py").touch()
    assert change.own_name("ours.decode") == "harness/ours.py:decode"
    assert change.own_name("mine.py:f") == "mine.py:f"


def test_a_python_that_cannot_run_the_harness_is_told_in_one_line(places, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    told = "which cannot run the harness: ModuleNotFoundError: No module named '"
    with pytest.raises(WrongUse, match=told), sides((Place("base", places[1].root, str(python)),), "gridsim", None, ()):
        pass
