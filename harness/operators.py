"""The operators of systematic mutants: each says what else could stand in the place of a node of a kernel."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from harness.source import Function, Source, called, name_of, parameters


@dataclass(frozen=True)
class Edit:
    """Other text for the characters from start to end."""

    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Place:
    """A node of a kernel, where an operator may apply."""

    source: Source
    function: Function
    node: ast.AST

    def replaced(self, new: str) -> Edit:
        """Other text for the whole node."""
        return Edit(self.source.start(self.node), self.source.end(self.node), new)

    def of(self, part: ast.AST, more: str) -> Edit:
        """Some text behind a part of the node."""
        return Edit(self.source.start(part), self.source.end(part), self.source.of(part) + more)

    def between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> Edit:
        """Another sign between two operands."""
        start = self.source.text.index(old, self.source.end(left), self.source.start(right))
        return Edit(start, start + len(old), new)

    def parent(self) -> ast.AST:
        """The node round it."""
        return self.source.parents[self.node]


Operator = Callable[[Place], Iterator[Edit]]

#: Calls that only inform the compiler or the author: to change them changes no result.
HINTS = frozenset(
    {"assume", "multiple_of", "max_contiguous", "max_constancy", "device_assert", "device_print", "static_assert",
     "static_print"}
)  # fmt: skip
SIGNS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Add: "+", ast.Sub: "-", ast.FloorDiv: "//", ast.Mod: "%", ast.Mult: "*", ast.Div: "/", ast.BitAnd: "&",
}  # fmt: skip
NEIGHBOURS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OTHER_ARITHMETIC = {"+": "-", "-": "+", "//": "%", "%": "//"}
OTHER_EXTREME = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max"}
OTHER_BASE = {"exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log"}
RANGES = frozenset({"range", "static_range"})


def _sign(operator: ast.AST) -> str:
    return SIGNS.get(type(operator), "")


# --- signs -------------------------------------------------------------------------------------------------------


def comparison(place: Place) -> Iterator[Edit]:
    """A bound that is one off: `<` for `<=`."""
    node = place.node
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and (sign := _sign(node.ops[0])) in NEIGHBOURS:
        yield place.between(node.left, node.comparators[0], sign, NEIGHBOURS[sign])


def arithmetic(place: Place) -> Iterator[Edit]:
    """`+` for `-`, `%` for `//`."""
    node = place.node
    if isinstance(node, ast.BinOp) and (sign := _sign(node.op)) in OTHER_ARITHMETIC and not _is_address(place):
        yield place.between(node.left, node.right, sign, OTHER_ARITHMETIC[sign])
    if isinstance(node, ast.AugAssign) and (sign := _sign(node.op)) in OTHER_ARITHMETIC:
        yield place.between(node.target, node.value, sign + "=", OTHER_ARITHMETIC[sign] + "=")


def _is_address(place: Place) -> bool:
    """What is loaded or stored there is elsewhere in any case; the operator `index` stands for that."""
    parent = place.parent()
    return called(parent) in ("load", "store") and place.node in getattr(parent, "args", ())[:1]


def factor(place: Place) -> Iterator[Edit]:
    """A product or quotient that is its first part: a stride taken for 1, a rescaling that is forgotten."""
    if isinstance(place.node, ast.BinOp) and _sign(place.node.op) in ("*", "/"):
        yield place.replaced(_sides(place)[0])


def conjunct(place: Place) -> Iterator[Edit]:
    """A mask of which one part is forgotten, or of which one part is enough."""
    node = place.node
    if isinstance(node, ast.BinOp) and _sign(node.op) == "&":
        left, right = _sides(place)
        yield place.between(node.left, node.right, "&", "|")
        yield place.replaced(left)
        if not (isinstance(node.left, ast.BinOp) and _sign(node.left.op) == "&"):
            yield place.replaced(right)


def _sides(place: Place) -> tuple[str, str]:
    """The text on either side of the sign, with its parentheses."""
    node, text = place.node, place.source.text
    assert isinstance(node, ast.BinOp)
    middle = place.between(node.left, node.right, _sign(node.op), "")
    whole = place.replaced("")
    return text[whole.start : middle.start].strip(), text[middle.end : whole.end].strip()


def negation(place: Place) -> Iterator[Edit]:
    """`x` for `-x`."""
    node = place.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not _number(node.operand):
        yield place.replaced(place.source.of(node.operand))


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) or called(node) == "float"


# --- loads and stores --------------------------------------------------------------------------------------------


def mask(place: Place) -> Iterator[Edit]:
    """A load or a store of all its lanes."""
    if isinstance(place.node, ast.Call) and (edit := _without(place, "mask", "other")):
        yield edit


def other(place: Place) -> Iterator[Edit]:
    """A masked load whose other lanes are undefined."""
    if isinstance(place.node, ast.Call) and (edit := _without(place, "other")):
        yield edit


def _without(place: Place, *names: str) -> Edit | None:
    """The call without these keywords, of which the first has to be there, up to the next one that stays."""
    node = place.node
    assert isinstance(node, ast.Call)
    gone = [keyword for keyword in node.keywords if keyword.arg in names]
    if called(node) not in ("load", "store") or not node.args or names[0] not in {keyword.arg for keyword in gone}:
        return None
    first = node.keywords.index(gone[0])
    before = [*node.args, *node.keywords[:first]][-1]
    start = place.source.text.index(",", place.source.end(before))
    kept = [place.source.of(keyword) for keyword in node.keywords[first:] if keyword not in gone]
    return Edit(start, place.source.end(node) - 1, "".join(f", {text}" for text in kept))


def index(place: Place) -> Iterator[Edit]:
    """A load or a store one element further on."""
    node = place.node
    if isinstance(node, ast.Call) and called(node) in ("load", "store") and node.args:
        yield place.of(node.args[0], " + 1")


# --- strides and offsets -----------------------------------------------------------------------------------------


def stride(place: Place) -> Iterator[Edit]:
    """The next stride of the same tensor."""
    if _is_use(place) and "stride" in (name := name_of(place.node)):
        same = [other for other in parameters(place.function) if "stride" in other and _stem(other) == _stem(name)]
        if name in same and len(same) > 1:
            yield place.replaced(same[(same.index(name) + 1) % len(same)])


def _stem(name: str) -> str:
    return name.rpartition("_")[0]


def twin(place: Place) -> Iterator[Edit]:
    """What belongs to V in place of what belongs to K, or the reverse."""
    if _is_use(place):
        words = name_of(place.node).split("_")
        swapped = "_".join({"k": "v", "v": "k"}.get(word, word) for word in words)
        if len(words) > 1 and swapped != name_of(place.node) and swapped in parameters(place.function):
            yield place.replaced(swapped)


def _is_use(place: Place) -> bool:
    return isinstance(place.node, ast.Name) and isinstance(place.node.ctx, ast.Load)


def operands(place: Place) -> Iterator[Edit]:
    """Two indices that change their strides: `a * t + b * s` for `a * s + b * t`."""
    node = place.node
    if not (_is_sum(node) and not _is_sum(place.parent())):
        return
    strided = [term for term in _terms(node) if _is_strided(term)]
    for left, right in pairwise(strided):
        first, second = place.source.of(left.left), place.source.of(right.left)
        middle = place.source.text[place.source.end(left.left) : place.source.start(right.left)]
        yield Edit(place.source.start(left.left), place.source.end(right.left), second + middle + first)


def _is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def _terms(node: ast.AST) -> Iterator[ast.BinOp]:
    if _is_sum(node):
        assert isinstance(node, ast.BinOp)
        yield from (*_terms(node.left), *_terms(node.right))
    elif isinstance(node, ast.BinOp):
        yield node


def _is_strided(term: ast.BinOp) -> bool:
    return isinstance(term.op, ast.Mult) and "stride" in name_of(term.right)


# --- numbers -----------------------------------------------------------------------------------------------------


def constant(place: Place) -> Iterator[Edit]:
    """0 for 1 and 1 for 0; other integers one less, other numbers doubled; 0 for an infinity."""
    node = place.node
    if isinstance(node, ast.UnaryOp) and called(node.operand) == "float":
        yield place.replaced("0.0")
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and _is_operand(place):
        yield place.replaced(_changed(node.value))


def _changed(value: int | float) -> str:
    if value in (0, 1):
        return repr(type(value)(1 - value))
    return repr(value - 1 if isinstance(value, int) else 2 * value)


def _is_operand(place: Place) -> bool:
    """Neither True nor False; not an axis, a shape, a subscript or where a range begins: these would not compile."""
    parent = place.parent()
    if isinstance(getattr(place.node, "value", None), bool):
        return False
    if isinstance(parent, ast.keyword):
        return parent.arg == "other"
    return not isinstance(parent, ast.List | ast.Tuple | ast.Subscript | ast.Slice) and called(parent) != "arange"


def bound(place: Place) -> Iterator[Edit]:
    """A loop that begins or ends one early or one late, or whose end is rounded down."""
    node = place.node
    if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and called(node.iter) in RANGES:
        for argument in node.iter.args[:2]:
            for change in (" + 1", " - 1"):
                yield place.of(argument, change)
    if isinstance(node, ast.Call) and called(node) == "cdiv" and len(node.args) == 2:
        yield place.replaced(" // ".join(f"({place.source.of(argument)})" for argument in node.args))


# --- calls and statements ----------------------------------------------------------------------------------------


def cast(place: Place) -> Iterator[Edit]:
    """`x` for `x.to(...)`."""
    node = place.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        dot = place.source.text.rindex(".", place.source.start(node), place.source.end(node.func))
        yield Edit(dot, place.source.end(node), "")


def extreme(place: Place) -> Iterator[Edit]:
    """The least for the largest."""
    yield from _renamed(place, OTHER_EXTREME)


def base(place: Place) -> Iterator[Edit]:
    """A power or a logarithm of 2 for one of e."""
    yield from _renamed(place, OTHER_BASE)


def _renamed(place: Place, others: dict[str, str]) -> Iterator[Edit]:
    node = place.node
    if isinstance(node, ast.Call) and (name := called(node)) in others:
        end = place.source.end(node.func)
        yield Edit(end - len(name), end, others[name])


def branch(place: Place) -> Iterator[Edit]:
    """A branch that is taken where it should not be; what is None is asked at compile time, and rarely wrongly."""
    node = place.node
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not _asks_for_none(node.test):
        test = place.source.of(node.test)
        yield Edit(place.source.start(node.test), place.source.end(node.test), f"not ({test})")


def _asks_for_none(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.IsNot)


def deletion(place: Place) -> Iterator[Edit]:
    """A statement that is forgotten, where all names stay bound."""
    node = place.node
    if _is_deletable(node) and _assigned(node) <= _bound_before(place):
        yield place.replaced("pass")


def _is_deletable(node: ast.AST) -> bool:
    """A branch of one statement is left to the deletion of that statement."""
    if isinstance(node, ast.If):
        return len(node.body) > 1 and not node.orelse
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)


def _assigned(node: ast.AST) -> set[str]:
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _bound_before(place: Place) -> set[str]:
    """Parameters, targets of loops around, and what statements before this one assign in its block or around it."""
    names = set(parameters(place.function))
    inner: ast.AST = place.node
    for outer in place.source.around(place.node):
        for block in ("body", "orelse"):
            statements = getattr(outer, block, [])
            if isinstance(statements, list) and inner in statements:
                for statement in statements[: statements.index(inner)]:
                    names |= set() if isinstance(statement, ast.If | ast.For | ast.While) else _assigned(statement)
        if isinstance(outer, ast.For):
            names |= _assigned(outer.target)
        if outer is place.function:
            return names
        inner = outer
    return names


#: In the order in which mutants of one place are listed.
OPERATORS: dict[str, Operator] = {
    operator.__name__: operator
    for operator in (
        comparison, arithmetic, factor, conjunct, negation, mask, other, index, stride, twin, operands, constant,
        bound, cast, extreme, base, branch, deletion,
    )
}  # fmt: skip


def edits(source: Source, function: Function) -> Iterator[tuple[str, Edit]]:
    """What all operators make of the body of a kernel: the operator's name and the edit, in no order."""
    for statement in function.body:
        for node in ast.walk(statement):
            if not any(called(part) in HINTS for part in (node, *source.around(node))):
                for name, operator in OPERATORS.items():
                    for edit in operator(Place(source, function, node)):
                        yield name, edit
