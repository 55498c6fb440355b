"""Hooks into Triton: inside `active()` a launch of a kernel runs here, from its TTIR, without a GPU.

Triton binds, specialises and caches as ever, for an NVIDIA target, so a kernel takes the branches that it takes there.
Its pipeline is cut after TTIR: what Triton keeps as the kernel's binary is that text.
"""
# ruff: noqa: ARG001, ARG002, ARG004, ARG005 - the signatures are Triton's

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import FileCacheManager
from triton.runtime.jit import JITFunction

from harness.executors.gridsim.codecs import CODECS, Array
from harness.executors.gridsim.control import Translation
from harness.executors.gridsim.frames import Descriptor, Frame, Programs, Value, World
from harness.executors.gridsim.ir import Type, Unsupported, parse
from harness.executors.gridsim.memory import Access, Allocation, Memory, Pointer
from harness.executors.gridsim.races import Races, Shadow
from harness.executors.gridsim.tuners import config_left

DEVICE = "gridsim"  # not 0: Triton keeps compiled kernels by device, and a GPU's must stay apart
TARGET = GPUTarget("cuda", 90, 32)
KEY = "gridsim 1"  # changes whenever the stages below do: Triton's disk cache outlives us
WIDEST = 4 << 20  # bytes of the widest value: wider ones leave the processor's caches, and many are alive at once


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel."""

    name: str
    ttir: str
    grid: tuple[int, int, int]


@dataclass
class Trace:
    """What ran while gridsim was active."""

    memory: Memory
    order: int | None = None
    config: int = 0
    seen: set[str] = field(default_factory=set)
    could_be: set[str] = field(default_factory=set)
    ran: list[Launch] = field(default_factory=list)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every launch, in order."""
        return tuple(self.ran)

    @property
    def behaviours(self) -> frozenset[str]:
        """What lines, masks, branches and loops did."""
        return frozenset(self.seen)

    @property
    def possible(self) -> frozenset[str]:
        """What they might have done, in these specialisations."""
        return frozenset(self.could_be)

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Every access that should not have been."""
        return self.memory.accesses


_sessions: list[Trace] = []


@contextmanager
def active(memory: Memory | None = None, order: int | None = None, config: int = 0) -> Iterator[Trace]:
    """Run every kernel launched inside the block, on CPU tensors, and trace it.

    `order` is a seed: the programs of a grid are then shuffled, and the second half of them runs after the first (but
    for kernels that may wait for one another). An autotuned kernel runs the config of this number.
    """
    trace = Trace(memory or Memory(), order, config)
    with traced(trace):
        yield trace


@contextmanager
def traced(trace: Trace) -> Iterator[None]:
    """The same for a trace that is there already."""
    config = triton.runtime.driver
    found = config._active, knobs.runtime.add_stages_inspection_hook, Autotuner.run, JITFunction.cache_key
    config.set_active(Driver())
    knobs.runtime.add_stages_inspection_hook = _stages
    Autotuner.run, JITFunction.cache_key = _named_config, property(_placed_key)
    _sessions.append(trace)
    try:
        with _own_cache(), trace.memory.scratch:
            yield
    finally:
        _sessions.pop()
        config._active, knobs.runtime.add_stages_inspection_hook, Autotuner.run, JITFunction.cache_key = found


@contextmanager
def _own_cache() -> Iterator[None]:
    """Keep compiled text where no GPU's kernels are: Triton 3.6 gives both the same key."""
    with knobs.cache.scope(), knobs.compilation.scope():
        knobs.cache.dir = str(_folder() / "gridsim")
        knobs.cache.manager_class = knobs.cache.manager_class or _Shelf
        knobs.compilation.store_binary_only = True  # it is the same text as the one before it
        yield


def _folder() -> Path:
    """Triton's own cache; where an empty variable would have it in the current directory, a temporary one."""
    own = Path(knobs.cache.dir)
    chosen = own.is_absolute() or os.environ.get("TRITON_CACHE_DIR")
    return own if chosen else Path(gettempdir()) / f"triton-{os.getuid()}"


