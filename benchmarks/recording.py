"""What `harness.record` adds to a call, in milliseconds: where it is looked at, and where it is not."""

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click
import torch

from harness import record

BLOCK_SIZE, HEADS, DIM = 16, 8, 128


def attend(q: Any, k_cache: Any, v_cache: Any, block_tables: Any, kv_lens: Any, scale: float) -> Any:  # noqa: ARG001
    """A kernel's wrapper that launches nothing, so that only the recording is timed."""
    return q


def batch(seqs: int, kv_len: int) -> tuple[Any, ...]:
    """Arguments of a decode step; nobody reads the caches, so they take no memory."""
    columns = -(-kv_len // BLOCK_SIZE)
    table = torch.randperm(seqs * columns, dtype=torch.int32).reshape(seqs, columns)
    k_cache, v_cache = (torch.empty(seqs * columns, BLOCK_SIZE, 1, DIM, dtype=torch.float16) for _ in "kv")
    q = torch.empty(seqs, HEADS, DIM, dtype=torch.float16)
    return q, k_cache, v_cache, table, torch.full((seqs,), kv_len), DIM**-0.5


def milliseconds(call: Callable[..., Any], arguments: tuple[Any, ...], times: int) -> float:
    """The median; lengths go down by one each time, so that every call is another case."""
    taken = []
    for _ in range(times):
        arguments[4].sub_(1)
        began = time.perf_counter()
        call(*arguments)
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken)


def passed_over(folder: str) -> Callable[..., Any]:
    """A recorded function whose sample is full and takes nothing more."""
    call = record(attend, into=folder, limit=1)
    call(*batch(1, 20))
    call.recorder._random.randrange = lambda calls: calls  # type: ignore[attr-defined]
    return call


@click.command()
@click.option("--times", type=click.IntRange(min=1), default=50, show_default=True)
def main(times: int) -> None:
    """Print a line for each batch."""
    with tempfile.TemporaryDirectory() as folder:
        for seqs, kv_len in ((8, 1024), (64, 8192)):
            call = record(attend, into=folder, limit=None)
            click.echo(f"{seqs} x {kv_len}, looked at: {milliseconds(call, batch(seqs, kv_len), times):.3g} ms")
            assert not call.recorder.counts().failed, call.recorder.counts()  # type: ignore[attr-defined]
        passed = milliseconds(passed_over(folder), batch(8, 10**5), 100 * times)
        click.echo(f"any, not looked at: {passed:.2g} ms")


if __name__ == "__main__":
    main()
