"""Where the folders that ship beside the harness are, and how a Python file in them is loaded: by path."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parent


#: The variable that names another folder of kernels: how the gate loads those of a base.
OTHER_KERNELS = "KVETCH_KERNELS"


def folder(name: str) -> Path:
    """`kernels`, `references`, `corpus` or `mutants`: inside the package in a wheel, beside it in a checkout."""
    if name == "kernels" and os.environ.get(OTHER_KERNELS):
        return Path(os.environ[OTHER_KERNELS])
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def load_file(path: Path, private_name: str) -> ModuleType:
    """Execute the file once under a private name; raises what the file raises.

    While it runs, `import sibling` finds the files beside it first, as it would for a script. Their plain names are
    forgotten afterwards, so that a mutant of a helper in another folder reaches its own users and nobody else.
    """
    if private_name in sys.modules:
        return sys.modules[private_name]
    spec = importlib.util.spec_from_file_location(private_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[private_name] = module
    try:
        with _siblings(path.resolve().parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[private_name]
        raise
    return module


@contextmanager
def _siblings(folder: Path) -> Iterator[None]:
    finder = _SiblingFinder(folder)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.found:
            sys.modules.pop(name, None)


class _SiblingFinder(MetaPathFinder):
    """Finds `name.py` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: list[str] = []

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """The sibling's spec, None for what is no file here."""
        file = self.folder / f"{fullname}.py"
        if "." in fullname or not file.is_file():
            return None
        self.found.append(fullname)
        return importlib.util.spec_from_file_location(fullname, file)


def load(folder_name: str, module_name: str) -> ModuleType:
    """For example `load("references", "float64")`."""
    return load_file(folder(folder_name) / f"{module_name}.py", f"kvetch_{folder_name}_{module_name}")
