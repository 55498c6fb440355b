"""What a change no longer tests, held against its base."""

import pytest

from harness import narrowing
from harness.case import Case, Seq, to_json
from harness.corpus import Corpus, Entry
from harness.fixed import fixed_cases
from harness.settings import Accepted, Settings
from harness.subjects import Declaration

WIDE = Declaration(window=True, lse=True, promises=("heads", "slots"), kv_dtypes=("same", "e4m3"))

NARROWER = {
    "window": False, "empty_rows": False, "deterministic": False, "finite_dead_slots": True, "padded_table": True,
    "promises": ("heads",), "kv_dtypes": ("same",), "dtypes": ("float16",), "max_kv_len": 100, "op": "extend",
    "arithmetic": {"divisions": 2},
}  # fmt: skip
WIDER = {
    "softcap": True, "batch_invariant": True, "promises": ("heads", "slots", "types"), "configs": 2,
    "kv_dtypes": ("same", "e4m3", "e5m2"), "max_kv_len": None,
}  # fmt: skip


@pytest.mark.parametrize("field", NARROWER)
def test_what_takes_or_promises_less_is_a_narrowing(field):
    assert narrowing.is_narrower(field, getattr(WIDE, field), NARROWER[field])


@pytest.mark.parametrize("field", WIDER)
def test_what_takes_or_promises_more_is_none_and_the_same_is_none(field):
    assert not narrowing.is_narrower(field, getattr(WIDE, field), WIDER[field])
    assert not narrowing.is_narrower(field, getattr(WIDE, field), getattr(WIDE, field))


def other(value):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return ("x",) if value in ((), None) else ()


def test_every_field_of_a_declaration_can_be_narrowed():
    plain = Declaration()
    for field in set(Declaration.__struct_fields__) - set(narrowing.TOLD):
        value = getattr(plain, field)
        changed = 7 if field == "max_kv_len" else other(value)
        ways = (value, changed), (changed, value)
        assert any(narrowing.is_narrower(field, *way) for way in ways), field


def test_other_words_about_a_subject_narrow_nothing():
    for field, words in (("about", "vllm 0.33.1"), ("not_drawn", ("trees",)), ("corners", {"lse": "base 2"})):
        assert not narrowing.is_narrower(field, getattr(Declaration(), field), words)
        assert not narrowing.is_narrower(field, words, getattr(Declaration(), field))


def test_a_narrowing_counts_the_cases_that_no_longer_run():
    before = Declaration()
    cases = fixed_cases(before, 1, 60)
    after = Declaration(dtypes=("float32",), deterministic=False)
    found = {one.field: one for one in narrowing.of_declaration("s", before, after, cases)}
    assert set(found) == {"dtypes", "deterministic"}
    assert found["dtypes"].cases == sum(case.dtype != "float32" for case in cases) > 0
    assert found["deterministic"].words.endswith("what it promised is no longer checked")


KNOWN = '[[known]]\nsubject="s"\nfamily="hang"\nreason="{}"\nowner="ana"\nexpires={}\n'


def test_a_new_and_a_longer_tolerance_are_narrowings_and_other_words_are_none(tmp_path):
    base, change = tmp_path / "a.toml", tmp_path / "b.toml"
    change.write_text(KNOWN.format("slow", "2999-01-01"))
    assert [one.field for one in narrowing.of_known(base, change)] == ["known hang"]
    base.write_text(KNOWN.format("slower", "2999-01-01"))
    assert not list(narrowing.of_known(base, change))
    change.write_text(KNOWN.format("slow", "2999-01-02"))
    assert len(list(narrowing.of_known(base, change))) == 1


def test_a_kept_case_may_be_renamed_but_not_changed_nor_deleted(tmp_path):
    base, change = Corpus(tmp_path / "a"), Corpus(tmp_path / "b")
    entry = Entry(why="w", case=Case(seqs=(Seq(kv_len=5),)), subject="s")
    name = base.add(entry).name
    (change.folder / "decode").mkdir(parents=True)
    (change.folder / "decode" / "renamed.json").write_text(to_json(entry))
    assert not list(narrowing.of_corpus(base.folder, change.folder))
    easier = Entry(why="w", case=Case(), subject="s")
    (change.folder / "decode" / "renamed.json").write_text(to_json(easier))
    (found,) = narrowing.of_corpus(base.folder, change.folder)
    assert (found.subject, found.field, found.cases) == ("s", f"corpus decode/{name}", 1)


def test_subjects_and_globs_that_are_gone_are_narrowings():
    was = Settings(subjects=("a", "b"), paths={"a": ("x.py", "y.py")})
    now = Settings(subjects=("a", "c"), paths={"a": ("x.py",)})
    assert [(one.subject, one.field) for one in narrowing.of_settings(was, now)] == [("b", "subjects"), ("a", "paths")]
    assert not list(narrowing.of_settings(now, now))


def test_an_acknowledgement_covers_its_subject_and_field_and_no_other():
    entry = Accepted(subject="s", field="corpus decode/*", reason="why")
    assert narrowing.reason_for((entry,), "s", "corpus decode/a.json") == "why"
    assert narrowing.reason_for((entry,), "t", "corpus decode/a.json") == ""
    assert narrowing.reason_for((entry,), "s", "dtypes") == ""


def test_settings_that_no_longer_compile_are_a_narrowing_and_those_that_now_do_are_none():
    asks, does_not = Settings(compile=True), Settings()
    assert [(lost.subject, lost.field) for lost in narrowing.of_settings(asks, does_not)] == [("*", "compile")]
    assert list(narrowing.of_settings(does_not, asks)) == list(narrowing.of_settings(asks, asks)) == []
