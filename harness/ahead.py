"""Kernels compiled ahead: beside a campaign on a GPU, idle cores compile what its next pools of frames will need."""

import contextlib
import os
import signal
import subprocess
import sys
from types import TracebackType

import msgspec

from harness.case import Record
from harness.pool import environment
from harness.worker import set_environment

#: A subject may end the process that looks ahead; it is started again so many times.
RESTARTS = 3


class Pool(Record, frozen=True):
    """What the frames of a pool follow from."""

    subject: str
    op: str
    seed: int
    rungs: int


def idle_cores(campaigns: int = 1) -> int:
    """Cores that so many campaigns side by side leave to compiling: each needs one, and who looks ahead another."""
    return max(len(os.sched_getaffinity(0)) - campaigns - 1, 0)


def ahead_of(executor: str, jobs: int | None, device: int | None) -> "Ahead":
    """Who looks ahead of a campaign on a GPU, compiling so many kernels at a time or one on each idle core."""
    if executor != "gpu":
        return Ahead(0)
    return Ahead(idle_cores() if jobs is None else jobs, device)


class Ahead:
    """The supervisor's end of `harness.scout`. Nothing is answered, and nothing is lost when it dies."""

    def __init__(self, jobs: int, device: int | None = None, target: str | None = None) -> None:
        self._command = [sys.executable, "-m", "harness.scout", "--jobs", str(jobs)]
        self._command += ["--target", target] if target else []
        self._environ = environment()
        set_environment("gpu", device, self._environ)
        self._restarts = RESTARTS if jobs else 0
        self._process = self._start() if jobs else None

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def prepare(self, pool: Pool) -> None:
        """Have the kernels of a pool compiled, some time soon; waits for nothing."""
        if self._process is None or self._process.stdin is None:
            return
        try:
            os.write(self._process.stdin.fileno(), msgspec.json.encode(pool) + b"\n")
        except BlockingIOError:  # it has more to do than it can
            pass
        except OSError:
            self._start_again()

    def close(self) -> None:
        """End the process and those that it compiles in."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # its pid names the group until it is waited for
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        started = subprocess.Popen(
            self._command,
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal is the supervisor's alone
        )
        assert started.stdin is not None
        os.set_blocking(started.stdin.fileno(), False)
        return started

    def _start_again(self) -> None:
        self.close()
        if self._restarts:
            self._restarts -= 1
            self._process = self._start()
