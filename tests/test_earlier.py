"""A fault that a subject carries from call to call is told with the call that must come first, and is its case then."""

from pathlib import Path
from typing import Any

from attending import lens
from hunting import changed

from harness import earlier, subjects
from harness.campaign import Campaign, Plan
from harness.case import Case, Hints, Seq, digest, from_json, replace, to_json
from harness.hunt import Hunt
from harness.mutants import plant
from harness.pipeline import run_case
from harness.pool import Worker
from harness.results import Finding, Result
from harness.subjects import declare

WRONG = Finding(kind="accuracy", message="out is 1, but should be 0")


class Keeping:
    """A subject that plans for the longest sequence of the first call in a process, and never again."""

    restarts = 0

    def __init__(self) -> None:
        self.planned = 0

    def run(self, case: Case, subject: str, limit_seconds: float, fresh: bool = False, **options: Any) -> Result:
        if fresh or case.before is not None:
            self.planned = 0
        findings: tuple[Finding, ...] = ()
        for call in filter(None, (case.before, case)):
            longest = max(seq.kv_len for seq in call.seqs)
            self.planned = self.planned or longest
            findings = (WRONG,) if longest > self.planned else ()
        return Result(case=case, subject=subject, executor="gridsim", findings=findings, runs=1)


def hunting(runner: Any) -> Hunt:
    return Hunt(Campaign(Plan({"mine": declare()}, "gridsim", 60.0), runner), "mine")


def test_what_an_earlier_call_left_behind_is_told_with_the_smallest_call_that_leaves_it() -> None:
    hunt = hunting(Keeping())
    assert [hunt.examine(Case(seqs=lens(n))) for n in (5, 40)] == ["", "wrong output"]
    (found,) = hunt.found()
    assert found.case == Case(seqs=lens(2), before=Case())
    assert found.again == "3 of 3"
    assert "a call before it" in found.needs


def test_where_no_earlier_call_shows_it_alone_the_report_says_that_a_process_of_its_own_does_not() -> None:
    class Worn(Keeping):
        """Is wrong from its fourth call on, whatever they were."""

        def run(self, case: Case, subject: str, limit_seconds: float, fresh: bool = False, **options: Any) -> Result:
            starts = fresh or case.before is not None
            self.planned = 0 if starts else self.planned + 1
            findings = (WRONG,) if self.planned > 3 else ()
            return Result(case=case, subject=subject, executor="gridsim", findings=findings, runs=1)

    hunt = hunting(Worn())
    for n in range(1, 6):
        hunt.examine(Case(seqs=lens(n)))
    (found,) = hunt.found()
    assert found.case.before is None
    assert found.again == "2 of 3, but not in a process of its own"


def test_what_fails_as_the_first_call_of_a_process_alone_is_made_smaller_in_processes_of_their_own() -> None:
    class Tuning(Keeping):
        """Is wrong in the first call of a process, and in none after it."""

        def run(self, case: Case, subject: str, limit_seconds: float, fresh: bool = False, **options: Any) -> Result:
            self.planned = 1 if fresh else self.planned + 1
            findings = (WRONG,) if self.planned == 1 else ()
            return Result(case=case, subject=subject, executor="gridsim", findings=findings, runs=1)

    hunt = hunting(Tuning())
    for n in (7, 8):
        hunt.examine(Case(seqs=lens(n, n)))
    (found,) = hunt.found()
    assert (found.case, found.again) == (Case(), "3 of 3, each in a process of its own")


def test_a_fault_that_needs_no_other_call_gets_none() -> None:
    class Wrong(Keeping):
        def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
            return Result(case=case, subject=subject, executor="gridsim", findings=(WRONG,), runs=1)

    hunt = hunting(Wrong())
    hunt.examine(Case(seqs=lens(7)))
    (found,) = hunt.found()
    assert (found.case, found.again) == (Case(), "3 of 3")


def test_what_comes_and_goes_is_not_laid_to_an_earlier_call() -> None:
    class Flaky(Keeping):
        """Is right in one of three fresh processes."""

        turn = 0

        def run(self, case: Case, subject: str, limit_seconds: float, fresh: bool = False, **options: Any) -> Result:
            self.turn += fresh
            findings = () if fresh and self.turn % 3 == 1 else (WRONG,)
            return Result(case=case, subject=subject, executor="gridsim", findings=findings, runs=1)

    hunt = hunting(Flaky())
    hunt.examine(Case(seqs=lens(7)))
    (found,) = hunt.found()
    assert (found.case.before, found.again) == (None, "2 of 3, but not in a process of its own")


