"""What a dead worker tells: its signal, where it was, and its last words, as a finding."""

import os
import re
import signal
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from harness.folders import PACKAGE
from harness.results import Finding

#: Lines worth quoting wherever they stand in the log; without any, the last line is.
TELLING = re.compile(
    r"illegal memory access|CUDA error|device-side assert|Memory access fault by GPU|HSA_STATUS_ERROR"
    r"|Assertion .* failed|LLVM ERROR|terminate called|what\(\):|double free|corrupted|free\(\): invalid"
)
#: What faulthandler writes.
FATAL = re.compile(r"^(Fatal Python error|Stack \(most recent|Current thread|Thread 0x).*", re.MULTILINE | re.DOTALL)
STACK = re.compile(r'most recent call first\):\n((?:  File ".*\n)+)')
FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
#: Where a frame tells a kernel's author little.
LIBRARIES = ("<frozen ", str(PACKAGE), *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Ending:
    """How a worker ended: killed by us or not, its wait status, and the end of its log."""

    killed: bool
    status: int
    log: str


def finding_of(ending: Ending, seconds: float = 0.0, limit: float = 0.0) -> Finding:
    """A hang when the worker was killed for it, else a crash."""
    frame = _frame(ending.log)
    if ending.killed:
        where = f" It was in {frame}." if frame else ""
        return Finding(kind="hang", message=f"No answer for {seconds:.1f} s; the limit was {limit:g} s.{where}")
    code = os.waitstatus_to_exitcode(ending.status)
    message = f"The worker ended with {status_name(code)} before it answered"
    if code == -signal.SIGKILL:
        message += ": killed from outside, most likely for want of memory"
    message += f", in {frame}" if frame else ""
    words = _last_words(ending.log)
    return Finding(kind="crash", detail=status_name(code), message=f"{message}. {words}".strip())


def status_name(code: int) -> str:
    """For example "SIGSEGV" or "exit 3"."""
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _frame(log: str) -> str:
    """The innermost frame that is not a library's, of the stack that faulthandler wrote last."""
    stacks = STACK.findall(log)
    frames = FRAME.findall(stacks[-1]) if stacks else []
    own = [frame for frame in frames if not frame[0].startswith(LIBRARIES)] or frames
    if not own:
        return ""
    path, line, function = own[0]
    return f"{function} at {os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path}:{line}"


def _last_words(log: str) -> str:
    lines = [line.strip() for line in FATAL.sub("", log).splitlines() if line.strip()]
    telling = [line for line in lines if TELLING.search(line)]
    chosen = telling[:1] or lines[-1:]
    return f"It had written: {chosen[0][:200]}" if chosen else ""
