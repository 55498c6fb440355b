"""`record(fn)`: wraps a kernel's wrapper in a server or a test, and keeps a fair sample of its calls as Cases."""

import atexit
import contextlib
import datetime
import functools
import os
import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from harness import calls
from harness.calls import Inexpressible
from harness.case import Case, Record, digest, to_json
from harness.commands import check_writable
from harness.corpus import Entry, triton_settings, versions
from harness.files import write_atomically
from harness.likeness import OPS, Recorded, recorded
from harness.parameters import Binding, bind
from harness.subjects import WrongUse

#: Different reasons that are counted by themselves; what comes later is counted as one.
REASONS = 50
#: Calls that raised which are kept beside the sample.
RAISED = 20


class Counts(Record, frozen=True):
    """What became of the calls of one recorded function."""

    function: str
    calls: int = 0
    looked_at: int = 0
    sample: int = 0  # calls in the sample, each call of a case counted
    cases: int = 0
    captured: int = 0  # while a CUDA graph was captured: not looked at
    raised: int = 0
    inexpressible: dict[str, int] = {}  # calls that were looked at and no Case can hold, by reason
    failed: dict[str, int] = {}  # where recording itself went wrong


def record(
    function: Callable[..., Any] | None = None,
    *,
    into: str | Path = "recorded",
    limit: int | None = 200,
    subject: str = "",
    op: str | None = None,
    **roles: Any,
) -> Callable[..., Any]:
    """Wrap a function that launches a kernel; its calls become Cases in the folder `into`, never a value of q, K or V.

    Which argument is what is told by the names of parameters, as vLLM, SGLang, FlashInfer, flash-attn and nano-vllm
    have them; `roles` says it where names do not: `q="query"`, `kv_lens="metadata.seq_lens"`,
    `k_cache=lambda call: call["kv"][0]`, `causal=True`. `subject` is the FILE.py:FUNCTION that replays should run.

    A call returns and raises what it did before. `limit` calls are kept, a fair sample of all: the n-th call is looked
    at with probability limit/n, so what recording costs goes down as the server runs. A call that is looked at costs a
    copy of its block table (the columns in use), lengths, starts and slots to the CPU, for which a GPU is waited for,
    and a small file; no other call costs more than a lock and a random number. With limit=None every call is looked at,
    before it runs, so the one that takes the process down is on disk. Calls that raise are kept beside the sample.
    Nothing is looked at while a CUDA graph is captured; when one is replayed, no Python runs and nothing is seen.
    Neither is what torch.compile compiles, which stays as it was.

    Raises WrongUse where a role is missing or could be several parameters, or `into` cannot be written to, before any
    call.
    """
    if function is None:
        return functools.partial(record, into=into, limit=limit, subject=subject, op=op, **roles)
    _check(limit, op, Path(into))
    recorder = Recorder(function, bind(function, roles), Path(into).absolute(), limit, subject, op)
    atexit.register(recorder.flush)
    return _watched(function, recorder)


