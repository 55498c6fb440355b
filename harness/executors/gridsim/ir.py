"""Reads TTIR, the text of a specialised Triton kernel, into a small tree.

A `Function` holds `Block`s, a block holds `Op`s, and an operation may hold regions: tuples of blocks. Values go by
name ("%x"; the results of an operation that has several are "%x#0", "%x#1"), and a name stands for one value in its
whole function: the parser renames where sibling regions of the text share one. Block arguments that the text prints
in the head of `scf.for` (the induction variable, then the carried values) and `scf.while` are arguments of the
region's first block here. Constants are operations (`arith.constant`, their text under the attribute "value").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from harness.executors.gridsim.text import attribute, attributes, groups, hide, locations, split, tail, without_braces

Region = tuple["Block", ...]
Attribute = str | int | bool | tuple[str, ...] | tuple[int, ...]

VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
WORD = re.compile(r"(?<![\w%#@^.\x00])[A-Za-z_]\w*(?![\w.]*\x00)")
PAIR = re.compile(r"(\w+) = ([\w.]+)")
SYMBOL = r"(?:\x00\d+\x00|[\w.$-]+)"  # a name that needs quotes is a string, which is hidden by now
TARGET = re.compile(r"\^(\w+)(?:\(([^)]*)\))?")


class Unsupported(Exception):
    """A kernel uses something that gridsim does not run; the message names the operation and the kernel's line."""


@dataclass(frozen=True)
class Line:
    """A line of the kernel's source."""

    path: str
    number: int

    def __str__(self) -> str:
        return f"{self.path.rpartition('/')[2]}:{self.number}"


@dataclass(frozen=True)
class Type:
    """A value's type: element ("f32", "bf16", "f8E4M3FN"), shape (() for a scalar), kind (value, pointer, descriptor).

    The element of a pointer is what it points to, the shape of a descriptor is its block's.
    """

    element: str
    shape: tuple[int, ...] = ()
    kind: str = "value"


