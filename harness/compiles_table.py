"""The Markdown table of what was compiled: shared memory, registers and spills of each kernel on each target."""

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Protocol

from harness.builds import TARGETS, Build

HEAD = """\
# What our kernels take on each GPU

Compiled by Triton {triton}'s own compiler, without a GPU:

    {command} --table docs/compiles.md

Every specialisation that the drawn cases launch was compiled for every target. Registers are a thread's; spilled words
are 32 bits of a thread's local memory, as Triton counts `n_spills`. Shared memory stands beside what a block may have.
Median, then the most. Drawn head dims reach 256 and blocks 256 tokens, which the textbook kernels take as one tile.

| kernel | target | compiled | declined | failed | shared memory, bytes | of | registers | spilled words | spilling |
|---|---|---|---|---|---|---|---|---|---|
"""


class Builds(Protocol):
    """Whatever has builds."""

    @property
    def builds(self) -> tuple[Build, ...]:
        """Of any kernels and targets."""


def table(found: Iterable[Builds], targets: Iterable[str], versions: Mapping[str, str], command: str) -> str:
    """The page; a kernel that two subjects launch has one row for each target."""
    kernels: dict[str, dict[tuple[str, str], Build]] = {}
    for compiled in found:
        for build in compiled.builds:
            kernels.setdefault(f"{build.kernel} ({build.place})", {})[build.target, build.what] = build
    head = HEAD.format(triton=versions.get("triton", "?"), command=command)
    rows = [_row(name, target, list(builds.values())) for name, builds in kernels.items() for target in targets]
    return head + "\n".join(rows) + "\n" + "".join(_declined(kernels.values()))


def _row(name: str, target: str, builds: list[Build]) -> str:
    here = [build for build in builds if build.target == target]
    able = [build for build in here if build.outcome == "compiles"]
    declined = sum(build.outcome == "declined" for build in here)
    cells = (
        f"`{name}`", target, len(able), declined, len(here) - len(able) - declined,
        _spread([build.shared for build in able]), f"{TARGETS[target].shared:,}",
        _spread([build.registers for build in able]), _spread([build.spills for build in able]),
        f"{sum(build.spills > 0 for build in able)} of {len(able)}",
    )  # fmt: skip
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _spread(numbers: list[int]) -> str:
    return f"{median(numbers):,.0f}, {max(numbers):,}" if numbers else ""


def _declined(kernels: Iterable[dict[tuple[str, str], Build]]) -> Iterator[str]:
    builds = [build for found in kernels for build in found.values() if build.outcome == "declined"]
    said = {(build.target, build.says.rpartition(" (")[0]) for build in builds}
    if said:
        yield "\nDeclined, since the target lacks what the specialisation asks for:\n\n"
    yield from (f"* {target}: {says}\n" for target, says in sorted(said))
