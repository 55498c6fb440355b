"""Which parameter of a kernel's wrapper is what: by the names that known projects use, unless the user says so."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.subjects import WrongUse

#: Role to the names that vLLM, SGLang, FlashInfer, flash-attn, torch and nano-vllm have for it.
NAMES: dict[str, tuple[str, ...]] = {
    "q": ("q", "query", "queries", "q_extend"),
    "k_cache": ("k_cache", "key_cache", "k_buffer", "k_pages", "key_pages", "paged_k_cache"),
    "v_cache": ("v_cache", "value_cache", "v_buffer", "v_pages", "value_pages", "paged_v_cache"),
    "k_new": ("k_new", "new_k", "k_extend", "key", "keys", "k"),
    "v_new": ("v_new", "new_v", "v_extend", "value", "values", "v"),
    "block_tables": ("block_tables", "block_table", "page_table", "page_tables", "b_loc", "req_to_token"),
    "kv_lens": (
        "kv_lens", "kv_len", "seq_lens", "seq_len", "seqlens", "seqlens_k", "context_lens", "context_len",
        "cache_seqlens", "seqused_k", "b_seq_len", "kv_seq_lens", "sequence_lengths",
    ),
    "cached_lens": ("cached_lens", "prefix_lens"),
    "query_starts": (
        "query_starts", "query_start_loc", "cu_seqlens_q", "cu_seq_q", "qo_indptr", "b_start_loc", "cu_query_lens"
    ),
    "slot_mapping": ("slot_mapping", "slots", "out_cache_loc", "cache_loc"),
    "out": ("out", "output", "o", "o_extend"),
    "scale": ("scale", "softmax_scale", "sm_scale", "attn_scale"),
    "window": ("window", "window_size"),
    "window_left": ("window_left", "sliding_window_size"),
    "sliding_window": ("sliding_window",),
    "softcap": ("softcap", "soft_cap", "logit_cap", "logits_soft_cap"),
    "causal": ("causal", "is_causal"),
    "alibi_slopes": ("alibi_slopes",),
    "sinks": ("sinks", "sink", "s_aux", "learnable_sink"),
    "k_scale": ("k_scale", "k_descale"),
    "v_scale": ("v_scale", "v_descale"),
    "kv_dtype": (),
    "want_lse": ("want_lse", "return_lse", "return_softmax_lse"),
    "max_kv_len": ("max_kv_len", "max_seqlen_k", "max_seq_len", "max_context_len"),
    "num_splits": ("num_splits", "num_kv_splits", "max_kv_splits"),
}  # fmt: skip

#: Names that mean the cache where nothing else is called one: vLLM's `unified_attention` has its caches as `k` and `v`.
CACHE_OR_NEW = {"k_cache": "k_new", "v_cache": "v_new"}

#: Lengths that leave out new tokens where a call is given some: flash-attn's.
BEFORE = ("cache_seqlens",)

#: What a call that attends has to have, and one that only writes; one of each group.
ATTENDING = (("k_cache",), ("v_cache",), ("block_tables",), ("kv_lens", "cached_lens"))
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
        if self.where.get("kv_lens") in BEFORE and found.get("k_new") is not None:
            found["cached_lens"] = found.pop("kv_lens")
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
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise WrongUse(f"record({name}): {function!r} has no signature that could be read") from None
    for role in given:
        if role not in NAMES:
            raise WrongUse(f"record({name}): {role!r} is no role; there are: {', '.join(NAMES)}")
    where = {role: how if isinstance(how, str) else "given" for role, how in given.items() if how is not None}
    sources = {role: _source(role, how, signature, name) for role, how in given.items() if how is not None}
    for role, parameter in _recognised(signature, given, name).items():
        where[role], sources[role] = parameter, _path(parameter)
    _check_whole(sources, signature, name)
    return Binding(signature, sources, where)


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
    free = {parameter.lower(): parameter for parameter in signature.parameters if parameter not in taken}
    found = dict(_by_names(free, given, name))
    for cache, new in CACHE_OR_NEW.items():
        if cache not in found and cache not in given and new in found:
            found[cache] = found.pop(new)
    return found


def _by_names(free: dict[str, str], given: Mapping[str, Any], name: str) -> Iterator[tuple[str, str]]:
    for role, names in NAMES.items():
        fits = [] if role in given else [free[known] for known in names if known in free]
        if len(fits) > 1:
            either = " or ".join(map(repr, fits))
            raise WrongUse(f"record({name}): {role} could be {either}; say which: record({name}, {role}={fits[0]!r})")
        if fits:
            yield role, fits[0]


def _check_whole(sources: Mapping[str, Source], signature: inspect.Signature, name: str) -> None:
    for group in ATTENDING if "q" in sources else WRITING:
        if not set(group) & set(sources):
            known = ", ".join(known for role in group for known in NAMES[role])
            raise WrongUse(
                f"record({name}): none of the parameters {', '.join(signature.parameters)} is known as "
                f"{' or '.join(group)}, which goes by {known}; say which it is: record({name}, {group[0]}=...)"
            )
