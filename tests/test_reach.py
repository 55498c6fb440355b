"""What a campaign reached in the source is counted, told in words, and steers the drawing."""

from typing import Any

import msgspec
from hypothesis import given, seed, settings

from benchmarks.steering import DOORS, Maze
from harness import reach
from harness.campaign import NEAR, Campaign, Plan
from harness.case import Case, Seq
from harness.profiles import Profile, whole_profile
from harness.results import Result
from harness.strategies import cases
from harness.subjects import declare

POSSIBLE = ("k.py:3 line run", "k.py:4 line run", "k.py:4 mask mixed", "k.py:7 branch taken", "k.py:7 branch passed")
SHORT, LONG = Case(), Case(seqs=(Seq(kv_len=40),))


def result(case: Case, *behaviours: str, **changes: Any) -> Result:
    return Result(case, "mine", "gridsim", behaviours=behaviours, possible=POSSIBLE, **changes)


def counted(*results: Result) -> reach.Row:
    table: dict[str, reach.Row] = {}
    for one in results:
        reach.count(table, one)
    return table["mine"]


def test_behaviours_are_counted_by_case_and_those_never_seen_show_as_0() -> None:
    row = counted(result(SHORT, "k.py:3 line run"), result(LONG, "k.py:3 line run", "k.py:7 branch taken"))
    assert row["k.py:3 line run"] == 2
    assert row["k.py:7 branch taken"] == 1
    assert row["k.py:7 branch passed"] == row["k.py:4 line run"] == 0


def test_what_never_happened_is_told_in_words() -> None:
    row = counted(result(SHORT, "k.py:3 line run", "k.py:4 line run", "k.py:7 branch taken"))
    assert list(reach.missing(row)) == [
        "line 4 of k.py was never run with a partly true mask",
        "the branch on line 7 of k.py was always taken",
    ]


def test_a_line_that_was_never_run_stands_for_all_that_is_on_it() -> None:
    row = counted(result(SHORT, "k.py:3 line run", "k.py:7 branch taken", "k.py:7 branch passed"))
    assert list(reach.missing(row)) == ["line 4 of k.py was never run"]


def test_masks_that_are_never_false_throughout_are_told_in_one_line_at_the_end() -> None:
    row = {"k.py:9 mask none": 0, "a.py:12 mask none": 0, "a.py:3 mask none": 0, "k.py:8 line run": 0}
    assert list(reach.missing(row)) == [
        "line 8 of k.py was never run",
        "masks never false throughout, which most cannot be: a.py:3, a.py:12, k.py:9",
    ]


def test_nothing_missing_says_nothing() -> None:
    assert list(reach.missing({"k.py:3 line run": 4})) == []


def test_the_tally_tells_lines_from_ways() -> None:
    row = counted(result(SHORT, "k.py:3 line run", "k.py:7 branch taken"))
    assert reach.tally(row) == "1 of 2 lines of its kernels were run, with 1 of 3 ways of masks, branches and loops"


def test_leads_are_the_latest_cases_of_the_rarest_behaviours() -> None:
    table: dict[str, dict[str, Case]] = {}
    common, rare = result(SHORT, "k.py:3 line run"), result(LONG, "k.py:3 line run", "k.py:7 branch taken")
    for one in (common, rare, common):
        reach.note(table, one)
    row = counted(common, rare, common)
    assert reach.leads(row, table["mine"]) == (LONG, SHORT)


def test_relatives_of_a_case_that_got_far_get_far_more_often_than_other_cases() -> None:
    lengths = (Seq(kv_len=17, tag=0), Seq(kv_len=5, tag=1), Seq(kv_len=70, tag=2))
    far = Case(seqs=lengths, table_pad="other", extra_columns=2, placement="interleaved")
    assert passed(far)
    profile = whole_profile(declare())
    relatives, others = drawn(msgspec.structs.replace(profile, near=(far,))), drawn(profile)
    assert sum(map(passed, relatives)) > len(relatives) / 10
    assert sum(map(passed, others)) < len(others) / 50


def test_a_campaign_draws_near_what_went_deepest() -> None:
    campaign = Campaign(Plan({"maze": declare()}, "gridsim", 600.0, seed=3, max_cases=150), Maze())
    campaign.run()
    row = campaign.reached["maze"]
    rarest = min((behaviour for behaviour, cases in row.items() if cases), key=lambda behaviour: row[behaviour])
    near = campaign.profile(1, NEAR).near
    assert campaign.latest["maze"][rarest] in near
    assert campaign.profile(1, 6).near == ()


def passed(case: Case) -> bool:
    return all(door(case) for door in DOORS)


def drawn(profile: Profile) -> list[Case]:
    found: list[Case] = []

    @seed(1)
    @settings(max_examples=200, database=None, deadline=None)
    @given(cases(profile))
    def keep(case: Case) -> None:
        found.append(case)

    keep()
    return found
