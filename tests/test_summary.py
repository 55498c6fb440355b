"""Summaries: exit codes, and what adding up several workers keeps."""

import json

import msgspec
import pytest

from harness.case import Case
from harness.results import Finding
from harness.summary import Found, Summary, exit_code, merge, merge_findings, to_builtins

WRONG = Finding(kind="accuracy", message="out is 1, but should be 0")
CRASH = Finding(kind="crash", detail="SIGSEGV", message="The worker ended with SIGSEGV")


def found(*needs: str, finding=WRONG, **fields) -> Found:
    return Found(subject="mine", case=Case(), finding=finding, needs=needs, **fields)


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        (Summary(cases=3), 0),
        (Summary(cases=3, findings=(found(),)), 1),
        (Summary(cases=3, findings=(found(known="tolerated"),)), 0),
        (Summary(cases=3, findings=(found(),), harness_faults=("judge and witness disagree",)), 3),
        (Summary(), 5),
        (Summary(declined={"not built yet": 9}), 5),
    ],
)
def test_the_exit_code_follows_from_the_summary(summary, code):
    assert exit_code(summary) == code
    assert to_builtins(summary)["exit_code"] == code


def test_two_workers_add_up():
    a = Summary(
        cases=3,
        runs=6,
        seconds=2.0,
        passed={"mine": {1: 2, 4: 1}},
        declined={"far": 1},
        worst_margin=0.2,
        drawn={"op": {"decode": 3, "step": 0}},
    )
    b = Summary(
        cases=5,
        runs=9,
        seconds=3.0,
        passed={"mine": {1: 5}},
        declined={"far": 2},
        worst_margin=0.6,
        drawn={"op": {"decode": 5}, "heads": {"1/1": 5}},
    )
    whole = merge([a, b])
    assert (whole.cases, whole.runs, whole.seconds, whole.worst_margin) == (8, 15, 3.0, 0.6)
    assert whole.passed == {"mine": {1: 7, 4: 1}}
    assert whole.declined == {"far": 3}
    assert whole.drawn == {"op": {"decode": 8, "step": 0}, "heads": {"1/1": 5}}
    assert whole.cases_per_second == pytest.approx(8 / 3)


def test_merging_forgets_no_field():
    full = Summary(
        subjects=("mine",),
        executor="gridsim",
        platform="gridsim",
        seed=7,
        seconds=1.0,
        cases=1,
        runs=2,
        passed={"mine": {1: 1}},
        failed=1,
        declined={"far": 1},
        not_written={"theirs": "not written yet (theirs.py:7)"},
        not_drawn={"mine": ("sinks",)},
        drawn={"block_size": {"16": 1, "256": 0}},
        reached={"mine": {"decode.py:34 mask mixed": 1}},
        witnesses={"sdpa": {"agreed": 1}},
        findings=(found(),),
        worst_margin=0.5,
        worst_term="rounding",
        arithmetic={"mine": ("ieee",)},
        notes={"mine": ("slow",)},
        behaviours=4,
        last_new=0.5,
        restarts=1,
        compile_seconds=0.2,
        expired=("old",),
        harness_faults=("at fault",),
        interrupted=True,
    )
    plain = Summary()
    assert all(getattr(full, name) != getattr(plain, name) for name in Summary.__struct_fields__)
    assert merge([plain, full]) == msgspec.structs.replace(full, subjects=(), executor="", seed=0)
    assert merge([full, plain]) == full


def test_one_fault_that_two_workers_found_is_told_once_in_its_simplest_form():
    kept = merge_findings([found("GQA", "float16", met=2), found("GQA", met=3)])
    assert [(f.needs, f.met) for f in kept] == [(("GQA",), 5)]


def test_bits_that_moved_under_a_change_that_moves_numbers_are_the_same_fault():
    moved = Finding(kind="block order", message="16 of 16 moved")
    bits = Finding(kind="determinism", detail="block order", message="7 of 16 moved")
    kept = merge_findings([found(finding=moved), found("several blocks", finding=bits)])
    assert [(f.finding.kind, f.met) for f in kept] == [("block order", 2)]
    other = msgspec.structs.replace(bits, detail="not repeatable")
    assert len(merge_findings([found(finding=moved), found("several blocks", finding=other)])) == 2


def test_faults_of_another_family_subject_or_trait_stay_apart():
    other = msgspec.structs.replace(found(), subject="theirs")
    assert len(merge_findings([found("GQA"), found("float16"), found("GQA", finding=CRASH), other])) == 4


def test_a_summary_survives_the_line_that_carries_it_from_a_part_to_its_parent():
    summary = Summary(cases=2, passed={"mine": {1: 2}}, findings=(found("GQA", known="yes"),), declined={"far": 1})
    line = msgspec.json.encode({"summary": summary})
    assert msgspec.convert(json.loads(line)["summary"], Summary, str_keys=True) == summary


def test_json_shows_every_field_and_the_derived_figures():
    plain = to_builtins(Summary(cases=3, seconds=2.0))
    assert set(plain) == {*Summary.__struct_fields__, "cases_per_second", "exit_code"}
    assert plain["cases_per_second"] == 1.5
    json.dumps(plain)
