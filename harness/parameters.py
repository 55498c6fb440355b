"""Which parameter of a kernel's wrapper is what: by the names that known projects use, unless the user says so."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.subjects import WrongUse
from harness.synonyms import CACHES, NAMES, meanings, plain

#: What a parameter of a recorded function can be: fields that a Case has a place for, and the type of a cache of bytes.
ROLES = (
    "q", "k_cache", "v_cache", "k_new", "v_new", "block_tables", "kv_lens", "prefix_lens", "query_starts",
    "slot_mapping", "out", "scale", "window", "window_left", "window_tokens", "softcap", "causal", "alibi_slopes",
    "sinks", "k_scale", "v_scale", "kv_dtype", "want_lse", "max_kv_len", "num_splits",
)  # fmt: skip

#: Where a name may be a count of tokens or a left side, it is the left side but for these: vLLM's.
TOKENS = ("sliding_window",)

#: Lengths that leave out new tokens where a call is given some: flash-attn's.
BEFORE = ("cache_seqlens",)

#: What tells of new tokens, where lengths may be those with them or those before.
NEW = ("query_starts", "query_lens", "k_new")

#: What a call that attends has to have, and one that only writes; one of each group.
ATTENDING = (("k_cache",), ("v_cache",), ("block_tables",), ("kv_lens", "prefix_lens"))
WRITING = (("k_cache",), ("k_new",), ("slot_mapping",))

Source = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Binding:
    """Where each role's value is found among the arguments of a function."""

    signature: inspect.Signature
    sources: dict[str, Source]
    where: dict[str, str]  # the same in words

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Role to value of one call, without what is None; raises TypeError as the call would."""
        return self._found(self._arguments(args, kwargs))

    def unused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        """The arguments of a call that no role took and that are not their defaults."""
        arguments = self._arguments(args, kwargs)
        self._found(arguments)
        parameters = self.signature.parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        left = (name for name in arguments if name not in arguments.asked)
        return tuple(name for name in left if not _is_default(arguments[name], defaults.get(name)))

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_Arguments":
        """By name, those of `**kwargs` among them."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        flat = _Arguments(bound.arguments)
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                flat |= flat.pop(name, {})
        return flat

    def _found(self, arguments: "_Arguments") -> dict[str, Any]:
        found = {role: source(arguments) for role, source in self.sources.items()}
        if plain(self.where.get("kv_lens", "")) in BEFORE and found.get("k_new") is not None:
            found["prefix_lens"] = found.pop("kv_lens")
        return {role: value for role, value in found.items() if value is not None}


class _Arguments(dict[str, Any]):
    """The arguments of a call, and which of them were asked for."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The argument, or the default."""
        self.asked.add(name)
        return super().get(name, default)


def _is_default(value: Any, default: Any) -> bool:
    plain = isinstance(value, bool | int | float | str | tuple)
    return value is None or value is default or (plain and value == default)


def bind(function: Callable[..., Any], given: Mapping[str, Any]) -> Binding:
    """Find every role among the parameters; raises WrongUse where one is missing or could be several.

    What is given wins: a string names a parameter, or leads on from one ("metadata.seq_lens", "kv_cache.0"); a function
    gets all arguments by name; anything else is the value itself.
    """
    name = str(getattr(function, "__qualname__", function))
    signature = _signature(function, name)
    for role in given:
        if role not in ROLES:
            raise WrongUse(f"record({name}): {role!r} is no role; there are: {', '.join(ROLES)}")
    where = {role: how if isinstance(how, str) else "given" for role, how in given.items() if how is not None}
    sources = {role: _source(role, how, signature, name) for role, how in given.items() if how is not None}
    for role, parameter in _recognised(signature, given, name).items():
        where[role], sources[role] = parameter, _path(parameter)
    if "kv_lens" not in given:
        _check_lengths(where.get("kv_lens", ""), sources, signature, name)
    _check_whole(sources, signature, name)
    return Binding(signature, sources, where)


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    if hasattr(function, "run") and hasattr(function, "__getitem__"):
        raise WrongUse(f"record({name}): {name} is a kernel, but expected the function that launches it")
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise WrongUse(f"record({name}): {function!r} has no signature that could be read") from None


