"""A mix of recorded calls: written, read back, refused with the value and the place, and offered to a subject."""

import json

import pytest

from harness.case import Case, InvalidCase, Seq
from harness.corpus import Corpus, Entry
from harness.mix import DRAWN, PARTS, Mix, Share, drawable, mixed, near, read, to_json
from harness.scaling import elements
from harness.subjects import WrongUse, declare

SHORT, LONG = Case(seqs=(Seq(kv_len=5),)), Case(seqs=(Seq(kv_len=50),), softcap=30.0)
MIX = Mix(calls=(Share(case=LONG, seen=30), Share(case=SHORT, seen=10)), why="by hand")


def test_a_mix_is_read_as_it_was_written_a_line_a_call(tmp_path):
    path = tmp_path / "recorded.json"
    path.write_text(to_json(MIX))
    assert read(path) == MIX
    assert len(path.read_text().splitlines()) == 8


def test_a_folder_is_a_mix_of_its_entries_and_what_several_saw_is_added_up(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.add(Entry(why="recorded from f", case=SHORT, seen=3))
    corpus.add(Entry(why="recorded from g", case=SHORT, seen=4, subject="other.py:g"))
    corpus.add(Entry(why="recorded from f", case=LONG, seen=5))
    assert read(tmp_path).calls == (Share(case=SHORT, seen=7), Share(case=LONG, seen=5))
    assert mixed(corpus.entries(), "w").why == "w"


def spoilt(change):
    plain = json.loads(to_json(MIX))
    change(plain)
    return json.dumps(plain)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: p["calls"][0].update(seen="many"), 'Expected `int`, got `str` - at `$.calls[0].seen`, where "many"'),
        (lambda p: p["calls"][1].update(seen=0), "seen is 0, but should be at least 1 - at `$.calls[1].seen`"),
        (
            lambda p: p["calls"][0]["case"].update(head_dim=-3),
            "head_dim is -3, but should be at least 1 - at `$.calls[0]",
        ),
        (lambda p: p["calls"][0]["case"].update(head_dims=3), "unknown field `head_dims` - at `$.calls[0].case`"),
        (
            lambda p: p["calls"][0]["case"].update(layout="x"),
            "Invalid enum value 'x' - at `$.calls[0].case.layout`, where",
        ),
        (lambda p: p.update(schema=9), "schema is 9, but this version reads 1"),
        (lambda p: p.pop("calls"), "missing required field `calls`"),
    ],
)
def test_a_spoilt_file_is_refused_with_value_expectation_and_place(tmp_path, change, told):
    path = tmp_path / "recorded.json"
    path.write_text(spoilt(change))
    with pytest.raises(InvalidCase) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert told in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_what_is_no_mix_is_refused(tmp_path, text):
    path = tmp_path / "recorded.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(InvalidCase, match=r"recorded\.json: "):
        read(path)


def test_nothing_recorded_is_refused(tmp_path):
    with pytest.raises(WrongUse, match="there is no recorded call in it"):
        read(tmp_path)
    with pytest.raises(WrongUse, match="cannot be read: No such file"):
        read(tmp_path / "none.json")


def test_calls_are_offered_as_often_as_they_were_seen():
    cases, declined = drawable(MIX, declare(softcap=True))
    assert declined == {}
    assert [cases.count(case) for case in (LONG, SHORT)] == [2 * PARTS * 3 / 4, 2 * PARTS / 4]
    assert cases[0] == SHORT


def test_what_was_seen_once_in_a_million_is_offered_as_well():
    rare = Mix(calls=(Share(case=LONG, seen=10**6), Share(case=SHORT, seen=1)))
    assert SHORT in drawable(rare, declare(softcap=True))[0]


def test_a_subject_is_spared_what_it_declines_and_that_is_told():
    said = []
    half = declare(dtypes=("float16",))
    assert near(MIX, {"f": declare(), "g": half, "h": declare(softcap=True)}, said.append).keys() == {"f", "h"}
    assert said == [
        "profile: f takes 10 of 40 recorded calls",
        "profile: f declines 30: does not declare softcap",
        "profile: g takes 0 of 40 recorded calls",
        "profile: g declines 30: does not declare softcap",
        "profile: g declines 10: declares dtypes=('float16',)",
        "profile: h takes 40 of 40 recorded calls",
    ]
    with pytest.raises(WrongUse, match="profile has 2 recorded cases, but g declines all of them"):
        near(MIX, {"g": half}, said.append)


def test_a_subject_that_needs_finite_dead_slots_gets_them():
    cases, declined = drawable(MIX, declare(softcap=True, finite_dead_slots=True))
    assert declined == {}
    assert {case.k_poison for case in cases} == {"huge"}


def test_large_calls_are_offered_smaller_with_their_heads_and_with_their_tokens():
    server = Case(
        seqs=tuple(Seq(kv_len=8000 + i, tag=i) for i in range(64)), num_q_heads=32, num_kv_heads=8, head_dim=128
    )
    cases, _ = drawable(Mix(calls=(Share(case=server),)), declare())
    assert {(case.num_q_heads, case.num_kv_heads) for case in cases} == {(32, 8), (4, 1)}
    assert max(map(elements, cases)) <= DRAWN.elements
