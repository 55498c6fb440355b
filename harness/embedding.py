"""The source of an adapter with all that it uses of the harness: how a script calls a kernel without the harness."""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from harness.adapters import find
from harness.subjects import WrongUse

#: An adapter's function, and what it calls of what is installed.
ADAPTED = '''
{source}


def kernel(module, name):
    """A function or class of {about}."""
    return getattr({loaded}, name)


KERNELS = [kernel(*place) for place in {roots!r}]

'''


#: Modules whose definitions are embedded; everything else that they import is imported by the script as well.
OURS = "harness."


def adapted(name: str, op: str) -> tuple[str, str, str]:
    """The kernel of another project: how it is found, how it is called, and what that needs."""
    adapter = find(name)
    if op != adapter.declaration.op:
        raise WrongUse(f"subject is {name!r}, but the case is for {op}: give --subject")
    embedded, project = Embedded(), adapter.project
    embedded.add(adapter.function.__module__, adapter.function.__name__)
    loaded = "importlib.import_module(module)"
    if project.stubs is not None:  # as it was loaded when the case was found
        embedded.add("harness.adapters.light", "import_module")
        embedded.add(project.stubs.__module__, project.stubs.__name__)
        loaded = f"import_module(module, {project.package!r}, {project.stubs.__name__})"
    about = f"{project.distribution}{project.versions}"
    source = ADAPTED.format(source=embedded.text(), about=about, loaded=loaded, roots=adapter.roots)
    call = f"returned = {adapter.function.__name__}(*KERNELS, inputs)"
    return source, call, f"torch, triton and {about}"


@dataclass
class Embedded:
    """Definitions in the order in which they need each other, and the imports that they need."""

    imports: dict[str, None] = field(default_factory=dict)
    definitions: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, module: str, name: str) -> None:
        """A definition of a module after all that it uses; what makes it an adapter stays behind."""
        if (module, name) in self.definitions:
            return
        source = _Source.of(module)
        node = source.defined[name]
        self.definitions[module, name] = ""  # it may use itself
        for used in sorted(_names(node)):
            if used in source.defined:
                self.add(module, used)
            elif used in source.imported:
                self._import(source.imported[used], used)
        del self.definitions[module, name]
        self.definitions[module, name] = source.text(node)

    def _import(self, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith(OURS):
            self.add(str(statement.module), name)
        else:
            (alias,) = (a for a in statement.names if (a.asname or a.name.partition(".")[0]) == name)
            statement = type(statement)(**vars(statement) | {"names": [alias]})
            self.imports[ast.unparse(statement)] = None

    def text(self) -> str:
        """Imports, then definitions."""
        return "\n".join(sorted(self.imports)) + "\n\n\n" + "\n\n\n".join(self.definitions.values())


@dataclass(frozen=True)
class _Source:
    """What a module defines and imports at its top."""

    lines: list[str]
    defined: dict[str, ast.stmt]
    imported: dict[str, ast.Import | ast.ImportFrom]

    @staticmethod
    @cache
    def of(module: str) -> "_Source":
        text = Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8")
        body = ast.parse(text).body
        defined = {name: node for node in body for name in _defines(node)}
        imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        imported = {alias.asname or alias.name.partition(".")[0]: node for node in imports for alias in node.names}
        return _Source(text.splitlines(), defined, imported)

    def text(self, node: ast.stmt) -> str:
        """Its lines, its decorators first."""
        first = min([node.lineno, *(decorator.lineno for decorator in _decorators(node))])
        return "\n".join(self.lines[first - 1 : node.end_lineno])


def _defines(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def _decorators(node: ast.stmt) -> list[ast.expr]:
    """Its decorators, but for `@PROJECT.adapter(...)`, which stands first where it is."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return [one for one in decorators if not _makes_an_adapter(one)]


def _makes_an_adapter(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "adapter"


def _names(node: ast.stmt) -> set[str]:
    """Every name that it mentions."""
    aside = {id(inner) for one in getattr(node, "decorator_list", []) for inner in ast.walk(one)}
    kept = {inner.id for one in _decorators(node) for inner in ast.walk(one) if isinstance(inner, ast.Name)}
    return kept | {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and id(inner) not in aside}
