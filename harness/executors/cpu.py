"""The executors that need no GPU: gridsim, and Triton's interpreter as a witness."""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from harness.case import Case
from harness.executors import gridsim
from harness.executors.base import MOST_ROWS, BadAccess, Conditions, Failure, Observed, Placement, observe
from harness.inputs import Materials
from harness.subjects import Subject, WrongUse
from harness.tensors import DEAD


class GridSim:
    """Triton's IR on NumPy, all programs at once, every access checked."""

    name = "gridsim"
    platform = "gridsim"

    conditions = Conditions()

    def __init__(self) -> None:
        if complaint := gridsim.self_test():
            raise WrongUse(complaint)

    def declines(self, case: Case) -> str | None:  # noqa: ARG002  (every executor is asked)
        """gridsim declines only while running, by operation."""
        return None

    def under(self, conditions: Conditions) -> "GridSim":
        """The same, under conditions that must not matter."""
        found = copy(self)
        found.conditions = conditions
        return found

    def observe(self, subject: Subject, materials: Materials) -> Observed:
        """Call the subject once under gridsim."""
        placement = Placement(materials, "cpu")
        memory = declared(materials, placement)
        memory.scratch.fill, memory.lanes = self.conditions.fill, self.conditions.lanes
        if self.conditions.owners:
            owned(memory, materials, placement)
            memory.most_rows = MOST_ROWS
        reads, trace = TorchReads(placement), gridsim.Trace(memory, self.conditions.order, materials.case.hints.config)
        observed = _supported(subject, placement, reads, trace)
        return replace(
            observed,
            accesses=tuple(_bad_access(access) for access in memory.accesses),
            ttir=tuple(launch.ttir for launch in trace.launches),
            behaviours=trace.behaviours,
            possible=trace.possible,
            log_is_complete=bool(trace.launches) and not reads.seen,
            undefined=tuple(memory.undefined.items()),
        )


#: Functions of a tensor that give something else than a view of it, and yet read none of its elements.
UNREAD = {
    "__get__", "__hash__", "__len__", "data_ptr", "dim", "element_size", "empty_like", "get_device", "is_contiguous",
    "is_floating_point", "ndimension", "nelement", "new_empty", "new_full", "new_ones", "new_zeros", "numel",
    "ones_like", "size", "storage_offset", "stride", "untyped_storage", "zeros_like",
}  # fmt: skip


class TorchReads(TorchFunctionMode):
    """Notices where torch itself, and not a kernel, reads a tensor that has dead elements: no log tells which ones."""

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self.seen = False
        sources = placement.materials.inputs.tensors().items()
        partly_dead = [name for name, t in sources if name != "out" and (t.storage.sparse or (t.state == DEAD).any())]
        self._addresses = {_address(getattr(placement.inputs, name)) for name in partly_dead}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A result that lies in the same memory is a view; anything else has been computed from the elements."""
        returned = func(*args, **(kwargs or {}))
        if not self.seen and func.__name__ not in UNREAD:
            with torch._C.DisableTorchFunction():
                self.seen = self._may_read(args, kwargs or {}, returned)
        return returned

    def _may_read(self, args: Any, kwargs: Any, returned: Any) -> bool:
        """Whether it reads; of the tensors inside `vmap` nobody can tell whose memory they are."""
        try:
            return self._reads(args, kwargs, returned)
        except NotImplementedError:
            return True

    def _reads(self, args: Any, kwargs: Any, returned: Any) -> bool:
        if self._addresses.isdisjoint(_address(tensor) for tensor in _tensors((args, kwargs))):
            return False
        found = {_address(tensor) for tensor in _tensors(returned)}
        return not found or not found <= self._addresses


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


#: What an element is that nobody may read, in words; a number in braces is an index.
WORDS = {
    "k_cache": "no token lies in this slot",
    "v_cache": "no token lies in this slot",
    "block_tables": "past the end of row {0}",
    "k_new": "the row of a token that is skipped",
    "v_new": "the row of a token that is skipped",
    "state_outs": "the output of an empty state",
}


#: The same where tokens have slid out of the window.
SLID = {
    "k_cache": "no token lies in this slot, or one that slid out of the window",
    "v_cache": "no token lies in this slot, or one that slid out of the window",
    "block_tables": "past the end of row {0}, or before its window",
}


def declared(materials: Materials, placement: Placement) -> gridsim.Memory:
    """Tell gridsim which elements are live, and that nobody has written `out`."""
    memory, words = gridsim.Memory(), WORDS | (SLID if materials.case.slid_out else {})
    for name, tensor in materials.inputs.tensors().items():
        state = None if name == "out" else tensor.storage.state
        memory.declare(getattr(placement.inputs, name), name=name, state=state, dead=words.get(name, ""))
    if placement.inputs.out is not None:
        memory.unwritten(placement.inputs.out)
    return memory


def owned(memory: gridsim.Memory, materials: Materials, placement: Placement) -> None:
    """Tell gridsim which sequence has which row and which blocks; a program serves those whose length it reads."""
    inputs, tables = placement.inputs, materials.geometry.tables
    itself = np.eye(len(tables), dtype=np.bool_)
    memory.own(inputs.kv_lens, itself, asks=True)
    memory.own(inputs.block_tables, itself)
    blocks = np.zeros((materials.geometry.num_blocks, len(tables)), np.bool_)
    for number, table in enumerate(tables):
        blocks[table, number] = True
    for cache in (inputs.k_cache, inputs.v_cache):
        memory.own(cache, blocks)


def _supported(subject: Subject, placement: Placement, reads: TorchReads, trace: gridsim.Trace) -> Observed:
    """Call the subject under gridsim; what looks at tensors afterwards is not watched."""
    refused: list[str] = []
    unwritten: list[Any] = []

    def run(inputs: object) -> object:
        try:
            with gridsim.traced(trace), reads:
                returned = subject.run(inputs)
            unwritten.extend(_unwritten(trace, returned))
            return returned
        except gridsim.Unsupported as error:
            refused.append(str(error))
            raise

    observed = observe(replace(subject, run=run), placement)
    if not refused:
        kept = unwritten[0] if observed.out is not None and observed.unwritten is None and unwritten else None
        return replace(observed, unwritten=observed.unwritten if kept is None else kept)
    return Observed(failure=Failure("Unsupported", refused[0], "", unsupported=True))


def _unwritten(trace: gridsim.Trace, returned: Any) -> list[Any]:
    """Of an output that the subject allocated: which elements no kernel wrote, where there are any."""
    out = next(iter(_tensors([returned])), None)
    found = None if out is None else trace.memory.scratch.untouched(out)
    return [found] if found is not None and found.any() else []


def _bad_access(access: gridsim.Access) -> BadAccess:
    what = access.kind, access.tensor, access.index, access.program, access.line, access.count
    return BadAccess(*what, story=access.story, rows=access.rows)


class Interpreter:
    """Triton's own interpreter: slow, and wrong in bfloat16, so it only bears witness in tests."""

    name = "interpreter"
    platform = "interpreter"

    def declines(self, case: Case) -> str | None:
        """Its bfloat16 arithmetic multiplies bit patterns; far memory would be read for real."""
        if case.dtype == "bfloat16":
            return "the interpreter is wrong in bfloat16"
        return "the interpreter would read far memory for real" if case.is_far else None

    def under(self, conditions: Conditions) -> None:
        """The interpreter runs programs in their order, and fills nothing."""

    def observe(self, subject: Subject, materials: Materials) -> Observed:
        """Call the subject once; TRITON_INTERPRET was set before triton was imported."""
        return observe(subject, Placement(materials, "cpu"))
