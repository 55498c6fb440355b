"""Compiles specialisations with Triton's own compiler, each in a process that may die, for GPUs that are not here."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec
import triton
from triton import knobs
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError
from triton.runtime.jit import JITFunction

from harness.builds import TARGETS, Build, overflow
from harness.case import Case
from harness.executors.base import failure
from harness.executors.cpu import GridSim
from harness.inputs import materialise
from harness.postmortem import status_name
from harness.specialisations import Notes, Specialisation, first_line, gpu_target, noted
from harness.subjects import load
from harness.worker import LIBC, PR_SET_PDEATHSIG

#: What Triton's front end says of a type of numbers that the target lacks.
LACKING = "not supported in this architecture"
#: An exception in the front end, as Triton quotes it.
RAISED = re.compile(r"""^\w+\((?P<quote>["'])(?P<says>.*)(?P=quote),?\)$""")
#: A diagnostic of the compiler: file, line and what is wrong.
DIAGNOSTIC = re.compile(r"^(?P<file>\S+\.py):(?P<line>\d+):\d+: error: (?P<says>.*)$", re.MULTILINE)
#: What ptxas says is wrong.
COMPLAINT = re.compile(r"^ptxas.*?\b(?:error|fatal)\s*:\s*(?P<says>.*)$", re.MULTILINE)
#: A compiler that waits for so many times its processor time, on a busy machine, waits in vain.
PATIENCE = 10
#: Bytes at the end of what the compiler printed in which its complaint is looked for.
TAIL = 200_000

_collected: list[Specialisation] = []


# --- called in a worker --------------------------------------------------------------------------------------------


def collect(subject: str, op: str, cases: list[Any], numbers: list[int], targets: list[str]) -> dict[str, Any]:
    """Run the cases on gridsim and note what their launches would compile; `raised` says which case ended early."""
    tested, notes, raised = load(subject, op), Notes(tuple(targets)), []

    def noting(inputs: Any) -> Any:
        with noted(notes):
            return tested.run(inputs)

    executor = GridSim()
    for number, case in zip(numbers, msgspec.convert(cases, list[Case]), strict=True):
        notes.begin(number)
        observed = executor.observe(replace(tested, run=noting), materialise(case))
        if observed.failure:
            raised.append(f"case {number} raised {observed.failure.type}: {observed.failure.message}")
    _collected[:] = notes.found.values()
    return {"builds": msgspec.to_builtins([found.build() for found in _collected]), "raised": raised}


def compiled(numbers: list[int], jobs: int, seconds: int) -> list[Any]:
    """The builds of what was collected under these numbers, `jobs` at a time.

    None gets more than `seconds` of processor time, so that a busy machine makes no kernel fail.
    """
    found = dict(_in_processes(numbers, jobs, seconds))
    plain: list[Any] = msgspec.to_builtins([found[number] for number in numbers])
    return plain


# --- processes -----------------------------------------------------------------------------------------------------


@dataclass
class _Child:
    """A process that compiles one specialisation; it answers with one JSON object."""

    number: int
    pid: int
    answer: int  # descriptor
    log: IO[bytes]
    deadline: float


def _in_processes(numbers: list[int], jobs: int, seconds: int) -> Iterator[tuple[int, Build]]:
    waiting, running = list(numbers), dict[int, _Child]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _fork(waiting.pop(0), seconds)
                running[child.answer] = child
            for child in _ended(running):
                del running[child.answer]
                yield child.number, _bury(child, seconds)
    finally:
        for child in running.values():
            _kill(child)


def _ended(running: dict[int, _Child]) -> list[_Child]:
    """Those that answered, died, or wait for something that does not come."""
    first = min(child.deadline for child in running.values())
    ready, _, _ = select.select(list(running), [], [], max(0.0, first - time.monotonic()))
    now = time.monotonic()
    return [child for child in running.values() if child.answer in ready or now >= child.deadline]


def _fork(number: int, seconds: int) -> _Child:
    ours, theirs = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115  # closed when it has been read
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))  # ptxas is given the same; SIGXCPU at the first
        _become_compiler(number, parent, theirs, log)
    os.close(theirs)
    return _Child(number, pid, ours, log, time.monotonic() + PATIENCE * seconds)


def _become_compiler(number: int, parent: int, answer: int, log: IO[bytes]) -> NoReturn:
    try:
        os.setpgid(0, 0)  # so that ptxas can be killed with it
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            os.write(answer, msgspec.json.encode(compile_one(_collected[number])))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _bury(child: _Child, seconds: int) -> Build:
    hung = not select.select([child.answer], [], [], 0)[0]
    answer = b"" if hung else _all_of(child.answer)
    status, took = _kill(child)
    printed = _tail(child.log)
    if answer:
        found = msgspec.json.decode(answer, type=Build)
    else:
        why = _end_in_words(status, hung, seconds)
        found = msgspec.structs.replace(_collected[child.number].build(), outcome="fails", says=why)
    return msgspec.structs.replace(_with_place(found, printed), seconds=round(took, 2))


