"""Runners: a case goes to a worker that may die, journalled first, or is run in this process."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.case import Case
from harness.journal import Journal
from harness.pool import HarnessFault, Home, Worker
from harness.results import Result
from harness.subjects import Subject, WrongUse, load


def journal_folder() -> Path:
    """Where cases in flight are noted, out of the way of projects."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kvetch" / "journal"


@dataclass(frozen=True)
class Journalled:
    """A worker whose case in flight is on disk while it runs."""

    worker: Worker
    journal: Journal

    @property
    def restarts(self) -> int:
        """Workers that died and were replaced."""
        return self.worker.restarts

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        """Run and judge the case in the worker."""
        with self.begun(case, subject, limit_seconds, **options) as result:
            return result()

    @contextmanager
    def begun(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Iterator[Callable[[], Result]]:
        """The case runs in the worker until what this yields has waited for its result."""
        self.journal.begin(case, subject, self.worker.executor)
        try:
            yield self.worker.begin(case, subject, limit_seconds, **options)
        finally:
            self.journal.end()

    def failing_probes(self) -> list[str]:
        """What fails of the probes in the worker."""
        return self.worker.failing_probes()


@dataclass
class Elsewhere:
    """A worker on another executor, or with other settings; starting takes seconds, so it waits until it is needed."""

    executor: str
    device: int | None = None
    environ: dict[str, str] = field(default_factory=dict)
    worker: Worker | None = None

    def __enter__(self) -> "Elsewhere":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.worker is not None:
            self.worker.close()

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        """Run and judge the case there; what the executor cannot load is a fault of the harness."""
        try:
            self.worker = self.worker or Worker(self.executor, self.device, Home(environ=self.environ))
            return self.worker.run(case, subject, limit_seconds, **options)
        except (HarnessFault, WrongUse) as fault:
            return Result(case=case, subject=subject, executor=self.executor, harness_fault=str(fault))


@dataclass(frozen=True)
class InProcess:
    """Runs in this process: for `check` on a function that no worker could import. A crash is a crash."""

    subject: Subject
    executor: str
    restarts: int = 0

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:  # noqa: ARG002
        """Run and judge the case here, where nothing is fresh; there is nobody to enforce a limit."""
        options.pop("fresh", None)
        other = subject not in ("", self.subject.name)
        return _run_case()(case, load(subject, case.op) if other else self.subject, self.executor, **options)

    def failing_probes(self) -> list[str]:
        """What fails of the probes here."""
        from harness.probes.calls import failing  # imports torch

        return failing(self.executor)


def _run_case() -> Callable[..., Result]:
    from harness.pipeline import run_case  # imports torch

    return run_case
