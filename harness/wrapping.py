"""A function of somebody's as a subject: what its parameters mean by their names, and the file that says so."""

import ast
import keyword
from dataclasses import dataclass
from pathlib import Path

from harness.fields import ATTENTION, FIELDS
from harness.source import Function, Source, is_jit
from harness.subjects import WrongUse
from harness.synonyms import CACHES, meanings

_OUT = (
    "q, out = inputs.q, inputs.out",
    "if out is None:",
    "    out = torch.empty((*q.shape[:2], inputs.v_cache.shape[3]), dtype=q.dtype, device=q.device)",
)


@dataclass(frozen=True)
class Parameter:
    """One of the function's parameters."""

    name: str
    required: bool
    positional: bool = False  # cannot be given by its name


@dataclass(frozen=True)
class Doubt:
    """A parameter whose name does not say what it is: the fields that it may be, none where the name is unknown."""

    name: str
    choices: tuple[str, ...]
    rivals: tuple[str, ...] = ()  # parameters of which one may be the only choice as well

    def __str__(self) -> str:
        told = " or ".join(f"{choice} ({FIELDS[choice].words})" for choice in self.choices)
        as_well = f", and so may {' and '.join(self.rivals)}" if self.rivals else ""
        return f"{self.name} may be {told}{as_well}" if told else f"{self.name} is no name that is known"


@dataclass(frozen=True)
class Wrapped:
    """A function of a file, and what has been said of its parameters: a field's name, or a Python literal."""

    path: Path
    function: str
    parameters: tuple[Parameter, ...]
    op: str
    said: dict[str, str]

    @classmethod
    def of(cls, target: str, op: str | None, said: dict[str, str]) -> "Wrapped":
        """FILE.py:FUNCTION, read and not imported; raises WrongUse with one clear line."""
        path, name = _target(target)
        parameters = _parameters(_definition(path, name))
        for given, meaning in said.items():
            _check(given, meaning, parameters, target)
        op = op or _operation(parameters, said, target)
        _check_fields(said, op)
        return cls(path, name, parameters, op, said)

    @property
    def meaning(self) -> dict[str, str]:
        """Field or literal of each parameter that has one."""
        told = {p.name: self.said.get(p.name) or self._only(p) for p in self.parameters}
        return {name: meaning for name, meaning in told.items() if meaning}

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Parameters that have to be given and are not clear."""
        unclear = [p for p in self.parameters if p.name not in self.meaning and p.required]
        return tuple(Doubt(p.name, choices := self._choices(p), self._rivals(p, choices)) for p in unclear)

    @property
    def left(self) -> dict[str, tuple[str, ...]]:
        """Parameters that keep their defaults, with the fields that they may be."""
        unclear = [p for p in self.parameters if p.name not in self.meaning and not p.required]
        return {p.name: self._choices(p) for p in unclear}

    def _only(self, parameter: Parameter) -> str:
        """The one field that the parameter can be and no other is, or nothing."""
        choices = self._choices(parameter)
        return choices[0] if len(choices) == 1 and choices[0] not in self._taken(parameter) else ""

    def _choices(self, parameter: Parameter) -> tuple[str, ...]:
        """Fields that the name may mean, less those that another parameter is; all where nothing else is left."""
        unlikely = {new for new, caches in CACHES.items() if not self._elsewhere(parameter, caches)}
        likely = tuple(name for name in self._useful(parameter) if name not in unlikely)
        return tuple(name for name in likely if name not in self._taken(parameter)) or likely

    def _taken(self, parameter: Parameter) -> set[str]:
        """Fields that other parameters are."""
        others = (self._useful(p) for p in self.parameters if p != parameter)
        return set(self.said.values()) | {found[0] for found in others if len(found) == 1}

    def _rivals(self, parameter: Parameter, choices: tuple[str, ...]) -> tuple[str, ...]:
        """Other parameters that may be, or are said to be, the only choice that there is."""
        if len(choices) != 1:
            return ()
        others = (p for p in self.parameters if p != parameter)
        return tuple(p.name for p in others if choices[0] in (*self._useful(p), self.said.get(p.name)))

    def _elsewhere(self, parameter: Parameter, fields: set[str]) -> bool:
        """Whether another parameter may be one of these."""
        others = (p for p in self.parameters if p != parameter)
        return any(fields & {*self._useful(p), self.said.get(p.name, "")} for p in others)

    def _useful(self, parameter: Parameter) -> tuple[str, ...]:
        useful = (name for name in meanings(parameter.name) if FIELDS[name].is_of(self.op))
        return tuple(useful) if parameter.name not in self.said else ()

    # --- the file ------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The file that makes it a subject."""
        body = "\n".join(f"    {line}" for line in self._body())
        views = ", views" if "views." in body else ""
        torch = "import torch\n" if "torch." in body else ""
        module = self.path.stem
        return (
            f'"""`{self.function}` of {self.path.name} as a subject, drawn from the names of its parameters.\n\n'
            "Names do not tell the order of dims, nor what else the function expects: read it, and correct it.\n"
            f'"""\n\n{torch}from {module} import {self.function} as theirs\n\nfrom harness import subject{views}\n\n\n'
            f"@subject(\n{self._declaration()})\n"
            f"def {self.function}(inputs):\n"
            f'    """Calls {self.function} of {self.path.name}."""\n{body}\n'
        )

    def _declaration(self) -> str:
        declared: dict[str, object] = {"op": self.op}
        for name in self.meaning.values():
            declared |= FIELDS[name].declares if name in FIELDS else {}
        if {"window_left", "window_tokens"} & set(self.meaning.values()):
            declared.pop("non_causal", None)  # there, a window has a right side that the function is not told
        if self.op in ATTENTION and "scale" not in self.meaning.values():
            declared["scales"] = False
        if self.op == "extend" and "k_new" in self.meaning.values():
            declared["new_kv"] = ("dense",)
        return "".join(f"    {name}={_literal(value)},\n" for name, value in declared.items())

    def _body(self) -> list[str]:
        given = set(self.meaning.values())
        lines = [*_OUT] if "out" in given else []
        if "lse" in given:
            lines.append("lse = torch.empty(inputs.q.shape[:2], dtype=torch.float32, device=inputs.q.device)")
        lines += [f"{self._returned(given)}theirs(", *self._arguments(), ")"]
        if "out" in given:
            lines.append("return (out, lse) if inputs.want_lse else out" if "lse" in given else "return out")
        return lines

    def _returned(self, given: set[str]) -> str:
        return "" if "out" in given or self.op == "cache_write" else "return "

    def _arguments(self) -> list[str]:
        lines = []
        for p in self.parameters:
            if p.name in self.meaning:
                meaning = self.meaning[p.name]
                value = FIELDS[meaning].value if meaning in FIELDS else meaning
                lines.append(f"    {value if p.positional else f'{p.name}={value}'},")
            else:
                choices = self._choices(p)
                hint = f": may be {' or '.join(choices)}" if choices else ""
                lines.append(f"    # {p.name} keeps its default{hint}")
        return lines


