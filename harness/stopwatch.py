"""Where the time of a case goes: phases that may nest, each told the time in which no inner one ran."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: What is compiling, wherever it happens.
COMPILING = "compiling"


@dataclass
class Stopwatch:
    """Seconds by phase since the last `taken`."""

    seconds: dict[str, float] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)  # the innermost phase is the last
    since: float = 0.0
    whole: bool = False  # a phase that is not to be split runs

    @contextmanager
    def phase(self, name: str, whole: bool = False) -> Iterator[None]:
        """Count what runs inside, or decorate what is to be counted; a `whole` phase takes its inner ones' time."""
        if self.whole:
            yield
            return
        self._tick()
        self.running.append(name)
        self.whole = whole
        try:
            yield
        finally:
            self._tick()
            self.running.pop()
            self.whole = False

    def _tick(self) -> None:
        """Give the running phase the time since the last look."""
        now = time.perf_counter()
        if self.running:
            self._add(self.running[-1], now - self.since)
        self.since = now

    def _add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def move(self, name: str, seconds: float) -> None:
        """Count seconds of the running phase as another's, which somebody else has measured."""
        if self.running:
            self._add(self.running[-1], -seconds)
        self._add(name, seconds)

    def taken(self) -> dict[str, float]:
        """What was counted, in microseconds' precision; then all begins at 0."""
        seconds, self.seconds = self.seconds, {}
        return {name: round(spent, 6) for name, spent in seconds.items()}


#: The one of this process.
WATCH = Stopwatch()
phase = WATCH.phase
