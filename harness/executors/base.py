"""What every executor does: place the tensors, call the subject, and observe all that it touched."""

import ast
import errno
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from triton import knobs
from triton.compiler.errors import CompilationError

from harness.case import Case
from harness.folders import PACKAGE
from harness.inputs import Inputs, Materials
from harness.operations import output_shape
from harness.source import called, name_of
from harness.stopwatch import COMPILING, WATCH, phase
from harness.subjects import Subject
from harness.tensors import DEAD, OUT_OF_REACH, Array, Storage, Tensor, copied
from harness.values import DTYPES
from harness.writes import CACHES, apply

#: Of what a call wrote where it should not, so many slots or rows are told.
MOST_ROWS = 4096

_TORCH = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "int32": torch.int32,
    "int64": torch.int64,
}


@dataclass(frozen=True)
class Failure:
    """An exception that left the subject."""

    type: str
    message: str
    line: str  # file.py:line of the innermost frame that is not a library's
    not_written: bool = False  # a template that is still to be filled
    poisoned: bool = False  # the device context is lost: the worker must be replaced
    unsupported: bool = False  # the executor lacks an operation: no verdict


@dataclass(frozen=True)
class BadAccess:
    """One forbidden access, as the executor saw it."""

    kind: str
    tensor: str
    index: tuple[int, ...] | int  # in the view, or else an element of the storage
    program: tuple[int, ...]
    line: str
    count: int
    story: str = ""  # what more the executor can tell
    rows: frozenset[tuple[int, ...]] = frozenset()  # all of them without the last index, where owners are watched


@dataclass(frozen=True)
class Conditions:
    """What may differ between two calls and must not matter; None: as ever."""

    order: int | None = None  # a seed by which the programs of every grid are shuffled
    fill: int | None = None  # a byte that fills what torch allocates and does not write
    lanes: int = 0  # a byte that fills lanes which a masked load without `other` shuts out
    owners: bool = False  # watch whose rows and blocks each program reads: slow, and changes nothing


#: So many elements that differ are told.
TOLD = 64


@dataclass(frozen=True)
class Written:
    """Elements of one tensor that the call should have left alone: the first of them, and how many."""

    tensor: str
    index: tuple[int, ...] | int  # in the view, or elements from the first one of the view
    got: float
    was: float
    count: int
    some: tuple[tuple[float, float], ...] = ()  # (got, was) of the first, in the head of the first where it has one
    rows: frozenset[tuple[int, ...]] = field(default=frozenset(), compare=False)  # all, without the last index

    @classmethod
    def between(cls, tensor: str, after: Array, before: Array) -> "Written | None":
        """What differs in any bit."""
        differs = bits(after) != bits(before)
        if not differs.any():
            return None
        at = tuple(int(i) for i in np.argwhere(differs)[0])
        alike = np.argwhere(differs if len(at) < 4 else differs[:, :, at[2], :])
        places = [tuple(place) if len(at) < 4 else (*place[:2], at[2], place[2]) for place in alike[:TOLD].tolist()]
        some = tuple((float(after[place]), float(before[place])) for place in places)
        rows = frozenset(tuple(row) for row in np.argwhere(differs.any(axis=-1))[:MOST_ROWS].tolist())
        return cls(tensor, at, float(after[at]), float(before[at]), int(differs.sum()), some, rows)


@dataclass(frozen=True)
class Observed:
    """What one call did."""

    out: Any = None  # NumPy, as returned
    lse: Any = None
    failure: Failure | None = None
    complaint: str = ""  # the wrong kind of output, in words
    outside: tuple[Written, ...] = ()  # fences, and gaps between strides
    changed: tuple[Written, ...] = ()  # inputs
    unwritten: Array | None = None  # elements of `out` that nobody wrote, bool in its shape; None: all are written
    accesses: tuple[BadAccess, ...] = ()
    ttir: tuple[str, ...] = ()
    behaviours: frozenset[str] = field(default_factory=frozenset)  # "decode.py:34 mask mixed": what the source did
    possible: frozenset[str] = field(default_factory=frozenset)  # and might have done
    compile_seconds: float = 0.0
    log_is_complete: bool = False  # every read was seen, so "no dead read" proves that none happened
    undefined: tuple[tuple[str, str], ...] = ()  # (line, tensor) of masked loads without `other` that shut lanes out


class Executor(Protocol):
    """One way to run a subject."""

    name: str
    platform: str

    def declines(self, case: Case) -> str | None:
        """Why this executor cannot run the case now, or None."""

    def under(self, conditions: Conditions) -> "Executor | None":
        """The same executor under other conditions, None where it cannot choose them."""

    def observe(self, subject: Subject, materials: Materials) -> Observed:
        """Call the subject once."""


