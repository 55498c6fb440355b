"""Where a subject's kernels run: `gpu`, `gridsim` (ours, on the CPU) or `interpreter` (Triton's own, a witness)."""

from harness.executors.base import Executor, Failure, Observed

NAMES = ("gridsim", "gpu", "interpreter", "echo")

__all__ = ["NAMES", "Executor", "Failure", "Observed", "executor", "platform_of"]


def executor(name: str) -> Executor:
    """The executor of that name; torch and triton are imported here, so one process has one executor."""
    if name == "gpu":
        from harness.executors.gpu import Gpu

        return Gpu()
    if name == "gridsim":
        from harness.executors.cpu import GridSim

        return GridSim()
    if name == "interpreter":
        from harness.executors.cpu import Interpreter

        return Interpreter()
    if name == "echo":
        from harness.executors.echo import THE_ECHO

        return THE_ECHO
    raise ValueError(f"executor is {name!r}, but should be one of {', '.join(NAMES)}")


def platform_of(name: str) -> str:
    """The platform that the executor runs on; raises WrongUse where it cannot run."""
    return executor(name).platform