def _end_in_words(status: int, hung: bool, seconds: int) -> str:
    if hung:
        return f"the compiler did not end in {PATIENCE * seconds} s"
    if status == -signal.SIGXCPU:
        return f"the compiler took more than {seconds} s of processor time"
    return f"the compiler ended with {status_name(status)}"


def _all_of(descriptor: int) -> bytes:
    parts = iter(lambda: os.read(descriptor, 1 << 16), b"")
    return b"".join(parts)


def _kill(child: _Child) -> tuple[int, float]:
    """End the process and what it started: how it had ended, and its processor seconds, those of ptxas included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    os.close(child.answer)
    _, status, used = os.wait4(child.pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def _tail(log: IO[bytes]) -> str:
    with log:
        size = os.fstat(log.fileno()).st_size
        return os.pread(log.fileno(), TAIL, max(size - TAIL, 0)).decode(errors="replace")


def _with_place(build: Build, printed: str) -> Build:
    """With the first diagnostic that the compiler printed, where the failure has none of its own."""
    told = DIAGNOSTIC.search(printed)
    if build.outcome != "fails" or not told or ".py:" in build.says:
        return build
    says = f"{told['says']} ({Path(told['file']).name}:{told['line']}; {build.says})"
    return msgspec.structs.replace(build, says=says)


# --- in such a process ---------------------------------------------------------------------------------------------


def compile_one(found: Specialisation) -> Build:
    """Compile one specialisation, from Triton's cache where it has been compiled before."""
    if found.refused:
        return msgspec.structs.replace(found.build(), outcome="fails", says=found.refused)
    try:
        kernel = built(found)
    except Exception as error:
        says = complaint(error, found.kernel)
        outcome = "declined" if LACKING in says else "fails"
        return msgspec.structs.replace(found.build(), outcome=outcome, says=says)
    return _measured(found, kernel)


def built(found: Specialisation) -> Any:
    """Triton's compiled kernel; raises what its compiler raises."""
    source = ASTSource(found.kernel, found.signature, found.constants, found.attributes)
    return triton.compile(source, target=gpu_target(found.target), options=found.options.__dict__)


def _measured(found: Specialisation, kernel: Any) -> Build:
    target, about = TARGETS[found.target], kernel.metadata
    registers, spills = _of_cubin(kernel.asm["cubin"]) if target.backend == "cuda" else _of_amdgcn(kernel.asm["amdgcn"])
    threads = about.num_warps * target.warp_size
    says = overflow(target, about.shared, threads, getattr(about, "tmem_size", None) or 0)
    return msgspec.structs.replace(
        found.build(),
        outcome="does not fit" if says else "compiles",
        says=says,
        shared=about.shared,
        registers=registers,
        spills=spills,
        threads=threads,
    )


def _of_cubin(cubin: bytes) -> tuple[int, int]:
    """Registers, and words of local memory (which is what the driver calls local size), as cuobjdump tells them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = re.search(r"\bREG:(\d+) STACK:(\d+)", text)
    if used is None:
        raise ValueError(f"cuobjdump names no registers: {text!r}")
    return int(used[1]), int(used[2]) // 4


def _of_amdgcn(assembly: str) -> tuple[int, int]:
    """Vector registers, and words of private memory, from the kernel's metadata at the end of its assembly."""
    names = (r"\.vgpr_count", r"\.private_segment_fixed_size")
    registers, private = (int(re.findall(rf"^\s+{name}:\s*(\d+)$", assembly, re.MULTILINE)[-1]) for name in names)
    return registers, private // 4


def complaint(error: BaseException, kernel: Any) -> str:
    """What is wrong, and the line of the kernel where that is known; the first line of what the compiler says."""
    if isinstance(error, CompilationError):
        return _of_front_end(error, kernel)
    if f"error code -{signal.SIGXCPU.value}" in str(error):
        return "ptxas took more processor time than one compilation may"
    if told := COMPLAINT.search(str(error)):
        return f"ptxas: {told['says']}"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _of_front_end(error: CompilationError, kernel: Any) -> str:
    """The innermost message; the line is that of the function it stands in."""
    says = RAISED.sub(r"\g<says>", failure(error).message)
    while isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    function = next((f for f in _callees(kernel, {}) if f.src == error.src), kernel)
    line = first_line(function) + getattr(error.node, "lineno", 1) - 1
    return f"{says} ({Path(function.fn.__code__.co_filename).name}:{line})"


def _callees(kernel: Any, seen: dict[int, Any]) -> list[Any]:
    """The kernel and every jitted function that its module, and theirs, know by name."""
    if id(kernel) not in seen:
        seen[id(kernel)] = kernel
        for value in list(kernel.fn.__globals__.values()):
            if isinstance(value, JITFunction):
                _callees(value, seen)
    return list(seen.values())
