"""Light import: a module of an installed package without its packages' `__init__` and without what it does not need.

A kernel's file is plain Python over torch and triton, but its package starts a server's worth of modules, asks for a
GPU and loads compiled extensions. Here packages are empty, modules are read from their files as ever, and those that a
stub names hold nothing but what the stub says.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
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
    that needs the whole package imports it before this. Raises what the module raises.
    """
    if stubs is not None and package not in sys.modules:
        sys.meta_path.insert(0, Finder(package, stubs()))
    return importlib.import_module(name)


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