def _literal(value: object) -> str:
    """A value as the house writes it."""
    return repr(value).replace("'", '"')


def _target(target: str) -> tuple[Path, str]:
    """The file and the function; a file whose name no import can have is refused, since the new one imports it."""
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise WrongUse(f"--wrap is {target!r}, but expected FILE.py:FUNCTION")
    stem = Path(path).stem
    if not stem.isidentifier() or keyword.iskeyword(stem):
        raise WrongUse(f"--wrap is {target!r}, but {stem!r} cannot be imported: expected a name such as 'my_kernel'")
    return Path(path), name


def _definition(path: Path, name: str) -> Function:
    source = Source.read(path)
    found = [node for node in source.tree.body if isinstance(node, Function) and node.name == name]
    if not found:
        there = ", ".join(node.name for node in source.tree.body if isinstance(node, Function)) or "none"
        raise WrongUse(f"--wrap: {path} has no function {name!r}; there are: {there}")
    if any(is_jit(decorator) for decorator in found[-1].decorator_list):
        raise WrongUse(f"--wrap: {name} of {path} is a kernel, but expected the function that launches it")
    return found[-1]


def _parameters(function: Function) -> tuple[Parameter, ...]:
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    first_default = len(places) - len(arguments.defaults)
    by_place = [
        Parameter(argument.arg, i < first_default, argument in arguments.posonlyargs)
        for i, argument in enumerate(places)
    ]
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return (*by_place, *(Parameter(argument.arg, default is None) for argument, default in by_name))


def _check(name: str, meaning: str, parameters: tuple[Parameter, ...], target: str) -> None:
    """Raise WrongUse for what --map says of no parameter, or what is neither field nor literal."""
    if name not in {p.name for p in parameters}:
        there = ", ".join(p.name for p in parameters)
        raise WrongUse(f"--map {name}={meaning}: {target} has no parameter {name!r}; there are: {there}")
    if meaning in FIELDS:
        return
    try:
        ast.literal_eval(meaning)
    except (ValueError, SyntaxError):
        known = ", ".join(FIELDS)
        raise WrongUse(f"--map {name}={meaning}: expected a Python literal or one of {known}") from None


def _check_fields(said: dict[str, str], op: str) -> None:
    """Raise WrongUse for a field that a call of this operation has not."""
    for name, meaning in said.items():
        if meaning in FIELDS and not FIELDS[meaning].is_of(op):
            ops = ", ".join(FIELDS[meaning].ops)
            raise WrongUse(f"--map {name}={meaning}: {meaning} is of {ops}, but the function is wrapped for {op}")


def _operation(parameters: tuple[Parameter, ...], said: dict[str, str], target: str) -> str:
    """What the function does, as far as its parameters tell."""
    could = {name for p in parameters for name in ((said[p.name],) if p.name in said else meanings(p.name))}
    must = {meanings(p.name)[0] for p in parameters if p.required and meanings(p.name)}
    if "state_outs" in could:
        return "merge"
    if "slot_mapping" in must:
        return "step" if "q" in could else "cache_write"
    if "q" in could:
        return "extend" if could & {"query_starts", "query_lens"} else "decode"
    if "tile_start" in could:
        return "gather"
    raise WrongUse(f"--wrap: what {target} does is not told by its parameters: give --op")
