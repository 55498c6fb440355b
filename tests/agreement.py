"""Runs the same cases, casts and products on two executors, each in processes of its own, and compares what they gave.

The first executor is the GPU; the second is gridsim. For a test of all this without a GPU, gridsim is both.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from harness.case import FAR, Case, Seq, replace
from harness.profiles import Profile, profile
from harness.strategies import cases
from harness.subjects import load, operation

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TRITON_DEFAULT_FP_FUSION="1")  # there are many

SUBJECTS = ("decode", "split_decode", "extend", "cache_write", "step", "gather", "merge")
SEED = 20261130
EXACT = ("decode", "extend", "step")  # operations of which some cases are exact
FINDINGS = 3  # kept in full for each row of the table


@dataclass
class Row:
    """What was seen of one operation in one type with one family of values."""

    subject: str
    dtype: str
    kv_dtype: str
    values: str
    cases: int = 0
    declined: int = 0
    elements: int = 0
    differ: int = 0  # in any bit
    differ_where_exact: int = 0  # though every sum and quotient is exact
    exact: int = 0
    worst: float = 0.0  # the largest difference, as a share of both bounds together
    beyond: int = 0  # elements that leave their bound
    wrong: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether nothing differs that should not."""
        return not (self.differ_where_exact or self.beyond or self.wrong)


