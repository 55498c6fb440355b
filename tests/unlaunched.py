"""What a wrapper asks of torch around a launch that does not take place."""

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode


class _NoLaunch:
    """Stands where a kernel does."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **kwargs: None


class _Listing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked.append(str(func))
        return func(*args, **(kwargs or {}))


def asked_of_torch(module: Any, kernel: str, wrapper: str, arguments: dict[str, Any]) -> set[str]:
    """Every operation, allocations and waits for a device among them, of one call of the wrapper."""
    with pytest.MonkeyPatch.context() as patched, _Listing() as listing:
        patched.setattr(module, kernel, _NoLaunch())
        getattr(module, wrapper)(**arguments)
    return set(listing.asked)
