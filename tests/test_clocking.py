"""The speed of a gate: a slowdown counts when it is seen twice, and what the base cannot do is nobody's fault."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from harness.clocking import Runner, clocked
from harness.pool import HarnessFault
from harness.subjects import Declaration

DECODES = ["decode-1x8k-16", "decode-32x8k-64"]


@dataclass
class Told:
    """A side whose worker takes given milliseconds for a turn on a workload, or raises."""

    name: str
    milliseconds: object  # of the workload and the number of its preparations
    place: object = None
    prepared: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.place = SimpleNamespace(name=self.name, own_name=lambda subject: subject)

    @property
    def worker(self) -> "Told":
        return self

    def call(self, target, *arguments, limit_seconds):
        if target.endswith("prepare"):
            self.prepared.append(arguments[1])
            return "as a CUDA graph"
        workload = self.prepared[-1]
        return [self.milliseconds(workload, self.prepared.count(workload))]


def found(change, base, declared=None, before=None):
    declared = declared or Declaration()
    return clocked(
        "mine.py:f", Runner(Told("change", change), declared), Runner(Told("base", base), before or declared)
    )


def one(*_):
    return 1.0


def fails(workload, _):
    if workload == "decode-8x8k-16":
        raise HarnessFault("Traceback\nRuntimeError: out of memory")
    return 1.0


def test_every_workload_of_the_operation_is_timed_and_the_slower_ones_are_named():
    seen = found(lambda workload, _: 1.2 if workload in DECODES else 1.0, one)
    assert {compared.workload.partition("-")[0] for compared in seen.times} == {"decode"}
    assert sorted(compared.workload for compared in seen.slower) == DECODES
    assert all(compared.ratio == pytest.approx(1.2) for compared in seen.slower)
    assert (seen.notes, seen.missing) == ((), "")
    assert found(one, one).slower == ()


def test_what_is_slower_once_and_not_again_is_not_slower():
    seen = found(lambda workload, time: 1.2 if time == 1 else 1.0, one)
    assert seen.slower == ()
    assert len(seen.times) == 10


def test_what_the_base_cannot_do_is_told_and_what_only_the_change_cannot_do_is_missing():
    told = "mine.py:f cannot be timed on decode-8x8k-16: RuntimeError: out of memory"
    seen = found(one, fails)
    assert (seen.notes, seen.missing) == ((f"the base: {told}",), "")
    seen = found(fails, one)
    assert (seen.notes, seen.missing) == ((), f"the change: {told}")
    assert len(seen.times) == 9


def test_an_operation_without_workloads_is_told():
    seen = found(one, one, declared=Declaration(op="merge"))
    assert (seen.times, seen.notes, seen.missing) == ((), ("there is no named workload of merge",), "")


def test_what_a_side_declines_is_told_with_whose_it_is():
    seen = found(one, one, before=Declaration(block_sizes=(64,)))
    assert [compared.workload for compared in seen.times] == ["decode-32x8k-64", "decode-ragged-64"]
    assert "decode-1x8k-16 is not timed: the base: " in seen.notes[0]
