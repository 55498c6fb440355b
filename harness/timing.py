"""Times calls of a subject on a GPU: one at a time, each with cold caches, as a CUDA graph where it can be captured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol

import torch

from harness.case import Hints
from harness.executors.gpu import Gpu
from harness.inputs import Inputs
from harness.speeds import AS_GRAPH, ONE_BY_ONE
from harness.subjects import WrongUse, load
from harness.workloads import WORKLOADS, Workload

#: Calls before anything is timed: compilation, autotuning, allocation.
WARM_UP = 3
#: Milliseconds that the calls of a turn take, and the fewest and the most of them: each costs a flush as well.
TURN, FEWEST, MOST = 50.0, 5, 500
#: How much wider than q the keys are distributed.
PEAK = 4.0
#: Bytes that are written and read between two calls where torch does not know the size of the L2 cache.
FLUSH = 256 << 20


@dataclass
class Ready:
    """A call that is ready to be repeated."""

    run: Callable[[], Any]
    how: str
    returned: Any = None  # what the call gave while it was captured: what each repetition writes anew
    calls: int = 1


class Clock(Protocol):
    """What times calls."""

    def ready(self, call: Callable[[], Any]) -> Ready:
        """Warm up, and capture where that is possible."""

    def repeats(self, ready: Ready, number: int) -> tuple[float, ...]:
        """So many times of a call, in milliseconds."""


class GpuClock:
    """The GPU's own events round each call; a time is the median of a turn of calls, each with cold caches."""

    def __init__(self, turn: float = TURN) -> None:
        Gpu()  # says in one line that there is none
        self._turn, self._flush = turn, _flush()

    def ready(self, call: Callable[[], Any]) -> Ready:
        """As a graph; as it is where it cannot be captured, since it waits for the device, say."""
        found = _repeatable(call)
        self.turn(found)
        found.calls = calls_of_a_turn(self.turn(found)[0], self._turn)
        return found

    def repeats(self, ready: Ready, number: int) -> tuple[float, ...]:
        """The medians of so many turns, after one that wakes up a device that has waited for the judging."""
        self.turn(ready)
        return tuple(median(self.turn(ready)) for _ in range(number))

    def turn(self, ready: Ready) -> list[float]:
        """Milliseconds of each call of one turn."""
        events = [(_event(), _event()) for _ in range(ready.calls)]
        for start, end in events:
            self._flush.zero_()  # what the last call read is no longer in the L2 cache,
            self._flush.sum()  # and what the line above wrote is not left for the call to write back
            start.record()
            ready.run()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]


def calls_of_a_turn(milliseconds: float, turn: float) -> int:
    """As many as fill it, from FEWEST to MOST; one where the fewest would take ten times as long."""
    least = FEWEST if FEWEST * milliseconds < 10 * turn else 1
    return min(MOST, max(least, int(turn / max(milliseconds, 1e-3))))


_prepared: list[tuple[GpuClock, Ready]] = []


def prepare(subject: str, workload: str, seed: int) -> str:
    """Make the inputs, warm up, capture; says how the calls are made. To be called in a worker."""
    _prepared.clear()
    torch.cuda.empty_cache()
    chosen = WORKLOADS[workload]
    tested = load(subject, chosen.op)
    if reason := tested.declines(chosen.case()):
        raise WrongUse(f"{subject} declines {workload}: {reason}")
    clock, inputs = GpuClock(), inputs_of(chosen, seed, "cuda")
    _prepared.append((clock, clock.ready(lambda: tested.run(inputs))))
    return _prepared[0][1].how


def turn() -> list[float]:
    """Milliseconds of each call of one turn."""
    clock, ready = _prepared[0]
    return clock.turn(ready)


