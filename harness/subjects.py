"""Subjects: what is tested, what each declares about itself, and how one is found by name."""

import hashlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from harness.case import NEW_KV, Case, Record
from harness.folders import load_file

Function = TypeVar("Function", bound=Callable[..., Any])

#: What `validate` or the wrapper may promise to refuse: metadata that is not contiguous, is of a wrong type, or on
#: another device; a length beyond the table; a block beyond the pool; a slot beyond the cache; heads or head dims that
#: do not fit; dims that do not lie side by side. Instead of raising, a call may give what the valid one gives.
Promise = Literal["strides", "types", "lengths", "blocks", "slots", "heads", "devices", "dims"]


#: Declared as () these say something: nothing promised, nothing left out; of new_kv the error is told elsewhere.
MAY_BE_EMPTY = ("promises", "not_drawn", "new_kv")


class WrongUse(Exception):
    """The user asked for something that cannot be: exit code 2 and this one line."""


class Declaration(Record, frozen=True):
    """What a subject says of itself. Features are opt-in; geometry (None: all of it) is opt-out."""

    op: str = "decode"
    # features
    window: bool = False
    slid_out: bool = False  # with a window: tokens before it may be gone, their blocks freed or somebody else's
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    lse: bool = False
    out: bool = False
    non_causal: bool = False
    head_dim_v: bool = False
    mla: bool = False
    padding_rows: bool = False
    splits: bool = False
    configs: int = 1  # how many configs of its autotuned kernels are drawn
    kv_dtypes: tuple[str, ...] = ("same",)
    new_kv: tuple[str, ...] = ("in_cache",)
    # geometry
    dtypes: tuple[str, ...] | None = None
    head_dims: tuple[int, ...] | None = None
    block_sizes: tuple[int, ...] | None = None
    groups: tuple[int, ...] | None = None
    layouts: tuple[str, ...] | None = None
    q_layouts: tuple[str, ...] | None = None
    placements: tuple[str, ...] | None = None
    table_dtypes: tuple[str, ...] | None = None
    scales: bool = True  # takes `scale`; False: always 1/sqrt(head_dim)
    kv_strides_apart: bool = True
    empty_rows: bool = True
    shared_blocks: bool = True
    max_kv_len: int | None = None
    # promises
    batch_invariant: bool = False
    deterministic: bool = True
    fixed_splits: bool = False
    own_splits: bool = False  # chooses by the batch where a GPU's case has no number: the promises here then lapse
    layout_invariant: bool = False
    promises: tuple[Promise, ...] = ()
    # needs
    finite_dead_slots: bool = False
    padded_table: bool = False
    executors: tuple[str, ...] | None = None  # where it runs; None: wherever Triton does
    # arithmetic that the IR does not show, or that it must keep; a type may be "query", that of q. None: read it, else
    # the widest default
    arithmetic: dict[str, Any] | None = None
    # what is told beside the verdict
    about: str = ""  # what is tested, with its version
    not_drawn: tuple[str, ...] = ()  # what it can do that no case asks
    corners: dict[str, str] = {}  # by the name of a field above, why it is as it is: what its contract leaves undefined

    def notes(self) -> Iterator[str]:
        """What a report says of the subject beside its verdict."""
        if self.about:
            yield f"tested: {self.about}"
        if self.not_drawn:
            yield f"of what it can do no case asks: {', '.join(self.not_drawn)}"
        yield from (f"declares {name}={getattr(self, name)!r}: {why}" for name, why in self.corners.items())


@dataclass(frozen=True)
class Subject:
    """A name, a declaration, and one function `run(inputs)` that returns out or (out, lse)."""

    name: str
    declaration: Declaration
    run: Callable[[Any], Any]
    validate: Callable[[Any], None] | None = None
    limits: Callable[[Case], str | None] | None = None  # why it cannot do a case, where no declaration can say it

    def declines(self, case: Case) -> str | None:
        """Why this subject cannot do the case, or None."""
        earlier = case.before and self._declines(case.before)
        return self._declines(case) or (f"the call before it: {earlier}" if earlier else None)

    def _declines(self, case: Case) -> str | None:
        return declines(self.declaration, case) or (self.limits(case) if self.limits else None)


