"""Known findings: tolerated for a reason, by somebody, until a day."""

import datetime

import pytest

from harness.case import Case, InvalidCase
from harness.known import Known, expired, read, reason
from harness.results import Finding
from harness.summary import Found

TODAY = datetime.date.today()
DAY = datetime.timedelta(days=1)
FOUND = Found(
    subject="mine.py:f",
    case=Case(num_q_heads=2),
    finding=Finding(kind="not finite", message="out is nan"),
)


def known(**fields) -> Known:
    plain = {"subject": "mine.py:f", "family": "wrong output", "reason": "being mended", "owner": "ana"}
    return Known(**(plain | {"expires": TODAY + DAY} | fields))


def tolerates(platform="gridsim", **fields) -> bool:
    return reason((known(**fields),), FOUND, platform) == "being mended"


def test_an_entry_tolerates_its_own_subject_family_traits_and_platforms_only():
    assert tolerates()
    assert tolerates(traits=("GQA",), platforms=("gridsim", "sm90"))
    assert not tolerates(subject="theirs.py:f")
    assert not tolerates(family="hang")
    assert not tolerates(traits=("GQA", "float16"))
    assert not tolerates(platforms=("sm90",))


def test_an_entry_with_a_kind_or_a_line_tolerates_no_other():
    assert tolerates(kind="not finite")
    assert not tolerates(kind="accuracy")
    race = Finding(kind="race", message="race for out", line="mine.py:7")
    found = Found(subject="mine.py:f", case=Case(), finding=race)
    assert reason((known(family="race", line="mine.py:7"),), found, "gridsim")
    assert not reason((known(family="race", line="mine.py:8"),), found, "gridsim")


def test_a_subject_is_the_same_however_the_path_to_its_file_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tolerates(subject=str(tmp_path / "mine.py:f"))
    assert not tolerates(subject=str(tmp_path.parent / "mine.py:f"))


def test_an_entry_holds_to_the_end_of_its_day_and_is_told_after_it():
    assert tolerates(expires=TODAY)
    assert not tolerates(expires=TODAY - DAY)
    assert expired((known(expires=TODAY),), ["mine.py:f"]) == ()
    (line,) = expired((known(expires=TODAY - DAY),), ["mine.py:f"])
    assert line == f"wrong output of mine.py:f was tolerated until {TODAY - DAY} (being mended; ana)"
    assert expired((known(expires=TODAY - DAY),), ["theirs.py:f"]) == ()


def test_a_file_is_read_and_no_file_tolerates_nothing(tmp_path):
    path = tmp_path / "known.toml"
    assert read(path) == ()
    entry = 'subject = "s"\nfamily = "hang"\nreason = "slow"\nowner = "ana"\nexpires = 2999-01-01\ntraits = ["GQA"]\n'
    path.write_text(f"[[known]]\n{entry}")
    expected = known(subject="s", family="hang", reason="slow", expires=datetime.date(2999, 1, 1), traits=("GQA",))
    assert read(path) == (expected,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[known]\n", "line 1"),
        ('[[known]]\nsubject = "s"\n', "missing required field `family` - at `$.known[0]`"),
        ("[[knwon]]\n", "unknown field `knwon`"),
        ('[[known]]\nsubject = 3\nfamily = "hang"\n', "Expected `str`, got `int` - at `$.known[0].subject`"),
        ('[[known]]\nsubject="s"\nfamily="f"\nreason="r"\nowner="o"\nexpires="soon"\n', "at `$.known[0].expires`"),
        (
            '[[known]]\nsubject="s"\nfamily="f"\nreason="r"\nowner="o"\nexpires=2999-01-01\ntraits=["gqa"]\n',
            "traits holds 'gqa', but the traits are several sequences, ",
        ),
        ("\xff", "invalid start byte"),
    ],
)
def test_a_malformed_file_is_refused_in_one_line_with_file_and_field(tmp_path, text, told):
    path = tmp_path / "known.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidCase) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_trait_that_only_the_changed_case_of_a_law_has_counts():
    beyond = Finding(kind="race", message="race for out", beyond=("window",))
    found = Found(subject="mine.py:f", case=Case(causal=False), finding=beyond)
    entry = known(family="race", traits=("window", "not causal"))
    assert reason((entry,), found, "gridsim") == "being mended"
    without = Found(subject="mine.py:f", case=Case(causal=False), finding=Finding(kind="race", message="race for out"))
    assert not reason((entry,), without, "gridsim")