class Placement:
    """The torch side of one materialised case: its storages copied to a device."""

    @phase("copying")
    def __init__(self, materials: Materials, device: str) -> None:
        self.materials, self.device = materials, device
        self._flat = self._copies()
        self.inputs: Inputs = materials.inputs.map(lambda _, tensor: self.place(tensor))
        self._before = {name: self._used(tensor) for name, tensor in self._sparse()}

    def place(self, tensor: Tensor) -> torch.Tensor:
        """The tensor on the device, with its strides and offset."""
        flat = self._flat[id(tensor.storage)]
        if tensor.storage.sparse:
            self._copy_used(tensor, flat)
        return flat.as_strided(tensor.shape, tensor.strides, tensor.offset)

    def after(self, tensor: Tensor) -> torch.Tensor:
        """The tensor as the call left it, whatever became of the one that the subject was given."""
        return self._flat[id(tensor.storage)].as_strided(tensor.shape, tensor.strides, tensor.offset)

    def lent(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """Names of the inputs in whose memory the tensor lies."""
        address = tensor.untyped_storage().data_ptr()
        names = [name for name in self.materials.inputs.tensors() if name != "out"]
        return tuple(n for n in names if address and getattr(self.inputs, n).untyped_storage().data_ptr() == address)

    def _copies(self) -> dict[int, torch.Tensor]:
        """Each storage on the device, by its id; of a sparse one only the memory."""
        storages = {id(t.storage): t.storage for t in self.materials.inputs.tensors().values()}
        if self.device == "cpu":
            return {key: to_torch(copied(storage), storage.dtype) for key, storage in storages.items()}
        sent = dict(zip(self._storages, sent_in_one(list(self._storages.values()), self.device), strict=True))
        rest = [storage for key, storage in storages.items() if key not in sent]
        return sent | {id(s): torch.empty(len(s.data), dtype=_TORCH[s.dtype], device=self.device) for s in rest}

    def _copy_used(self, tensor: Tensor, flat: torch.Tensor) -> None:
        rows = self.materials.rows(tensor)
        used = to_torch(np.ascontiguousarray(tensor.view[rows]), tensor.storage.dtype).to(self.device)
        placed = flat.as_strided(tensor.shape, tensor.strides, tensor.offset)
        _integers(placed)[torch.from_numpy(rows).to(self.device)] = _integers(used)

    def _sparse(self) -> list[tuple[str, Tensor]]:
        return [(name, t) for name, t in self.materials.inputs.tensors().items() if t.storage.sparse]

    def _used(self, tensor: Tensor) -> Array:
        return tensor.view[self.materials.rows(tensor)].copy()

    @cached_property
    def _storages(self) -> dict[int, Storage]:
        """Those that are not sparse, by their ids."""
        tensors = self.materials.inputs.tensors().values()
        return {id(t.storage): t.storage for t in tensors if not t.storage.sparse}

    @cached_property
    def _left(self) -> dict[int, Array]:
        """What the call left in each of them, brought over once."""
        if self.device == "cpu":
            return {key: to_numpy(self._flat[key]) for key in self._storages}
        return dict(zip(self._storages, brought_in_one([self._flat[key] for key in self._storages]), strict=True))

    def left(self, tensor: Tensor) -> Array:
        """The tensor as the call left it, in NumPy: for after the call."""
        sparse = tensor.storage.sparse
        return to_numpy(self.after(tensor)) if sparse else tensor.over(self._left[id(tensor.storage)])

    @cached_property
    def moved(self) -> dict[int, Array]:
        """Of each storage that is not sparse, by its id, the elements that differ in any bit: for after the call."""
        return {key: (bits(self._left[key]) != bits(was.data)).nonzero()[0] for key, was in self._storages.items()}

    def changed(self) -> tuple[Written, ...]:
        """The inputs whose bits are no longer what they were, and the caches that are not what they should be."""
        names = [name for name in self.materials.inputs.tensors() if name != "out"]
        return tuple(written for name in names if (written := self._changed(name)))

    def _changed(self, name: str) -> Written | None:
        tensor: Tensor = getattr(self.materials.inputs, name)
        if not tensor.storage.sparse:
            changes = self.materials.stored is not None and name in CACHES
            as_before = not changes and not self.moved[id(tensor.storage)].size
            return None if as_before else self._compared(name, tensor)
        used = self.materials.rows(tensor)
        rows = {int(block): i for i, block in enumerate(used)}
        after = self.after(tensor)[torch.from_numpy(used).to(self.device)]
        written = Written.between(name, to_numpy(after), self._expected(name, self._before[name], rows))
        if written is None or isinstance(written.index, int):
            return written
        index, *others = [(int(used[row[0]]), *row[1:]) for row in (written.index, *written.rows)]
        return replace(written, index=index, rows=frozenset(others))

    def _compared(self, name: str, tensor: Tensor) -> Written | None:
        return Written.between(name, self.left(tensor), self._expected(name, tensor.view))

    def _expected(self, name: str, before: Array, rows: dict[int, int] | None = None) -> Array:
        """What a right call leaves: a cache with its new tokens, everything else as it was."""
        stored = self.materials.stored
        return before if stored is None or name not in CACHES else apply(stored, name, before, rows)

    def outside(self) -> tuple[Written, ...]:
        """The fences, and the gaps between strides, that were written; tensors in one storage have one in common."""
        sharing: dict[int, list[str]] = {}
        for name, tensor in self.materials.inputs.tensors().items():
            sharing.setdefault(id(tensor.storage), []).append(name)
        return tuple(written for names in sharing.values() if (written := self._outside(names)))

    def _outside(self, names: list[str]) -> Written | None:
        tensor: Tensor = getattr(self.materials.inputs, names[0])
        if tensor.storage.sparse:
            return None
        moved = self.moved[id(tensor.storage)]
        beyond = moved[tensor.storage.state[moved] == OUT_OF_REACH] if moved.size else moved
        if not beyond.size:
            return None
        first, after = int(beyond[0]), self._left[id(tensor.storage)]
        got, was = float(after[first]), float(tensor.storage.data[first])
        return Written(" or ".join(names), first - tensor.offset, got, was, len(beyond))

    def unwritten(self) -> Array | None:
        """Which elements of a given `out` still hold the poison's exact bits; None where none does."""
        if self.materials.inputs.out is None:
            return None
        kept = bits(self.left(self.materials.inputs.out)) == bits(self.materials.inputs.out.view)
        return kept if kept.any() else None


#: What a machine can lack through no fault of a kernel: room on its disk, open files.
LACKING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


def observe(subject: Subject, placement: Placement) -> Observed:
    """Call the subject and look at what it left behind; the caller adds what its executor knows."""
    with compile_times() as seconds:
        try:
            with empty_is_nan():
                returned = _called(subject, placement, seconds)
            with phase("reading back"):
                observed = read_output(returned, placement)
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and error.errno in LACKING:
                raise
            return Observed(failure=failure(error), compile_seconds=sum(seconds))
    with phase("reading back"):
        return replace(
            observed,
            outside=placement.outside(),
            changed=placement.changed(),
            unwritten=placement.unwritten(),
            compile_seconds=sum(seconds),
        )


@phase("kernel")
def _called(subject: Subject, placement: Placement, compiling: list[float]) -> Any:
    try:
        return subject.run(placement.inputs)
    finally:
        WATCH.move(COMPILING, sum(compiling))


@contextmanager
def empty_is_nan() -> Iterator[None]:
    """What torch allocates comes filled with NaN, so that an unwritten output shows; afterwards all is as it was."""
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was[0], warn_only=was[1])


