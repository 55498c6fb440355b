"""The gate of one subject, on sides that answer as they are told to."""

import datetime
import itertools
from types import SimpleNamespace

import pytest

from harness.against import Against
from harness.campaign import Campaign, Plan
from harness.case import Case, Seq
from harness.gating import Gating, Task, Trial, gate_subject
from harness.known import Known
from harness.outcome import Tally, Verdict
from harness.results import Finding, Result
from harness.subjects import Declaration
from harness.summary import Found

WRONG, RAISES = Finding(kind="accuracy", message="out is 2"), Finding(kind="exception", message="no", detail="KeyError")
#: From one token to forty, every other one with two sequences.
CASES = [Case(seqs=(Seq(kv_len=n),) + ((Seq(kv_len=n, tag=1),) if n % 2 else ())) for n in range(1, 41)]


class Scripted:
    """A side whose subject fails as a function of the case and of how many processes there were before says."""

    def __init__(self, fails, control=lambda _: ()):
        self.fails, self.control = fails, control
        self.process = 0
        self.worker = SimpleNamespace(restarts=0, failing_probes=list)

    def run(self, case, subject, limit_seconds, fresh=False, **options):
        self.process += fresh
        found = self.control(case) if subject != "mine.py:f" else self.fails(case, self.process)
        plain = {"case": case, "subject": subject, "executor": "gridsim", "bits": "x", "errors": (0.2, 0.5, 0.6)}
        return found if isinstance(found, Result) else Result(**plain, findings=tuple(found))


def right(case, process):
    return ()


def long(finding=WRONG):
    return lambda case, process: (finding,) if case.seqs[0].kv_len > 20 else ()


def both(*parts):
    return lambda case, process: tuple(itertools.chain.from_iterable(part(case, process) for part in parts))


def two(case, process):
    return (RAISES,) if len(case.seqs) > 1 else ()


def now_and_then(case, process):
    return (WRONG,) if process % 7 == 0 else ()


def gated(change, base=right, seconds=60.0, known=(), **control):
    task = Task("mine.py:f", Declaration(), [Trial(case) for case in CASES], seconds, known)
    sides = Scripted(change, **control), None if base is None else Scripted(base)
    return gate_subject(task, *sides, "gridsim", lambda *_: None)[0]


def words(outcome):
    return [verdict.word for verdict in outcome.verdicts]


def test_a_right_change_has_no_verdicts_and_every_case_is_run():
    outcome = gated(right)
    assert (words(outcome), outcome.asked, outcome.ran, outcome.judged) == ([], 40, 40, 40)


def test_a_fault_of_the_change_is_shrunk_and_confirmed_in_twenty_processes_on_both_sides():
    (verdict,) = gated(long()).verdicts
    assert (verdict.word, verdict.change, verdict.base) == ("NEW", Tally(failed=20, runs=20), Tally(failed=0, runs=20))
    assert [seq.kv_len for seq in verdict.found.case.seqs] == [21]
    assert verdict.found.met == 20


def test_a_fault_on_both_sides_is_pre_existing_and_a_new_one_beside_it_is_new():
    assert words(gated(long(), long())) == ["PRE-EXISTING"]
    outcome = gated(both(long(), two), long())
    assert words(outcome) == ["NEW", "PRE-EXISTING"]
    assert outcome.verdicts[0].found.finding == RAISES


def test_two_families_are_two_findings():
    """Long cases are wrong, short ones raise, and both shrink: to 21 tokens, and to a single one."""
    outcome = gated(lambda case, process: (WRONG,) if case.seqs[0].kv_len > 20 else (RAISES,))
    assert words(outcome) == ["NEW", "NEW"]
    told = {verdict.found.finding.kind: verdict.found.case.seqs[0].kv_len for verdict in outcome.verdicts}
    assert told == {"exception": 1, "accuracy": 21}


def test_two_families_with_one_smallest_case_are_told_apart():
    gating = Gating("mine.py:f", Campaign(Plan({}, "gridsim", 60.0), Against("mine.py:f", Scripted(right), None)), None)
    for finding in (WRONG, RAISES):
        found = Found(subject="mine.py:f", case=CASES[0], finding=finding)
        gating.campaign.findings.append(found)
        gating.own[CASES[0], finding.family] = Verdict(word="NEW", found=found)
    assert [verdict.found.finding for verdict in gating.verdicts()] == [WRONG, RAISES]


def test_shrinking_does_not_slip_to_a_fault_of_the_base():
    """The base is wrong up to 10 tokens, the change up to 20: the smallest case that is its own has 11."""
    up_to = lambda most: lambda case, process: (WRONG,) if case.seqs[0].kv_len <= most else ()  # noqa: E731
    outcome = gated(up_to(20), up_to(10))
    assert words(outcome) == ["NEW", "PRE-EXISTING"]
    assert outcome.verdicts[0].found.case.seqs[0].kv_len == 11


