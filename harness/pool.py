"""The supervisor's handle on a worker that may die: whatever kills it becomes a finding, and a spare takes over."""

import contextlib
import fcntl
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec

from harness.case import Case
from harness.folders import PACKAGE
from harness.postmortem import Ending, finding_of, status_name
from harness.results import Finding, Result
from harness.subjects import Declaration, WrongUse

#: Seconds to import a subject: vLLM takes half a minute from a slow disk.
LOAD_SECONDS = 120.0
#: Seconds to import torch and triton, from a slow disk too.
START_SECONDS = 300.0
#: Seconds a worker that has closed its channel may take to die by itself, so that it is seen what it died of.
GRACE = 2.0
#: Bytes at the end of a log in which the last words are looked for.
TAIL = 20_000


class HarnessFault(Exception):
    """The harness itself raised or did not start; the message holds the traceback or the process's last words."""


class Died(Exception):
    """The worker died, or was killed because it hung, instead of answering."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True)
class Home:
    """Where workers live: the Python that runs them, the folder that they run in, variables of their own."""

    python: str = sys.executable
    folder: Path | None = None
    environ: dict[str, str] = field(default_factory=dict)


def environment() -> dict[str, str]:
    """What a Python process is started with so that it finds this very harness."""
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


class Worker:
    """One worker at a time, with a spare behind it. Starting takes seconds, which only the first request waits for."""

    def __init__(self, executor: str, device: int | None = None, home: Home | None = None) -> None:
        self.executor = executor
        self.device = device
        self.home = home or Home()
        self.restarts = 0
        self._owes = False  # an answer is on its way
        self._start()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process that answers the next request."""
        self._make_ready()
        return self._child.pid

    @property
    def log(self) -> str:
        """The end of what the worker has printed since the last request was sent."""
        return self._child.printed()

    def describe(self, subject: str, op: str, limit_seconds: float = LOAD_SECONDS) -> Declaration:
        """What the subject declares; raises WrongUse where it cannot be imported."""
        try:
            reply = self._ask({"do": "describe", "subject": subject, "op": op}, limit_seconds)
        except Died as death:
            raise WrongUse(f"subject {subject!r} cannot be imported: {death}") from None
        self._child.loaded.add((subject, op))
        return msgspec.convert(reply["declaration"], Declaration)

    def run(self, case: Case, subject: str, limit_seconds: float, fresh: bool = False, **options: Any) -> Result:
        """Run the case. A new worker imports the subject first, which does not count against the limit.

        Where it is to be `fresh`, or has a call before it, nothing has run in the worker.
        """
        return self.begin(case, subject, limit_seconds, fresh, **options)()

    def begin(
        self, case: Case, subject: str, limit_seconds: float, fresh: bool = False, **options: Any
    ) -> Callable[[], Result]:
        """Have the case run as `run` does, and wait for nothing: what is returned waits for the result.

        An answer that nobody waited for when the next request comes is lost, and the worker with it.
        """
        began = time.monotonic()
        if fresh or case.before is not None:
            self.retire()
        try:
            self._load(subject, case.op)
            answer = self._begin({"do": "run", "case": case, "subject": subject, **options}, limit_seconds)
        except (Died, HarnessFault) as ended:
            answer = partial(_raise, ended)
        return partial(self._result, answer, case, subject, began)

    def _result(self, answer: Callable[[], dict[str, Any]], case: Case, subject: str, began: float) -> Result:
        outcome: dict[str, Any]
        try:
            reply = answer()
            if reply["retire"]:
                self._replace()
            return msgspec.convert(reply["result"], Result)
        except Died as death:
            outcome = {"findings": (death.finding,), "runs": 1}
        except (HarnessFault, msgspec.ValidationError) as fault:
            outcome = {"harness_fault": str(fault)}
        seconds = round(time.monotonic() - began, 6)
        return Result(case=case, subject=subject, executor=self.executor, seconds=seconds, **outcome)

    def call(self, target: str, *arguments: Any, limit_seconds: float = LOAD_SECONDS) -> Any:
        """Call `module:function` with JSON arguments in the worker; raises Died or HarnessFault."""
        return self._ask({"do": "call", "target": target, "args": arguments}, limit_seconds)["value"]

    def failing_probes(self) -> list[str]:
        """What fails of the probes of the platform, in words; nothing where they kill the worker."""
        try:
            found: list[str] = self.call("harness.probes.calls:failing", self.executor)
        except (Died, HarnessFault):
            return []
        return found

    def renew(self) -> None:
        """Let the spare take over, so that nothing is left of what earlier subjects did to the process."""
        if self._child.loaded:
            self._replace()

    def retire(self) -> None:
        """Let the spare take over, whatever this worker has done."""
        self._make_ready()
        self._replace()
        self.restarts -= 1  # nobody died

    def close(self) -> None:
        """End the forkserver and, with it, the workers."""
        self._child.close()
        self._spare.close()
        self._server.close()

    def _start(self) -> None:
        self._server = _Forkserver(self.executor, self.device, self.home)
        self._child = self._server.fork()
        self._spare = self._server.fork()

    def _load(self, subject: str, op: str) -> None:
        self._make_ready()
        if (subject, op) not in self._child.loaded:
            self.describe(subject, op)

    def _ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        return self._begin(request, limit)()

    def _begin(self, request: dict[str, Any], limit: float) -> Callable[[], dict[str, Any]]:
        """Send the request; what is returned waits for the answer."""
        self._make_ready()
        began = time.monotonic()
        with self._burying(began, limit):
            self._child.send(msgspec.json.encode(request), limit)
        self._owes = True
        return partial(self._answer, began, limit)

    def _answer(self, began: float, limit: float) -> dict[str, Any]:
        self._owes = False
        with self._burying(began, limit):
            reply: dict[str, Any] = msgspec.json.decode(self._child.receive(began + limit - time.monotonic()))
        if "wrong_use" in reply:
            raise WrongUse(reply["wrong_use"])
        if "harness_fault" in reply:
            raise HarnessFault(reply["harness_fault"])
        return reply

    @contextlib.contextmanager
    def _burying(self, began: float, limit: float) -> Iterator[None]:
        """Raises Died where the worker does not answer in time or is dead; another one takes its place."""
        try:
            yield
        except OSError as error:
            seconds, hung = time.monotonic() - began, isinstance(error, TimeoutError)
            ending = self._replace(grace=0.0 if hung else GRACE, ask_where=hung)
            raise Died(finding_of(ending, seconds, limit)) from None
        except BaseException:  # Ctrl-C: the answer on its way would be taken for the next request's
            self._replace()
            raise

    def _make_ready(self) -> None:
        """See the worker started, and alive: one that died after its last answer is not this request's finding."""
        if self._owes:
            self._owes = False
            self._replace()
            self.restarts -= 1  # nobody died
        if self._child.pid and not self._child.is_idle():
            self._replace()
        try:
            self._child.greet()
        except OSError:
            ending = self._replace(GRACE)
            raise HarnessFault(f"a worker for {self.executor} did not start. {finding_of(ending).message}") from None

    def _replace(self, grace: float = 0.0, ask_where: bool = False) -> "Ending":
        """Let the spare take over, and bury the worker."""
        dead, self._child = self._child, self._spare
        self.restarts += 1
        try:
            killed, status = self._server.end(dead, grace, ask_where)
            self._spare = self._server.fork()
        except OSError:  # the forkserver is dead, and so are all its workers
            raise self._start_again() from None
        finally:
            printed = dead.printed()
            dead.close()
        return Ending(killed, status, printed)

    def _start_again(self) -> Exception:
        code, words = self._server.post_mortem()
        self.close()
        if code == 2:  # as for every command: wrong use, told in the last line
            self._start()
            return WrongUse(words.splitlines()[-1].partition("error: ")[2])
        self._start()
        return HarnessFault(f"the forkserver for {self.executor} ended with {status_name(code)}: {words}")