def _source(role: str, how: Any, signature: inspect.Signature, name: str) -> Source:
    if callable(how):
        return how  # type: ignore[no-any-return]
    if not isinstance(how, str) or role == "kv_dtype":
        return lambda _: how
    first, parameters = how.partition(".")[0], signature.parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if first not in parameters and not takes_any:
        raise WrongUse(f"record({name}): {role} is {how!r}, but the parameters are {', '.join(parameters)}")
    return _path(how)


def _path(path: str) -> Source:
    """Follows attributes, and indices where a part is a number."""
    first, *parts = path.split(".")

    def look(arguments: Mapping[str, Any]) -> Any:
        value = arguments.get(first)
        for part in parts:
            if value is None:
                return None
            value = value[int(part)] if part.isdigit() else getattr(value, part)
        return value

    return look


def _recognised(signature: inspect.Signature, given: Mapping[str, Any], name: str) -> dict[str, str]:
    taken = {how.partition(".")[0] for how in given.values() if isinstance(how, str)}
    free = [parameter for parameter in signature.parameters if parameter not in taken]
    found = dict(_by_names(free, given, name))
    for new, cache in (("k_new", "k_cache"), ("v_new", "v_cache")):
        if new in found and cache not in given and _is_cache(found[new], new, cache, signature):
            found[cache] = found.pop(new)
    return found


def _by_names(free: list[str], given: Mapping[str, Any], name: str) -> Iterator[tuple[str, str]]:
    for role in ROLES:
        fits = [] if role in given else [parameter for parameter in free if _role(parameter) == role]
        if len(fits) > 1:
            either = " or ".join(map(repr, fits))
            raise WrongUse(f"record({name}): {role} could be {either}; say which: record({name}, {role}={fits[0]!r})")
        if fits:
            yield role, fits[0]


def _role(parameter: str) -> str:
    """What a name alone says, or nothing: the first role of several, but new tokens ahead of a cache."""
    if plain(parameter) in TOKENS:
        return "window_tokens"
    roles = [field for field in meanings(parameter) if field in ROLES]
    return next(iter([role for role in roles if role in CACHES] + roles), "")


def _is_cache(parameter: str, new: str, cache: str, signature: inspect.Signature) -> bool:
    """Whether the name may mean the cache and no other does: vLLM's `unified_attention` has them as `k` and `v`."""
    others = {field for other in signature.parameters if other != parameter for field in meanings(other)}
    return cache in meanings(parameter) and not CACHES[new] & others


def _check_lengths(parameter: str, sources: Mapping[str, Source], signature: inspect.Signature, name: str) -> None:
    """Raise WrongUse for lengths whose name leaves open whether they count the new tokens, where there are some."""
    there = {*sources, *(field for other in signature.parameters for field in meanings(other) if field not in ROLES)}
    if "prefix_lens" in meanings(parameter) and plain(parameter) not in BEFORE and there & set(NEW):
        either = " or ".join(f"record({name}, {role}={parameter!r})" for role in ("kv_lens", "prefix_lens"))
        raise WrongUse(f"record({name}): {parameter} could be kv_lens or prefix_lens; say which: {either}")


def _check_whole(sources: Mapping[str, Source], signature: inspect.Signature, name: str) -> None:
    for group in ATTENDING if "q" in sources else WRITING:
        if not set(group) & set(sources):
            known = ", ".join(dict.fromkeys(known for role in group for known in NAMES[role]))
            raise WrongUse(
                f"record({name}): none of the parameters {', '.join(signature.parameters)} is known as "
                f"{' or '.join(group)}, which goes by {known}; say which it is: record({name}, {group[0]}=...)"
            )
