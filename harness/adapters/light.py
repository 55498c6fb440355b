"""Light import: a module of an installed package without its packages' `__init__` and without what it does not need.

A kernel's file is plain Python over torch and triton, but its package starts a server's worth of modules, asks for a
GPU and loads compiled extensions. Here packages are empty, modules are read from their files as ever, and those that a
stub names hold nothing but what the stub says.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

Stubs = Mapping[str, Mapping[str, Any]]


def import_module(name: str, package: str, stubs: Callable[[], Stubs] | None = None) -> ModuleType:
    """The module, loaded lightly where `stubs` is given, unless its package is loaded already.

    What a kernel imports while it runs must be found as well, so the finder stays for the life of the process: one
    that needs the whole package imports it before this. A stub of another package that is not installed is there only
    while the module is read. Raises what the module raises.
    """
    given = stubs() if stubs is not None else {}
    if stubs is not None and package not in sys.modules:
        sys.meta_path.insert(0, Finder(package, given))
    others = {other: names for other, names in given.items() if other.partition(".")[0] != package}
    with _lent(others):
        return importlib.import_module(name)


@contextmanager
def _lent(stubs: Stubs) -> Iterator[None]:
    """Modules of packages that are not there, for a while."""
    missing = [name for name in stubs if name not in sys.modules and find_spec(name) is None]
    for name in missing:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(stubs[name])
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


class Finder(MetaPathFinder):
    """Finds the modules of one package in its folder, and the stubs; nothing else."""

    def __init__(self, package: str, stubs: Stubs) -> None:
        spec = find_spec(package)
        folders = spec.submodule_search_locations if spec else None
        if not folders:
            raise ModuleNotFoundError(f"there is no package {package}", name=package)
        self.package, self.stubs, self.folder = package, stubs, Path(next(iter(folders)))

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """A stub, an empty package or a file; None for other packages, and for what is not there."""
        top, *parts = fullname.split(".")
        if top != self.package:
            return None
        if fullname in self.stubs:
            return ModuleSpec(fullname, Holding(self.stubs[fullname]), is_package=True)
        place = self.folder.joinpath(*parts)
        if place.is_dir():
            empty = ModuleSpec(fullname, Holding({}), is_package=True)
            empty.submodule_search_locations = [str(place)]
            return empty
        file = place.with_suffix(".py")
        return spec_from_file_location(fullname, file) if file.is_file() else None


class Holding(Loader):
    """Makes a module that holds the given names."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def create_module(self, spec: ModuleSpec) -> None:
        """As ever."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the names into it."""
        vars(module).update(self.names)
