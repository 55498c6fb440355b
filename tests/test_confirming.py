"""Whose a finding is: what the tallies of two sides say."""

import pytest

from harness.confirming import DOUBT, silent_runs, word
from harness.outcome import Gate, Gated, Narrowing, Shift, Tally, Verdict, bisect_code, exit_code


def of(failed: int, runs: int = 20) -> Tally:
    return Tally(failed=failed, runs=runs)


@pytest.mark.parametrize(
    ("change", "base", "said"),
    [
        (of(20), of(0), "NEW"),
        (of(20), None, "NEW"),
        (of(3), of(0, 43), "FLAKY ON THE CHANGE"),
        (of(3), None, "FLAKY ON THE CHANGE"),
        (of(20), of(20), "PRE-EXISTING"),
        (of(20), of(3), "NEW"),
        (of(20), of(14), "NEW"),
        (of(20), of(15), "FLAKY ON BOTH"),
        (of(3), of(20), "FLAKY ON BOTH"),
        (of(0), of(3), "FLAKY ON BOTH"),
        (of(0), of(0), "NOT SEEN AGAIN"),
        (of(0), None, "NOT SEEN AGAIN"),
    ],
)
def test_the_tallies_of_both_sides_give_the_verdict(change, base, said):
    assert word(change, base) == said


def test_the_base_is_asked_until_its_silence_says_something():
    assert silent_runs(of(20)) == 20
    assert silent_runs(of(3)) == 43
    for failed in range(1, 20):
        runs = silent_runs(of(failed))
        assert (1 - failed / 20) ** runs <= DOUBT
        assert runs == 20 or (1 - failed / 20) ** (runs - 1) > DOUBT


# --- the outcome --------------------------------------------------------------------------------------------------


def gate(found, *, accepted: str = "", **fields) -> Gate:
    verdicts = tuple(Verdict(word=said, found=found) for said in fields.pop("words", ()))
    narrowed = (Narrowing(subject="s", field="f", words="w", accepted=accepted),) if fields.pop("narrowed", 0) else ()
    counts = {"asked": 9, "ran": 9, "judged": 9} | fields
    return Gate(
        base="b", head="h", executor="e", gated=(Gated(subject="s", verdicts=verdicts, **counts),), narrowings=narrowed
    )


@pytest.fixture
def found():
    from harness.case import Case
    from harness.results import Finding
    from harness.summary import Found

    return Found(subject="s", case=Case(), finding=Finding(kind="accuracy", message="m"))


def test_only_what_is_new_and_what_is_not_acknowledged_is_red(found):
    green = ("PRE-EXISTING", "FLAKY ON BOTH", "NOT SEEN AGAIN", "PLATFORM", "KNOWN")
    assert exit_code(gate(found, words=green)) == 0
    for said in ("NEW", "FLAKY ON THE CHANGE"):
        assert exit_code(gate(found, words=(*green, said))) == 1
    assert exit_code(gate(found, narrowed=1)) == 1
    assert exit_code(gate(found, narrowed=1, accepted="meant")) == 0


def test_a_cut_and_nothing_that_ran_are_no_verdict_and_a_finding_is_one_all_the_same(found):
    assert exit_code(gate(found, ran=8)) == 5
    assert exit_code(gate(found, judged=0)) == 5
    assert exit_code(gate(found, ran=8, words=("NEW",))) == 1


def test_what_cannot_be_tested_is_skipped_by_bisect(found):
    assert [bisect_code(gate(found, **fields)) for fields in ({}, {"words": ("NEW",)}, {"ran": 8})] == [0, 1, 125]
    faulty = Gate(base="b", head="h", executor="e", harness_faults=("f",))
    assert (exit_code(faulty), bisect_code(faulty)) == (3, 125)


def test_a_loss_of_accuracy_is_red_until_acknowledged():
    moved = {"subject": "s", "configuration": "c", "cases": 9, "changed": 9, "errors_before": (), "errors_now": ()}
    for accepted, code in (("", 1), ("meant", 0)):
        shift = Shift(**moved, margin_before=0, margin_now=0, lost=True, accepted=accepted)
        part = Gated(subject="s", asked=9, ran=9, judged=9, shifts=(shift,))
        assert exit_code(Gate(base="b", head="h", executor="e", gated=(part,))) == code
