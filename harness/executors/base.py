"""What every executor does: place the tensors, call the subject, and observe all that it touched."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import torch

from harness.case import Case
from harness.folders import PACKAGE
from harness.inputs import Inputs, Materials
from harness.subjects import Subject
from harness.tensors import DEAD, OUT_OF_REACH, Array, Storage, Tensor

_TORCH = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
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


@dataclass(frozen=True)
class Observed:
    """What one call did."""

    out: Any = None  # NumPy, as returned
    lse: Any = None
    failure: Failure | None = None
    complaint: str = ""  # the wrong kind of output, in words
    outside: tuple[str, ...] = ()  # tensors whose fence was written
    changed: tuple[str, ...] = ()  # inputs that were written
    unwritten: int = 0  # elements of a given `out` that nobody wrote
    accesses: tuple[BadAccess, ...] = ()
    ttir: tuple[str, ...] = ()
    behaviours: frozenset[str] = field(default_factory=frozenset)
    log_is_complete: bool = False  # every read was seen, so "no dead read" proves that none happened


class Executor(Protocol):
    """One way to run a subject."""

    name: str
    platform: str

    def declines(self, case: Case) -> str | None:
        """Why this executor cannot run the case now, or None."""

    def observe(self, subject: Subject, materials: Materials) -> Observed:
        """Call the subject once."""


class Placement:
    """The torch side of one materialised case: its storages copied to a device."""

    def __init__(self, materials: Materials, device: str) -> None:
        self.materials, self.device = materials, device
        self._flat: dict[int, torch.Tensor] = {}
        self.inputs: Inputs = materials.inputs.map(lambda _, tensor: self.place(tensor))
        self._before = {name: self._used(tensor) for name, tensor in self._sparse()}

    def place(self, tensor: Tensor) -> torch.Tensor:
        """The tensor on the device, with its strides and offset."""
        key = id(tensor.storage)
        if key not in self._flat:
            self._flat[key] = self._copy(tensor.storage)
        flat = self._flat[key]
        if tensor.storage.sparse and self.device != "cpu":
            self._copy_used(tensor, flat)
        return flat.as_strided(tensor.shape, tensor.strides, tensor.offset)

    def _copy(self, storage: Storage) -> torch.Tensor:
        if not storage.sparse:
            return to_torch(storage.data, storage.dtype).to(self.device, copy=True)
        if self.device == "cpu":
            return to_torch(storage.data, storage.dtype)
        return torch.empty(len(storage.data), dtype=_TORCH[storage.dtype], device=self.device)

    def _copy_used(self, tensor: Tensor, flat: torch.Tensor) -> None:
        used = self.materials.geometry.used
        placed = flat.as_strided(tensor.shape, tensor.strides, tensor.offset)
        for block in used.tolist():
            placed[block] = to_torch(np.ascontiguousarray(tensor.view[block]), tensor.storage.dtype).to(self.device)

    def _sparse(self) -> list[tuple[str, Tensor]]:
        return [(name, t) for name, t in self.materials.inputs.tensors().items() if t.storage.sparse]

    def _used(self, tensor: Tensor) -> Array:
        return tensor.view[self.materials.geometry.used].copy()

    def changed(self) -> tuple[str, ...]:
        """Names of the inputs whose bits are no longer what they were."""
        names = [name for name in self.materials.inputs.tensors() if name != "out"]
        return tuple(name for name in names if self._differs(name))

    def _differs(self, name: str) -> bool:
        tensor: Tensor = getattr(self.materials.inputs, name)
        if tensor.storage.sparse:
            placed = getattr(self.inputs, name)[torch.from_numpy(self.materials.geometry.used).to(self.device)]
            return not same_bits(to_numpy(placed), self._before[name])
        reach = tensor.storage.state != OUT_OF_REACH
        after = to_numpy(self._flat[id(tensor.storage)])
        return not same_bits(after[reach], tensor.storage.data[reach])

    def outside(self) -> tuple[str, ...]:
        """Names of the tensors whose fence, or a gap between their strides, was written."""
        tensors = self.materials.inputs.tensors()
        return tuple(name for name, t in tensors.items() if not t.storage.sparse and self._fence_differs(t))

    def _fence_differs(self, tensor: Tensor) -> bool:
        fence = tensor.storage.state == OUT_OF_REACH
        after = to_numpy(self._flat[id(tensor.storage)])
        return not same_bits(after[fence], tensor.storage.data[fence])

    def unwritten(self) -> int:
        """How many elements of a given `out` still hold the poison's exact bits."""
        if self.materials.inputs.out is None:
            return 0
        after = bits(to_numpy(self.inputs.out))
        return int((after == bits(self.materials.inputs.out.view.copy())).sum())


