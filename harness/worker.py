"""What runs where a subject may crash: a forkserver that has torch and triton loaded, and the workers it forks."""

import argparse
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import MutableMapping
from typing import Any, NoReturn

import msgspec

from harness.case import Case
from harness.results import RETIRE_NOTE
from harness.subjects import Subject, WrongUse, load

EXECUTORS = ("gridsim", "gpu", "interpreter", "echo")

#: Seconds a killed process may take to be gone; one that a GPU driver holds on to is left behind after that.
PATIENCE = 10.0
#: Seconds a hanging worker gets to write where it hangs.
LAST_WORDS = 0.05

#: Objects between two rounds of the garbage collector: compiling makes many, and few of them in circles.
SELDOM = 100_000

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LIBC = ctypes.CDLL(None)


def main(arguments: list[str] | None = None) -> None:
    """The forkserver: set the executor's environment, import what takes seconds, then fork on request."""
    parser = argparse.ArgumentParser(prog="python -m harness.worker", description=__doc__)
    parser.add_argument("--executor", choices=EXECUTORS, required=True)
    parser.add_argument("--device", type=int)
    parser.add_argument("--control", type=int, required=True, help="descriptor of a Unix SOCK_SEQPACKET socket")
    options = parser.parse_args(arguments)
    try:
        set_environment(options.executor, options.device, os.environ)
    except WrongUse as error:
        parser.error(str(error))
    preload(options.executor)
    Forkserver(socket.socket(fileno=options.control), options.executor).serve()
    os._exit(0)  # nothing to save, and torch takes 0.2 s to tear itself down


def set_environment(executor: str, device: int | None, environ: MutableMapping[str, str]) -> None:
    """What torch, triton and CUDA read once, at import."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environ[name] = "1"  # threads do not survive a fork, and each worker has a core of its own
    environ.pop("TRITON_INTERPRET", None)
    if executor == "interpreter":
        environ["TRITON_INTERPRET"] = "1"
    if executor == "gpu" and device is not None:
        name = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
        environ[name] = _visible_device(device, name, environ.get(name))


def _visible_device(device: int, name: str, visible: str | None) -> str:
    """The device's name among those that the user left visible."""
    if visible is None:
        return str(device)
    devices = [entry.strip() for entry in visible.split(",") if entry.strip()]
    if not 0 <= device < len(devices):
        raise WrongUse(f"device is {device}, but {name}={visible!r} leaves {len(devices)} to choose from")
    return devices[device]


def preload(executor: str) -> None:
    """Import once what every worker needs. CUDA is not initialised: a context does not survive a fork."""
    import torch
    import triton  # noqa: F401

    torch.set_num_threads(1)
    keep_freed_memory()
    for module in ("harness.executors.gpu" if executor == "gpu" else "harness.executors.cpu", "harness.pipeline"):
        with contextlib.suppress(Exception):  # what is broken there is told by the request that needs it
            importlib.import_module(module)
    if executor != "gpu":
        with contextlib.suppress(Exception):  # likewise
            importlib.import_module("harness.pipeline").the_executor(executor)
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page that the workers share
    gc.set_threshold(SELDOM)


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed arrays for the next ones: getting pages anew costs a tenth of a case's time."""
    return bool(LIBC.mallopt(M_MMAP_THRESHOLD, 2**25) and LIBC.mallopt(M_TRIM_THRESHOLD, 2**28))


