"""The call of a project's own function inside an adapter, so that it can be repeated without what the adapter does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from harness.adapters.adapter import Adapter
from harness.subjects import Subject

Call = Callable[[], Any]


def core_of(adapter: Adapter) -> str:
    """The place of the function that does the work, "" where no single one does.

    It is the only one that is called, or the last method of the only class: that is `run` of a wrapper with a `plan`.
    """
    *_, last = adapter.calls
    return last if len(adapter.roots) == 1 else ""


def called(adapter: Adapter, subject: Subject, inputs: Any) -> tuple[Any, Call | None]:
    """What the subject gives, and its core's last call with the arguments it had; None where there is no core."""
    place = core_of(adapter)
    if not place:
        return subject.run(inputs), None
    kept: list[Call] = []
    with _kept(subject.run, place, kept) as run:
        returned = run(inputs)
    return returned, kept[-1] if kept else None


@contextmanager
def _kept(run: Any, place: str, kept: list[Call]) -> Iterator[Callable[[Any], Any]]:
    """The adapter's function, noting each call of the core; before the inputs it has one argument, the root."""
    (root,), method = run.args, place.partition(":")[2].partition(".")[2]
    if not method:
        yield partial(run.func, _noting(root, kept))
        return
    with patch.object(root, method, _noting(getattr(root, method), kept)):
        yield run


def _noting(function: Callable[..., Any], kept: list[Call]) -> Callable[..., Any]:
    def noting(*arguments: Any, **named: Any) -> Any:
        kept.append(partial(function, *arguments, **named))
        return function(*arguments, **named)

    return noting
