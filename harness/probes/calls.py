"""What a worker is asked of the probes; importing this enters all of them."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.executors import platform_of
from harness.platforms import Platform, judging
from harness.probes import casts, dots, functions  # noqa: F401  (they enter their probes)
from harness.probes.device import Device
from harness.probes.probe import PROBES, tried
from harness.tables import tell


def names() -> list[str]:
    """What can be probed, in the order in which it is."""
    return list(PROBES)


def run_probe(name: str, executor: str, platform: dict[str, Any]) -> dict[str, Any]:
    """One probe with the platform's constants as plain data; to be called in a worker."""
    found: dict[str, Any] = msgspec.to_builtins(tried(PROBES[name], Device(executor), Platform(**platform)))
    return found


def failing(executor: str) -> list[str]:
    """What fails of all probes, in words, of the constants that judge here; to be called in a worker."""
    device, where = Device(executor), judging(platform_of(executor))
    seen = [tried(each, device, where) for each in PROBES.values()]
    return [tell(found) for found in seen if found.verdict == "FAILS"]
