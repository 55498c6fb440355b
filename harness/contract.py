"""Contract: a call that a subject promises to refuse raises, or gives what the valid call gives."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.bounds import exceeds
from harness.executors.base import Observed, same_bits
from harness.laws import First
from harness.operations import ATTENTION
from harness.results import Finding
from harness.subjects import Subject

READING = (*ATTENTION, "gather")
#: The weight of what few calls have.
SELDOM = 12
#: The weight of metadata, which kernels take for dense more often than what they compute with.
META = 4
#: One tensor of a call in another form; None where the call has no such form.
Spoil = Callable[[Any], dict[str, Any] | None]


@dataclass(frozen=True)
class Violation:
    """One way to call wrongly, and the promise that it is refused."""

    name: str
    promise: str
    spoil: Spoil
    says: str
    ops: tuple[str, ...] = READING
    weight: int = 1
    expect: str = "refused"
    accuses: str = "validate, or the wrapper"

    @property
    def requires(self) -> tuple[str, ...]:
        """The promise."""
        return (self.promise,)

    def ask(self, first: First) -> list[Finding] | None:
        """A finding where the call is taken and something else comes out; None where there is no such call."""
        subject = first.caller.subject
        if first.case.op not in self.ops or self.promise not in subject.declaration.promises:
            return None
        spoilt: list[bool] = []
        second = first.caller.again(first.materials, replace(subject, run=self._spoiling(subject, spoilt)))
        if not spoilt:
            return None
        if second.failure is not None:
            return [] if not second.failure.poisoned else [self._broken("the device's context was lost")]
        return [] if _same(first, second) else [self._broken("the call was taken and gave something else")]

    def _spoiling(self, subject: Subject, spoilt: list[bool]) -> Callable[[Any], Any]:
        def run(inputs: Any) -> Any:
            changes = self.spoil(inputs)
            if changes is None:
                raise ValueError("there is nothing to spoil")
            spoilt.append(True)
            changed = replace(inputs, **changes)
            if subject.validate is not None:
                subject.validate(changed)
            returned = subject.run(changed)
            _bring_back(inputs, changes)
            return returned

        return run

    def _broken(self, what: str) -> Finding:
        message = f"{self.says}, which the subject promises to refuse ({self.promise}): {what}"
        return Finding(kind="contract", detail=self.promise, message=message, accuses=self.accuses)


def _bring_back(inputs: Any, changes: dict[str, Any]) -> None:
    """What was written into a copy belongs where the harness looks."""
    for name in {"out", "k_cache", "v_cache"} & set(changes):
        if getattr(inputs, name) is not None:
            getattr(inputs, name).copy_(changes[name])


def _same(first: First, second: Observed) -> bool:
    """The same bits; where a compiler makes another kernel of other strides and types, the same bound."""
    if second.complaint or second.outside or second.changed:
        return False
    before, bound = first.run.observed, first.run.bound
    pairs = ((before.out, second.out), (before.lse, second.lse))
    if all(wanted is None or same_bits(wanted, got) for wanted, got in pairs):  # what writes a cache returns nothing
        return True
    return first.caller.compiles() and bound is not None and not exceeds(second.out, bound).any()


# --- what is spoilt ----------------------------------------------------------------------------------------------


#: Elements of a tensor that may be copied; a pool of far blocks is larger, and never in memory as a whole.
COPIED = 2**24


def _apart(name: str) -> Spoil:
    """Every other element of a tensor twice as long; in between each is there once more."""

    def spoil(inputs: Any) -> dict[str, Any] | None:
        tensor = getattr(inputs, name)
        if tensor is None or tensor.numel() > COPIED or tensor.shape[-1] < 2:
            return None
        return {name: _spread(tensor)}

    return spoil


def _cache_apart(name: str) -> Spoil:
    """Not where V is a part of a K that is written: it would be read where nothing was written."""

    def spoil(inputs: Any) -> dict[str, Any] | None:
        is_part = inputs.k_cache.data_ptr() == inputs.v_cache.data_ptr()
        return None if is_part and inputs.slot_mapping is not None else _apart(name)(inputs)

    return spoil


def _spread(tensor: Any) -> Any:
    twice = tensor.new_empty((*tensor.shape, 2))
    return twice.copy_(tensor[..., None].expand(twice.shape)).flatten(-2)[..., ::2]


def _output_apart(inputs: Any) -> dict[str, Any]:
    """The given one, or one that is given here."""
    shape = (*inputs.q.shape[:2], inputs.v_cache.shape[3])
    return {"out": _spread(inputs.q.new_full(shape, float("nan")) if inputs.out is None else inputs.out)}


def _as(name: str, dtype: str) -> Spoil:
    def spoil(inputs: Any) -> dict[str, Any]:
        import torch

        return {name: getattr(inputs, name).to(getattr(torch, dtype))}

    return spoil


def _elsewhere(name: str) -> Spoil:
    return lambda inputs: {name: getattr(inputs, name).to("meta")}


def _length(wrong: Callable[[Any], int]) -> Spoil:
    def spoil(inputs: Any) -> dict[str, Any]:
        lens = inputs.kv_lens.clone()
        lens[-1] = wrong(inputs)
        return {"kv_lens": lens}

    return spoil


def _capacity(inputs: Any) -> int:
    """Tokens that a row of the table has room for, and as many as there may be beside the cache."""
    beside = 0 if inputs.k_new is None else len(inputs.k_new)
    return int(inputs.block_tables.shape[1] * inputs.k_cache.shape[1]) + beside


def _block(wrong: Callable[[Any], int]) -> Spoil:
    """In the first row that has a token."""

    def spoil(inputs: Any) -> dict[str, Any] | None:
        used = inputs.kv_lens.nonzero().flatten().tolist()
        if not used:
            return None
        tables = inputs.block_tables.clone()
        tables[used[0], 0] = wrong(inputs)
        return {"block_tables": tables}

    return spoil


def _slot(inputs: Any) -> dict[str, Any] | None:
    if not len(inputs.slot_mapping):
        return None
    mapping = inputs.slot_mapping.clone()
    mapping[0] = inputs.k_cache.shape[0] * inputs.k_cache.shape[1]
    return {"slot_mapping": mapping}


def _fewer_heads(name: str, dim: int) -> Spoil:
    def spoil(inputs: Any) -> dict[str, Any] | None:
        tensor = getattr(inputs, name)
        return {name: tensor.narrow(dim, 0, tensor.shape[dim] - 1)} if inputs.k_cache.shape[2] > 1 else None

    return spoil


def _narrower(inputs: Any) -> dict[str, Any] | None:
    return {"q": inputs.q[..., :-1]} if inputs.q.shape[-1] > 1 else None


def _starts(inputs: Any) -> dict[str, Any]:
    starts = inputs.query_starts.clone()
    starts[-1] += 1
    return {"query_starts": starts}


_CACHE, _NEW, _SCALED = (*READING, "cache_write"), ("extend", "step", "cache_write"), (*ATTENTION, "cache_write")
_ATTENDING, _WRITING, _PACKED = ATTENTION, ("step", "cache_write"), ("extend", "step")
#: What kernels compute with as often as they refuse it, so that it is asked for by itself.
APART = (
    Violation("lengths apart", "strides", _apart("kv_lens"), "kv_lens was not contiguous", weight=META),
    Violation("table apart", "strides", _apart("block_tables"), "block_tables was not contiguous", weight=META),
    Violation("slopes apart", "strides", _apart("alibi_slopes"), "alibi_slopes was not contiguous", _ATTENDING, SELDOM),
    Violation("sinks apart", "strides", _apart("sinks"), "sinks was not contiguous", _ATTENDING, SELDOM),
    Violation("k_scale apart", "strides", _apart("k_scale"), "k_scale was not contiguous", _SCALED, SELDOM),
    Violation("v_scale apart", "strides", _apart("v_scale"), "v_scale was not contiguous", _SCALED, SELDOM),
    Violation("dims of q apart", "dims", _apart("q"), "the dims of q lay apart", _ATTENDING),
    Violation("dims of K apart", "dims", _cache_apart("k_cache"), "the dims of K lay apart", _CACHE),
    Violation("dims of V apart", "dims", _cache_apart("v_cache"), "the dims of V lay apart", _CACHE),
    Violation("dims of new K apart", "dims", _apart("k_new"), "the dims of new K lay apart", _NEW),
    Violation("dims of new V apart", "dims", _apart("v_new"), "the dims of new V lay apart", _NEW),
    Violation("dims of out apart", "dims", _output_apart, "the dims of out lay apart", _ATTENDING),
    Violation("starts apart", "strides", _apart("query_starts"), "query_starts was not contiguous", _PACKED, META),
    Violation("slots apart", "strides", _apart("slot_mapping"), "slot_mapping was not contiguous", _WRITING, META),
)
CONTRACT = (
    Violation("lengths as float", "types", _as("kv_lens", "float32"), "kv_lens was float32"),
    Violation("lengths as int64", "types", _as("kv_lens", "int64"), "kv_lens was int64"),
    Violation("table as int16", "types", _as("block_tables", "int16"), "block_tables was int16"),
    Violation("table as float", "types", _as("block_tables", "float64"), "block_tables was float64"),
    Violation(
        "length beyond the table", "lengths", _length(lambda inputs: _capacity(inputs) + 1),
        "a kv_len was larger than its row of the table holds",
    ),
    Violation("negative length", "lengths", _length(lambda _: -1), "a kv_len was -1"),
    Violation(
        "block beyond the pool", "blocks", _block(lambda inputs: int(inputs.k_cache.shape[0])),
        "a block id that is used was as large as the pool",
    ),
    Violation("negative block", "blocks", _block(lambda _: -1), "a block id that is used was -1"),
    Violation("starts as float", "types", _as("query_starts", "float32"), "query_starts was float32", _PACKED),
    Violation("starts behind q", "lengths", _starts, "the last of query_starts lay behind q", _PACKED),
    Violation("slots as float", "types", _as("slot_mapping", "float64"), "slot_mapping was float64", _WRITING),
    Violation("slots elsewhere", "devices", _elsewhere("slot_mapping"), "slot_mapping was on another device", _WRITING),
    Violation("slot beyond the cache", "slots", _slot, "a slot lay behind the cache", _WRITING, 3),
    Violation("fewer q heads", "heads", _fewer_heads("q", 1), "q had a head too few", _ATTENDING),
    Violation("fewer V heads", "heads", _fewer_heads("v_cache", 2), "V had a head less than K", _ATTENDING),
    Violation("narrower q", "heads", _narrower, "q's head_dim was less than K's", _ATTENDING),
    Violation("lengths elsewhere", "devices", _elsewhere("kv_lens"), "kv_lens was on another device"),
    Violation("table elsewhere", "devices", _elsewhere("block_tables"), "block_tables was on another device"),
)  # fmt: skip
