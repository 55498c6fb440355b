"""One subject on one workload in full size: called, judged, repeated by a clock, and judged as it was repeated."""

from __future__ import annotations

import platform as host
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import triton

from harness import adapters, samples
from harness.adapters import core
from harness.arithmetic import Arithmetic
from harness.benching import form
from harness.bounds import Bound
from harness.case import Case
from harness.executors.base import Observed, empty_is_nan, failure
from harness.executors.gpu import Gpu, launches
from harness.executors.gridsim import Unsupported
from harness.inputs import Inputs
from harness.machine import hardware
from harness.pipeline import reading_of
from harness.platforms import flushing, judging
from harness.speeds import Speed
from harness.subjects import Subject, is_adapted, load
from harness.timing import Clock, GpuClock, inputs_of, with_dense_rows
from harness.workloads import WORKLOADS, Workload


def measure(subject: str, op: str, workload: str, turn: float, repeats: int) -> dict[str, Any]:
    """The speed of a named subject on a named workload, as plain words; to be called in a worker of a GPU."""
    tested, chosen = _loaded(subject, op), WORKLOADS[workload]
    found: dict[str, Any] = msgspec.to_builtins(measured(tested, chosen, _clock(turn), repeats))
    return found


def machine() -> tuple[str, dict[str, str]]:
    """The device in words, and the versions that matter; to be called in a worker."""
    versions = {"python": host.python_version(), "torch": str(torch.__version__), "triton": triton.__version__}
    return hardware(), versions | {"numpy": np.__version__} | driver()


def driver(file: Path = Path("/proc/driver/nvidia/version")) -> dict[str, str]:
    """The version of NVIDIA's driver, where there is one."""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", file.read_text()) if file.is_file() else None
    return {"driver": found[0]} if found else {}


@cache
def _loaded(subject: str, op: str) -> Subject:
    return load(subject, op)


@cache
def _clock(turn: float) -> GpuClock:
    return GpuClock(turn)


def measured(tested: Subject, workload: Workload, clock: Clock, repeats: int, device: str = "cuda") -> Speed:
    """Judge and time one subject; whatever it raises is its row's, and stops nobody else."""
    case = form(tested.declaration, workload)
    named: dict[str, Any] = {"workload": workload.name, "subject": tested.name}
    if reason := tested.declines(case):
        return Speed(**named, state="declined", says=reason)
    try:
        return _Trial(tested, case, _batch(workload, device), clock).speed(named, repeats)
    except (Exception, SystemExit) as error:
        _batches.clear()  # nobody knows what it left behind
        told = failure(error)
        return Speed(**named, state="failed", says=f"{told.type} at {told.line}: {told.message}")


# --- the inputs, and what is right for them ------------------------------------------------------------------------


