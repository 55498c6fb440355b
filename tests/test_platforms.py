"""Platforms: constants, what tables do to them, and what happens where nothing is known."""

import math

import numpy as np
import pytest

from harness import pipeline
from harness.case import Case, Seq
from harness.executors.gpu import nearest_platform
from harness.platforms import PLATFORMS, ROOM, corrected, judging, platform
from harness.report import summary_lines
from harness.results import Result
from harness.subjects import declare, from_function, load
from harness.summary import Summary
from harness.tables import Measured, Table

CASE = Case(seqs=(Seq(kv_len=20), Seq(kv_len=0, tag=1)))


def table(**found) -> list[tuple[str, Table]]:
    plain = {"probe": "p", "constant": "eps_exp", "shows": "exp2(1.5) is 3", "verdict": "FAILS", "measured": 1e-6}
    entry = Measured(**(plain | found))
    return [("sm90-mine", Table(platform="sm90", executor="gpu", probes=(entry,)))]


def test_a_constant_that_failed_is_replaced_by_the_measured_one_with_room_and_said_so():
    found = corrected("sm90", table())
    assert found.eps_exp == 1e-6 * ROOM
    assert found.notes == ("sm90-mine: eps_exp of sm90 is 1.25e-06 after a measurement, not 2.98e-07 (p)",)
    assert found.trusted


def test_a_constant_that_held_stays_as_it_is():
    for entry in ({"verdict": "holds", "measured": 1e-9}, {"verdict": "FAILS", "measured": 1e-9}):
        assert corrected("sm90", table(**entry)) == platform("sm90")


def test_a_table_never_makes_a_constant_narrower():
    assert corrected("sm90", table(constant="recomputes", measured=False)) == platform("sm90")
    assert corrected("sm90", table(constant="truncates_bf16", measured=True)).truncates_bf16
    assert corrected("sm90", table(constant="fp8_cast", measured="broken")).fp8_cast == "broken"


@pytest.mark.parametrize("entry", [{"constant": "cast to float16"}, {"measured": None}])
def test_a_failure_that_no_constant_describes_ends_the_trust(entry):
    found = corrected("sm90", table(**entry))
    assert not found.trusted
    assert found.notes == ("sm90-mine: p fails (exp2(1.5) is 3): accuracy is not judged on sm90",)


def test_a_table_makes_an_unknown_platform_known():
    assert corrected("sm120", table(verdict="holds")).trusted
    unknown = corrected("sm120", [])
    assert not unknown.trusted
    assert "there is no table of the platform sm120" in unknown.notes[0]


def test_the_committed_tables_leave_every_known_platform_trusted():
    assert all(judging(name).trusted for name in PLATFORMS)


def test_only_a_device_that_is_near_a_known_one_is_taken_for_it():
    capabilities = [(8, 0), (8, 6), (9, 0), (10, 0), (10, 3), (7, 5), (8, 9), (12, 0)]
    names = ["sm80", "sm80", "sm90", "sm100", "sm100", "sm75", "sm89", "sm120"]
    assert [nearest_platform(*capability) for capability in capabilities] == names


# --- a platform of which nothing is known -------------------------------------------------------------------------


@pytest.fixture
def unknown(monkeypatch):
    """gridsim, under a name that nobody knows."""
    monkeypatch.setattr(pipeline.the_executor("gridsim"), "platform", "sm120", raising=False)


def wrong(change):
    """A decode whose output is changed."""
    right = load("ours.decode").run

    def decode(inputs):
        out = right(inputs)
        change(out)
        return out

    decode.__kvetch__ = declare(op="decode")
    return from_function(decode)


def judged(subject) -> Result:
    return pipeline.run_case(CASE, subject, "gridsim", thorough=True)


def test_on_an_unknown_platform_an_inaccurate_output_is_no_finding_and_a_note_says_why(unknown):
    result = judged(wrong(lambda out: out.mul_(1.5)))
    assert not result.findings
    assert any("there is no table of the platform sm120" in note for note in result.notes)


def test_the_same_output_is_a_finding_where_the_platform_is_known():
    result = judged(wrong(lambda out: out.mul_(1.5)))
    assert [finding.kind for finding in result.findings] == ["accuracy"]
    assert not result.notes


@pytest.mark.parametrize(("value", "kind"), [(math.nan, "not finite"), (1.0, "accuracy")])
def test_what_must_be_exact_is_judged_on_an_unknown_platform_too(unknown, value, kind):
    """A row that sees no key is 0 to the bit, and no output is NaN."""
    result = judged(wrong(lambda out: out[1].fill_(value)))
    assert [finding.kind for finding in result.findings] == [kind]


def test_what_moves_without_a_reason_is_judged_on_an_unknown_platform_too(unknown):
    rng = np.random.default_rng(0)
    result = judged(wrong(lambda out: out.add_(float(rng.uniform(1e-3, 1)))))
    assert "not repeatable" in [finding.kind for finding in result.findings]


def test_a_right_kernel_has_no_finding_on_an_unknown_platform(unknown):
    assert not judged(load("ours.decode")).findings


def test_a_report_says_a_note_of_the_platform_once():
    note = corrected("sm120", []).notes[0]
    summary = Summary(subjects=("a", "b"), cases=2, notes={"a": (note,), "b": (note, "another")})
    text = "\n".join(summary_lines(summary))
    assert text.count(note) == 1
    assert "NOTE: another" in text
