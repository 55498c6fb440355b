"""Sensitivity: an argument that changes the answer must move the output, or else it is accepted and ignored."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.bounds import Bound
from harness.case import FP8, Case
from harness.editing import rewrite
from harness.executors.base import Observed, same_bits
from harness.inputs import Materials, materialise
from harness.laws import First, beyond
from harness.operations import ATTENTION
from harness.results import Finding

Change = Callable[[First], Materials | None]


@dataclass(frozen=True)
class Sensitivity:
    """One argument and another value of it."""

    name: str
    argument: str
    change: Change
    expect: str = "moves"
    accuses: str = "the wrapper"
    requires: tuple[str, ...] = ()
    weight: int = 1

    @property
    def says(self) -> str:
        """What is changed."""
        return f"{self.argument} was changed"

    def ask(self, first: First) -> list[Finding] | None:
        """A finding where no bit moves though the truth does, by more than both bounds; None where it cannot be asked.

        A call that raises has not ignored its argument.
        """
        materials = self.change(first) if first.case.op in ATTENTION else None
        if materials is None:
            return None
        second = first.caller.again(materials)
        if second.out is None or _moved(first.run.observed, second):
            return []
        bound = first.caller.bound(materials, second)
        if bound is None or first.run.bound is None:
            return []
        return beyond(first, materials, self._ignored(first.run.bound, bound))

    def _ignored(self, before: Bound, after: Bound) -> list[Finding]:
        away, room = np.abs(after.truth - before.truth), before.out + after.out
        should = away > room
        if not should.any():
            return []
        message = (
            f"{self.says} and no bit of the output moved, though {int(should.sum())} of {should.size} "
            f"elements should, by up to {float(away.max()):.3g}: {self.argument} is accepted and ignored"
        )
        return [Finding(kind="ignored argument", detail=self.argument, message=message, accuses=self.accuses)]


def _moved(first: Observed, second: Observed) -> bool:
    return not same_bits(first.out, second.out)


def _field(name: str, value: Callable[[Case], object]) -> Change:
    def change(first: First) -> Materials | None:
        case = first.changed(**{name: value(first.case)})
        return None if case is None or case == first.case else materialise(case)

    return change


def _scaled(name: str) -> Change:
    def change(first: First) -> Materials | None:
        if first.case.cache_dtype not in FP8 or first.case.v_is_k_prefix or first.case.op == "step":
            return None
        materials = materialise(first.case)
        rewrite(materials, name, lambda x: 2 * x)
        return materials

    return change


def _window(case: Case) -> tuple[int, int]:
    return (max(seq.kv_len for seq in case.seqs) // 3, -1) if case.window == (-1, -1) else (-1, -1)


SENSITIVITIES = (
    Sensitivity("sensitive to window", "window", _field("window", _window)),
    Sensitivity("sensitive to softcap", "softcap", _field("softcap", lambda case: 0.0 if case.softcap else 0.5)),
    Sensitivity("sensitive to ALiBi", "alibi_slopes", _field("alibi", lambda case: not case.alibi)),
    Sensitivity("sensitive to sinks", "sinks", _field("sinks", lambda case: not case.sinks)),
    Sensitivity("sensitive to scale", "scale", _field("scale", lambda case: case.softmax_scale * 3)),
    Sensitivity("sensitive to causal", "causal", _field("causal", lambda case: not case.causal)),
    Sensitivity("sensitive to k_scale", "k_scale", _scaled("k_scale")),
    Sensitivity("sensitive to v_scale", "v_scale", _scaled("v_scale")),
)
