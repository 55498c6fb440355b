"""A Triton that gridsim was never tried with warns once; one that it does not fit is told in a sentence."""

from __future__ import annotations

import warnings

import pytest
import triton

from harness.executors import gridsim
from harness.executors.cpu import GridSim
from harness.executors.gridsim import launch
from harness.subjects import WrongUse


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.8.0", "3.9.0", "3.9.1+git1234"])
def test_a_version_that_was_tried_is_silent(monkeypatch, version):
    monkeypatch.setattr(triton, "__version__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gridsim.self_test() is None


@pytest.mark.parametrize("version", ["3.10.0", "4.0.0a1"])
def test_a_newer_version_is_one_line_of_warning(monkeypatch, version):
    monkeypatch.setattr(triton, "__version__", version)
    with pytest.warns(UserWarning, match=f"never tried with Triton {version}") as warned:
        assert gridsim.self_test() is None
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)


def test_an_older_version_is_a_sentence(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.5.1")
    assert gridsim.self_test() == "gridsim needs Triton 3.6 or newer, but this is 3.5.1"


def changed_hook(*given):
    raise TypeError("the hook has\nother arguments")


def test_a_hook_that_changed_is_a_sentence_and_stops_the_executor(monkeypatch, tmp_path):
    monkeypatch.setattr(triton, "__version__", "3.10.0")
    monkeypatch.setattr(launch, "execute", changed_hook)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        complaint = gridsim.self_test()
    assert complaint == "gridsim does not fit Triton 3.10.0: TypeError: the hook has"
    with pytest.raises(WrongUse, match="does not fit Triton"):
        GridSim()


def test_a_wrong_answer_is_a_sentence(monkeypatch):
    monkeypatch.setattr(launch, "execute", lambda *given: None)
    assert "expected [0.0, 2.0, 4.0, 6.0, 8.0, 0.0], got [0.0, 0.0" in gridsim.self_test()
