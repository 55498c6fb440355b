"""The two sides of a gate: the change and its base, each with workers that load the subject from a folder of its own.

Both are judged by this very harness, so that what differs between two verdicts is the subject.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.case import Case
from harness.folders import OTHER_KERNELS, PACKAGE, folder
from harness.pool import Home, Worker
from harness.results import Result
from harness.subjects import SUBJECTS, Declaration, WrongUse
from harness.touched import SOURCES, file_of

#: What a worker imports before it has a subject.
WORKER_NEEDS = "import harness.worker, harness.pipeline"


@dataclass(frozen=True)
class Place:
    """Where a side's files are, and which Python runs them."""

    name: str  # "change" or "base"
    root: Path
    python: str = sys.executable

    def has(self, subject: str) -> bool:
        """Whether the subject is declared here at all; one that is there and broken is."""
        if subject in SUBJECTS:
            return self._kernels.is_dir()
        path, _, function = subject.rpartition(":")
        file = self.root / path
        return file.is_file() and function in file.read_text(encoding="utf-8", errors="replace")

    @property
    def _kernels(self) -> Path:
        return self.root / "kernels"

    def home(self, judge: Path, subjects: tuple[str, ...]) -> Home:
        """How its workers live: in its folder, with its modules before those that are installed."""
        own = (self.root / name for name in SOURCES if (self.root / name).is_dir())
        paths = (judge, *own, *map(self._here, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))))
        environ = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONSAFEPATH": "1"}
        if any(subject in SUBJECTS for subject in subjects):
            environ[OTHER_KERNELS] = str(self._kernels)
        return Home(self.python, self.root, environ)

    def _here(self, path: str) -> Path:
        """A folder of the checkout, on this side; any other as it is."""
        whole = Path(path).absolute()
        return self.root / whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole

    def own_name(self, subject: str) -> str:
        """What the subject is loaded by: our own by the declarations of this side, where it has them."""
        declared = subject in SUBJECTS and (self.root / file_of(subject)).is_file()
        return f"{file_of(subject)}:{subject.removeprefix('ours.')}" if declared else subject


@dataclass(frozen=True)
class Side:
    """One of the two, with a worker."""

    place: Place
    worker: Worker

    def describe(self, subject: str, op: str) -> Declaration:
        """What the subject declares on this side; raises WrongUse where it cannot be imported."""
        try:
            return self.worker.describe(self.place.own_name(subject), op)
        except WrongUse as error:
            raise WrongUse(f"{subject} of the {self.place.name} cannot be tested: {error}") from None

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        """Run and judge the case with this side's subject."""
        name = self.place.own_name(subject)
        try:
            result = self.worker.run(case, name, limit_seconds, **options)
        except WrongUse as error:
            raise WrongUse(f"{subject} of the {self.place.name} cannot be tested: {error}") from None
        return result if name == subject else msgspec.structs.replace(result, subject=subject)

    def strays(self, other: Place) -> list[str]:
        """The files of the other side that this side's subjects have loaded."""
        found: list[str] = self.worker.call("harness.sides:loaded_below", str(other.root))
        return found


@contextmanager
def lone_harness() -> Iterator[Path]:
    """A folder with this harness and nothing else: beside it lie the files of a checkout, or all that is installed."""
    with tempfile.TemporaryDirectory(prefix="kvetch-judge-") as temporary:
        (Path(temporary) / PACKAGE.name).symlink_to(PACKAGE)
        yield Path(temporary)


@contextmanager
def sides(
    places: tuple[Place, ...], executor: str, device: int | None, subjects: tuple[str, ...]
) -> Iterator[tuple[Side, ...]]:
    """A worker for each place."""
    with ExitStack() as stack:
        judge = stack.enter_context(lone_harness())
        found = []
        for place in places:
            home = place.home(judge, subjects)
            _check_python(home)
            found.append(Side(place, stack.enter_context(Worker(executor, device, home))))
        yield tuple(found)


def _check_python(home: Home) -> None:
    if home.python == sys.executable:
        return
    try:
        done = subprocess.run(
            [home.python, "-c", WORKER_NEEDS],
            env=os.environ | home.environ,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise WrongUse(f"--base-python is {home.python!r}: {error.strerror}") from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise WrongUse(f"--base-python is {home.python!r}, which cannot run the harness: {words}")


def loaded_below(root: str) -> list[str]:
    """Files of loaded modules below the folder, without the harness and what is installed; called in a worker."""
    apart = (PACKAGE, folder("references"), Path(sys.prefix).resolve())
    names = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    files = {Path(name).resolve() for name in names if Path(name).is_absolute()}  # torch has made-up ones
    below = (file for file in files if file.is_relative_to(Path(root).resolve()))
    return sorted(str(file) for file in below if not any(file.is_relative_to(place) for place in apart))
