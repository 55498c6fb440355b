"""`python -m harness.scout`: compiles into Triton's cache what pools of frames need, in processes that may die.

It reads pools, one JSON object a line. It calls subjects as a worker does, on the GPU where there is one, but launches
nothing: a launch is noted, and what Triton would compile for it is compiled in a process of its own.
"""

import argparse
import gc
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import NoReturn

import msgspec
from triton.runtime import driver

from harness.ahead import Pool
from harness.builds import TARGETS
from harness.case import Case, replace
from harness.compiling import built
from harness.executors.base import Placement
from harness.executors.tuning import tuned
from harness.frames import framed
from harness.inputs import materialise
from harness.profiles import profile
from harness.specialisations import Notes, Specialisation, gpu_target, noted
from harness.subjects import Subject, load
from harness.worker import LIBC, PR_SET_PDEATHSIG

#: Seconds that a subject may take for one call, and the compiler for one kernel; then their process ends.
PATIENCE, COMPILER_PATIENCE = 30, 120
#: What it takes from others that want the processor.
NICE = 10


def main(arguments: list[str] | None = None) -> None:
    """Take pools until the standard input ends, and end when all is compiled."""
    parser = argparse.ArgumentParser(prog="python -m harness.scout", description=__doc__)
    parser.add_argument("--jobs", type=int, required=True, help="so many kernels are compiled at a time")
    parser.add_argument("--target", choices=tuple(TARGETS), help="compile for this one, and call subjects on the CPU")
    options = parser.parse_args(arguments)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(NICE)
    target = options.target or target_here()
    if target is None:  # nobody knows how to note launches for it
        return
    if not options.target:  # what compiles may ask, but a forked process cannot ask CUDA
        driver.active.get_current_target = lambda: gpu_target(target)
    gc.freeze()  # the collector would touch, and so copy, every page that the compilers share
    scout = Scout("cpu" if options.target else "cuda", target, options.jobs)
    for line in sys.stdin.buffer:
        scout.take(msgspec.json.decode(line, type=Pool))
    scout.wait_for(0)
    os._exit(0)  # nothing to save


def target_here() -> str | None:
    """The name of the GPU that is here among those that are known."""
    here = driver.active.get_current_target()
    return next((name for name in TARGETS if gpu_target(name) == here), None)


@dataclass
class Scout:
    """What was noted so far, and the processes that compile."""

    device: str
    target: str
    jobs: int
    running: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.notes = Notes((self.target,))

    def take(self, pool: Pool) -> None:
        """Compile what launches of the pool's frames are the first to need."""
        with suppress(Exception):  # what cannot be loaded or drawn is told where the campaign meets it
            tested = loaded(pool.subject, pool.op)
            options = profile(tested.declaration, pool.seed, pool.rungs)
            for frame in framed(options, pool.seed).frames:
                known = len(self.notes.found)
                self._note(tested, frame)
                for found in list(self.notes.found.values())[known:]:
                    self._compile(found)

    def _note(self, tested: Subject, frame: Case) -> None:
        """Call the subject with the frame; a call that takes too long ends this process."""
        case = near(frame)
        if tested.declines(case):
            return
        signal.alarm(PATIENCE)
        with suppress(Exception), noted(self.notes, dry=True), tuned(case.hints, tested.declaration.configs):
            tested.run(Placement(materialise(case), self.device).inputs)
        signal.alarm(0)

    def _compile(self, found: Specialisation) -> None:
        if found.refused:
            return
        self.wait_for(self.jobs - 1)
        pid = os.fork()
        if not pid:
            become_compiler(found)
        self.running.add(pid)

    def wait_for(self, left: int) -> None:
        """Until no more than so many processes compile."""
        while len(self.running) > left:
            pid, _ = os.wait()
            self.running.discard(pid)


def near(frame: Case) -> Case:
    """The frame without rows that lie far apart: they take gigabytes, and kernels are compiled alike."""
    near_q = "contiguous" if frame.q_layout == "far" else frame.q_layout
    near_out = "given" if frame.out_layout == "far" else frame.out_layout
    placement = "shuffled" if frame.is_far else frame.placement
    return replace(frame, q_layout=near_q, out_layout=near_out, placement=placement)


@cache
def loaded(name: str, op: str) -> Subject:
    """The subject of this name."""
    return load(name, op)


def become_compiler(found: Specialisation) -> NoReturn:
    """Compile one kernel, and the C code that launches it, into Triton's cache."""
    try:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.alarm(COMPILER_PATIENCE)
        kernel = built(found)
        driver.active.launcher_cls(kernel.src, kernel.metadata)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
