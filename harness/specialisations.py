"""Specialisations: what Triton would compile for the launches of a kernel, for targets that need not be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, create_function_from_signature

from harness.builds import TARGETS, Build


@dataclass
class Specialisation:
    """One kernel for one target, as its launches want it; `refused` says why Triton takes no such launch there."""

    kernel: Any  # triton's JITFunction
    target: str
    fixed: dict[str, Any]  # compile-time arguments by name
    asked: dict[str, Any]  # options of the launch: num_warps, num_stages
    options: Any = None
    signature: dict[str, Any] = field(default_factory=dict)
    constants: dict[Any, Any] = field(default_factory=dict)
    attributes: dict[Any, Any] = field(default_factory=dict)
    refused: str = ""
    launches: list[str] = field(default_factory=list)

    def build(self) -> Build:
        """The record of it, before anything is compiled."""
        return Build(
            kernel=self.kernel.__name__,
            place=f"{Path(self.kernel.fn.__code__.co_filename).name}:{first_line(self.kernel)}",
            target=self.target,
            what=self.words(),
            launches=tuple(self.launches),
        )

    def words(self) -> str:
        """Types of what it points to, compile-time constants, options; what is None is left out."""
        types = [f"{name} {kind}" for name, kind in self.signature.items() if str(kind).startswith(("*", "tensordesc"))]
        fixed = [f"{name}={value}" for name, value in self.fixed.items() if value is not None]
        options = [f"{name}={value}" for name, value in self.asked.items()]
        return ", ".join((*types, *fixed, *options))


def first_line(kernel: Any) -> int:
    """The line of `def` in its file."""
    lines = (number for number, line in enumerate(kernel.raw_src) if line.lstrip().startswith("def "))
    return int(kernel.starting_line_number) + next(lines, 0)


@dataclass
class Notes:
    """The specialisations seen so far, each once."""

    targets: tuple[str, ...]
    found: dict[Any, Specialisation] = field(default_factory=dict)
    case: int = 0
    launches: int = 0  # of this case
    binders: dict[Any, Callable[..., tuple[Any, Any, Any]]] = field(default_factory=dict)

    def begin(self, case: int) -> None:
        """What comes now belongs to the case of this number."""
        self.case, self.launches = case, 0

    def take(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], config: str = "") -> None:
        """Note the next launch for every target."""
        options = {k: v for k, v in kwargs.items() if k not in ("grid", "warmup")}
        debug = options.get("debug", kernel.debug) or knobs.runtime.debug  # as JITFunction.run does
        label = f"case {self.case} launch {self.launches + 1}{config}"
        for target in self.targets:
            self._note(kernel, target, args, options | {"debug": debug}).launches.append(label)

    def _note(self, kernel: Any, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Specialisation:
        given, types, options = self._binder(kernel, target)(*args, **kwargs)
        key = (id(kernel), target, str(types), str(options))
        if key not in self.found:
            self.found[key] = _specialised(kernel, target, kwargs, (given, types, options))
        return self.found[key]

    def _binder(self, kernel: Any, target: str) -> Callable[..., tuple[Any, Any, Any]]:
        if (id(kernel), target) not in self.binders:
            made = create_function_from_signature(kernel.signature, kernel.params, _backend(target))
            self.binders[id(kernel), target] = made
        return self.binders[id(kernel), target]


def _specialised(kernel: Any, target: str, kwargs: dict[str, Any], bound: tuple[Any, Any, Any]) -> Specialisation:
    given, types, asked = bound
    fixed = {param.name: given[param.name] for param in kernel.params if param.is_constexpr}
    found = Specialisation(kernel, target, fixed, {name: value for name, value in asked.items() if name != "debug"})
    try:
        packed = kernel._pack_args(_backend(target), kwargs, given, types, asked)
    except Exception as error:  # an option that this backend lacks or limits
        found.refused = str(error)
        return found
    found.options, found.signature, found.constants, found.attributes = packed
    return found


@cache
def gpu_target(name: str) -> GPUTarget:
    """The target as Triton's compiler wants it."""
    return GPUTarget(TARGETS[name].backend, TARGETS[name].arch, TARGETS[name].warp_size)


@cache
def _backend(target: str) -> Any:
    return make_backend(gpu_target(target))


@contextmanager
def noted(notes: Notes, dry: bool = False) -> Iterator[None]:
    """Note every launch inside before it is compiled; of an autotuned kernel, every config that it would try.

    Where it is `dry`, nothing is launched.
    """
    tune, run = Autotuner.run, JITFunction.run
    config: list[str] = []  # while configs are only noted, which one

    def every_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        for number, tried in enumerate(self.prune_configs(kwargs)):
            config.append(f" config {number}")
            try:
                self.fn.run(*args, **kwargs, **tried.all_kwargs())
            finally:
                config.pop()
        return None if dry else tune(self, *args, **kwargs)

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        notes.take(self, args, kwargs, *config)
        if config or dry:
            return None
        notes.launches += 1
        return run(self, *args, **kwargs)

    Autotuner.run, JITFunction.run = every_config, launch
    try:
        yield
    finally:
        Autotuner.run, JITFunction.run = tune, run
