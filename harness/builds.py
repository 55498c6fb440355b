"""Builds: what became of each specialisation on each target, what a target has room for, what a change made worse."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from harness.case import Record
from harness.subjects import WrongUse

#: What a block of threads may have on every target: CUDA C++ Programming Guide, technical specifications per compute
#: capability; HIP's `hipDeviceProp_t.maxThreadsPerBlock` on gfx942.
MAX_THREADS = 1024
#: Columns of tensor memory of a multiprocessor: PTX ISA, "Tensor Memory"; Triton refuses to launch beyond it as well.
TENSOR_COLUMNS = 512
#: Registers are given to threads in eights: CUDA occupancy calculator (256 a warp); CDNA3 ISA (512 a wave).
REGISTER_STEP = 8

Outcome = Literal["compiles", "fails", "does not fit", "declined"]


@dataclass(frozen=True)
class Target:
    """A kind of GPU, as Triton names it, and the bytes of shared memory that a block may have there."""

    backend: str
    arch: int | str
    warp_size: int
    shared: int


#: Shared memory: CUDA C++ Programming Guide, technical specifications per compute capability (163, 227 and 227 KB);
#: CDNA3 ISA reference, local data share (64 KB).
TARGETS = {
    "sm_80": Target("cuda", 80, 32, 163 * 1024),
    "sm_90": Target("cuda", 90, 32, 227 * 1024),
    "sm_100": Target("cuda", 100, 32, 227 * 1024),
    "gfx942": Target("hip", "gfx942", 64, 64 * 1024),
}


class Build(Record, frozen=True):
    """One specialisation on one target. `declined`: the target lacks what it asks for, as a type of numbers."""

    kernel: str
    place: str  # decode.py:61, where the kernel begins
    target: str
    what: str  # types, compile-time constants and options, in words
    launches: tuple[str, ...] = ()  # "case 3 launch 1", all of them
    outcome: Outcome = "compiles"
    says: str = ""  # why it does not compile, with the line of the kernel where the compiler knows it
    shared: int = 0  # bytes a block
    registers: int = 0  # a thread
    spills: int = 0  # 32-bit words of a thread's local memory, as Triton's n_spills
    threads: int = 0  # a block
    seconds: float = 0.0


class Worse(Record, frozen=True):
    """What a change made of a build; it `fails` a gate where the kernel cannot be launched any more."""

    kind: Literal[
        "no longer compiles", "no longer fits", "does not compile", "does not fit", "spills", "more spills",
        "more registers",
    ]  # fmt: skip
    build: Build
    message: str
    fails: bool = False


def chosen_targets(names: str) -> tuple[str, ...]:
    """The targets of a list with commas; raises WrongUse for one that is not known."""
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    unknown = [name for name in chosen if name not in TARGETS]
    if unknown or not chosen:
        raise WrongUse(f"--targets is {names!r}, but expected some of {','.join(TARGETS)}")
    return tuple(dict.fromkeys(chosen))


def overflow(target: Target, shared: int, threads: int, tensor_columns: int) -> str:
    """What the target has no room for, in words, or nothing."""
    if shared > target.shared:
        return f"{shared} bytes of shared memory, but a block may have {target.shared}"
    if threads > MAX_THREADS:
        return f"{threads} threads, but a block may have {MAX_THREADS}"
    if tensor_columns > TENSOR_COLUMNS:
        return f"{tensor_columns} columns of tensor memory, but there are {TENSOR_COLUMNS}"
    return ""


def compare(base: Iterable[Build], change: Iterable[Build]) -> Iterator[Worse]:
    """What got worse, each build of the change told once; what base could not launch either is silent.

    Builds belong together when the same launch of the same case led to them, so a changed signature is no obstacle.
    What base did not launch there, a new kernel say, is told only where it cannot be launched.
    """
    before = {(build.target, build.kernel, launch): build for build in base for launch in build.launches}
    for build in change:
        was = {old for launch in build.launches if (old := before.get((build.target, build.kernel, launch)))}
        found = [worse for old in sorted(was, key=_rank) if (worse := _worse(old, build))]
        yield from found[:1] if was else _unable(build)


def _unable(build: Build) -> Iterator[Worse]:
    if build.outcome == "fails":
        yield Worse(kind="does not compile", build=build, message=build.says, fails=True)
    if build.outcome == "does not fit":
        yield Worse(kind="does not fit", build=build, message=build.says, fails=True)


def _rank(build: Build) -> tuple[bool, int, int]:
    """The best first: it shows most what was lost."""
    return build.outcome != "compiles", build.spills, build.registers


def _worse(was: Build, now: Build) -> Worse | None:
    if was.outcome != "compiles":
        return None
    if now.outcome == "does not fit":
        return Worse(kind="no longer fits", build=now, message=f"{now.says}; base took {was.shared} bytes", fails=True)
    if now.outcome != "compiles":
        return Worse(kind="no longer compiles", build=now, message=now.says, fails=True)
    if now.spills > was.spills:
        kind: Literal["spills", "more spills"] = "more spills" if was.spills else "spills"
        return Worse(kind=kind, build=now, message=f"{now.spills} words a thread spilled, base {was.spills}")
    if _steps(now.registers) > _steps(was.registers):
        return Worse(kind="more registers", build=now, message=f"{now.registers} a thread, base {was.registers}")
    return None


def _steps(registers: int) -> int:
    return -(-registers // REGISTER_STEP)


def tell(build: Build) -> str:
    """A build that failed, in one line."""
    where = f"{build.kernel} ({build.place}) on {build.target}"
    return f"{where} {_VERBS[build.outcome]}: {build.says}; {build.what}"


def counts(builds: Iterable[Build]) -> str:
    """For example "30 compile, 2 do not fit"."""
    outcomes = [build.outcome for build in builds]
    told = (f"{outcomes.count(name)} {words}" for name, words in _WORDS.items() if name in outcomes)
    return ", ".join(told) or "nothing launched"


def reproduction(subject: str, seed: int, build: Build) -> str:
    """The command that compiles what the first case launched for that target."""
    case = build.launches[0].split()[1]
    return f"python -m harness.compiles --subject {subject} --seed {seed} --case {case} --targets {build.target}"


_WORDS: dict[Outcome, str] = {
    "compiles": "compile", "fails": "do not compile", "does not fit": "do not fit", "declined": "declined"
}  # fmt: skip
_VERBS = {"compiles": "compiles", "fails": "does not compile", "does not fit": "does not fit", "declined": "declined"}


def tell_worse(worse: Worse) -> str:
    """What a change made worse, in one line."""
    build = worse.build
    return f"{build.kernel} ({build.place}) on {build.target}, {worse.kind}: {worse.message}; {build.what}"