@dataclass(frozen=True)
class Target:
    """Where a branch goes, and the values that it hands to that block's arguments."""

    label: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Op:
    """One operation. Bare words of its text, a comparison's predicate say, are the attribute "words"."""

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    result_types: tuple[Type, ...]
    attributes: dict[str, Attribute]
    regions: tuple[tuple[Block, ...], ...]
    line: Line
    targets: tuple[Target, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Give the bare words of the text."""
        found = self.attributes.get("words", ())
        return tuple(str(word) for word in found) if isinstance(found, tuple) else ()

    def number(self, key: str) -> int:
        """Give an attribute that is a number."""
        return int(str(self.attributes[key]))

    def numbers(self, key: str) -> tuple[int, ...]:
        """Give an attribute that is an array of numbers."""
        found = self.attributes[key]
        return tuple(int(number) for number in found) if isinstance(found, tuple) else ()


@dataclass(frozen=True)
class Block:
    """A straight run of operations, the last of which ends it."""

    label: str
    args: tuple[str, ...]
    arg_types: tuple[Type, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Function:
    """A kernel, with the functions that it calls (those the inliner left) by name."""

    name: str
    args: tuple[str, ...]
    arg_types: tuple[Type, ...]
    body: tuple[Block, ...]
    callees: dict[str, Function] = field(default_factory=dict)


@lru_cache(maxsize=1024)
def parse(text: str) -> Function:
    """Read a module of TTIR: its public function. Who runs a kernel and who reads its arithmetic share one tree."""
    plain, strings = hide(text)
    where = {name: Line(*place) for name, place in locations(plain, strings).items()}
    try:
        functions = list(_functions(iter(plain.splitlines()), where, strings))
    except (ValueError, LookupError, StopIteration) as error:
        raise Unsupported(f"the text of the kernel does not read as TTIR did so far: {error!r}") from error
    public = [function for head, function in functions if " public " in head]
    if len(public) != 1:
        raise Unsupported(f"expected one public tt.func in the module, got {len(public)}")
    public[0].callees.update({function.name: function for head, function in functions if " public " not in head})
    return public[0]


def _functions(lines: Iterator[str], where: dict[str, Line], strings: list[str]) -> Iterator[tuple[str, Function]]:
    for head in lines:
        if head.lstrip().startswith("tt.func"):
            yield _Parser(lines, where, strings).function(head)


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """Read one type, "tensor<16x64x!tt.ptr<f16>>" say."""
    text = text.strip().removeprefix("!tt.")
    if text.startswith("<"):
        return parse_type(text[1:-1])
    head, _, inner = text.partition("<")
    inner = inner[:-1]
    if head == "ptr":
        return Type(split(inner)[0], (), "pointer")
    if head == "tensordesc":
        block = parse_type(inner if inner.startswith("tensor<") else f"tensor<{inner}>")
        return Type(block.element, block.shape, "descriptor")
    if head == "tensor":
        sizes, element = groups(r"((?:\d+x)*)(.*)", split(inner)[0])
        of = parse_type(element)
        return Type(of.element, tuple(int(size) for size in sizes.split("x")[:-1]), of.kind)
    return Type(text)


class _Parser:
    """Reads one function, line by line: TTIR as Triton prints it has one operation, or one end of a region, a line."""

    def __init__(self, lines: Iterator[str], where: dict[str, Line], strings: list[str]) -> None:
        self.lines, self.where, self.strings = lines, where, strings
        self.scopes: list[dict[str, str]] = [{}]
        self.types: dict[str, Type] = {}

    def function(self, text: str) -> tuple[str, Function]:
        head, _ = tail(text, self.where)
        name, rest = groups(rf".*?@({SYMBOL})\((.*)", head)
        depth, end = 1, 0
        while depth:
            depth += {"(": 1, ")": -1}.get(rest[end], 0)
            end += 1
        args, types = self.arguments(rest[: end - 1])
        body, _, _ = self.region("entry", args, types)
        return head, Function(str(attribute(name, self.strings)), args, types, body)

    def arguments(self, text: str) -> tuple[tuple[str, ...], tuple[Type, ...]]:
        pairs = [part.split(":", 1) for part in split(without_braces(text))]
        types = tuple(parse_type(kind) for _, kind in pairs)
        return tuple(self.define(name.strip(), kind) for (name, _), kind in zip(pairs, types, strict=True)), types

    def define(self, name: str, kind: Type) -> str:
        unique, count = name, 1
        while unique in self.types:
            count += 1
            unique = f"{name}.{count}"
        self.types[unique] = kind
        self.scopes[-1][name] = unique
        return unique

    def resolve(self, name: str) -> str:
        return next(scope[name] for scope in reversed(self.scopes) if name in scope)

    def region(self, label: str, args: tuple[str, ...], types: tuple[Type, ...]) -> tuple[Region, str, Line]:
        """Read blocks up to the line that closes the region; that line comes back too, with its location."""
        blocks: list[Block] = []
        ops: list[Op] = []
        for text in self.lines:
            head, line = tail(text, self.where)
            if head.startswith("}"):
                return (*blocks, Block(label, args, types, tuple(ops))), head, line
            if head.startswith("^"):
                if ops or args:
                    blocks.append(Block(label, args, types, tuple(ops)))
                label, rest = groups(r"\^(\w+)(.*):", head)
                args, types = self.arguments(rest[1:-1]) if rest else ((), ())
                ops = []
            elif head:
                ops.append(self.operation(head, line))
        raise Unsupported(f"the text of the kernel ends inside a region, after block {label}")

    def operation(self, head: str, line: Line) -> Op:
        names, head = self.results(head)
        if not head.endswith("{"):
            return self.plain(names, head, (), line)
        self.scopes.append({})
        if head.startswith("scf."):
            return self.structured(names, head)
        regions, closing, line = self.regions((), ())
        return self.plain(names, head.removesuffix("({") + closing.removeprefix("})"), regions, line)

    def results(self, head: str) -> tuple[list[str], str]:
        left, equals, right = head.partition(" = ")
        if not head.startswith("%") or not equals:
            return [], head
        names: list[str] = []
        for name in left.split(","):
            base, _, count = name.strip().partition(":")
            names += [f"{base}#{i}" for i in range(int(count))] if count else [base]
        return names, right

    def regions(self, args: tuple[str, ...], types: tuple[Type, ...]) -> tuple[tuple[Region, ...], str, Line]:
        found: list[Region] = []
        while True:
            blocks, closing, line = self.region("entry", args, types)
            self.scopes.pop()
            found.append(blocks)
            if not closing.endswith("{"):
                return tuple(found), closing, line if line.number else _ending(blocks)
            self.scopes.append({})
            args, types = (), ()

    def structured(self, names: list[str], head: str) -> Op:
        """Read `scf.for`, `scf.while` or `scf.if`, whose heads bind names of the regions below."""
        name, _, rest = head[:-1].partition(" ")
        rest = rest.replace("unsigned ", "")
        pairs = re.findall(r"(%[\w.$-]+) = (%[\w.$-]+(?:#\d+)?)", rest)
        outside = dict(pairs)
        operands = [self.resolve(value) for value in VALUE.findall(rest) if value not in outside]
        arrow = re.search(r"→ \(?(.*?)\)?\s*(?:: [\w]+\s*)?$", rest.strip())
        kinds = tuple(parse_type(part) for part in split(arrow.group(1))) if arrow else ()
        carried = tuple(self.types[self.resolve(value)] for _, value in pairs)
        args = tuple(self.define(key, kind) for (key, _), kind in zip(pairs, carried, strict=True))
        regions, closing, line = self.regions(args, carried)
        extra = attributes(closing[1:], self.strings)
        defined = tuple(self.define(key, kind) for key, kind in zip(names, kinds, strict=True))
        return Op(name, tuple(operands), defined, kinds, extra, regions, line)

    def plain(self, names: list[str], head: str, regions: tuple[Region, ...], line: Line) -> Op:
        quoted, rest = groups(r"(\x00\d+\x00|[\w.]+)(.*)", head)
        name = attribute(quoted, self.strings) if quoted.startswith("\x00") else quoted
        body, signature = self.signature(rest)
        outer = without_braces(body)
        extra = attributes(body, self.strings)
        extra.update({key: attribute(value, self.strings) for key, value in PAIR.findall(outer)})
        extra["words"] = tuple(WORD.findall(PAIR.sub("", re.sub(rf"@{SYMBOL}", "", outer))))
        self.literals(str(name), body, extra)
        targets = tuple(Target(label, self.values(handed.split(":")[0])) for label, handed in TARGET.findall(outer))
        operands = self.values(TARGET.sub("", outer))
        kinds = self.result_types(str(name), signature, len(names))
        defined = tuple(self.define(key, kind) for key, kind in zip(names, kinds, strict=True))
        return Op(str(name), operands, defined, kinds, extra, regions, line, targets)

    def values(self, text: str) -> tuple[str, ...]:
        return tuple(self.resolve(name) for name in VALUE.findall(text))

    def literals(self, name: str, body: str, extra: dict[str, Attribute]) -> None:
        if name == "arith.constant":
            extra["value"] = re.sub(r"\x00(\d+)\x00", lambda m: self.strings[int(m[1])], without_braces(body).strip())
        if name == "tt.assert":
            extra["message"] = attribute(body.split(", ")[-1], self.strings)
        if name == "tt.dot_scaled":
            left, right = groups(r"\s*%\S+(?: (scale) %\S+)?, %\S+(?: (scale) %\S+)?, .*", body)
            extra["scaled"] = (int(bool(left)), int(bool(right)))
        if name == "tt.call":
            (callee,) = groups(rf".*?@({SYMBOL}).*", body)
            extra["callee"] = attribute(callee, self.strings)

    def signature(self, rest: str) -> tuple[str, str]:
        parts = split(rest, " : ")
        return (" : ".join(parts[:-1]), parts[-1]) if len(parts) > 1 else (rest, "")

    def result_types(self, name: str, signature: str, count: int) -> tuple[Type, ...]:
        if not count:
            return ()
        if not signature:
            return (Type("i1"),)
        arrow = split(signature, "→")
        given = split((arrow[-1] if len(arrow) > 1 else signature.split(" to ")[-1]).strip())
        if len(given) == 1 and given[0].startswith("("):
            given = split(given[0][1:-1])
        if name == "tt.make_tensor_descriptor" and given[-1].startswith("<"):
            given[-1] = f"tensordesc{given[-1]}"
        kinds = [parse_type(part) for part in given]
        if len(arrow) == 1:
            kinds = [_implied(name, kinds)]
        return tuple(kinds * count if len(kinds) == 1 else kinds)


def _ending(blocks: Region) -> Line:
    """Give the line of a region's end: some versions of Triton leave a loop's own location without a file."""
    return blocks[-1].ops[-1].line if blocks[-1].ops else Line("?", 0)


def _implied(name: str, kinds: list[Type]) -> Type:
    """Give the result's type where the text gives operand types alone."""
    if name in ("arith.cmpi", "arith.cmpf"):
        return Type("i1", kinds[0].shape)
    if name == "tt.load":
        return Type(kinds[0].element, kinds[0].shape)
    return kinds[-1] if name in ("arith.select", "tt.make_tensor_descriptor") else kinds[0]