class Forkserver:
    """Forks workers and buries them. Requests and replies are packets; none is answered out of order."""

    def __init__(self, control: socket.socket, executor: str) -> None:
        self._control = control
        self._executor = executor
        self._pids: dict[int, int] = {}

    def serve(self) -> None:
        """Until the supervisor closes its end, or dies; then no worker may stay behind."""
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._control, 4096, 2)
            if not packet:
                break
            request = msgspec.json.decode(packet)
            if request["do"] == "fork":
                self._fork(request["worker"], *descriptors)
            else:
                self._control.send(msgspec.json.encode(self._end(request["worker"], request["grace"], request["ask"])))
        for pid in self._pids.values():
            _kill_group(pid)

    def _fork(self, worker: int, channel: int, log: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._control.close()
            become_worker(parent, channel, log, self._executor)
        self._pids[worker] = pid
        # A copy kept here, or inherited by the next worker, would hide this worker's end from the supervisor.
        os.close(channel)
        os.close(log)

    def _end(self, worker: int, grace: float, ask: bool) -> dict[str, Any]:
        """Wait `grace` seconds for the worker's death, then kill it; `ask` it first where it is."""
        pid = self._pids.pop(worker)
        killed = not _is_dead(pid, grace)
        if killed and ask:
            os.kill(pid, signal.SIGUSR1)
            time.sleep(LAST_WORDS)
        # The pid, even of a zombie, names the group until it is waited for: its children go as well.
        _kill_group(pid)
        gone = _is_dead(pid, PATIENCE)
        return {"killed": killed, "status": os.waitpid(pid, 0)[1] if gone else signal.SIGKILL}


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # one that was forked a moment ago has no group yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _is_dead(pid: int, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.0005)
    return True


def become_worker(forkserver: int, channel: int, log: int, executor: str) -> NoReturn:
    """The life of a forked worker; it never returns into the forkserver's code."""
    status: object = 1
    try:
        _settle(forkserver, log)
        _warm_up(executor)
        serve(socket.socket(fileno=channel), executor)
        status = 0
    except SystemExit as error:  # the subject's: a worker that goes away without an answer is a finding
        status = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(status if isinstance(status, int) else 1)


def _settle(forkserver: int, log: int) -> None:
    """A session of its own, no life after the forkserver, and what is printed goes to the log."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != forkserver:  # it died before the call above
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing gigabytes of core would look like a hang
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a crash must not eat what was printed
    faulthandler.enable(sys.stderr, all_threads=False)
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=False)


def _warm_up(executor: str) -> None:
    """Done while the worker is a spare: a CUDA context takes a good part of a second."""
    if executor == "gpu":
        import torch

        with contextlib.suppress(Exception):  # the first case tells it better
            torch.zeros(1, device="cuda")


def serve(channel: socket.socket, executor: str) -> None:
    """Greet, then one JSON line out for every JSON line in, until the supervisor closes its end."""
    channel.set_inheritable(False)
    channel.sendall(b'{"pid": %d}\n' % os.getpid())
    for line in channel.makefile("rb"):
        channel.sendall(answer(line, executor) + b"\n")


def answer(line: bytes, executor: str) -> bytes:
    """The reply to one request; only what kills the process gets past this."""
    try:
        return msgspec.json.encode(_reply(msgspec.json.decode(line), executor))
    except WrongUse as error:
        return msgspec.json.encode({"wrong_use": _encodable(" ".join(str(error).split()))})
    except Exception:
        return msgspec.json.encode({"harness_fault": _encodable(traceback.format_exc())})


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _reply(request: dict[str, Any], executor: str) -> dict[str, Any]:
    match request.pop("do"):
        case "describe":
            return {"declaration": _subject(**request).declaration}
        case "run":
            return _run(executor=executor, **request)
        case "call":
            module, _, function = request["target"].partition(":")
            return {"value": getattr(importlib.import_module(module), function)(*request["args"])}
        case verb:
            raise ValueError(f"do is {verb!r}, but should be describe, run or call")


def _run(case: dict[str, Any], subject: str, executor: str, **options: Any) -> dict[str, Any]:
    from harness.pipeline import run_case

    drawn = msgspec.convert(case, Case)
    result = run_case(drawn, _subject(subject, drawn.op), executor, **options)
    return {"result": result, "retire": RETIRE_NOTE in result.notes}


@functools.cache
def _subject(subject: str, op: str) -> Subject:
    return load(subject, op)


if __name__ == "__main__":
    main()
