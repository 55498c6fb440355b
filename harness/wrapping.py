"""A function of somebody's as a subject: what its parameters mean by their names, and the file that says so."""

import ast
from dataclasses import dataclass, field
from pathlib import Path

from harness.case import WRITING
from harness.source import Function, Source, is_jit
from harness.subjects import WrongUse
from harness.synonyms import meanings


@dataclass(frozen=True)
class Field:
    """What a parameter may be: how it is had from `inputs`, in words, and what the subject then declares."""

    value: str
    words: str
    declares: dict[str, object] = field(default_factory=dict)
    ops: tuple[str, ...] = ()  # where it makes sense; everywhere where none is named


ATTENTION = ("decode", "extend", "step")
_NEW = ("extend", "step")
_DENSE = {"layouts": ("nhd",), "kv_strides_apart": False}
_OUT = "torch.empty((*inputs.q.shape[:2], inputs.v_cache.shape[-1]), dtype=inputs.q.dtype, device=inputs.q.device)"

FIELDS: dict[str, Field] = {
    "q": Field("inputs.q", "queries [tokens, q_heads, head_dim]", ops=ATTENTION),
    "k_cache": Field("inputs.k_cache", "K [blocks, block_size, kv_heads, head_dim]"),
    "v_cache": Field("inputs.v_cache", "V [blocks, block_size, kv_heads, head_dim]"),
    "k_cache_hnd": Field("inputs.k_cache.transpose(1, 2)", "K [blocks, kv_heads, block_size, head_dim]"),
    "v_cache_hnd": Field("inputs.v_cache.transpose(1, 2)", "V [blocks, kv_heads, block_size, head_dim]"),
    "k_slots": Field("views.slots(inputs.k_cache)", "K [slots, kv_heads, head_dim]", _DENSE),
    "v_slots": Field("views.slots(inputs.v_cache)", "V [slots, kv_heads, head_dim]", _DENSE),
    "kv_stacked": Field(
        "views.stacked(inputs)", "[2, blocks, block_size, kv_heads, head_dim]", {"layouts": ("kv_stacked",)}
    ),
    "kv_interleaved": Field(
        "views.interleaved(inputs)", "[blocks, 2, block_size, kv_heads, head_dim]", {"layouts": ("kv_interleaved",)}
    ),
    "block_tables": Field("inputs.block_tables", "blocks [seqs, columns]", ops=(*ATTENTION, "gather")),
    "slot_tables": Field("views.slot_tables(inputs)", "slot of each token [seqs, columns]", ops=(*ATTENTION, "gather")),
    "block_starts": Field("views.block_starts(inputs)", "where each sequence's blocks begin [seqs + 1]"),
    "block_ids": Field("views.block_ids(inputs)", "blocks of all sequences in one list"),
    "last_block_lens": Field("views.last_block_lens(inputs)", "tokens in each last block [seqs]"),
    "slot_starts": Field("views.slot_starts(inputs)", "where each sequence's slots begin [seqs + 1]"),
    "slot_ids": Field("views.slot_ids(inputs)", "slots of all sequences in one list"),
    "kv_lens": Field("inputs.kv_lens", "tokens of each sequence, the new ones included [seqs]"),
    "prefix_lens": Field("views.prefix_lens(inputs)", "tokens of each sequence before its new ones [seqs]", ops=_NEW),
    "query_starts": Field("inputs.query_starts", "where each sequence's queries begin [seqs + 1]", ops=_NEW),
    "kv_starts": Field("views.starts(inputs.kv_lens)", "where each sequence's keys begin [seqs + 1]"),
    "query_lens": Field("views.query_lens(inputs)", "new tokens of each sequence [seqs]", ops=_NEW),
    "slot_mapping": Field("inputs.slot_mapping", "slot of each new token, -1: none [tokens]", ops=WRITING),
    "k_new": Field("inputs.k_new", "new K [tokens, kv_heads, head_dim]", ops=("extend", *WRITING)),
    "v_new": Field("inputs.v_new", "new V [tokens, kv_heads, head_dim]", ops=("extend", *WRITING)),
    "scale": Field("inputs.scale", "the factor of q * k", ops=ATTENTION),
    "max_query_len": Field("inputs.max_query_len", "most new tokens of a sequence", ops=_NEW),
    "max_kv_len": Field("inputs.max_kv_len", "most tokens of a sequence"),
    "causal": Field("inputs.causal", "whether later keys are hidden", {"non_causal": True}, ATTENTION),
    "window": Field("inputs.window", "(left, right), the query itself not counted", {"window": True}, ATTENTION),
    "window_left": Field(
        "inputs.window[0]", "keys before the query, itself not counted, -1: all", {"window": True}, ATTENTION
    ),
    "window_tokens": Field(
        "inputs.window[0] + 1", "keys up to the query, itself counted, 0: all", {"window": True}, ATTENTION
    ),
    "softcap": Field("inputs.softcap", "0: none", {"softcap": True}, ATTENTION),
    "alibi_slopes": Field("inputs.alibi_slopes", "[q_heads] float32 or None", {"alibi": True}, ATTENTION),
    "sinks": Field("inputs.sinks", "[q_heads] float32 or None", {"sinks": True}, ATTENTION),
    "k_scale": Field("inputs.k_scale", "of an FP8 cache, [1] or [kv_heads] float32 or None"),
    "v_scale": Field("inputs.v_scale", "of an FP8 cache, [1] or [kv_heads] float32 or None"),
    "out": Field("out", "the output [tokens, q_heads, head_dim], written in place", {"out": True}, ATTENTION),
    "lse": Field("lse", "log-sum-exp [tokens, q_heads] float32, written in place", {"lse": True}, ATTENTION),
    "want_lse": Field("inputs.want_lse", "whether (out, lse) is to be returned", {"lse": True}, ATTENTION),
    "num_splits": Field("inputs.hints.num_splits or 1", "splits of the keys", {"splits": True}, ATTENTION),
    "tile_start": Field("inputs.tile_start", "the first token", ops=("gather",)),
    "tile_end": Field("inputs.tile_end", "the token behind the last", ops=("gather",)),
    "state_outs": Field("inputs.state_outs", "[states, tokens, q_heads, head_dim]", ops=("merge",)),
    "state_lses": Field("inputs.state_lses", "[states, tokens, q_heads] float32", ops=("merge",)),
    "num_seqs": Field("len(inputs.kv_lens)", "sequences"),
    "num_q_heads": Field("inputs.q.shape[1]", "query heads", ops=ATTENTION),
    "num_kv_heads": Field("inputs.k_cache.shape[2]", "KV heads"),
    "group": Field("inputs.q.shape[1] // inputs.k_cache.shape[2]", "query heads per KV head", ops=ATTENTION),
    "head_dim": Field("inputs.k_cache.shape[3]", "head dim"),
    "block_size": Field("inputs.k_cache.shape[1]", "tokens of a block"),
}

