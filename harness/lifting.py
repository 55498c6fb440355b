"""Precision lifting: the numbers of a 16-bit case stored as float32, where no rounding hides a fault of structure."""

from dataclasses import dataclass
from functools import partial

import msgspec

from harness.checks import Run, base_findings
from harness.editing import caches, living, rewrite
from harness.inputs import Materials, materialise
from harness.laws import First, told
from harness.results import Finding
from harness.tensors import Array


@dataclass(frozen=True)
class Lifting:
    """The same case in float32, judged by the bound of float32."""

    name: str = "lifted to float32"
    says: str = "the same numbers were stored as float32"
    accuses: str = "what 16 bits hide"
    expect: str = "bound"
    requires: tuple[str, ...] = ("dtypes",)
    weight: int = 4

    def ask(self, first: First) -> list[Finding] | None:
        """What is wrong in float32; None where there is no such call."""
        materials = lifted(first)
        if materials is None:
            return None
        second = first.caller.again(materials)
        if second.failure is not None and second.failure.unsupported:
            return []
        bound = None if second.out is None else first.caller.bound(materials, second)
        run = Run(materials, second, bound, first.arithmetic)
        return [_renamed(found) for found in told(self.says, base_findings(run))]


def _renamed(found: Finding) -> Finding:
    return msgspec.structs.replace(found, kind="accuracy in float32") if found.kind == "accuracy" else found


def lifted(first: First) -> Materials | None:
    """The case's tensors in float32 with the numbers that the 16-bit ones hold: values may differ by type."""
    case = first.case
    if case.dtype == "float32" or case.op not in ("decode", "extend", "merge"):
        return None
    wide = first.changed(dtype="float32")
    if wide is None:
        return None
    names = ("state_outs",) if case.op == "merge" else ("q", *(caches(case) if case.kv_dtype == "same" else ()))
    names += ("k_new", "v_new") if case.new_kv == "dense" else ()
    materials = materialise(wide)
    for name in names:
        numbers = living(first.materials, name)
        rewrite(materials, name, partial(_instead, numbers))
    return materials


def _instead(numbers: Array, _: Array) -> Array:
    return numbers
