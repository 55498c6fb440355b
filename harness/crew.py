"""The examiners of an exam: processes that each take the next mutant when they are done with one."""

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence

import msgspec

from harness.examiner import Job
from harness.pool import environment
from harness.verdicts import Verdict, faulty


class Crew:
    """So many processes, which end with it; verdicts come in the order in which they are reached."""

    def __init__(self, size: int, executor: str, device: int | None = None) -> None:
        self._jobs: queue.Queue[Job] = queue.Queue()
        self._verdicts: queue.Queue[Verdict] = queue.Queue()
        self._examiners = [_Examiner(executor, device) for _ in range(size)]
        for examiner in self._examiners:
            threading.Thread(target=self._serve, args=(examiner,), daemon=True).start()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exception: object) -> None:
        for examiner in self._examiners:
            examiner.close()

    def examine(self, jobs: Sequence[Job]) -> Iterator[Verdict]:
        """One verdict for each job."""
        for job in jobs:
            self._jobs.put(job)
        for _ in jobs:
            yield self._verdicts.get()

    def _serve(self, examiner: "_Examiner") -> None:
        while not examiner.closed:
            self._verdicts.put(examiner.ask(self._jobs.get()))


class _Examiner:
    """The supervisor's end of `python -m harness.examiner`; one that dies is replaced."""

    def __init__(self, executor: str, device: int | None) -> None:
        self._command = [sys.executable, "-m", "harness.examiner", executor, *([] if device is None else [str(device)])]
        self.closed = False
        self._start()

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            self._command,
            env={"OMP_NUM_THREADS": "1"} | environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C in the terminal is the supervisor's alone
        )

    def ask(self, job: Job) -> Verdict:
        """The verdict on the job; a fault where the process ends instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        return msgspec.json.decode(line, type=Verdict) if line else self._lost(job)

    def _lost(self, job: Job) -> Verdict:
        code = self._process.wait()
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip()
        if not self.closed:
            self._start()
        return faulty(job.mutant, f"an examiner ended with exit code {code}: {words}", job.systematic)

    def close(self) -> None:
        """Its input ends, and so does it, with its workers."""
        self.closed = True
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
