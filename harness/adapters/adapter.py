"""What an adapter is: the kernel's place and signature, what is declared of it, and the one function that calls it."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import msgspec
from packaging.specifiers import SpecifierSet

from harness.adapters.light import import_module
from harness.case import Case
from harness.subjects import Declaration, Subject, WrongUse, declare

Stubs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Project:
    """A project whose kernels are subjects."""

    name: str  # what the names of its subjects begin with
    package: str  # what is imported
    distribution: str  # what is installed
    versions: str  # those that its adapters were written for, as pip writes them
    url: str
    #: With a function here the package is loaded lightly: no `__init__` runs, and of the modules it names there is only
    #: what it says. It is called when a kernel is loaded, so it may import torch.
    stubs: Callable[[], Stubs] | None = None
    #: What pip is to install, where that is not the distribution in these versions.
    source: str = ""
    #: Distributions of others that hold the same package.
    also: tuple[str, ...] = ()

    @property
    def installed(self) -> str:
        """The version that is installed, "" where none is, "unknown" for a checkout."""
        if find_spec(self.package) is None:
            return ""
        return next(iter(self._found.values()), "unknown")

    @property
    def _found(self) -> dict[str, str]:
        """The versions of its distributions that are installed, its own first."""
        found = {}
        for name in (self.distribution, *self.also):
            with suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
        return found

    @property
    def wanted(self) -> str:
        """What pip is to install."""
        return self.source or f"{self.distribution}{self.versions}"

    @property
    def about(self) -> str:
        """What is tested, with a word where nobody looked at this version yet."""
        known = self.installed[:1].isdigit() and self.installed in SpecifierSet(self.versions, prereleases=True)
        name = next(iter(self._found), self.distribution)
        return f"{name} {self.installed}" + ("" if known else f" (its adapter is for {self.versions})")

    def adapter(
        self,
        calls: Mapping[str, str],
        not_drawn: tuple[str, ...] = (),
        corners: Mapping[str, str] | None = None,
        limits: Callable[[Case], str | None] | None = None,
        **declared: Any,
    ) -> Callable[[Callable[..., Any]], "Adapter"]:
        """Make the function below the adapter of a kernel.

        `calls` names each function that it calls, as `module:function` or `module:Class.method`, with the parameters
        that it passes. The adapter's function gets these functions (or classes, once each) in this order, then inputs.
        `not_drawn` says what of the kernel no case asks; `corners` by the name of a declaration, why it is as it is;
        `limits` why the kernel cannot do a case, where no declaration can say it, or None.
        """
        said = {"not_drawn": not_drawn, "corners": dict(corners or {})}
        declaration = declare(**said, **declared)
        return lambda function: Adapter(self, function, dict(calls), declaration, limits)


@dataclass(frozen=True)
class Adapter:
    """One kernel of a project."""

    project: Project
    function: Callable[..., Any]
    calls: Mapping[str, str]
    declaration: Declaration = field(default_factory=Declaration)
    limits: Callable[[Case], str | None] | None = None

    @property
    def name(self) -> str:
        """The name of its subject."""
        return f"{self.project.name}.{self.function.__name__}"

    @property
    def roots(self) -> tuple[tuple[str, str], ...]:
        """What its function gets: module and name of each function or class, once, in the order of the calls."""
        places = (place.partition(":") for place in self.calls)
        return tuple(dict.fromkeys((module, path.partition(".")[0]) for module, _, path in places))

    def subject(self) -> Subject:
        """The kernel, ready to be called; raises WrongUse where it is not there or not the one that is known."""
        if not self.project.installed:
            raise WrongUse(
                f"subject {self.name!r} needs {self.project.package}, which is not installed here: "
                f"python -m pip install --no-deps '{self.project.wanted}'"
            )
        declaration = msgspec.structs.replace(self.declaration, about=self.project.about)
        return Subject(self.name, declaration, partial(self.function, *self._kernels()), limits=self.limits)

    def _kernels(self) -> Iterator[Callable[..., Any]]:
        """What the adapter's function calls, each signature bound before anything runs."""
        roots: dict[tuple[str, str], Any] = {}
        for place, passed in self.calls.items():
            module, _, path = place.partition(":")
            first, *others = path.split(".")
            root = self._there(self._module(module), first, place)
            called = root
            for name in others:
                called = self._there(called, name, place)
            self._bind(called, passed.split(), place, bound=bool(others))
            roots.setdefault((module, first), root)
        yield from roots.values()

    def _module(self, name: str) -> Any:
        try:
            return import_module(name, self.project.package, self.project.stubs)
        except ModuleNotFoundError as error:
            if error.name and error.name.partition(".")[0] == self.project.package:
                raise self._out_of_date(f"there is no module {error.name}") from None
            raise WrongUse(f"subject {self.name!r}: {name} cannot be imported: {error}") from error
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise WrongUse(f"subject {self.name!r}: {name} cannot be imported: {what}") from error

    def _there(self, owner: Any, name: str, place: str) -> Any:
        try:
            return getattr(owner, name)
        except AttributeError:
            raise self._out_of_date(f"{place} is not there") from None

    def _bind(self, called: Any, passed: list[str], place: str, bound: bool) -> None:
        parameters = list(inspect.signature(called).parameters.values())[1 if bound else 0 :]
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        unknown = sorted(set(passed) - {p.name for p in plain})
        if unknown and not takes_any:
            raise self._out_of_date(f"{place} takes no {', '.join(unknown)}")
        missing = [p.name for p in plain if p.default is p.empty and p.name not in passed]
        if missing:
            raise self._out_of_date(f"{place} wants {', '.join(missing)}, which is not passed")

    def _out_of_date(self, what: str) -> WrongUse:
        project = self.project
        return WrongUse(
            f"subject {self.name!r}: adapter out of date: in {project.distribution} {project.installed} {what}; "
            f"the adapter is for {project.distribution} {project.versions}"
        )
