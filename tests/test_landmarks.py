"""Landmarks are the lines of a kernel where the steps of attention stand; a sentence without them says no line."""

import pytest
from attending import right, torch_subject
from mistaken import ACC, SUM, line_of

from harness.case import Case
from harness.inputs import materialise
from harness.landmarks import MOST, WORDS, at, landmarks, told
from harness.pipeline import the_executor
from harness.subjects import Subject, load


def of(subject: Subject, op: str) -> dict[str, tuple[str, ...]]:
    return landmarks(the_executor("gridsim").observe(subject, materialise(Case(op=op))).ttir)


@pytest.mark.parametrize("op", ["decode", "extend"])
def test_each_step_of_a_starter_is_found_on_its_line(op):
    parts = {"table": "block = tl.load", "K": " k = tl.load", "V": " v = tl.load", "scores": "scores = tl.sum"}
    wanted = {step: (f"{op}.py:{line_of(part, op)}",) for step, part in parts.items()}
    wanted |= {"normaliser": (f"{op}.py:{line_of(SUM, op)}",), "output": (f"{op}.py:{line_of(ACC, op)}",)}
    assert of(load(f"harness/starters/{op}.py:{op}"), op) == wanted


def test_each_step_of_our_textbook_kernel_is_found_on_one_line():
    found = of(load("ours.decode"), "decode")
    assert set(found) == set(WORDS)
    assert all(len(lines) == 1 for lines in found.values()), found


@pytest.mark.parametrize("name", ["ours.split_decode", "ours.extend"])
def test_each_step_of_our_fast_kernels_is_found_in_the_tiles_that_they_share(name):
    found = of(load(name), name.removeprefix("ours.").removeprefix("split_"))
    assert set(found) == set(WORDS)
    assert all(0 < len(lines) <= MOST and lines[0].startswith("tile.py:") for lines in found.values()), found


def test_what_torch_computes_has_no_landmarks():
    assert not any(of(torch_subject(right), "decode").values())


def test_a_sentence_ends_with_the_lines_that_are_known_and_few():
    sentence = f"wrong{at('K', 'V')}"
    assert told(sentence, {}) == "wrong"
    assert told(sentence, {"V": ("a.py:7",)}) == "wrong; V is read at a.py:7"
    assert told(sentence, {"K": ("a.py:5", "a.py:6"), "V": ("a.py:7",) * 4}) == "wrong; K is read at a.py:5 and a.py:6"
