"""Autotuned kernels: one of their configs, without timing any."""

from typing import Any


def config_left(tuner: Any, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """That config of those that the kernel's own pruning leaves, in a list of one; the last where it leaves fewer."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    configs = tuner.configs
    left = tuner.early_config_prune(configs, tuner.nargs, **kwargs) if tuner.early_config_prune else configs
    return list(left[: number + 1][-1:])