def drawn(subject: str, count: int) -> list[Case]:
    """So many cases of one subject, from one pool of compile-time constants; none far apart, which needs memory.

    A quarter of the attention cases are made such that what a right kernel computes is exact.
    """
    options = profile(load(f"ours.{subject}", operation(subject)).declaration, SEED)
    near = tuple(placement for placement in options.placements if placement not in FAR)
    rows = tuple(layout for layout in options.q_layouts if layout != "far")
    options = msgspec.structs.replace(options, placements=near, q_layouts=rows)
    found: list[Case] = []
    while len(found) < count:
        found += _few(options, SEED + len(found))
    exact = (
        [_exact(case, number) for number, case in enumerate(found[: count // 4])] if operation(subject) in EXACT else []
    )
    return [*exact, *found][:count]


def _few(options: Profile, number: int) -> list[Case]:
    """A few cases of one seed: the first is always the simplest, and later ones are variants of those before."""
    found: list[Case] = []

    @seed(number)
    @settings(max_examples=4, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(cases(options))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found[1:4] or found


def _exact(case: Case, number: int) -> Case:
    """The same shapes and types with equal weights over 1, 16 and 64 keys, or all weight on one key; in one split."""
    query = 1 if case.op == "decode" else 16
    seqs = tuple(Seq(kv_len=n, query_len=min(n, query), tag=tag) for tag, n in enumerate((16, 1, 64)))
    hints = replace(case.hints, num_splits=min(case.hints.num_splits, 1))
    return replace(case, seqs=seqs, hints=hints, values=("uniform", "gather")[number % 2], alibi=False, sinks=False,
                   softcap=0.0, window=(-1, -1), slid_out=False, scale=0.25)  # fmt: skip


def grouped(given: Sequence[Case]) -> list[list[Case]]:
    """Cases that share compiled kernels, so that one process compiles each."""
    groups: dict[object, list[Case]] = {}
    for case in given:
        key = (case.head_dim, case.value_dim, case.block_size, case.dtype, case.kv_dtype, case.softcap > 0, case.alibi,
               case.sinks, case.window == (-1, -1), case.want_lse)  # fmt: skip
        groups.setdefault(key, []).append(case)
    return list(groups.values())


def ready() -> None:
    """Prepare a process."""
    torch.set_num_threads(1)


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes: neither CUDA nor threads survive a fork."""
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), ready) as pool:
        yield pool


def observed(executor: str, subject: str, group: list[Case]) -> list[dict[str, Any]]:
    """What the cases gave on an executor: arrays and words only, which travel."""
    return [_observed(executor, subject, case) for case in group]


def _observed(executor: str, subject: str, case: Case) -> dict[str, Any]:
    from harness.inputs import materialise
    from harness.pipeline import _no_verdict, reading_of, the_executor

    tested, where = load(f"ours.{subject}", operation(subject)), the_executor(executor)
    if reason := tested.declines(case) or where.declines(case):
        return {"declined": reason}
    seen = where.observe(tested, materialise(case))
    if reason := _no_verdict(seen):
        return {"declined": reason}
    words = [str(part) for part in (seen.failure, seen.complaint, *seen.changed, *seen.outside) if part]
    arithmetic = reading_of(case, tested, seen).arithmetic
    out, lse = (None if x is None else np.asarray(x) for x in (seen.out, seen.lse))
    return {"out": out, "lse": lse, "wrong": words, "arithmetic": arithmetic, "platform": where.platform}


def compared(subject: str, group: list[Case], first: list[dict[str, Any]], second: str) -> list[Row]:
    """Run the cases on the second executor and compare, one row for each case."""
    return [_compared(subject, case, one, second) for case, one in zip(group, first, strict=True)]


def _compared(subject: str, case: Case, one: dict[str, Any], second: str) -> Row:
    row = Row(subject, case.dtype, case.kv_dtype, case.values, cases=1)
    other = one if "declined" in one else _observed(second, subject, case)
    if "declined" in other:
        row.declined = 1
        return row
    row.wrong = [f"{side}: {word}" for side, got in (("first", one), ("second", other)) for word in got["wrong"]]
    if one["out"] is not None and other["out"] is not None:
        _measure(row, case, one, other)
    row.wrong = [f"{text} on {msgspec.json.encode(case).decode()}" for text in row.wrong][:FINDINGS]
    return row


def _measure(row: Row, case: Case, one: dict[str, Any], other: dict[str, Any]) -> None:
    from harness.executors.base import bits

    differs = bits(one["out"]) != bits(other["out"])
    row.elements, row.differ = int(differs.size), int(differs.sum())
    if case.op == "gather":
        row.exact, row.differ_where_exact = row.elements, row.differ
        return
    bounds = [_bound(case, got) for got in (one, other)]
    exact = exactly(case, bounds[0])
    row.exact, row.differ_where_exact = int(exact.sum()), int((differs & exact).sum())
    row.worst, row.beyond = _apart(one["out"], other["out"], [(b.truth, b.out) for b in bounds])
    if one["lse"] is not None and other["lse"] is not None:
        worst, beyond = _apart(one["lse"], other["lse"], [(b.truth_lse, b.lse) for b in bounds])
        row.worst, row.beyond = max(row.worst, worst), row.beyond + beyond
    if row.beyond or row.differ_where_exact:
        at = tuple(int(i) for i in np.argwhere(differs)[0]) if differs.any() else ()
        row.wrong.append(f"at {list(at)}: {one['out'][at]!r} and {other['out'][at]!r}")


def _bound(case: Case, got: dict[str, Any]) -> Any:
    from harness.inputs import materialise
    from harness.judge import judge
    from harness.platforms import platform

    return judge(materialise(case), got["arithmetic"], platform(got["platform"]))


def _apart(one: np.ndarray, other: np.ndarray, bounds: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, int]:
    """The largest difference as a share of both bounds together, and how many elements leave a bound of their own."""
    from harness.bounds import exceeds

    together = bounds[0][1] + bounds[1][1]
    with np.errstate(all="ignore"):
        share = np.abs(one.astype(np.float64) - other.astype(np.float64)) / together
    known = share[np.isfinite(share)]
    beyond = exceeds(one, *bounds[0]) | exceeds(other, *bounds[1]) | (np.isfinite(share) & (share > 1))
    return float(known.max(initial=0.0)), int(beyond.sum())


def exactly(case: Case, bound: Any) -> np.ndarray:
    """Where every product, sum and quotient of a right kernel is exact, so that its bits are known; in out's shape.

    Equal keys: all weights are 1 and the values small integers, so the quotient is exact where the number of keys, e to
    the lse, is a power of two, and nothing is merged. One hot key: its weight is 1 and the others' are 0, and the
    output is its value, whole numbers; only its own, so the lse is far above what equal keys would have. A score times
    a scale that is no power of two is rounded, and not where a compiler fuses it with the subtraction that follows; one
    in base 2 always is, and what that leaves of a weight of 1 shows in float32 alone.
    """
    plain = not (case.alibi or case.sinks or case.softcap) and case.op in EXACT
    if plain and case.values == "uniform" and case.hints.num_splits <= 1:
        keys = np.exp2(np.round(np.log2(np.exp(np.maximum(bound.truth_lse, 0)))))
        here = np.abs(np.exp(bound.truth_lse) / keys - 1) < 1e-9
    elif plain and case.values == "gather" and case.kv_dtype == "same" and _scaled_exactly(case):
        here = bound.truth_lse > 100
    else:
        here = np.zeros(bound.truth_lse.shape, bool)
    return np.broadcast_to(here[..., None], bound.truth.shape)


def _scaled_exactly(case: Case) -> bool:
    return case.dtype != "float32" and np.frexp(case.scale or 0.3)[0] == 0.5


def table(count: int, first: str, second: str, workers: int, subjects: Sequence[str] = SUBJECTS) -> list[Row]:
    """Draw, run on both executors and compare: a row for each subject, type and family of values."""
    work = [(subject, group) for subject in subjects for group in grouped(drawn(subject, count))]
    rows: list[Row] = []
    with processes(workers) as one, processes(workers) as two:
        running: dict[Future[Any], tuple[str, list[Case]]] = {
            one.submit(observed, first, *task): task for task in sorted(work, key=lambda task: -len(task[1]))
        }
        later: dict[Future[Any], tuple[str, list[Case]]] = {}
        for future in as_completed(running):
            task = running[future]
            rows += _result(future, task, lambda found, task=task: later.update(
                {two.submit(compared, *task, found, second): task}))  # fmt: skip
        for future in as_completed(later):
            rows += _result(future, later[future], lambda _: None) or future.result()
    return added(rows)


def _result(future: Future[Any], task: tuple[str, list[Case]], go_on: Callable[[Any], None]) -> list[Row]:
    """Hand a result on; a process that died or raised is a row that is wrong."""
    error = future.exception()
    if error is None:
        go_on(future.result())
        return []
    subject, group = task
    return [
        Row(subject, group[0].dtype, group[0].kv_dtype, group[0].values, wrong=[f"{type(error).__name__}: {error}"])
    ]


def added(rows: Sequence[Row]) -> list[Row]:
    """One row for each subject, type and family."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        into = found.setdefault(
            (row.subject, row.dtype, row.kv_dtype, row.values), Row(row.subject, row.dtype, row.kv_dtype, row.values)
        )
        for name in ("cases", "declined", "elements", "differ", "differ_where_exact", "exact", "beyond"):
            setattr(into, name, getattr(into, name) + getattr(row, name))
        into.worst = max(into.worst, row.worst)
        into.wrong = [*into.wrong, *row.wrong][:FINDINGS]
    return sorted(found.values(), key=lambda row: (row.subject, row.dtype, row.kv_dtype, row.values))


def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The table as JSON holds it."""
    return [asdict(row) for row in rows]


def on(executor: str) -> tuple[Any, str]:
    """Where plain kernels run: a context to launch them in, and the device of their tensors."""
    if executor == "gpu":
        return nullcontext(), "cuda"
    from harness.executors import gridsim

    return gridsim.active(), "cpu"


def cast_on(executor: str, values: np.ndarray, kind: str, rounding: str = "") -> np.ndarray:
    """Cast in this process."""
    from casting import converted

    where, device = on(executor)
    with where:
        return converted(values, kind, device, rounding)


def multiplied_on(executor: str, *given: Any) -> np.ndarray:
    """Multiply in this process; see `multiplying.multiplied`."""
    from multiplying import multiplied

    where, device = on(executor)
    with where:
        return multiplied(device, *given)


class Aside:
    """One process beside this one; a compiler that aborts takes it along, and the next question gets a new one."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def ask(self, function: Callable[..., Any], *given: Any) -> Any:
        """The result, or in words why there is none: the other measurements go on."""
        self._pool = self._pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), ready)
        try:
            return self._pool.submit(function, *given).result(timeout=120)
        except BrokenProcessPool as error:
            self.close()
            return f"the process died: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """Let it go."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
