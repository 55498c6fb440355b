"""Changes the judge, or a witness, of the running process: how a fault of class ORACLE is planted."""

import importlib
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from harness.folders import load, load_file


def spoiling(function: Callable[..., Any], changed: Mapping[str, Path]) -> Callable[..., Any]:
    """A subject that does what it did, and changes the judge of whoever calls it."""

    @wraps(function)
    def run(inputs: Any) -> Any:
        for file, path in changed.items():
            spoil(file, path)
        return function(inputs)

    return run


def spoil(file: str, changed: Path) -> None:
    """Give functions of `harness/NAME.py` or `references/NAME.py` the code of another file's, for all who hold them.

    Raises AttributeError where that file lacks one of them. A function with a closure stays as it is.
    """
    module, other = _module(file), load_file(changed, f"spoilt_{Path(file).stem}")
    for name, function in list(vars(module).items()):
        own = isinstance(function, FunctionType) and function.__module__ == module.__name__
        if own and function.__closure__ is None:
            function.__code__ = getattr(other, name).__code__


def _module(file: str) -> ModuleType:
    folder, name = Path(file).parent.name, Path(file).stem
    return load(folder, name) if folder != "harness" else importlib.import_module(f"harness.{name}")
