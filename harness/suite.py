"""For test suites and notebooks: `check` a function with drawn cases, `replay` a corpus as pytest tests."""

import atexit
import functools
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.campaign import Campaign, Plan
from harness.case import Case
from harness.commands import default_executor
from harness.corpus import Corpus, Entry
from harness.pool import Worker
from harness.report import finding_lines
from harness.results import NOT_WRITTEN, Result
from harness.running import InProcess
from harness.subjects import WrongUse, from_function, load
from harness.summary import Summary

#: Seconds that one case of a corpus may take in a test.
REPLAY_SECONDS = 120.0


def check(
    function: Callable[..., Any],
    op: str = "decode",
    cases: int = 200,
    seconds: float = 300.0,
    seed: int | None = None,
    executor: str | None = None,
) -> None:
    """Draw cases for the function until one fails; raises one readable AssertionError, or nothing.

    The function runs in this process, so a kernel that crashes it does so; `python -m harness.fuzz` survives that.
    """
    where = executor or default_executor()
    subject = from_function(function, op)
    plan = Plan(
        subjects={subject.name: subject.declaration},
        executor=where,
        seconds=seconds,
        seed=random.randrange(2**31) if seed is None else seed,  # noqa: S311  (drawing, not secrecy)
        max_cases=cases,
        stop_at_first=True,
    )
    __tracebackhide__ = True
    with undisturbed():
        summary = Campaign(plan, InProcess(subject, where)).run()
    if summary.interrupted:
        raise KeyboardInterrupt
    complain(summary)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A suite may make errors of warnings; that is about its own code, and not about what is loaded here."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def complain(summary: Summary) -> None:
    """Raise an AssertionError that tells the first finding; a RuntimeError where the harness is at fault."""
    __tracebackhide__ = True
    if summary.harness_faults:
        raise RuntimeError(f"the harness is at fault: {summary.harness_faults[0]}")
    for found in summary.platform_faults:
        raise RuntimeError("\n".join(finding_lines(found, 1)))
    for found in summary.findings:
        raise AssertionError("\n".join(finding_lines(found, 1)))
    for name, words in summary.not_written.items():
        raise AssertionError(f"{name}: {words}")
    if not summary.cases:
        raise AssertionError(f"nothing ran: {summary.declined or 'no case was drawn'}")


def replay(corpus: str | Path, function: Callable[..., Any] | str, executor: str | None = None) -> Callable[..., None]:
    """A pytest test with one case per corpus entry that the subject supports: `test_corpus = replay("corpus", f)`."""
    import pytest

    if not Path(corpus).is_dir():
        raise WrongUse(f"corpus is {str(corpus)!r}, but there is no such folder")
    where = executor or default_executor()
    subject = load(function) if isinstance(function, str) else from_function(function)
    entries = list(Corpus(Path(corpus)).entries())
    able = [(path, entry) for path, entry in entries if subject.declines(entry.case) is None]

    @pytest.mark.parametrize("entry", [entry for _, entry in able], ids=[path.stem for path, _ in able])
    def test_case(entry: Entry) -> None:
        with undisturbed():
            result = _replayed(entry, function, where)
        assert not result.harness_fault, result.harness_fault
        if result.declined and not result.declined.startswith(NOT_WRITTEN):
            pytest.skip(result.declined)
        assert not result.declined, result.declined
        assert not result.findings, "; ".join(finding.message for finding in result.findings)

    return test_case


def _replayed(entry: Entry, function: Callable[..., Any] | str, executor: str) -> Result:
    name = function if isinstance(function, str) else _name(function)
    if name and (isinstance(function, str) or _deadly(entry)):
        return _in_worker(entry.case, name, executor)
    assert not isinstance(function, str)
    return InProcess(from_function(function), executor).run(entry.case, "", REPLAY_SECONDS, thorough=True)


def _deadly(entry: Entry) -> bool:
    return entry.finding is not None and entry.finding.kind in ("crash", "hang")


def _name(function: Callable[..., Any]) -> str:
    """FILE.py:FUNCTION, where a worker could import it."""
    code, name = getattr(function, "__code__", None), getattr(function, "__qualname__", "")
    return f"{code.co_filename}:{name}" if code and name.isidentifier() and Path(code.co_filename).is_file() else ""


def _in_worker(case: Case, name: str, executor: str) -> Result:
    return _worker(executor).run(case, name, REPLAY_SECONDS, thorough=True)


@functools.cache
def _worker(executor: str) -> Worker:
    """One for all tests: starting takes seconds."""
    worker = Worker(executor)
    atexit.register(worker.close)
    return worker
