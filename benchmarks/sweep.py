"""Times one of our kernels with every combination of its tiles, warps and stages, on workloads of `harness.bench`.

    python -m benchmarks.sweep split_decode sweep.jsonl --workload decode-32x8k-16 --knob tile_kv=32,64

Processes compile all of them first, side by side; then they are timed alone, one after the other. A combination that
does not fit the device has its error instead of a time. Nothing is judged: that is for `harness.bench`.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from harness.folders import load

Knobs = dict[str, Any]
#: By kernel: what is called, and the arguments of a call by their names in the inputs.
KERNELS = {
    "split_decode": ("paged_split_decode", "q k_cache v_cache block_tables kv_lens"),
    "extend": ("paged_extend", "q k_cache v_cache block_tables query_starts kv_lens"),
}


@click.command()
@click.argument("kernel", type=click.Choice(list(KERNELS)))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--workload", "workloads", multiple=True, required=True)
@click.option("--knob", "knobs", multiple=True, help="NAME=VALUE,VALUE: an argument of the wrapper.")
@click.option("--module", "constants", multiple=True, help="NAME=VALUE,VALUE: a constant of the kernel's module.")
@click.option("--turn", default=10.0, show_default=True, help="Milliseconds of a turn; the time is the median of 3.")
@click.option("--workers", default=os.cpu_count(), show_default=True)
def main(kernel: str, file: Path, workloads: tuple[str, ...], workers: int, turn: float, **grids: Any) -> None:
    """Write a line of JSON for each workload and combination to FILE, as they are timed."""
    tried = [
        (name, knobs, constants)
        for name, knobs, constants in itertools.product(
            workloads, combinations(grids["knobs"]), combinations(grids["constants"])
        )
    ]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        compiled = list(pool.map(partial(attempt, kernel, None), *zip(*tried, strict=True)))
    with file.open("a") as lines:
        for (name, knobs, constants), said in zip(tried, compiled, strict=True):
            found = said if "error" in said else attempt(kernel, turn, name, knobs, constants)
            told = {"kernel": kernel, "workload": name, **knobs, **constants, **found}
            lines.write(json.dumps(told) + "\n")
            lines.flush()


def combinations(grids: tuple[str, ...]) -> Iterator[Knobs]:
    """Every choice of one value for each name."""
    names = [grid.partition("=")[0] for grid in grids]
    values = [[json.loads(value) for value in grid.partition("=")[2].split(",")] for grid in grids]
    return (dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values))


def attempt(kernel: str, turn: float | None, workload: str, knobs: Knobs, constants: Knobs) -> dict[str, Any]:
    """The times of this combination, or without a turn whether it can be called."""
    try:
        call = prepared(kernel, workload, knobs, constants)
        if turn is None:
            call()
            return {}
        clock = clock_of(turn)
        ready = clock.ready(call)
        return {"ms": sorted(clock.repeats(ready, 3))[1], "how": ready.how}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}


def prepared(kernel: str, workload: str, knobs: Knobs, constants: Knobs) -> Callable[[], Any]:
    """The call."""
    module, (function, names) = load("kernels", kernel), KERNELS[kernel]
    for name, value in constants.items():
        setattr(module, name, value)
    inputs = inputs_of(workload)
    more = {"max_query_len": inputs.max_query_len} if kernel == "extend" else {}
    return partial(getattr(module, function), *(getattr(inputs, name) for name in names.split()), **more, **knobs)


@cache
def clock_of(turn: float) -> Any:
    """The clock of this process."""
    from harness.timing import GpuClock

    return GpuClock(turn)


_inputs: dict[str, Any] = {}


def inputs_of(workload: str) -> Any:
    """The inputs of the workload; those of another one make room for them."""
    from harness import timing
    from harness.workloads import WORKLOADS

    if workload not in _inputs:
        _inputs.clear()
        _inputs[workload] = timing.inputs_of(WORKLOADS[workload], 0, "cuda")
    return _inputs[workload]


if __name__ == "__main__":
    main()