def subject(op: str = "decode", **declared: Any) -> Callable[[Function], Function]:
    """Declare a function as a subject: `@subject(op="decode", dtypes=("float16",), window=True)`."""
    declaration = declare(op=op, **declared)

    def mark(function: Function) -> Function:
        function.__kvetch__ = declaration  # type: ignore[attr-defined]
        return function

    return mark


def declare(**declared: Any) -> Declaration:
    """A declaration checked field by field; raises WrongUse naming the field."""
    unknown = sorted(set(declared) - set(Declaration.__struct_fields__))
    if unknown:
        known = ", ".join(Declaration.__struct_fields__)
        raise WrongUse(f"@subject has no declaration {unknown[0]!r}; there are: {known}")
    try:
        declaration = msgspec.convert(declared, Declaration, strict=True)
    except msgspec.ValidationError as error:
        raise WrongUse(f"@subject: {error}") from None
    empty = [name for name, value in declared.items() if value == () and name not in MAY_BE_EMPTY]
    if empty:
        raise WrongUse(f"@subject: {empty[0]} is (), but should name at least one")
    nameless = sorted(set(declaration.corners) - set(Declaration.__struct_fields__))
    if nameless:
        raise WrongUse(f"@subject: corners explains {nameless[0]!r}, which is no declaration")
    possible = NEW_KV if declaration.op == "extend" else NEW_KV[:1]
    if not declaration.new_kv or not set(declaration.new_kv) <= set(possible):
        expected = f"some of {', '.join(possible)} for op {declaration.op!r}"
        raise WrongUse(f"@subject: new_kv is {declaration.new_kv}, but should be {expected}")
    return declaration


#: Our own subjects: name to (module of the harness, function). Loaded when asked for.
SUBJECTS = {
    f"ours.{name}": ("harness.ours", name)
    for name in ("decode", "split_decode", "extend", "step", "cache_write", "gather", "merge")
}


#: Projects whose kernels have adapters: their subjects are called PROJECT.KERNEL (`python -m harness.adapters`).
PROJECTS = ("flash_attn", "flashinfer", "nano_vllm", "sglang", "torch", "vllm")


def is_adapted(name: str) -> bool:
    """Whether a name is that of somebody else's kernel, by its project alone."""
    return name.partition(".")[0] in PROJECTS and ":" not in name


def is_named(name: str) -> bool:
    """Whether a subject is found by a name, and not in a file of the user."""
    return name in SUBJECTS or is_adapted(name)


def operation(name: str) -> str:
    """The operation of one of our own subjects, without loading it."""
    return name.removeprefix("ours.").removeprefix("split_")


def load(name: str, op: str = "decode") -> Subject:
    """Find `ours.decode`, `vllm.decode` or `path/to/file.py:function`; raises WrongUse with one clear line."""
    if name in SUBJECTS:
        module, function = SUBJECTS[name]
        return from_function(getattr(importlib.import_module(module), function), op, name)
    if is_adapted(name):
        found: Subject = importlib.import_module("harness.adapters").load(name)
        return found
    path, colon, function = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        known = ", ".join(SUBJECTS)
        raise WrongUse(
            f"subject {name!r} is neither one of ours ({known}) nor FILE.py:FUNCTION nor a kernel of "
            f"{', '.join(PROJECTS)} (python -m harness.adapters lists them)"
        )
    return from_function(_function(Path(path), function, name), op, name)


