"""What a probe is: an attempt to falsify one constant, entered by name, and how one is run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from harness.executors.base import failure
from harness.platforms import Platform
from harness.probes.device import Device
from harness.tables import Measured, Value


@dataclass(frozen=True)
class Worst:
    """The worst that was seen, and on what."""

    value: Value
    shows: str


@dataclass(frozen=True)
class Probe:
    """An attempt to falsify one constant."""

    name: str
    constant: str
    measure: Callable[[Device, Platform], Worst]
    assumed: Callable[[Platform], Value]


PROBES: dict[str, Probe] = {}

Measure = Callable[[Device, Platform], Worst]


def probe(name: str, constant: str, assumed: Callable[[Platform], Value] | None = None) -> Callable[[Measure], Measure]:
    """Enter a probe of that constant; what is assumed is the constant itself unless `assumed` says otherwise."""

    def enter(measure: Measure) -> Measure:
        PROBES[name] = Probe(name, constant, measure, assumed or (lambda platform: getattr(platform, constant)))
        return measure

    return enter


def tried(each: Probe, device: Device, platform: Platform) -> Measured:
    """Run the probe; one that raises is no verdict."""
    began, assumed = time.perf_counter(), each.assumed(platform)
    found = Measured(probe=each.name, constant=each.constant, assumed=assumed)
    try:
        worst = each.measure(device, platform)
    except Exception as error:  # a type that the compiler does not know, a library that is not there
        reason = f"{type(error).__name__}: {failure(error).message}"
        outcome: dict[str, Any] = {"verdict": "could not be probed", "reason": reason}
    else:
        value = None if isinstance(worst.value, float) and not np.isfinite(worst.value) else worst.value
        outcome = {
            "verdict": "FAILS" if _wider(value, assumed) else "holds",
            "measured": value,
            "shows": worst.shows,
        }
    return msgspec.structs.replace(found, **outcome, seconds=round(time.perf_counter() - began, 3))


def _wider(measured: Value, assumed: Value) -> bool:
    """Whether what was measured is beyond what is assumed; that copies may differ also allows that they do not."""
    if isinstance(measured, bool) and isinstance(assumed, bool):
        return measured and not assumed
    if isinstance(measured, float) and isinstance(assumed, float):
        return not measured <= assumed
    return measured != assumed
