"""Kvetch: a harness that complains about paged-attention kernels."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.subjects import subject
    from harness.suite import check, replay

__all__ = ["check", "replay", "subject"]

_HOMES = {"check": "harness.suite", "replay": "harness.suite", "subject": "harness.subjects"}


def __getattr__(name: str) -> Any:
    """Import on first use: `import harness` alone loads neither torch nor Hypothesis."""
    if name not in _HOMES:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