with empty_is_nan():  # the first time, torch loads its compiler for it, for seconds: here, before workers are forked
    pass


@contextmanager
def compile_times() -> Iterator[list[float]]:
    """Collect the seconds of every compilation inside, as Triton's own listener is told them."""
    seconds: list[float] = []
    before = knobs.compilation.listener
    knobs.compilation.listener = lambda **told: seconds.append(told["times"].total / 1e6)
    try:
        yield seconds
    finally:
        knobs.compilation.listener = before


def read_output(returned: Any, placement: Placement) -> Observed:
    """Bring the output to NumPy, or say in words why it is none."""
    case = placement.materials.case
    shape = output_shape(case)
    if shape is None:  # it writes in place
        return Observed()
    out, lse = returned if isinstance(returned, (tuple, list)) and len(returned) == 2 else (returned, None)
    given = placement.materials.inputs.out
    out = out if given is None else placement.after(given)
    expected = placement.after(placement.materials.inputs.q)
    dtype = _TORCH[case.cache_dtype] if case.op == "gather" else expected.dtype
    complaint = _complain("out", out, shape, dtype, expected.device)
    if case.want_lse and not complaint:
        complaint = _complain("lse", lse, shape[:2], torch.float32, expected.device)
    if complaint:
        return Observed(complaint=complaint)
    wanted: dict[str, Any] = {"out": out, "lse": lse} if case.want_lse else {"out": out}
    lent = [f"{name} lies in the memory of {owner}" for name, t in wanted.items() for owner in placement.lent(t)[:1]]
    own: dict[str, Any] = {
        name: (to_numpy(t) if given is None or name == "lse" else placement.left(given)).copy()
        for name, t in wanted.items()
    }
    return Observed(complaint=f"{lent[0]}, but should have its own" if lent else "", **own)