def _function(path: Path, function: str, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise WrongUse(f"subject {name!r}: there is no file {path}")
    private = f"kvetch_subject_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    try:
        module = load_file(path, private)
    except WrongUse as error:
        raise WrongUse(f"subject {name!r}: {error}") from None
    except Exception as error:
        raise WrongUse(f"subject {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise WrongUse(f"subject {name!r}: {path} has no function {function!r}")
    return found  # type: ignore[no-any-return]


def same(name: str, other: str) -> bool:
    """Whether two names mean one subject, however the path to its file is written."""
    (path, _, function), (path2, _, function2) = name.rpartition(":"), other.rpartition(":")
    return function == function2 and Path(path).absolute() == Path(path2).absolute()


def from_function(function: Callable[..., Any], op: str = "decode", name: str | None = None) -> Subject:
    """Wrap a function; its `@subject` declaration if it has one, else a bare one for `op`."""
    declaration = getattr(function, "__kvetch__", None) or declare(op=op)
    label = name or str(getattr(function, "__qualname__", repr(function)))
    return Subject(label, declaration, function, getattr(function, "validate", None))


def declines(declared: Declaration, case: Case) -> str | None:
    """Why a subject with this declaration cannot do the case, or None."""
    return _not_built(case) or _undeclared_feature(declared, case) or _outside_geometry(declared, case)


def _not_built(case: Case) -> str | None:
    if case.kv_dtype not in ("same", "e4m3", "e5m2"):
        return f"a {case.kv_dtype} cache under {case.dtype} queries is not built yet"
    return None


def features(case: Case) -> dict[str, bool]:
    """Whether the case has each of the features that a subject declares."""
    return {
        "window": case.window != (-1, -1),
        "slid_out": case.slid_out,
        "softcap": case.softcap > 0,
        "alibi": case.alibi,
        "sinks": case.sinks,
        "lse": case.want_lse,
        "out": case.out_layout != "allocated",
        "non_causal": not case.causal,
        "head_dim_v": case.value_dim != case.head_dim and not case.v_is_k_prefix,
        "mla": case.v_is_k_prefix,
        "padding_rows": case.padding_rows > 0,
        "splits": case.hints.num_splits > 1,
    }


def has_rows_of_nobody(case: Case) -> bool:
    """Whether some rows of what is given belong to nobody: a graph's padding, dense rows, empty states."""
    return bool(case.padding_rows or case.new_kv == "dense" or (case.op == "merge" and case.states.empty))


def _poisons(case: Case) -> set[str]:
    """What the case keeps where nobody may read."""
    rows = {case.row_poison} if has_rows_of_nobody(case) else set()
    return {case.k_poison, case.v_poison, case.spare_poison} | rows


def _undeclared_feature(declared: Declaration, case: Case) -> str | None:
    missing = [name for name, is_used in features(case).items() if is_used and not getattr(declared, name)]
    if case.op != declared.op:
        return f"it is a subject for {declared.op}, the case is for {case.op}"
    return f"does not declare {missing[0]}" if missing else None


def _outside_geometry(declared: Declaration, case: Case) -> str | None:
    drawn = {
        "kv_dtypes": (case.kv_dtype,),
        "new_kv": (case.new_kv,),
        "dtypes": (case.dtype,),
        "head_dims": (case.head_dim,),
        "block_sizes": (case.block_size,),
        "groups": (case.group,),
        "layouts": case.kv_layouts,
        "q_layouts": (case.q_layout, *(("far",) if case.out_layout == "far" else ())),
        "placements": (case.placement,),
        "table_dtypes": (case.table_dtype,),
    }
    for name, wanted in drawn.items():
        allowed = getattr(declared, name)
        if allowed is not None and not set(wanted) <= set(allowed):
            return f"declares {name}={allowed}"
    return _outside_limits(declared, case)


def _outside_limits(declared: Declaration, case: Case) -> str | None:
    if not declared.empty_rows and any(seq.kv_len == 0 or seq.kv_len < seq.query_len for seq in case.seqs):
        return "declares empty_rows=False"
    if not declared.shared_blocks and any(seq.shared_blocks for seq in case.seqs):
        return "declares shared_blocks=False"
    if not declared.kv_strides_apart and case.kv_layouts[0] != case.kv_layouts[1]:
        return "declares kv_strides_apart=False"
    if case.hints.config >= declared.configs:
        return f"declares configs={declared.configs}"
    if not declared.scales and case.scale is not None:
        return "declares scales=False"
    if declared.max_kv_len is not None and max(seq.kv_len for seq in case.seqs) > declared.max_kv_len:
        return f"declares max_kv_len={declared.max_kv_len}"
    if declared.finite_dead_slots and not _poisons(case) <= {"huge", "zero"}:
        return "needs finite_dead_slots"
    if declared.padded_table and case.table_pad not in ("zero", "other"):
        return "needs padded_table"
    return None