def _watched(function: Callable[..., Any], recorder: "Recorder") -> Callable[..., Any]:
    """The function that is called instead; torch.compile takes `is_compiling` for True and traces no lock or file."""
    from torch.compiler import is_compiling

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        recorder.before(args, kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            recorder.raised(args, kwargs, error)
            raise

    watched.recorder = recorder  # type: ignore[attr-defined]
    return watched


def _check(limit: int | None, op: str | None, into: Path) -> None:
    if limit is not None and not (isinstance(limit, int) and limit >= 1):
        raise WrongUse(f"record: limit is {limit!r}, but should be a number from 1, or None for every call")
    if op not in (None, *OPS):
        raise WrongUse(f"record: op is {op!r}, but should be {', '.join(OPS)}, or None to tell it from the arguments")
    check_writable("record: into", into)


class Recorder:
    """Keeps the sample on disk as it stands: a file per case, whole whenever it is read."""

    def __init__(
        self,
        function: Callable[..., Any],
        binding: Binding,
        folder: Path,
        limit: int | None,
        subject: str,
        op: str | None,
    ) -> None:
        self.name = _name(function)
        self.folder, self.limit, self.subject, self.op = folder, limit, subject, op
        self.kept: dict[str, Entry] = {}  # by digest of the case
        self._binding = binding
        self._sample: list[str] = []  # the case of each call in the sample
        self._pinned: dict[str, str] = {}  # cases whose call raised, and in words what
        self._numbers: Counter[str] = Counter()
        self._reasons: dict[str, Counter[str]] = {"inexpressible": Counter(), "failed": Counter()}
        self._random = random.Random(0)  # noqa: S311  (a sample, not secrecy)
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)
        self._settings = triton_settings()  # now: gridsim has some of its own while it runs
        self._id = os.urandom(4).hex()

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at a call that is about to run, if it is chosen; never raises.

        It is looked at outside of the lock: where a GPU is waited for, other threads go on.
        """
        with self._noting():
            if self._is_chosen() and (found := self._look(args, kwargs)):
                with self._lock:
                    self._take(found)
        if self._numbers["calls"].bit_count() == 1:
            with self._noting(), self._lock:
                self._write_counts()

    def raised(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
        """Keep a call that raised, beside the sample; never raises. Where most calls do, most are not looked at."""
        with self._noting():
            number = self._add("raised")
            if (number <= RAISED or number.bit_count() == 1) and (found := self._look(args, kwargs)):
                with self._lock:
                    self._pin(found, error)

    def _pin(self, found: Recorded, error: Exception) -> None:
        name = digest(found.case)
        if name in self._pinned or len(self._pinned) < RAISED:
            first = (str(error).splitlines() or [""])[0]
            self._pinned.setdefault(name, f"; raised {type(error).__name__}: {first}")
            self._write(name, self._entry(found, self.kept[name].seen if name in self.kept else 1))

    def counts(self) -> Counts:
        """What became of the calls so far."""
        told: dict[str, Any] = {"function": self.name, "sample": len(self._sample), "cases": len(self.kept)}
        told |= self._numbers | {kind: dict(reasons) for kind, reasons in self._reasons.items()}
        return Counts(**told)

    def flush(self) -> None:
        """Write what was counted, unless the folder is gone; done at exit as well."""
        with self._noting(), self._lock:
            if self._numbers["calls"] and self.folder.is_dir():
                self._write_counts()

    def _is_chosen(self) -> bool:
        """Count the call, and say whether it is to be in the sample: algorithm R of Vitter (1985)."""
        with self._lock:
            self._numbers["calls"] += 1
            if self.limit is None or len(self._sample) < self.limit:
                return True
            return self._random.randrange(self._numbers["calls"]) < self.limit

    def _look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded | None:
        values = self._binding.values(args, kwargs)
        if _is_captured(values):
            self._add("captured")
            return None
        self._add("looked_at")
        try:
            calls.check_there(values)
            return recorded(calls.read(values, self._binding.unused(args, kwargs)), self.op)
        except Inexpressible as reason:
            self._count("inexpressible", str(reason))
            return None

    def _take(self, found: Recorded) -> None:
        """Add the case to the sample, where it is full in some place for what was there."""
        name = digest(found.case)
        if self.limit is None or len(self._sample) < self.limit:
            self._sample.append(name)
        else:
            place = self._random.randrange(self.limit)
            gone, self._sample[place] = self._sample[place], name
            self._drop(gone)
        seen = self.kept[name].seen + 1 if name in self.kept else 1
        self._write(name, self._entry(found, seen))

    def _drop(self, name: str) -> None:
        entry = self.kept[name]
        if entry.seen > 1 or name in self._pinned:
            self._write(name, msgspec.structs.replace(entry, seen=max(entry.seen - 1, 1)))
        else:
            del self.kept[name]
            self._path(name, entry.case).unlink(missing_ok=True)

    def _entry(self, found: Recorded, seen: int) -> Entry:
        return Entry(
            why=f"recorded from {self.name}: {'; '.join(found.held)}{self._pinned.get(digest(found.case), '')}",
            case=found.case,
            subject=self.subject,
            date=datetime.date.today().isoformat(),
            seen=seen,
            versions=_versions(),
            settings=self._settings,
            notes=found.lost,
        )

    def _write(self, name: str, entry: Entry) -> None:
        self.kept[name] = entry
        path = self._path(name, entry.case)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(entry))

    def _path(self, name: str, case: Case) -> Path:
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[-40:]
        return self.folder / case.op / f"{slug}-{name}.json"

    def _write_counts(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.encode(self.counts()).decode() + "\n"
        write_atomically(self.folder / f"{os.getpid()}-{self._id}.counts", text)

    @contextlib.contextmanager
    def _noting(self) -> Any:
        """What goes wrong here is counted and disturbs nobody."""
        try:
            yield
        except Exception as error:
            self._count("failed", f"{type(error).__name__}: {error}")

    def _add(self, name: str) -> int:
        with self._lock:
            self._numbers[name] += 1
            return self._numbers[name]

    def _count(self, kind: str, reason: str) -> None:
        with self._lock:
            reasons = self._reasons[kind]
            reasons[reason if reason in reasons or len(reasons) < REASONS else "other reasons"] += 1

    def _renew_lock(self) -> None:
        """Also in a forked process, where nobody would give back a lock that another thread had."""
        self._lock = threading.Lock()


def _name(function: Callable[..., Any]) -> str:
    """Module and function; of what is run as a script, the file's name."""
    if isinstance(function, functools.partial):
        return _name(function.func)
    code = getattr(function, "__code__", None)
    module = Path(code.co_filename).stem if code and function.__module__ == "__main__" else function.__module__
    return f"{module}.{getattr(function, '__qualname__', 'call')}"


def _is_captured(values: dict[str, Any]) -> bool:
    """Whether a CUDA graph is being captured, which a copy to the CPU would break."""
    if not any(getattr(value, "is_cuda", False) for value in values.values()):
        return False
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


@functools.cache
def _versions() -> dict[str, str]:
    return versions()
