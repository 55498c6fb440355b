"""`with anywhere() as device`: Triton kernels run on the GPU where there is one, else on a CPU, from the same lines."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.commands import chosen_executor
from harness.subjects import WrongUse


@contextmanager
def anywhere(executor: str | None = None) -> Iterator[str]:
    """Give the device for tensors, "cuda" or "cpu"; on "cpu" every kernel launched inside the block runs on gridsim.

    `executor` is "gpu" or "gridsim"; left out, the GPU where there is one. A kernel's own checks and numbers are those
    of the harness's executors, but nothing is judged here. Raises WrongUse for another executor, or for a GPU that is
    not there.
    """
    if executor not in (None, "gpu", "gridsim"):
        raise WrongUse(f"anywhere: executor is {executor!r}, but should be 'gpu' or 'gridsim'")
    if chosen_executor(executor) == "gpu":
        yield "cuda"
        return
    from harness.executors.gridsim import active  # imports triton

    with active():
        yield "cpu"