def _flush() -> torch.Tensor:
    size = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
    return torch.empty((2 * size or FLUSH) // 4, dtype=torch.float32, device="cuda")


def _repeatable(call: Callable[[], Any]) -> Ready:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            returned = call()
    except RuntimeError:
        torch.cuda.synchronize()
        return Ready(call, ONE_BY_ONE)
    return Ready(graph.replay, AS_GRAPH, returned)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def inputs_of(workload: Workload, seed: int, device: str) -> Inputs:
    """The tensors of the call, normally distributed, K wider, blocks in shuffled order; the same for the same seed."""
    dice = torch.Generator(device).manual_seed(seed)
    kv_lens = torch.tensor([kv_len for _, kv_len in workload.seqs])
    new = torch.tensor([new for new, _ in workload.seqs])
    tables = _tables(kv_lens, workload.block_size, seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=dice, device=device, dtype=torch.bfloat16)

    tokens, blocks = int(new.sum()), int(tables.max()) + 1
    cache = (blocks, workload.block_size, workload.num_kv_heads, workload.head_dim)
    writes = workload.op == "cache_write"
    fresh = (tokens, workload.num_kv_heads, workload.head_dim)
    index = torch.int64 if writes else torch.int32
    nothing = dict.fromkeys(("out", "alibi_slopes", "sinks", "k_scale", "v_scale", "state_outs", "state_lses"))
    q, k_cache = numbers(tokens, workload.num_q_heads, workload.head_dim), numbers(*cache).mul_(PEAK)
    if not writes:
        k_cache.flatten(0, 1)[_slots(workload, tables).to(device)] = _near(q, workload)
    return Inputs(
        q=q,
        k_cache=k_cache,
        v_cache=numbers(*cache),
        block_tables=tables.to(device, index),
        kv_lens=kv_lens.to(device, torch.int32),
        query_starts=torch.cat([new.new_zeros(1), new.cumsum(0)]).to(device, torch.int32),
        k_new=numbers(*fresh) if writes else None,
        v_new=numbers(*fresh) if writes else None,
        slot_mapping=_slots(workload, tables).to(device) if writes else None,
        **nothing,
        scale=1.0 / math.sqrt(workload.head_dim),
        causal=True,
        window=(-1, -1),
        softcap=0.0,
        want_lse=False,
        max_query_len=int(new.max()),
        max_kv_len=int(kv_lens.max()),
        tile_start=0,
        tile_end=1,
        hints=Hints(),
    )


def _near(q: torch.Tensor, workload: Workload) -> torch.Tensor:
    """Keys [tokens, kv heads, head_dim] of the new tokens, near their own queries.

    With K so wide the scores have a deviation of PEAK, so few keys have most of the weight: a plain mean of thousands
    of values would hide a lost block. The own key's score is near the largest of n, PEAK sqrt(2 ln n) at most.
    """
    group = workload.num_q_heads // workload.num_kv_heads
    seen = torch.cat([torch.arange(kv_len - new, kv_len) + 1 for new, kv_len in workload.seqs]).to(q.device)
    scores = 0.9 * PEAK * (2 * seen.log()).sqrt()
    middles = q.float().reshape(len(q), workload.num_kv_heads, group, workload.head_dim).mean(2)
    near = middles * (scores * group / math.sqrt(workload.head_dim))[:, None, None]
    return near.to(q.dtype)


def with_dense_rows(inputs: Inputs, workload: Workload) -> Inputs:
    """The same call with K and V of the new tokens in rows of their own as well, as some projects take them."""
    slots = _slots(workload, inputs.block_tables.cpu().long()).to(inputs.q.device)
    k_new, v_new = (cache.flatten(0, 1)[slots] for cache in (inputs.k_cache, inputs.v_cache))
    return replace(inputs, k_new=k_new, v_new=v_new)


def _tables(kv_lens: torch.Tensor, block_size: int, seed: int) -> torch.Tensor:
    """Block ids [seqs, columns], each block once; 0 beyond the end of a row."""
    counts = ((kv_lens + block_size - 1) // block_size).tolist()
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed))
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int64)
    for row, blocks in enumerate(torch.split(order, counts)):
        tables[row, : len(blocks)] = blocks
    return tables


def _slots(workload: Workload, tables: torch.Tensor) -> torch.Tensor:
    """Where each new token goes: the last ones of its sequence."""
    slots = []
    for row, (new, kv_len) in enumerate(workload.seqs):
        position = torch.arange(kv_len - new, kv_len)
        slots.append(tables[row, position // workload.block_size] * workload.block_size)
        slots[-1] += position % workload.block_size
    return torch.cat(slots)
