"""An echo of gridsim: what launches did there is done again at no cost, so that all else is timed as on a GPU."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from harness import values
from harness.case import Case
from harness.executors import gridsim
from harness.executors.base import Conditions, Failure, Observed, Placement, observe
from harness.executors.tuning import tuned
from harness.inputs import Materials
from harness.subjects import Subject


@dataclass(frozen=True)
class Sound:
    """What one launch wrote into the storage of each of its tensors, places and bytes, or what it raised."""

    writes: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    error: Exception | None = None


@dataclass
class Echo:
    """Launches are heard on gridsim once; then they are given back in their order, with as little seen as on a GPU."""

    name: str = "echo"
    platform: str = "sm90"
    listens: bool = True
    sounds: deque[Sound] = field(default_factory=deque)
    texts: deque[tuple[str, ...]] = field(default_factory=deque)  # the TTIR of each call

    def declines(self, case: Case) -> str | None:
        """Far memory is not kept."""
        return "what is written into far memory is not kept" if case.is_far else None

    def under(self, conditions: Conditions) -> None:
        """As on a GPU, programs have no order that could be chosen."""

    def observe(self, subject: Subject, materials: Materials) -> Observed:
        """Call the subject on gridsim, or give back what is next."""
        return self._heard(subject, materials) if self.listens else self._given(subject, materials)

    def _heard(self, subject: Subject, materials: Materials) -> Observed:
        trace = gridsim.Trace(gridsim.Memory(), None, materials.case.hints.config)
        with gridsim.traced(trace), _launching(self._hear):
            observed = observe(subject, Placement(materials, "cpu"))
        self.texts.append(tuple(launch.ttir for launch in trace.launches))
        return self._told(observed, self.texts[-1])

    def _given(self, subject: Subject, materials: Materials) -> Observed:
        placement = Placement(materials, "cpu")
        with tuned(materials.case.hints, subject.declaration.configs), _launching(self._give):
            observed = observe(subject, placement)
        return self._told(observed, self.texts.popleft())

    def _told(self, observed: Observed, ttir: tuple[str, ...]) -> Observed:
        if observed.failure is not None and observed.failure.type == gridsim.Unsupported.__name__:
            return Observed(failure=Failure("Unsupported", observed.failure.message, "", unsupported=True))
        return replace(observed, ttir=ttir)

    def _hear(self, launch: Any, arguments: list[torch.Tensor]) -> Any:
        before = [_bytes(tensor).clone() for tensor in arguments]
        try:
            compiled = launch()
        except Exception as error:
            self.sounds.append(Sound(error=error))
            raise
        changed = zip(before, map(_bytes, arguments), strict=True)
        self.sounds.append(Sound(tuple(_written(*pair) for pair in changed)))
        return compiled

    def _give(self, launch: Any, arguments: list[torch.Tensor]) -> None:  # noqa: ARG002  (nothing is launched)
        sound = self.sounds.popleft()
        if sound.error is not None:
            raise sound.error
        for tensor, (places, numbers) in zip(arguments, sound.writes, strict=True):
            if len(places):
                _bytes(tensor)[places] = numbers


#: The one of this process.
THE_ECHO = Echo()


def listen() -> None:
    """Hear the launches that come."""
    THE_ECHO.listens = True
    THE_ECHO.sounds.clear()
    THE_ECHO.texts.clear()


def repeat() -> None:
    """Give back what was heard, and remember nothing else of the case."""
    THE_ECHO.listens = False
    values.forget()


@contextmanager
def _launching(launcher: Any) -> Iterator[None]:
    """Let the launcher decide what a launch does; it is given the launch and the tensors among its arguments."""
    run = JITFunction.run

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [getattr(arg, "base", arg) for arg in (*args, *kwargs.values())]
        return launcher(lambda: run(self, *args, **kwargs), [t for t in tensors if isinstance(t, torch.Tensor)])

    JITFunction.run = launched
    try:
        yield
    finally:
        JITFunction.run = run


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _written(before: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.nonzero(before != after)[:, 0]
    return places, after[places]
