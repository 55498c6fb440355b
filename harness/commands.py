"""What all commands share: wrong use is one line and exit code 2, the default executor, options told alike."""

import contextlib
import functools
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar, get_args

import click

from harness.case import InvalidCase, Op
from harness.pool import HarnessFault
from harness.subjects import WrongUse

Command = TypeVar("Command", bound=Callable[..., Any])

#: There when the kernel driver of a GPU is: NVIDIA's, AMD's.
DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))

WRONG_USE, FAULT, NOTHING_RAN = 2, 3, 5
#: Nobody reads what is told: what a shell says of a program that the signal SIGPIPE ended.
UNREAD = 128 + 13


def has_gpu() -> bool:
    """Whether the kernel driver of a GPU is there; no torch needed to tell."""
    return any(device.exists() for device in DEVICES)


def default_executor() -> str:
    """`gpu` where there is one, else `gridsim`."""
    return "gpu" if has_gpu() else "gridsim"


def other_executor(name: str) -> str | None:
    """The executor that a finding is run on as well; None where this machine has no other."""
    return "gridsim" if name == "gpu" else "gpu" if has_gpu() else None


def chosen_executor(name: str | None) -> str:
    """The executor asked for, or the default; raises WrongUse where it cannot run."""
    if name == "gpu":
        check_gpu("executor is 'gpu'")
    return name or default_executor()


def check_gpu(given: str) -> None:
    """Raise WrongUse where there is no GPU for what was given."""
    if not has_gpu():
        names = " nor ".join(str(device) for device in DEVICES)
        raise WrongUse(f"{given}, but this machine has none: there is neither {names}")


def check_writable(option: str, folder: Path) -> None:
    """Raise WrongUse when the folder cannot be made or written to, before hours of work are lost on it."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise WrongUse(f"{option} is {str(folder)!r}, but {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise WrongUse(f"{option} is {str(folder)!r}, but {there} cannot be written to")


def check_file(option: str, file: Path | None) -> None:
    """The same for a file, where one is asked for."""
    if file is not None:
        check_writable(option, file.parent)


class _OneLine(click.ClickException):
    """Wrong use in one line, without click's two lines about the usage."""

    exit_code = WRONG_USE

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"kvetch: {' '.join(self.format_message().split())}", file=file, err=True)


class Verb(click.Command):
    """A command that tells wrong use in one line."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments."""
        with _one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _one_line():
            return super().invoke(ctx)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise _OneLine(error.format_message()) from None


def one_line_errors(command: Command) -> Command:
    """Turn wrong use and bad input into one line and exit code 2; the function returns the exit code otherwise.

    What nobody expected is a fault of the harness: 3, never the 1 that means a finding.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        if sys.platform != "linux":
            raise _OneLine(f"this is {sys.platform}, but Triton has wheels for Linux only")
        sys.exit(_code(lambda: command(*args, **kwargs)))

    return wrapped  # type: ignore[return-value]


def _code(run: Callable[[], int]) -> int:
    try:
        return run()
    except (WrongUse, InvalidCase) as error:
        return _told(str(error), WRONG_USE)
    except KeyboardInterrupt:
        return _told("interrupted before anything ran", NOTHING_RAN)
    except HarnessFault as fault:
        return _told(f"the harness is at fault: {fault}", FAULT)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            return UNREAD
        if isinstance(error, OSError) and error.filename:
            return _told(f"{error.filename}: {error.strerror}", WRONG_USE)
        return _told(f"the harness is at fault: {traceback.format_exc()}", FAULT)


def _is_unread() -> bool:
    """Whether the reader of what is told has gone, as in `| head`; what is left of it then goes nowhere."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    is_gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_gone


def _told(message: str, code: int) -> int:
    click.echo(f"kvetch: {message}", err=True)
    return code


#: The operation of a function that declares none.
DEFAULT_OP = "decode"

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
    "--op",
    type=click.Choice(get_args(Op)),
    default=None,
    help=f"The operation of a function that does not declare one (default: {DEFAULT_OP}); of ours, those to test.",
)
device_option = click.option("--device", type=click.IntRange(min=0), default=None, help="Which GPU.")
ahead_option = click.option(
    "--ahead",
    type=click.IntRange(min=0),
    default=None,
    help="On a GPU, compile so many of the kernels to come at a time (default: one on each idle core).",
)
html_option = click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write one page with drawings of each finding; it needs nothing from elsewhere.",
)
