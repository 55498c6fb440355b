"""Kvetch: a harness that complains about paged-attention kernels."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.anywhere import anywhere
    from harness.recording import record
    from harness.subjects import subject
    from harness.suite import check, replay

__all__ = ["anywhere", "check", "record", "replay", "subject"]

_HOMES = {
    "anywhere": "harness.anywhere",
    "check": "harness.suite",
    "record": "harness.recording",
    "replay": "harness.suite",
    "subject": "harness.subjects",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `import harness` alone loads neither torch nor Hypothesis."""
    if name not in _HOMES:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


class _Package(ModuleType):
    """Whoever imports the command `harness.replay` does not make it hide the function `harness.replay`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOMES:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