@dataclass
class Batch:
    """The inputs of one workload, which all subjects share, and what is known to be right for them."""

    workload: Workload
    inputs: Inputs
    platform: str
    sums: dict[str, int] = field(default_factory=dict)
    bounds: dict[Arithmetic, dict[samples.Place, Bound]] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether the call fills the caches."""
        return self.workload.op == "cache_write"

    def bound(self, arithmetic: Arithmetic) -> dict[samples.Place, Bound]:
        """Truth and bound of the sampled places, once for each arithmetic."""
        if arithmetic not in self.bounds:
            where = flushing(judging(self.platform))
            judged = samples.places(self.workload)
            self.bounds[arithmetic] = {place: samples.bound(self.inputs, place, arithmetic, where) for place in judged}
        return self.bounds[arithmetic]

    def changed(self) -> str:
        """The names of inputs that are no longer what they were."""
        return ", ".join(name for name, total in _sums(self).items() if total != self.sums[name])


_batches: list[Batch] = []


def _batch(workload: Workload, device: str) -> Batch:
    """The inputs of the workload; those of another one make room for them."""
    if not _batches or _batches[0].workload is not workload:
        _batches.clear()
        if device == "cuda":
            torch.cuda.empty_cache()
        made = Batch(workload, inputs_of(workload, 0, device), Gpu().platform if device == "cuda" else "gridsim")
        made.sums = _sums(made)
        _batches.append(made)
    return _batches[0]


def _sums(batch: Batch) -> dict[str, int]:
    """A sum of the bits of each input that a call must leave alone."""
    tensors = batch.inputs.tensors().items()
    kept = {name: t for name, t in tensors if not (batch.writes and name in ("k_cache", "v_cache"))}
    return {name: int(tensor.view(torch.int16).sum(dtype=torch.int64)) for name, tensor in kept.items()}


# --- the calls -----------------------------------------------------------------------------------------------------


@dataclass
class _Trial:
    """The calls of one subject on one batch."""

    tested: Subject
    case: Case
    batch: Batch
    clock: Clock

    def speed(self, named: dict[str, Any], repeats: int) -> Speed:
        """Judged once as it is called, timed, and judged again as it was timed: a graph may have missed a launch."""
        inputs = self.batch.inputs
        inputs = with_dense_rows(inputs, self.batch.workload) if self.case.new_kv == "dense" else inputs
        self.tested.run(inputs)  # compiles, tunes, plans: that is no part of what is read and judged
        self._erase()
        with launches() as ttir, empty_is_nan():
            returned, inner = self._called(inputs)
            _wait(inputs)
        arithmetic = self._arithmetic(tuple(ttir))
        out = _output(returned)
        says, margin = self._complaint(out, arithmetic)
        ready = self.clock.ready(inner or partial(self.tested.run, inputs))
        times = self.clock.repeats(ready, repeats)
        if not says:
            self._erase(out, ready.returned)
            latest = _latest(ready.run(), ready.returned, out)
            _wait(inputs)
            says, margin = self._complaint(latest, arithmetic, margin)
            says = f"as it is timed, {ready.how}: {says}" if says else ""
        return Speed(
            **named,
            state="wrong" if says else "right",
            says=says,
            repeats=times,
            how=ready.how,
            core=core.core_of(adapters.find(self.tested.name)) if inner else "",
            places=0 if self.batch.writes else len(samples.places(self.batch.workload)),
            margin=margin if np.isfinite(margin) else 0.0,
        )

    def _arithmetic(self, ttir: tuple[str, ...]) -> Arithmetic:
        """How the kernels round; where their text does not read, what is assumed where there is none."""
        try:
            return reading_of(self.case, self.tested, Observed(ttir=ttir)).arithmetic
        except Unsupported:
            return reading_of(self.case, self.tested, Observed()).arithmetic

    def _called(self, inputs: Inputs) -> tuple[Any, core.Call | None]:
        if not is_adapted(self.tested.name):
            return self.tested.run(inputs), None
        return core.called(adapters.find(self.tested.name), self.tested, inputs)

    def _erase(self, *given: Any) -> None:
        """NaN wherever the next call has to write."""
        caches = (self.batch.inputs.k_cache, self.batch.inputs.v_cache) if self.batch.writes else ()
        for tensor in (*caches, *(t for each in given for t in _tensors(each) if not self._lent(t))):
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)

    def _lent(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in the memory of an input."""
        address = tensor.untyped_storage().data_ptr()
        return any(address == t.untyped_storage().data_ptr() for t in self.batch.inputs.tensors().values())

    def _complaint(self, out: Any, arithmetic: Arithmetic, least: float = 0.0) -> tuple[str, float]:
        """What is wrong after a call, and the largest error that was seen as a multiple of the bound."""
        if changed := self.batch.changed():  # first, for the truth is of these very inputs
            _batches.clear()
            return f"inputs changed: {changed}", least
        if self.batch.writes:
            return _wrong_caches(self.batch.inputs), least
        if said := self._misshapen(out):
            return said, least
        said, margin = samples.complaint(out, self.batch.bound(arithmetic))
        return said, max(margin, least)

    def _misshapen(self, out: Any) -> str:
        q = self.batch.inputs.q
        if not isinstance(out, torch.Tensor):
            return f"out is {type(out).__name__}, but should be a tensor {list(q.shape)}"
        if (out.shape, out.dtype) != (q.shape, q.dtype):
            return f"out is {list(out.shape)} of {out.dtype}, but should be {list(q.shape)} of {q.dtype}"
        return "out lies in the memory of an input, but should have its own" if self._lent(out) else ""


def _wait(inputs: Inputs) -> None:
    if inputs.q.is_cuda:
        torch.cuda.synchronize()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        yield from (each for each in value if isinstance(each, torch.Tensor))


def _output(returned: Any) -> Any:
    """The output, without an lse beside it."""
    return returned[0] if isinstance(returned, (tuple, list)) and returned else returned


def _latest(given: Any, captured: Any, out: Any) -> Any:
    """Where the repeated call has written: what it gave, or gave when it was captured, in the shape of the output.

    A project's function that gives nothing has written where it did the first time.
    """
    for each in (*_tensors(given), *_tensors(captured)):
        if isinstance(out, torch.Tensor) and each.numel() == out.numel():
            return each.reshape(out.shape)
    return out


def _wrong_caches(inputs: Inputs) -> str:
    """What differs in any bit from the new tokens in their slots, and NaN everywhere else."""
    for name, new in (("k_cache", inputs.k_new), ("v_cache", inputs.v_new)):
        cache = getattr(inputs, name)
        right = torch.full_like(cache, torch.nan)
        right.flatten(0, 1)[inputs.slot_mapping] = new
        wrong = cache.view(torch.int16) != right.view(torch.int16)
        if count := int(wrong.sum()):
            at = [int(i) for i in wrong.nonzero()[0]]
            got, should = (float(each[tuple(at)]) for each in (cache, right))
            return f"{name} {at} is {got:.6g}, but should be {should:.6g}; {count} elements differ"
    return ""