def _raise(error: Exception) -> NoReturn:
    raise error


class _Child:
    """The supervisor's ends of one worker."""

    def __init__(self, number: int, channel: socket.socket, log: IO[bytes]) -> None:
        self.number = number
        self.pid = 0
        self.loaded: set[tuple[str, str]] = set()
        self._channel = channel
        self._log = log

    def greet(self) -> None:
        """Wait until it has started."""
        if not self.pid:
            self.pid = msgspec.json.decode(self.receive(START_SECONDS))["pid"]

    def is_idle(self) -> bool:
        """Whether it waits for a request: nothing to read, not even the end."""
        self._channel.settimeout(0)
        try:
            self._channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def send(self, request: bytes, limit: float) -> None:
        """Send one line; raises TimeoutError after the limit, another OSError when the worker is dead."""
        if os.fstat(self._log.fileno()).st_size:
            self._log.truncate(0)
        self._channel.settimeout(limit)
        self._channel.sendall(request + b"\n")

    def receive(self, limit: float) -> bytes:
        """Receive one line; raises as `send` does."""
        deadline = time.monotonic() + limit
        line = bytearray()
        while not line.endswith(b"\n"):
            self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
            received = self._channel.recv(1 << 18)
            if not received:
                raise ConnectionResetError("the worker has closed its end")
            line += received
        return bytes(line)

    def printed(self) -> str:
        """The end of the log. A positioned read: the worker shares the offset."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), TAIL, max(size - TAIL, 0)).decode(errors="replace")

    def close(self) -> None:
        self._channel.close()
        self._log.close()


class _Forkserver:
    """The supervisor's end of `python -m harness.worker`."""

    def __init__(self, executor: str, device: int | None, home: Home) -> None:
        self._numbers = itertools.count()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in close()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [home.python, "-m", "harness.worker", "--executor", executor, "--control", str(theirs.fileno())]
        command += [] if device is None else ["--device", str(device)]
        with theirs:
            self._process = subprocess.Popen(
                command,
                cwd=home.folder,
                env=environment() | home.environ,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is the supervisor's alone
            )

    def fork(self) -> _Child:
        """Ask for a worker, and wait for nothing: it greets when it is ready."""
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # the child closes it
        fcntl.fcntl(log, fcntl.F_SETFL, os.O_APPEND)  # so that the log can be emptied while the worker holds it open
        with theirs:
            packet = msgspec.json.encode({"do": "fork", "worker": number})
            with contextlib.suppress(BrokenPipeError):  # then the worker never greets, which is where it is told
                socket.send_fds(self._control, [packet], [theirs.fileno(), log.fileno()])
        return _Child(number, ours, log)

    def end(self, child: _Child, grace: float, ask_where: bool) -> tuple[bool, int]:
        """Bury the worker: whether it had to be killed, and its wait status. Raises OSError without a forkserver."""
        request = {"do": "end", "worker": child.number, "grace": grace, "ask": ask_where}
        self._control.send(msgspec.json.encode(request))
        packet = self._control.recv(4096)
        if not packet:
            raise ConnectionResetError("the forkserver has closed its end")
        reply = msgspec.json.decode(packet)
        return reply["killed"], reply["status"]

    def post_mortem(self) -> tuple[int, str]:
        """Its exit code, and what it wrote."""
        code = self._process.wait()
        self._log.seek(0)
        return code, self._log.read().decode(errors="replace").strip()

    def close(self) -> None:
        """It ends when its socket does; one that is still importing need not be waited for."""
        self._control.close()
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
