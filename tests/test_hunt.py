"""A hunt draws until something new fails, shrinks it, and says how surely it fails and what it needs."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from attending import lens

from harness import hunt
from harness.campaign import SHRINKING_LIMIT, Campaign, Plan
from harness.case import Case
from harness.hunt import ROUND, Hunt, Stop
from harness.profiles import Profile, profile
from harness.results import Finding, Result
from harness.subjects import declare
from harness.summary import Found

WRONG = Finding(kind="accuracy", message="out is 1, but should be 0")
NEAR = Profile(placements=("in_order",), max_kv_len=100)


class Runner:
    """Judges by a predicate, and remembers what it was shown."""

    restarts = 0

    def __init__(self, wrong: Callable[[Case], bool]) -> None:
        self.wrong, self.shown = wrong, []

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        self.shown.append((case, options))
        findings = (WRONG,) if subject == "mine" and self.wrong(case) else ()
        return Result(case=case, subject=subject, executor="gridsim", findings=findings, runs=1)


def hunted(wrong: Callable[[Case], bool], seconds: float = 60.0, **plan: Any) -> Hunt:
    return Hunt(Campaign(Plan({"mine": declare()}, "gridsim", seconds, **plan), Runner(wrong)), "mine")


def test_without_a_fault_a_round_ends_and_finds_nothing() -> None:
    hunting = hunted(lambda case: False)
    hunting.search(NEAR, 1)
    assert 10 < len(hunting.memo) <= ROUND
    assert list(hunting.found()) == []


def test_the_cases_of_a_round_are_drawn_afresh_and_do_not_copy_each_other() -> None:
    hunting = hunted(lambda case: False)
    hunting.search(msgspec.structs.replace(profile(declare(softcap=True, window=True), 1), near=()), 1)
    drawn = [case for case in hunting.memo if case != Case()]
    assert len({case.data_seed for case in drawn}) > 0.8 * len(drawn)
    assert max(Counter(case.values for case in drawn).values()) < 0.3 * len(drawn)


class Eager(Runner):
    """Begins a case before it is asked for the result, and notes both."""

    def __init__(self, wrong: Callable[[Case], bool]) -> None:
        super().__init__(wrong)
        self.noted: list[str] = []

    @contextmanager
    def begun(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Iterator[Callable[[], Result]]:
        self.noted.append("begun")
        yield lambda: self.run(case, subject, limit_seconds, **options)
        self.noted.append("ended")


def eager(wrong: Callable[[Case], bool], **plan: Any) -> tuple[Eager, Hunt]:
    runner = Eager(wrong)
    return runner, Hunt(Campaign(Plan({"mine": declare()}, "gridsim", 60.0, **plan), runner), "mine")


def test_each_case_runs_while_the_next_one_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, hunting = eager(lambda case: False)
    send = Hunt._send

    def noted(hunting: Hunt, round_seed: int, case: Case) -> None:
        runner.noted.append("drawn")
        send(hunting, round_seed, case)

    monkeypatch.setattr(Hunt, "_send", noted)
    hunting.search(NEAR, 1)
    one_by_one = [word for word in runner.noted if word != "drawn"]
    assert one_by_one == ["begun", "ended"] * (len(one_by_one) // 2)
    ends = [number for number, word in enumerate(runner.noted) if word == "ended"]
    assert {runner.noted[number - 1] for number in ends[:-1]} == {"drawn"}
    assert len(ends) == len(hunting.memo) == len(runner.shown)


def test_a_case_that_runs_ahead_is_shrunk_and_counted_as_any_other() -> None:
    def wrong(case: Case) -> bool:
        return any(seq.kv_len > 20 for seq in case.seqs) and case.group > 1

    (_, ahead), behind = eager(wrong), hunted(wrong)
    for hunting in (ahead, behind):
        hunting.search(NEAR, 1)
    assert [found.case for found in ahead.found()] == [found.case for found in behind.found()]
    assert ahead.memo.keys() == behind.memo.keys()
    assert ahead.after[0] == behind.after[0]


def test_no_more_cases_are_begun_than_the_campaign_may_have() -> None:
    runner, hunting = eager(lambda case: False, max_cases=7)
    assert hunting.campaign.run().cases == len(runner.shown) == runner.noted.count("begun") == 7


def test_a_case_in_flight_is_given_up_when_drawing_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, hunting = eager(lambda case: False)
    send, sent = Hunt._send, []

    def interrupted(hunting: Hunt, round_seed: int, case: Case) -> None:
        sent.append(case)
        if len(sent) == 3:
            raise KeyboardInterrupt
        send(hunting, round_seed, case)

    monkeypatch.setattr(Hunt, "_send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hunting.search(NEAR, 1)
    assert (hunting.flight, runner.noted[-2:], len(runner.shown)) == (None, ["begun", "ended"], 1)


def test_no_case_is_judged_twice() -> None:
    hunting = hunted(lambda case: False)
    assert [hunting.examine(Case()), hunting.examine(Case())] == ["", ""]
    assert len(hunting.campaign.runner.shown) == 1


def test_a_fault_is_shrunk_to_the_smallest_case_with_what_it_needs_and_run_again() -> None:
    hunting = hunted(lambda case: any(seq.kv_len > 20 for seq in case.seqs) and case.group > 1)
    hunting.search(NEAR, 1)
    (found,) = hunting.found()
    assert found.case == Case(seqs=lens(21), num_q_heads=2)
    assert set(found.needs) == {"several blocks", "GQA"}
    assert (found.again, found.finding, found.executor) == ("3 of 3", WRONG, "gridsim")
    assert found.met > 1
    assert found.executions == len(hunting.memo)


def test_a_campaign_that_does_not_shrink_ends_with_the_first_failure_as_it_was_met() -> None:
    runner = Runner(lambda case: case.group > 1)
    plan = Plan({"mine": declare()}, "gridsim", 60.0, stop_at_first=True, shrinks=False)
    summary = Campaign(plan, runner).run()
    (found,) = summary.findings
    assert [case for case, _ in runner.shown if case.group > 1] == [found.case]
    assert (found.again, found.after_cases, summary.cases) == ("", len(runner.shown), len(runner.shown))
    assert "GQA" in found.needs


def test_a_finding_says_after_how_many_cases_it_was_first_met() -> None:
    hunting = hunted(lambda case: case.group > 1)
    for case in (Case(), Case(seqs=lens(9)), Case(seqs=lens(9), num_q_heads=4), Case(num_q_heads=2)):
        hunting.examine(case)
    (found,) = hunting.found()
    assert (found.case, found.after_cases) == (Case(num_q_heads=2), 3)
    assert 0 <= found.after_seconds <= hunting.campaign.elapsed


def test_shrinking_may_take_a_grace_that_drawing_may_not() -> None:
    campaign = hunted(lambda case: False, seconds=1e-6, grace=60.0).campaign
    assert (campaign.over, campaign.out_of_time) == (True, False)
    campaign = hunted(lambda case: False, seconds=1e-6).campaign
    assert (campaign.over, campaign.out_of_time) == (True, True)


class ByItself(Runner):
    """Two tokens are wrong: by itself what the predicate names, by a relation the rest."""

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        finding = WRONG if self.wrong(case) else Finding(kind="block order", message="16 elements moved")
        found = (finding,) if subject == "mine" and case.seqs[0].kv_len > 1 else ()
        return Result(case=case, subject=subject, executor="gridsim", findings=found, runs=1)


def told_of(by_itself: Callable[[Case], bool], *met: Case) -> Found:
    hunting = Hunt(Campaign(Plan({"mine": declare()}, "gridsim", 60.0), ByItself(by_itself)), "mine")
    for case in met:
        hunting.examine(case)
    (found,) = hunting.found()
    return found


def test_a_case_that_is_wrong_by_itself_is_told_before_a_smaller_one_that_needs_a_second_run() -> None:
    met = (Case(seqs=lens(2)), Case(seqs=lens(33)))
    found = told_of(lambda case: any(seq.kv_len > 20 for seq in case.seqs), *met)
    assert (found.finding.kind, found.case.seqs) == ("accuracy", lens(21))


def test_one_that_is_met_while_another_is_shrunk_is_shrunk_from_there() -> None:
    found = told_of(lambda case: case.group == 1 and case.seqs[0].kv_len > 10, Case(seqs=lens(33), num_q_heads=4))
    assert (found.finding.kind, found.case) == ("accuracy", Case(seqs=lens(11)))


def test_a_case_that_only_a_second_run_shows_is_told_where_there_is_no_other() -> None:
    moved = Finding(kind="block order", message="16 elements moved")
    hunting = hunted(lambda case: False)
    hunting.campaign.runner.run = lambda case, *_, **__: Result(
        case=case, subject="mine", executor="gridsim", findings=(moved,)
    )
    hunting.examine(Case(seqs=lens(33)))
    (found,) = hunting.found()
    assert (found.finding, found.case) == (moved, Case())


class Limited(Runner):
    """Declines what no declaration says: one of softcap and sinks without the other."""

    def __init__(self, wrong: Callable[[Case], bool], alone: str) -> None:
        super().__init__(wrong)
        self.alone = alone

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        has = {"softcap": case.softcap > 0, "sinks": case.sinks}
        if has.pop(self.alone) and not all(has.values()):
            return Result(case=case, subject=subject, executor="gridsim", declined="only with the other")
        return super().run(case, subject, limit_seconds, **options)


@pytest.mark.parametrize(
    ("alone", "wrong", "needs"),
    [
        ("softcap", lambda case: case.softcap > 0, {"softcap"}),  # nothing was learnt about sinks
        ("sinks", lambda case: case.group > 1, {"GQA"}),  # softcap goes when the sinks are gone
        ("softcap", lambda case: case.softcap > 0 and case.group > 1, {"softcap", "GQA"}),
        ("sinks", lambda case: case.softcap > 0, {"softcap"}),
    ],
)
def test_a_trait_without_which_a_case_is_declined_is_no_need(
    alone: str, wrong: Callable[[Case], bool], needs: set[str]
) -> None:
    plan = Plan({"mine": declare(softcap=True, sinks=True)}, "gridsim", 60.0)
    hunting = Hunt(Campaign(plan, Limited(wrong, alone)), "mine")
    assert set(hunting._needs(Case(num_q_heads=2, softcap=1.0, sinks=True), "wrong output")) == needs


def test_what_a_known_finding_explains_is_not_hunted_again() -> None:
    first = hunted(lambda case: case.group > 1)
    first.search(NEAR, 1)
    first.campaign.findings = list(first.found())
    again = Hunt(first.campaign, "mine")
    assert again.examine(Case(num_q_heads=3)) == ""
    assert list(again.found()) == []


def test_a_fault_that_fails_now_and_then_says_how_often() -> None:
    turns = iter([True, False, True, *[False] * 500])
    hunting = hunted(lambda case: next(turns))
    assert hunting.examine(Case()) == "wrong output"
    (found,) = hunting.found()
    assert found.again == "1 of 3"


def test_confirming_asks_for_a_thorough_run() -> None:
    hunting = hunted(lambda case: True)
    hunting.examine(Case())
    list(hunting.found())
    options = [options for _, options in hunting.campaign.runner.shown[1:4]]
    assert options == [{"thorough": True}, {"thorough": True}, {"thorough": True, "fresh": True}]


class Explaining(Runner):
    """Has something to say of a case that it is asked to explain, or dies of being asked."""

    dies = False

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        result = super().run(case, subject, limit_seconds, **options)
        if not options.get("explain"):
            return result
        died = Finding(kind="crash", message="it died", detail="SIGSEGV")
        told = died if self.dies else msgspec.structs.replace(WRONG, explains=("token 3 has weight 0",))
        return msgspec.structs.replace(result, findings=(told,))


@pytest.mark.parametrize(("dies", "explains"), [(False, ("token 3 has weight 0",)), (True, ())])
def test_a_wrong_output_is_explained_once_on_its_smallest_case(dies: bool, explains: tuple[str, ...]) -> None:
    runner = Explaining(lambda case: True)
    runner.dies = dies
    hunting = Hunt(Campaign(Plan({"mine": declare()}, "gridsim", 60.0), runner), "mine")
    hunting.examine(Case(seqs=lens(9)))
    (found,) = hunting.found()
    assert (found.finding.kind, found.finding.explains) == ("accuracy", explains)
    assert [case for case, options in runner.shown if options.get("explain")] == [found.case]


def test_what_is_no_wrong_output_is_not_explained() -> None:
    hunting = hunted(lambda case: False)
    broken = Finding(kind="exception", message="KeyError", detail="KeyError k.py:3")
    hunting.campaign.runner.run = lambda case, *_, **options: Result(
        case=case, subject="mine", executor="gridsim", findings=() if options.get("explain") else (broken,)
    )
    hunting.examine(Case())
    (found,) = hunting.found()
    assert found.finding == broken


def test_when_the_time_is_over_nothing_more_is_judged() -> None:
    hunting = hunted(lambda case: False, seconds=0.0)
    with pytest.raises(Stop):
        hunting.examine(Case())
    with pytest.raises(Stop):
        hunting.search(NEAR, 1)
    assert hunting.campaign.runner.shown == []


def test_a_budget_of_cases_ends_the_drawing_but_not_the_shrinking() -> None:
    hunting = hunted(lambda case: case.seqs[0].kv_len > 2, max_cases=1)
    assert hunting.examine(Case(seqs=lens(9))) == "wrong output"
    assert hunting.campaign.over
    (found,) = hunting.found()
    assert found.case == Case(seqs=lens(3))


def test_shrinking_ends_when_its_patience_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "FINISH_SECONDS", 0.0)
    hunting = hunted(lambda case: True)
    hunting.patience = 0.0
    hunting.examine(Case(seqs=lens(9)))
    time.sleep(0.01)
    (found,) = hunting.found()
    assert found.case == Case(seqs=lens(9))


def test_each_try_of_shrinking_a_hang_is_waited_for_briefly() -> None:
    hang = Finding(kind="hang", message="no answer")
    limits: list[float] = []

    class Slow(Runner):
        def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
            limits.append(limit_seconds)
            findings = (hang,) if case.group > 1 else ()
            return Result(case=case, subject=subject, executor="gridsim", findings=findings, runs=1)

    hunting = Hunt(Campaign(Plan({"mine": declare()}, "gridsim", 60.0), Slow(lambda case: False)), "mine")
    hunting.search(NEAR, 1)
    drawn = len(limits)
    (found,) = hunting.found()
    assert found.case.num_q_heads == 2
    assert limits[drawn : drawn + 5] == [SHRINKING_LIMIT["gridsim"]] * 5
    assert hunting.campaign.shrinking == ""


class Dying:
    """Raises where exceptions are lost, as a callback of the garbage collector does."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


@pytest.mark.parametrize(("error", "told"), [(KeyboardInterrupt, []), (ValueError, [ValueError])])
def test_only_a_lost_ctrl_c_is_not_news(monkeypatch: Any, error: type[BaseException], told: list[Any]) -> None:
    heard: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda lost: heard.append(lost.exc_type))
    hunted(lambda case: False, max_cases=1).campaign.run(lambda: Dying(error) and None)
    assert heard == told
    heard.clear()
    Dying(error)
    assert heard == [error]
