"""Clocks and workers for tests of the bench, which has no GPU there."""

from functools import cache
from typing import Any

import msgspec

from harness.executors import gridsim
from harness.measuring import measured
from harness.speeds import AS_GRAPH
from harness.subjects import WrongUse, load
from harness.timing import Ready
from harness.workloads import WORKLOADS, Workload

SMALL: dict[str, Any] = {"block_size": 16, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32}
DECODE = Workload("decode-small", "decode", ((1, 70), (1, 33), (1, 1)), **SMALL)
EXTEND = Workload("extend-small", "extend", ((5, 70), (7, 33), (3, 3)), **SMALL)
WRITE = Workload("write-small", "cache_write", ((70, 70), (33, 33)), **SMALL)
BY_OP = {workload.op: workload for workload in (DECODE, EXTEND, WRITE)}


class Told:
    """A clock that calls once and takes the times that it was told."""

    def __init__(self, *milliseconds: float) -> None:
        self.milliseconds = milliseconds or (1.0,)

    def ready(self, call: Any) -> Ready:
        return Ready(call, AS_GRAPH, call())

    def repeats(self, ready: Ready, number: int) -> tuple[float, ...]:
        return tuple(self.milliseconds[i % len(self.milliseconds)] for i in range(number))


class Missing(Told):
    """A clock whose graph has caught no launch: what is repeated does nothing."""

    def ready(self, call: Any) -> Ready:
        return Ready(lambda: None, AS_GRAPH, call())


class Here:
    """What a command takes for a worker of a GPU: small workloads of the same names, on gridsim, by a told clock."""

    def __init__(self, executor: str, device: int | None = None) -> None:
        self.executor, self.retired = executor, 0

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def describe(self, subject: str, op: str) -> Any:
        return _loaded(subject, op).declaration

    def call(self, target: str, *arguments: Any, limit_seconds: float = 0.0) -> Any:
        if target == "harness.measuring:machine":
            return "a GPU that is not here", {"torch": "9"}
        if target == "harness.ceilings:measure":
            return [
                {"name": "copy", "amount": 4e9, "repeats": [1.0, 1.0, 1.1]},
                {"name": "matmul", "amount": 7e11, "repeats": [1.0]},
                {"name": "empty graph", "amount": 0.0, "repeats": [0.004]},
            ]
        subject, op, name, _, repeats = arguments
        small = BY_OP[WORKLOADS[name].op]
        with gridsim.active():
            found = measured(_loaded(subject, op), small, Told(0.5, 0.4, 0.6), repeats, "cpu")
        return msgspec.to_builtins(msgspec.structs.replace(found, workload=name))

    def retire(self) -> None:
        self.retired += 1


@cache
def _loaded(subject: str, op: str) -> Any:
    if "absent" in subject:
        raise WrongUse(f"subject {subject!r}: there is no file absent.py")
    return load(subject, op)