class _Shelf(FileCacheManager):  # type: ignore[misc]  # Triton has no types
    """Triton's cache on disk, without a folder made and removed again for every file."""

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file beside its place and move it there: nobody sees half of one."""
        place = Path(self.cache_dir) / filename
        beside = place.with_name(f"{os.getpid()} {filename}")
        beside.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        beside.replace(place)
        return str(place)


def _stages(*given: Any) -> tuple[str, str] | None:
    """Name the pipeline (no arguments), or cut it after TTIR."""
    if not given:
        return KEY, KEY
    stages = given[1]
    kept = stages["ttir"]
    stages.clear()
    stages.update({"ttir": kept, "cubin": _finish})
    return None


def _finish(module: Any, metadata: dict[str, Any]) -> bytes:
    metadata.update(name=module.get_entry_func_name(), shared=0, tmem_size=0)
    metadata.update(dict.fromkeys(("global_scratch_size", "profile_scratch_size"), 0))
    return str(module).encode()


_key = JITFunction.cache_key


def _placed_key(function: Any) -> str:
    """Tell copies of a kernel apart: its text names its file, which Triton's key leaves out."""
    return f"{_key.fget(function)} {function.fn.__code__.co_filename}"


_run = Autotuner.run


def _named_config(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the config that the case names; time nothing."""
    configs = self.configs
    self.configs = config_left(self, _sessions[-1].config, args, kwargs)
    try:
        return _run(self, *args, **kwargs)
    finally:
        self.configs = configs


class Driver:
    """What Triton asks of a device."""

    class utils:  # noqa: N801 - Triton's name
        """Loads nothing: a kernel is its text."""

        @staticmethod
        def get_device_properties(device: object) -> dict[str, int]:
            """Promise enough of everything."""
            names = (
                "max_shared_mem",
                "max_num_regs",
                "multiprocessor_count",
                "warpSize",
                "sm_clock_rate",
                "mem_clock_rate",
            )
            return dict.fromkeys((*names, "mem_bus_width"), 1 << 30) | {"multiprocessor_count": 132, "warpSize": 32}

        @staticmethod
        def load_binary(name: str, kernel: bytes, shared: int, device: object) -> tuple[None, bytes, int, int, int]:
            """Hand the text on, as the function that the launcher gets; no module, so nothing to unload."""
            return None, kernel, 0, 0, 1 << 20

        @staticmethod
        def unload_module(module: object) -> None:
            """Unload nothing."""

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Make the function that Triton calls with the grid and the arguments."""
        signature = tuple(source.signature.items())

        def launch(x: int, y: int, z: int, stream: object, function: bytes, packed: object, about: object,
                   enter: object, leave: object, *args: Any) -> None:  # fmt: skip
            with torch._C.DisableTorchFunction():  # what gridsim itself asks of tensors is nobody's business
                execute(function, (x, y, z), [flat for (name, kind), arg in zip(signature, args, strict=True)
                                              for flat in flatten(name, kind, arg)])  # fmt: skip

        return launch

    def get_current_device(self) -> str:
        """Name the device."""
        return DEVICE

    def set_current_device(self, device: object) -> None:
        """Stay."""

    def get_current_stream(self, device: object) -> int:
        """There is one stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Stand for an H100 or H200."""
        return TARGET

    def get_active_torch_device(self) -> torch.device:
        """Tensors lie on the CPU."""
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        """Give torch's module for the device."""
        return torch.cpu

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Time nothing."""
        return lambda call, quantiles=None, **_: [0.0] * len(quantiles or (0,))


def flatten(name: str, kind: Any, arg: Any) -> Iterator[tuple[str, Any]]:
    """Spread tuples over the kernel's arguments, and drop what was specialised away."""
    if isinstance(kind, tuple | list):
        for number, (inner, value) in enumerate(zip(kind, arg, strict=True)):
            yield from flatten(f"{name}.{number}", inner, value)
    elif kind.startswith("tensordesc"):
        yield name, arg
        yield from ((f"{name}.{i}", int(value)) for i, value in enumerate((*arg.shape, *arg.strides)))
    elif kind != "constexpr":
        yield name, arg


@lru_cache(maxsize=1024)
def translate(text: bytes) -> tuple[str, str, Translation]:
    """Translate a kernel once for all its launches."""
    plain = text.decode()
    function = parse(plain)
    return function.name, plain, Translation(function, function.callees)


def execute(text: bytes, grid: tuple[int, int, int], args: Sequence[tuple[str, Any]]) -> None:
    """Run a kernel for every program of a grid."""
    trace = _sessions[-1]
    name, plain, kernel = translate(text)
    trace.ran.append(Launch(name, plain, grid))
    trace.could_be |= kernel.possible
    if len(args) != len(kernel.args):
        raise Unsupported(f"the arguments of {name}: expected {len(kernel.args)}, got {len(args)}")
    owners: list[Allocation] = []
    kinds = kernel.function.arg_types
    given = [bind(pair, kind, trace.memory, owners) for pair, kind in zip(args, kinds, strict=True)]
    watch_races(kernel, given, owners, grid)
    if trace.memory.parties:
        trace.memory.watch_parties(owners, grid[0] * grid[1] * grid[2])
    world = World(trace.memory, owners, trace.seen)
    numbers, chunk = np.arange(grid[0] * grid[1] * grid[2]), max(1, WIDEST // (8 * kernel.widest))
    if trace.order is not None:
        half = max(1, len(numbers) // 2)
        numbers, chunk = shuffled(numbers, trace.order), chunk if kernel.waits else min(chunk, half)
    with np.errstate(all="ignore"):
        for start in range(0, len(numbers), chunk):
            programs = Programs(numbers[start : start + chunk], grid)
            kernel.start(given, Frame([], programs, world))


def shuffled(numbers: Array, seed: int) -> Array:
    """Give another order, whatever the seed."""
    found = np.random.default_rng(seed).permutation(numbers)
    return numbers[::-1] if (found == numbers).all() else found


def watch_races(
    kernel: Translation, given: Sequence[Value], owners: Sequence[Allocation], grid: tuple[int, int, int]
) -> None:
    """Watch the storages that the kernel may write, where there are two programs to race."""
    if grid[0] * grid[1] * grid[2] < 2:
        return
    pairs = zip(kernel.function.args, given, strict=True)
    pointers = [v.pointer if isinstance(v, Descriptor) else v for name, v in pairs if name in kernel.stored]
    written = {owner.address: owner.nbytes for p in pointers if isinstance(p, Pointer) for owner in p.owners}
    races = Races(grid)
    shadows = {address: Shadow(races, address, nbytes) for address, nbytes in written.items() if nbytes}
    for owner in owners:
        if owner.address in shadows:
            owner.watches = (*owner.watches, shadows[owner.address])


def bind(pair: tuple[str, Any], kind: Type, memory: Memory, owners: list[Allocation]) -> Value:
    """Turn an argument into the value that the kernel gets."""
    name, arg = pair
    if kind.kind == "value":
        return scalar(arg, kind.element)
    if kind.kind == "descriptor":
        base = point(name, arg.base, kind, memory, owners)
        shape, strides = (tuple(np.array([int(n)]) for n in part) for part in (arg.shape, arg.strides))
        return Descriptor(base, shape, strides, np.nan if getattr(arg, "padding", "zero") == "nan" else 0.0)
    return point(name, arg, kind, memory, owners)


def scalar(arg: Any, element: str) -> Array:
    """Give a number the width that the kernel's signature says."""
    codec = CODECS[element]
    if codec.carrier.kind == "i":
        return np.array([int(arg)], object).astype(np.uint64 if arg >= 1 << 63 else np.int64).astype(codec.carrier)
    return codec.round(np.array([arg], codec.carrier))


def point(name: str, arg: Any, kind: Type, memory: Memory, owners: list[Allocation]) -> Pointer:
    """Make the pointer to a tensor's first element."""
    tensor = getattr(arg, "base", arg)  # Triton wraps a tensor that it is to take for another type's
    if tensor is None or isinstance(tensor, int):
        return Pointer((Allocation.null(),), np.zeros(1, np.int64))
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
        raise Unsupported(f"the argument {name}: expected a torch tensor on the CPU, got {type(tensor).__name__}")
    owner = memory.bind(tensor, name)
    owners.append(owner)
    start = tensor.storage_offset() * tensor.element_size() // CODECS[kind.element].storage.itemsize
    return Pointer((owner,), np.full(1, start, np.int64))