_JOINT = {"kv_stacked", "kv_interleaved"}
#: New tokens, and the caches one of which has to be there beside them: `k` alone is the cache itself.
CACHES = {"k_new": {"k_cache", "k_slots", *_JOINT}, "v_new": {"v_cache", "v_slots", *_JOINT}}


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

    def __str__(self) -> str:
        told = " or ".join(f"{choice} ({FIELDS[choice].words})" for choice in self.choices)
        return f"{self.name} may be {told}" if told else f"{self.name} is no name that is known"


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
        path, colon, name = target.rpartition(":")
        if not colon or not path.endswith(".py"):
            raise WrongUse(f"--wrap is {target!r}, but expected FILE.py:FUNCTION")
        parameters = _parameters(_definition(Path(path), name))
        for given, meaning in said.items():
            _check(given, meaning, parameters, target)
        return cls(Path(path), name, parameters, op or _operation(parameters, said, target), said)

    @property
    def meaning(self) -> dict[str, str]:
        """Field or literal of each parameter that has one."""
        told = {p.name: self.said.get(p.name) or self._only(p) for p in self.parameters}
        return {name: meaning for name, meaning in told.items() if meaning}

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Parameters that have to be given and are not clear."""
        unclear = [p for p in self.parameters if p.name not in self.meaning and p.required]
        return tuple(Doubt(p.name, self._choices(p)) for p in unclear)

    @property
    def left(self) -> dict[str, tuple[str, ...]]:
        """Parameters that keep their defaults, with the fields that they may be."""
        unclear = [p for p in self.parameters if p.name not in self.meaning and not p.required]
        return {p.name: self._choices(p) for p in unclear}

    def _only(self, parameter: Parameter) -> str:
        """The one field that the parameter can be, or nothing."""
        choices = self._choices(parameter)
        return choices[0] if len(choices) == 1 else ""

    def _choices(self, parameter: Parameter) -> tuple[str, ...]:
        """Fields that the name may mean, less those that are of no use here and those that another parameter is."""
        taken = set(self.said.values()) | {
            found[0] for p in self.parameters if p != parameter and len(found := self._useful(p)) == 1
        }
        unlikely = {new for new, caches in CACHES.items() if not self._elsewhere(parameter, caches)}
        return tuple(name for name in self._useful(parameter) if name not in taken | unlikely)

    def _elsewhere(self, parameter: Parameter, fields: set[str]) -> bool:
        """Whether another parameter may be one of these."""
        others = (p for p in self.parameters if p != parameter)
        return any(fields & {*self._useful(p), self.said.get(p.name, "")} for p in others)

    def _useful(self, parameter: Parameter) -> tuple[str, ...]:
        useful = (name for name in meanings(parameter.name) if not FIELDS[name].ops or self.op in FIELDS[name].ops)
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
            f'"""\n\n{torch}import {module}\n\nfrom harness import subject{views}\n\n\n'
            f"@subject(\n{self._declaration()})\n"
            f"def {self.function}(inputs):\n"
            f'    """Calls {module}.{self.function}."""\n{body}\n'
        )

    def _declaration(self) -> str:
        declared: dict[str, object] = {"op": self.op}
        for name in self.meaning.values():
            declared |= FIELDS[name].declares if name in FIELDS else {}
        if self.op in ATTENTION and "scale" not in self.meaning.values():
            declared["scales"] = False
        if self.op == "extend" and "k_new" in self.meaning.values():
            declared["new_kv"] = ("dense",)
        return "".join(f"    {name}={_literal(value)},\n" for name, value in declared.items())

    def _body(self) -> list[str]:
        given = set(self.meaning.values())
        lines = [f"out = {_OUT} if inputs.out is None else inputs.out"] if "out" in given else []
        if "lse" in given:
            lines.append("lse = torch.empty(inputs.q.shape[:2], dtype=torch.float32, device=inputs.q.device)")
        lines += [f"{self._returned(given)}{self.path.stem}.{self.function}(", *self._arguments(), ")"]
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
