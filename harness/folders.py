"""Where the folders that ship beside the harness are, and how a Python file in them is loaded: by path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """`kernels`, `references` or `corpus`: inside the package in a wheel, beside it in a checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def load_file(path: Path, private_name: str) -> ModuleType:
    """Execute the file once under a private name; raises what the file raises."""
    if private_name in sys.modules:
        return sys.modules[private_name]
    spec = importlib.util.spec_from_file_location(private_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[private_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[private_name]
        raise
    return module


def load(folder_name: str, module_name: str) -> ModuleType:
    """For example `load("references", "float64")`."""
    return load_file(folder(folder_name) / f"{module_name}.py", f"kvetch_{folder_name}_{module_name}")
