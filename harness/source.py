"""The text of a Python file with its syntax tree: where each node lies, so that a change leaves other text alone."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from harness.subjects import WrongUse

Function = ast.FunctionDef


@dataclass(frozen=True)
class Source:
    """A file's name and text; places are counted in characters from the start of the text."""

    file: str
    text: str

    @classmethod
    def read(cls, path: Path) -> "Source":
        """The file; raises WrongUse where it is none, or no Python."""
        if not path.is_file():
            raise WrongUse(f"a Python file is expected at {path}, but there is no such file")
        try:
            source = cls(path.name, path.read_text(encoding="utf-8"))
            source.tree  # noqa: B018  (parsed here, so that a wrong file is told at once)
        except ValueError as error:
            raise WrongUse(f"{path}: {error}, but expected Python in UTF-8") from None
        except SyntaxError as error:
            raise WrongUse(f"{path}:{error.lineno or 1}: {error.msg}, but expected Python") from None
        return source

    @cached_property
    def tree(self) -> ast.Module:
        """Parsed once."""
        return ast.parse(self.text)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.splitlines(keepends=True)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line) for line in self._lines)]

    def at(self, line: int, column: int) -> int:
        """The place of a line, counted from 1, and of a column in bytes of UTF-8, as `ast` counts."""
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def start(self, node: ast.AST) -> int:
        """Where a node begins."""
        return self.at(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        """Behind its last character; parentheses round it are not its own."""
        return self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        """Its text."""
        return self.text[self.start(node) : self.end(node)]

    def line_of(self, place: int) -> int:
        """The number of the line that holds a place."""
        return self.text.count("\n", 0, place) + 1

    def line(self, number: int) -> str:
        """A line without its indentation and end."""
        return self._lines[number - 1].strip()

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes round a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def kernels(self) -> list[Function]:
        """The functions that Triton compiles, in their order: those decorated with `triton.jit`, helpers as well."""
        functions = [node for node in ast.walk(self.tree) if isinstance(node, Function)]
        found = [node for node in functions if any(is_jit(decorator) for decorator in node.decorator_list)]
        return sorted(found, key=lambda node: node.lineno)


def is_jit(decorator: ast.expr) -> bool:
    """Whether it is `triton.jit`, with or without arguments."""
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return name_of(named) == "jit"


def name_of(node: ast.AST) -> str:
    """The last part of a dotted name: "load" of `tl.load`; nothing of anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def called(node: ast.AST) -> str:
    """The name of the function that a node calls, nothing where it calls none."""
    return name_of(node.func) if isinstance(node, ast.Call) else ""


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters, in their order."""
    arguments = function.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
