"""Stand-ins for kernels that need a GPU: they record what they are passed, and check it against a real signature.

What a CUDA kernel computes cannot be tested here. What an adapter passes can: each stand-in has the parameters of the
function that it stands for, read from the installed package where there is one.
"""

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass
class Recorder:
    """Called in place of a kernel; returns what it was told to."""

    returns: Any = None
    passed: dict[str, Any] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, **passed: Any) -> Any:
        self.passed = passed
        self.calls.append(passed)
        return self.returns


def installed(package: str, file: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = find_spec(package)
    assert spec is not None
    return Path(next(iter(spec.submodule_search_locations or ()))) / file


def signatures(file: Path) -> dict[str, Callable[..., Any]]:
    """Every function of a file, and every method as `Class.method`, with its parameters and nothing in its body."""
    found = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = hollow(node)
        elif isinstance(node, ast.ClassDef):
            methods = [inner for inner in node.body if isinstance(inner, ast.FunctionDef)]
            found |= {f"{node.name}.{method.name}": hollow(method) for method in methods}  # of overloads, the last
    return found


def hollow(node: ast.FunctionDef) -> Callable[..., Any]:
    """The function without decorators, annotations and body; its defaults are None."""
    arguments = node.args
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    bare = ast.FunctionDef(name=node.name, args=arguments, body=[ast.Pass()], decorator_list=[], type_params=[])
    scope: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(ast.Module([bare], [])), node.name, "exec"), scope)
    made: Callable[..., Any] = scope[node.name]
    return made


def as_modules(package_file: Callable[[str], Path], places: list[str]) -> dict[str, Any]:
    """For each module of the places: something with its functions and classes, of real signatures."""
    modules: dict[str, Any] = {}
    for module in {place.partition(":")[0] for place in places}:
        found = signatures(package_file(module))
        methods: dict[str, dict[str, Any]] = {}
        for name, function in found.items():
            owner, dot, method = name.partition(".")
            if dot:
                methods.setdefault(owner, {})[method] = function
        plain = {name: function for name, function in found.items() if "." not in name}
        classes = {owner: type(owner, (), members) for owner, members in methods.items()}
        modules[module] = type("Module", (), {name: staticmethod(f) for name, f in plain.items()} | classes)
    return modules


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of its parameters."""
    return list(inspect.signature(function).parameters)