def test_what_fails_now_and_then_on_the_change_only_is_one_finding_with_its_counts():
    (verdict,) = gated(now_and_then).verdicts
    assert verdict.word == "FLAKY ON THE CHANGE"
    assert 0 < verdict.change.failed < 5
    assert verdict.base.failed == 0
    assert verdict.base.runs >= 43


def test_what_is_flaky_on_both_sides_hides_no_steady_fault_of_its_family():
    racing = both(now_and_then, long())
    outcome = gated(racing, lambda case, process: (WRONG,) if process % 7 == 2 else ())
    assert set(words(outcome)) == {"NEW", "FLAKY ON BOTH"}
    assert outcome.verdicts[0].found.case.seqs[0].kv_len > 20


def test_what_is_not_seen_again_does_not_fail():
    assert words(gated(lambda case, process: (WRONG,) if process == 0 else ())) == ["NOT SEEN AGAIN"]


def test_a_platform_fault_is_told_apart_case_by_case():
    """The known-good kernel is wrong with one sequence only: with two, the subject is to blame."""
    wrong = lambda case, process: (WRONG,)  # noqa: E731
    outcome = gated(wrong, control=lambda case: (WRONG,) if len(case.seqs) == 1 else ())
    assert sorted(words(outcome)) == ["NEW", "PLATFORM"]
    assert words(gated(wrong, control=lambda case: (WRONG,))) == ["PLATFORM"]


def test_a_tolerated_finding_is_known_on_either_side():
    entry = {"subject": "mine.py:f", "family": "wrong output", "reason": "being mended", "owner": "ana"}
    known = (Known(**entry, expires=datetime.date(2999, 12, 31)),)
    assert words(gated(long(), known=known)) == ["KNOWN"]
    assert words(gated(long(), long(), known=known)) == ["KNOWN"]


def test_without_a_base_every_finding_is_new():
    (verdict,) = gated(long(), None).verdicts
    assert (verdict.word, verdict.base) == ("NEW", None)


def test_where_the_base_declines_the_finding_is_new_and_says_so():
    def declines(case, process):
        return Result(case=case, subject="mine.py:f", executor="gridsim", declined="does not declare window")

    (verdict,) = gated(long(), declines).verdicts
    assert verdict.word == "NEW"
    assert verdict.note == "the base declines this case: does not declare window"


def test_a_fault_of_the_harness_ends_the_gate():
    def faulty(case, process):
        return Result(case=case, subject="mine.py:f", executor="gridsim", harness_fault="sdpa has 1")

    task = Task("mine.py:f", Declaration(), [Trial(case) for case in CASES], 60.0)
    outcome, _, faults = gate_subject(task, Scripted(faulty), Scripted(right), "gridsim", lambda *_: None)
    assert faults == ["sdpa has 1"]
    assert outcome.ran == 1
    task = Task("mine.py:f", Declaration(), [Trial(case) for case in CASES], 60.0)
    faults = gate_subject(task, Scripted(long()), Scripted(faulty), "gridsim", lambda *_: None)[2]
    assert faults == ["on the base: sdpa has 1"]


def test_when_the_time_is_over_the_rest_is_not_run():
    outcome = gated(right, seconds=0.0)
    assert (outcome.ran, outcome.cut) == (0, "cut at 0 of 40")


def test_the_outputs_of_both_sides_are_compared():
    (shift,) = gated(right).shifts
    assert (shift.configuration, shift.cases, shift.changed) == ("float32", 40, 0)


# --- the runner ---------------------------------------------------------------------------------------------------


@pytest.fixture
def against():
    return Against("mine.py:f", Scripted(both(long(), two)), Scripted(long()))


def test_what_is_left_of_a_result_is_the_changes_own(against):
    assert against.run(CASES[38], "mine.py:f", 1.0).findings == (RAISES,)
    assert against.run(CASES[39], "mine.py:f", 1.0).findings == ()


def test_a_control_is_not_held_against_the_base(against):
    against.change.control = lambda case: (WRONG,)
    assert against.run(CASES[39], "ours.decode", 1.0).findings == (WRONG,)


def test_a_meeting_is_taken_up_once(against):
    calls = []
    against.change.fails = lambda case, process: calls.append(case) or ()
    against.meet(CASES[0], 1.0)
    against.run(CASES[0], "mine.py:f", 1.0)
    assert len(calls) == 1
    against.run(CASES[0], "mine.py:f", 1.0)
    assert len(calls) == 2
