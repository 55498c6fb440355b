"""The executors that need no GPU: gridsim, and Triton's interpreter as a witness."""

from dataclasses import replace

import torch

from harness.case import Case
from harness.executors import gridsim
from harness.executors.base import BadAccess, Failure, Observed, Placement, observe
from harness.inputs import Materials
from harness.subjects import Subject

torch.use_deterministic_algorithms(True)  # torch.empty then comes filled with NaN: an unwritten output shows


class GridSim:
    """Triton's IR on NumPy, all programs at once, every access checked."""

    name = "gridsim"
    platform = "gridsim"

    def declines(self, case: Case) -> str | None:  # noqa: ARG002  (every executor is asked)
        """gridsim declines only while running, by operation."""
        return None

    def observe(self, subject: Subject, materials: Materials) -> Observed:
        """Call the subject once under gridsim."""
        placement = Placement(materials, "cpu")
        memory = declared(materials, placement)
        with gridsim.active(memory) as trace:
            observed = _supported(subject, placement)
        return replace(
            observed,
            accesses=tuple(_bad_access(access) for access in memory.accesses),
            ttir=tuple(launch.ttir for launch in trace.launches),
            behaviours=trace.behaviours,
            log_is_complete=bool(trace.launches),
        )


def declared(materials: Materials, placement: Placement) -> gridsim.Memory:
    """Tell gridsim which elements are live."""
    memory = gridsim.Memory()
    for name, tensor in materials.inputs.tensors().items():
        state = None if name == "out" else tensor.storage.state
        memory.declare(getattr(placement.inputs, name), name=name, state=state)
    return memory


def _supported(subject: Subject, placement: Placement) -> Observed:
    refused: list[str] = []

    def run(inputs: object) -> object:
        try:
            return subject.run(inputs)
        except gridsim.Unsupported as error:
            refused.append(str(error))
            raise

    observed = observe(replace(subject, run=run), placement)
    if not refused:
        return observed
    return Observed(failure=Failure("Unsupported", refused[0], "", unsupported=True))


def _bad_access(access: gridsim.Access) -> BadAccess:
    return BadAccess(access.kind, access.tensor, access.index, access.program, access.line, access.count)


class Interpreter:
    """Triton's own interpreter: slow, and wrong in bfloat16, so it only bears witness in tests."""

    name = "interpreter"
    platform = "interpreter"

    def declines(self, case: Case) -> str | None:
        """Its bfloat16 arithmetic multiplies bit patterns; far memory would be read for real."""
        if case.dtype == "bfloat16":
            return "the interpreter is wrong in bfloat16"
        return "the interpreter would read far memory for real" if case.placement == "far" else None

    def observe(self, subject: Subject, materials: Materials) -> Observed:
        """Call the subject once; TRITON_INTERPRET was set before triton was imported."""
        return observe(subject, Placement(materials, "cpu"))
