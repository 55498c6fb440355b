"""What all commands share: wrong use is one line and exit code 2, the default executor, options told alike."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from harness.case import InvalidCase
from harness.subjects import WrongUse

Command = TypeVar("Command", bound=Callable[..., Any])


def default_executor() -> str:
    """`gpu` where the kernel driver of one is there, else `gridsim`; no torch needed to tell."""
    devices = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
    return "gpu" if any(device.exists() for device in devices) else "gridsim"


def one_line_errors(command: Command) -> Command:
    """Turn wrong use and bad input into one line and exit code 2; the function returns the exit code otherwise."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        if sys.platform != "linux":
            raise click.UsageError(f"this is {sys.platform}, but Triton has wheels for Linux only")
        try:
            code = command(*args, **kwargs)
        except (WrongUse, InvalidCase) as error:
            click.echo(f"kvetch: {error}", err=True)
            code = 2
        sys.exit(code)

    return wrapped  # type: ignore[return-value]


executor_option = click.option(
    "--executor",
    type=click.Choice(["gridsim", "gpu", "interpreter"]),
    default=None,
    help="Where kernels run. Default: gpu where there is one, else gridsim (Triton's IR on the CPU).",
)
subject_option = click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="NAME|FILE.py:FUNCTION",
    help="What to test; may be given several times. Default: our own kernels.",
)
op_option = click.option(
    "--op", default="decode", show_default=True, help="The operation, for a function that does not declare one."
)
device_option = click.option("--device", type=click.IntRange(min=0), default=None, help="Which GPU.")