def observe(subject: Subject, placement: Placement) -> Observed:
    """Call the subject and look at what it left behind; the caller adds what its executor knows."""
    try:
        returned = subject.run(placement.inputs)
        observed = read_output(returned, placement)
    except (Exception, SystemExit) as error:
        return Observed(failure=failure(error))
    return replace(observed, outside=placement.outside(), changed=placement.changed(), unwritten=placement.unwritten())


def read_output(returned: Any, placement: Placement) -> Observed:
    """Bring the output to NumPy, or say in words why it is none."""
    inputs, case = placement.inputs, placement.materials.case
    out, lse = returned if isinstance(returned, (tuple, list)) and len(returned) == 2 else (returned, None)
    out = out if inputs.out is None else inputs.out
    tokens = inputs.q.shape[0]
    complaint = _complain("out", out, (tokens, case.num_q_heads, case.value_dim), inputs.q.dtype)
    if case.want_lse and not complaint:
        complaint = _complain("lse", lse, (tokens, case.num_q_heads), torch.float32)
    if complaint:
        return Observed(complaint=complaint)
    return Observed(out=to_numpy(out), lse=to_numpy(lse) if case.want_lse and lse is not None else None)


def _complain(name: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    if not isinstance(tensor, torch.Tensor):
        return f"{name} is {type(tensor).__name__}, but should be a tensor {list(shape)}"
    if tuple(tensor.shape) != shape:
        return f"{name} has shape {list(tensor.shape)}, but should have {list(shape)}"
    return f"{name} is {tensor.dtype}, but should be {dtype}" if tensor.dtype != dtype else ""


def failure(error: BaseException) -> Failure:
    """Describe an exception; only its type decides anything, never its text."""
    lost = isinstance(error, getattr(torch, "AcceleratorError", ()))
    return Failure(
        type=type(error).__name__,
        message=(str(error).splitlines() or [""])[0],
        line=_innermost(traceback.extract_tb(error.__traceback__)),
        not_written=isinstance(error, NotImplementedError),
        poisoned=lost,
    )


def _innermost(frames: Sequence[traceback.FrameSummary]) -> str:
    ours = (str(PACKAGE), "site-packages", "<frozen")
    outside = [frame for frame in frames if not any(part in frame.filename for part in ours)]
    frame = (outside or list(frames))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def to_torch(flat: Array, dtype: str) -> torch.Tensor:
    """A NumPy array as a torch tensor that shares its memory; torch does not know ml_dtypes."""
    if dtype == "bfloat16":
        return torch.from_numpy(flat.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(flat)


def to_numpy(tensor: torch.Tensor) -> Array:
    """A torch tensor as a NumPy array, in its own type."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def bits(array: Array) -> Array:
    """The raw bits as unsigned integers."""
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.itemsize}")


def same_bits(left: Array, right: Array) -> bool:
    """Bitwise equality: NaN equals the same NaN, and -0 differs from 0."""
    return left.shape == right.shape and bool(np.array_equal(bits(left), bits(right)))


Observer = Callable[[Subject, Materials], Observed]
__all__ = ["DEAD", "BadAccess", "Executor", "Failure", "Observed", "Placement", "observe", "same_bits"]
