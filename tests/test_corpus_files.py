"""The corpus: one readable file per case, whole or not there."""

import json

import pytest

from harness.case import Case, InvalidCase, Seq, digest, to_json
from harness.corpus import Corpus, Entry, read
from harness.files import write_atomically
from harness.results import Finding
from harness.summary import Found

CASE = Case(seqs=(Seq(kv_len=17),), num_q_heads=2)
WRONG = Finding(kind="accuracy", message="out is 1, but should be 0 ± 0.1", where=(0, 0, 1, 3), times_bound=9.5,
                explains=("token 3 has weight 0",))  # fmt: skip
FOUND = Found(subject="kernels/mine.py:f", case=CASE, finding=WRONG, executor="gridsim")


def test_a_finding_is_saved_with_why_what_for_whom_and_with_what(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/cache")
    path = Corpus(tmp_path).save(FOUND)
    entry = read(path)
    assert (entry.case, entry.finding, entry.subject, entry.executor) == (CASE, WRONG, FOUND.subject, "gridsim")
    assert entry.why == "wrong output of kernels/mine.py:f"
    assert {"python", "torch", "triton", "numpy"} <= set(entry.versions)
    assert entry.settings["TRITON_CACHE_DIR"] == "/cache"
    assert entry.date


def test_the_file_is_readable_and_named_by_subject_kind_and_content(tmp_path):
    path = Corpus(tmp_path).save(FOUND)
    assert path == tmp_path / "decode" / f"mine-py-f-accuracy-{digest(CASE)}.json"
    assert '    "num_q_heads": 2' in path.read_text().splitlines()
    assert json.loads(path.read_text())["schema"] == 1


def test_saving_twice_is_a_no_op(tmp_path):
    first = Corpus(tmp_path).save(FOUND)
    first.write_text(first.read_text().replace("wrong output of", "by hand:"))
    assert Corpus(tmp_path).save(FOUND) == first
    assert read(first).why.startswith("by hand:")
    assert len(list(tmp_path.rglob("*"))) == 2


def test_the_same_case_of_another_subject_has_a_file_of_its_own(tmp_path):
    names = ("kernels/mine.py:f", "kernels/theirs.py:f", "elsewhere/mine.py:f")
    paths = {Corpus(tmp_path).save(Found(subject=name, case=CASE, finding=WRONG)) for name in names}
    assert sorted(read(path).subject for path in paths) == sorted(names)


def test_a_spoilt_file_does_not_lose_the_next_finding(tmp_path):
    spoilt = Corpus(tmp_path).save(FOUND)
    spoilt.write_text("{")
    path = Corpus(tmp_path).save(FOUND)
    assert path != spoilt
    assert read(path).case == CASE
    assert spoilt.read_text() == "{"


def test_entries_come_in_the_order_of_their_names(tmp_path):
    for kv_len in (5, 3, 4):
        Corpus(tmp_path).add(Entry(why="by hand", case=Case(seqs=(Seq(kv_len=kv_len),))))
    paths = [path for path, _ in Corpus(tmp_path).entries()]
    assert paths == sorted(paths)
    assert len(paths) == 3
    assert list(Corpus(tmp_path / "nothing").entries()) == []


def test_a_bare_case_can_be_read(tmp_path):
    path = tmp_path / "case.json"
    path.write_text(to_json(CASE))
    assert read(path) == Entry(why="given by hand", case=CASE)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: text[: len(text) // 2], "truncated"),
        (lambda text: text[:30], "truncated"),
        (lambda text: "", "truncated"),
        (lambda text: text.replace('"why"', '"whi"'), "unknown field `whi`"),
        (lambda text: text.replace('"case"', '"kase"'), "unknown field `kase`"),
        (lambda text: text.replace('"num_q_heads": 2', '"num_q_heads": "2"'), "Expected `int`, got `str` - at `$.case"),
        (lambda text: text.replace('"num_q_heads": 2', '"num_heads": 2'), "unknown field `num_heads` - at `$.case`"),
        (lambda text: text.replace('"num_q_heads": 2', '"num_kv_heads": 2'), "num_q_heads is 1, but should be"),
        (lambda text: text.replace("accuracy", "\xff"), "tf-8"),
        (lambda text: "[]", "Expected `object`, got `array`"),
    ],
)
def test_a_spoilt_file_is_refused_in_one_line_that_names_it(tmp_path, spoil, told):
    path = Corpus(tmp_path).save(FOUND)
    path.write_bytes(spoil(path.read_text(encoding="utf-8").replace("±", "+-")).encode("latin-1"))
    with pytest.raises(InvalidCase) as refused:
        list(Corpus(tmp_path).entries())
    assert str(refused.value).startswith(f"{path}: ")
    assert told.lower() in str(refused.value).lower()
    assert "\n" not in str(refused.value)


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half \udcff")
    assert list(tmp_path.iterdir()) == []
    write_atomically(path, "whole")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["whole"]