def test_looking_for_the_earlier_call_ends_when_its_time_does(monkeypatch: Any) -> None:
    monkeypatch.setattr(earlier, "SECONDS", -1.0)
    hunt = hunting(Keeping())
    for n in (5, 40):
        hunt.examine(Case(seqs=lens(n)))
    (found,) = hunt.found()
    assert (found.case.before, found.again) == (None, "2 of 3, but not in a process of its own")


# --- in workers --------------------------------------------------------------------------------------------------

#: A grid that is planned by the first call alone.
PLANS_ONCE = changed(
    "extend.py",
    "[(row_tiles * num_splits, num_kv_heads, len(kv_lens))]",
    "[(GRIDS.setdefault(len(kv_lens), row_tiles) * num_splits, num_kv_heads, len(kv_lens))]",
    "extend",
)
LONG = Case(op="extend", seqs=(Seq(query_len=65, kv_len=65),))


def planning_once(folder: Path) -> str:
    name = plant(PLANS_ONCE, folder)
    kernel = folder / "extend.py"
    kernel.write_text(kernel.read_text() + "\n\nGRIDS = {}\n")
    return name


def test_a_call_before_it_runs_first_in_a_worker_that_has_seen_no_other(tmp_path: Path) -> None:
    subject = planning_once(tmp_path)
    with Worker("gridsim") as worker:
        assert worker.run(LONG, subject, 60.0).findings == ()
        after = worker.run(replace(LONG, before=Case(op="extend")), subject, 60.0)
        assert worker.run(LONG, subject, 60.0).findings != ()  # the grid of the call before it is still there
        assert worker.run(LONG, subject, 60.0, fresh=True).findings == ()
        assert worker.restarts == 0
    finding = after.headline
    assert finding is not None
    assert finding.kind == "unwritten output"
    assert finding.message.startswith("when another call came first in the same process, 16 of 1040 elements of out")
    assert finding.accuses.startswith("what the subject keeps from one call for the next")


def test_a_right_kernel_is_right_after_another_call() -> None:
    case = replace(LONG, before=Case(op="extend"))
    assert run_case(case, subjects.load("ours.extend", "extend"), "gridsim", thorough=True).findings == ()


def test_a_call_before_it_that_the_subject_does_not_take_declines_the_case() -> None:
    subject = subjects.Subject("mine", declare(op="decode", softcap=True), lambda inputs: inputs)
    case = Case(softcap=1.0, before=Case(sinks=True))
    assert subject.declines(case) == "the call before it: does not declare sinks"
    assert subject.declines(replace(case, before=Case(softcap=2.0))) is None


def test_a_case_with_a_call_before_it_survives_json() -> None:
    case = replace(LONG, before=Case(op="extend", scale=0.5))
    assert from_json(to_json(case)) == case
    assert digest(from_json(to_json(case))) == digest(case)
    assert "hints" not in to_json(replace(case, before=Case(op="extend", hints=Hints())))


def test_a_table_that_is_kept_is_laid_to_the_call_before_and_not_to_the_order_of_blocks() -> None:
    moved = Finding(kind="block order", message="16 elements moved")

    class KeepsTable(Keeping):
        """Reads the blocks of the first call in a process."""

        def run(self, case: Case, subject: str, limit_seconds: float, fresh: bool = False, **options: Any) -> Result:
            stale = case.before is not None and case.before.geometry_seed != case.geometry_seed
            findings = (WRONG,) if stale else (moved,)
            told = findings if subject == "mine" else ()
            return Result(case=case, subject=subject, executor="gridsim", findings=told, runs=1)

    hunt = hunting(KeepsTable())
    hunt.examine(Case())
    (found,) = hunt.found()
    assert found.finding.kind == "accuracy"
    assert found.case.before is not None


def test_an_order_of_blocks_that_is_wrong_in_one_call_gets_no_call_before_it() -> None:
    moved = Finding(kind="block order", message="16 elements moved")

    class InOrder(Keeping):
        def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
            told = (moved,) if subject == "mine" else ()
            return Result(case=case, subject=subject, executor="gridsim", findings=told, runs=1)

    hunt = hunting(InOrder())
    hunt.examine(Case())
    (found,) = hunt.found()
    assert (found.finding.kind, found.case.before) == ("block order", None)
