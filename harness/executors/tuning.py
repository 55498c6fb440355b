"""The configuration of a launch: one of an autotuned kernel's own, or the warps and stages that a case names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from harness.case import Hints
from harness.executors.gridsim.tuners import config_left


@contextmanager
def tuned(hints: Hints, configs: int = 1) -> Iterator[None]:
    """Launch as the hints say; where a subject declares several configs, no kernel chooses one by timing.

    Warps and stages that the hints leave at 0 are the kernel's own choice.
    """
    tune, run = Autotuner.run, JITFunction.run
    named = {name: getattr(hints, name) for name in ("num_warps", "num_stages") if getattr(hints, name)}

    def one_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        configs = self.configs
        self.configs = config_left(self, hints.config, args, kwargs)
        try:
            return tune(self, *args, **kwargs)
        finally:
            self.configs = configs

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self, *args, **kwargs | named)

    Autotuner.run = one_config if configs > 1 else tune
    JITFunction.run = launch if named else run
    try:
        yield
    finally:
        Autotuner.run, JITFunction.run = tune, run
