"""The real thing: a CUDA or ROCm device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from harness.case import Case
from harness.executors.base import Conditions, Observed, Placement, failure, observe
from harness.executors.tuning import tuned
from harness.inputs import Materials, far_bytes
from harness.subjects import Subject, WrongUse

#: Share of the free memory that one case may take.
SHARE_OF_FREE = 0.5


class Gpu:
    """The current device."""

    name = "gpu"

    def __init__(self) -> None:
        self.platform = _platform()

    def declines(self, case: Case) -> str | None:
        """Memory is real here."""
        if not case.is_far:
            return None
        wanted = far_bytes(case)
        if wanted > SHARE_OF_FREE * torch.cuda.mem_get_info()[0]:
            torch.cuda.empty_cache()  # what earlier cases took and nobody holds is free
        if wanted > SHARE_OF_FREE * torch.cuda.mem_get_info()[0]:
            return f"far blocks or rows need more than {SHARE_OF_FREE:.0%} of the device memory that is free"
        return None

    def under(self, conditions: Conditions) -> None:
        """A GPU runs programs in an order of its own."""

    def observe(self, subject: Subject, materials: Materials) -> Observed:
        """Call the subject once and wait for the device."""
        try:
            placement = Placement(materials, "cuda")
            with launches() as seen, tuned(materials.case.hints, subject.declaration.configs):
                observed = observe(_synchronised(subject), placement)
            if observed.failure is not None and _is_lost():
                return Observed(failure=replace(observed.failure, poisoned=True), ttir=tuple(seen))
            return replace(observed, ttir=tuple(seen))
        except torch.OutOfMemoryError as error:
            return Observed(failure=replace(failure(error), unsupported=True))
        except RuntimeError as error:
            return Observed(failure=replace(failure(error), poisoned=True))


def _is_lost() -> bool:
    """Whether the device answers no more: who met the fault, Triton's launcher say, may call it by another name."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _synchronised(subject: Subject) -> Subject:
    def run(inputs: Any) -> Any:
        returned = subject.run(inputs)
        torch.cuda.synchronize()
        return returned

    return replace(subject, run=run)


def _platform() -> str:
    if not torch.cuda.is_available():
        raise WrongUse(f"executor is 'gpu', but torch {torch.__version__} finds no GPU here")
    properties = torch.cuda.get_device_properties(0)
    if torch.version.hip:
        return str(properties.gcnArchName).partition(":")[0]
    return nearest_platform(properties.major, properties.minor)


def nearest_platform(major: int, minor: int) -> str:
    """The platform whose constants judge a CUDA device of this compute capability; its own name where none is near.

    8.9 has FP8 units, of which nothing is known here, and so is not taken for an 8.0.
    """
    near = {8: "sm80", 9: "sm90", 10: "sm100"}
    return f"sm{major}{minor}" if (major, minor) == (8, 9) else near.get(major, f"sm{major}{minor}")


@contextmanager
def launches() -> Iterator[list[str]]:
    """Collect the TTIR of every kernel launched inside."""
    seen: list[str] = []
    run = JITFunction.run

    def recording(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = run(self, *args, **kwargs)
        if compiled is not None and "ttir" in getattr(compiled, "asm", {}):
            seen.append(str(compiled.asm["ttir"]))
        return compiled

    JITFunction.run = recording
    try:
        yield seen
    finally:
        JITFunction.run = run
