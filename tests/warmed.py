"""Compiles as a launch on an H200 would, without one, or on the GPU that is `here`.

It reads a pool, and writes how many kernels came from Triton's cache, and how many there are.
"""

import sys
from contextlib import suppress

import msgspec
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from harness.ahead import Pool
from harness.executors.base import Placement
from harness.executors.tuning import tuned
from harness.frames import framed
from harness.inputs import materialise
from harness.profiles import profile
from harness.scout import near
from harness.subjects import load


class Hopper:
    """What JITFunction.run asks of a driver before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def main() -> None:
    pool, hits = msgspec.json.decode(sys.stdin.read(), type=Pool), []
    here = sys.argv[1:] == ["here"]
    if not here:
        driver.set_active(Hopper())
    knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
    run = JITFunction.run
    JITFunction.run = lambda self, *args, **kwargs: run(self, *args, **kwargs | {"warmup": True})
    tested = load(pool.subject, pool.op)
    for case in framed(profile(tested.declaration, pool.seed, pool.rungs), pool.seed).frames:
        with suppress(ValueError), tuned(case.hints, tested.declaration.configs):
            tested.run(Placement(materialise(near(case)), "cuda" if here else "cpu").inputs)
    sys.stdout.write(f"{sum(hits)} {len(hits)}\n")


if __name__ == "__main__":
    main()
