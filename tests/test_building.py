"""The builds of a gate: what is the change's loss, and what is only not known."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import pytest

from harness.building import rebuilt
from harness.builds import Build
from harness.case import Case
from harness.pool import Died, HarnessFault
from harness.results import Finding
from harness.subjects import Declaration

FITS = Build("kernel", "a.py:3", "gfx942", "SIZE=16", ("case 0 launch 1",), shared=1024, registers=64)
TOO_LARGE = msgspec.structs.replace(FITS, outcome="does not fit", says="too much")
DIED = Died(Finding(kind="crash", message="the worker died: SIGABRT"))
FAULT = HarnessFault("Traceback\nImportError: no such name in this Triton")


@dataclass
class Told:
    """A side whose worker compiles to given builds, or raises."""

    builds: tuple[Build, ...] = ()
    raised: tuple[str, ...] = ()
    collecting: Exception | None = None
    compiling: Exception | None = None
    place: object = field(default_factory=lambda: SimpleNamespace(own_name=lambda subject: subject))

    @property
    def worker(self) -> "Told":
        return self

    def call(self, target, *arguments, limit_seconds):
        fault = self.collecting if target.endswith("collect") else self.compiling
        if fault:
            raise fault
        plain = msgspec.to_builtins(self.builds)
        return {"builds": plain, "raised": self.raised} if target.endswith("collect") else plain


def found(change, base):
    return rebuilt("mine.py:f", Declaration(), {0: Case()}, 7, change, base)


def test_what_no_longer_fits_is_lost_and_what_never_did_is_not():
    lost = found(Told((TOO_LARGE,)), Told((FITS,)))
    assert [worse.kind for worse in lost.lost] == ["no longer fits"]
    assert (lost.counts, lost.seed, lost.missing) == ("1 do not fit", 7, "")
    assert found(Told((TOO_LARGE,)), Told((TOO_LARGE,))).worse == ()
    assert found(Told((FITS,)), Told((TOO_LARGE,))).worse == ()


def test_more_registers_are_told_and_nothing_is_lost():
    seen = found(Told((msgspec.structs.replace(FITS, registers=128),)), Told((FITS,)))
    assert [worse.kind for worse in seen.worse] == ["more registers"]
    assert seen.lost == ()


def test_a_subject_that_the_base_does_not_have_must_fit():
    assert [worse.kind for worse in found(Told((TOO_LARGE,)), None).lost] == ["does not fit"]
    assert found(Told((FITS,)), None).worse == ()


@pytest.mark.parametrize("broken", [{"collecting": DIED}, {"compiling": DIED}, {"collecting": FAULT}])
def test_a_base_that_cannot_be_compiled_is_told_and_compared_with_nothing(broken):
    seen = found(Told((TOO_LARGE,)), Told((FITS,), **broken))
    assert (seen.worse, seen.missing) == ((), "")
    (note,) = seen.notes
    assert note.startswith("not compared, for the base was not compiled: ")
    assert "SIGABRT" in note or note.endswith("ImportError: no such name in this Triton")


def test_a_change_that_cannot_be_compiled_is_no_loss_and_is_missing():
    seen = found(Told((FITS,), collecting=DIED), Told((FITS,)))
    assert (seen.worse, seen.missing) == ((), "not compiled: the worker died: SIGABRT")


def test_a_part_of_a_gate_without_a_case_to_compile_is_no_loss():
    seen = rebuilt("mine.py:f", Declaration(), {}, 7, Told(collecting=DIED), Told(collecting=DIED))
    assert (seen.worse, seen.missing, seen.notes) == ((), "", ("no case of this part is compiled",))


def test_what_was_not_seen_is_told():
    seen = found(Told((FITS,), raised=("case 0 raised ValueError: no",)), Told((FITS,), raised=("case 0 raised",)))
    assert [note.partition(" raised")[0] for note in seen.notes] == ["case 0", "on the base, case 0"]
