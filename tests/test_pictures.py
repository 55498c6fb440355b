"""How a worker is asked for pictures: whatever goes wrong on its side, the case is drawn and the reason is said."""

import pytest

from harness import pictures
from harness.case import Case, Seq
from harness.pictures import Picture, picture
from harness.results import Finding
from harness.summary import Found

LONG = Case(seqs=(Seq(kv_len=9),))


def found(commands, name, kind="accuracy"):
    return Found(subject=commands.subject(name), case=LONG, finding=Finding(kind=kind, message="m"))


def test_a_wrong_output_is_painted_in_a_worker(commands):
    seen = picture(commands.worker, found(commands, "wrong"))
    assert seen.heats[0].wrong == seen.heats[0].elements == 16
    assert seen.weights is None  # what is added is no V
    assert seen.pool.blocks[0].slots == "uuuuuuuun" + "d" * 7


def test_a_call_that_kills_the_worker_leaves_the_case_and_a_note(commands):
    seen = picture(commands.worker, found(commands, "dies"))
    assert seen.pool.num_blocks == 1
    (note,) = seen.notes
    assert note.startswith("one more call, which was to be drawn, failed: ")
    assert "SIGSEGV" in note


@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_what_hangs_or_crashes_is_not_called_again(commands, kind):
    seen = picture(commands.worker, found(commands, "sleeps", kind))
    assert (seen.pool.num_blocks, seen.heats, seen.notes) == (1, (), ())
    assert not (commands.folder / "asleep").exists()


def test_a_subject_that_is_not_there_leaves_the_case_and_a_note(commands):
    seen = picture(commands.worker, found(commands, "missing"))
    assert seen.pool is not None
    assert seen.notes[0].startswith("the call could not be drawn: subject ")
    assert "has no function 'missing'" in seen.notes[0]


def test_a_case_without_a_subject_is_laid_out(commands):
    nobody = Found(subject="", case=LONG, finding=Finding(kind="accuracy", message="m"))
    assert picture(commands.worker, nobody).pool.num_blocks == 1


def test_only_the_first_few_findings_are_drawn_and_the_others_say_so(commands, monkeypatch):
    monkeypatch.setattr(pictures, "MOST_PICTURES", 1)
    first, second = pictures.pictures(commands.worker, [found(commands, "wrong", "hang")] * 2)
    assert first.pool is not None
    assert second == Picture(notes=("of the findings, the first 1 are drawn",))


def test_an_interruption_leaves_words_for_what_is_not_drawn(commands, monkeypatch):
    asked = []

    def interrupted(worker, found):
        asked.append(found)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return Picture(notes=("drawn",))

    monkeypatch.setattr(pictures, "picture", interrupted)
    seen = pictures.pictures(commands.worker, [found(commands, "wrong")] * 3)
    assert [said for each in seen for said in each.notes] == ["drawn", *["interrupted before it was drawn"] * 2]