def _complain(name: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str:
    if not isinstance(tensor, torch.Tensor):
        return f"{name} is {type(tensor).__name__}, but should be a tensor {list(shape)}"
    if tuple(tensor.shape) != shape:
        return f"{name} has shape {list(tensor.shape)}, but should have {list(shape)}"
    if tensor.dtype != dtype:
        return f"{name} is {tensor.dtype}, but should be {dtype}"
    return f"{name} is on {tensor.device}, but should be on {device}" if tensor.device != device else ""


def failure(error: BaseException) -> Failure:
    """Describe an exception; only its type decides anything, never its text."""
    lost, refused = isinstance(error, getattr(torch, "AcceleratorError", ())), _refused_as_unwritten(error)
    return Failure(
        type=type(error).__name__,
        message="" if refused else _headline(error),
        line=_innermost(traceback.extract_tb(error.__traceback__)),
        not_written=isinstance(error, NotImplementedError) or refused,
        poisoned=lost,
    )


def _refused_as_unwritten(error: BaseException) -> bool:
    """Whether Triton refuses a kernel for its `raise NotImplementedError`, which is a marker and no code for a GPU."""
    node = error.node if isinstance(error, CompilationError) else None
    raised = node.exc if isinstance(node, ast.Raise) else None
    return raised is not None and (called(raised) or name_of(raised)) == "NotImplementedError"


def _headline(error: BaseException) -> str:
    """The line that says what is wrong: the first, but the compiler quotes the kernel first and has causes."""
    place = -1 if isinstance(error, CompilationError) else 0
    while isinstance(error, CompilationError) and error.__cause__ is not None:
        error = error.__cause__
    return (str(error).splitlines() or [""])[place]


#: What no author of a kernel looks into.
LIBRARIES = ("torch", "triton", "numpy")


def _innermost(frames: Sequence[traceback.FrameSummary]) -> str:
    ours = (f"{PACKAGE}{os.sep}", *(f"site-packages{os.sep}{name}{os.sep}" for name in LIBRARIES), "<frozen")
    adapters = f"{PACKAGE}{os.sep}adapters{os.sep}"
    outside = [f for f in frames if adapters in f.filename or not any(part in f.filename for part in ours)]
    frame = (outside or list(frames))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def to_torch(flat: Array, dtype: str) -> torch.Tensor:
    """A NumPy array as a torch tensor that shares its memory; torch does not know ml_dtypes."""
    if dtype in ("bfloat16", "e4m3", "e5m2"):
        return torch.from_numpy(flat.view(f"i{flat.itemsize}")).view(_TORCH[dtype])
    return torch.from_numpy(flat)


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers of its width: torch indexes those on every device, and copies every bit."""
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def to_numpy(tensor: torch.Tensor) -> Array:
    """A torch tensor as a NumPy array, in its own type."""
    tensor = tensor.detach().cpu().contiguous()
    for name in ("bfloat16", "e4m3", "e5m2"):
        if tensor.dtype == _TORCH[name]:
            return tensor.view(torch.int16 if name == "bfloat16" else torch.int8).numpy().view(DTYPES[name])
    return tensor.numpy()


def sent_in_one(storages: Sequence[Storage], device: str) -> list[torch.Tensor]:
    """What the storages hold on a device, each in memory of its own and all there already, in one copy from here."""
    if not storages:
        return []
    whole = torch.from_numpy(np.concatenate([storage.data.view(np.uint8) for storage in storages])).to(device)
    parts = torch.split(whole, [storage.data.nbytes for storage in storages])
    sent = [part.clone().view(_TORCH[storage.dtype]) for part, storage in zip(parts, storages, strict=True)]
    if whole.is_cuda:
        torch.cuda.current_stream().synchronize()
    return sent


def brought_in_one(flats: Sequence[torch.Tensor]) -> list[Array]:
    """Flat tensors of one device as NumPy arrays, in one copy to here."""
    if not flats:
        return []
    widest = sorted(flats, key=lambda flat: -flat.element_size())  # first, so that each begins where its type may
    whole = torch.cat([flat.view(torch.uint8) for flat in widest]).cpu()
    parts = torch.split(whole, [flat.nbytes for flat in widest])
    found = {id(flat): to_numpy(part.view(flat.dtype)) for flat, part in zip(widest, parts, strict=True)}
    return [found[id(flat)] for flat in flats]


def bits(array: Array) -> Array:
    """The raw bits as unsigned integers."""
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.itemsize}")


def same_bits(left: Array, right: Array) -> bool:
    """Bitwise equality: NaN equals the same NaN, and -0 differs from 0."""
    return left.shape == right.shape and bool(np.array_equal(bits(left), bits(right)))


Observer = Callable[[Subject, Materials], Observed]
__all__ = ["DEAD", "BadAccess", "Conditions", "Executor", "Failure", "Observed", "Placement", "observe", "same_bits"]
