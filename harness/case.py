"""A Case: everything about one input in plain numbers and words, readable, hashable and the same on every machine."""

import hashlib
import math
from typing import Any, Literal, TypeVar

import msgspec

SCHEMA = 1
T = TypeVar("T")

Op = Literal["decode", "extend", "cache_write", "step", "gather", "merge"]
Float = Literal["float32", "float16", "bfloat16"]
KvFloat = Literal["same", "float32", "float16", "bfloat16", "e4m3", "e5m2"]
FP8 = ("e4m3", "e5m2")
Placement = Literal["in_order", "reversed", "shuffled", "interleaved", "far", "farther"]
#: Placements of blocks whose offsets do not fit in 32 bits: with a sign, and without one.
FAR = ("far", "farther")
TablePad = Literal["minus_one", "zero", "huge", "other"]
Layout = Literal["nhd", "hnd", "kv_stacked", "kv_interleaved", "padded", "offset"]
SoloLayout = Literal["same", "nhd", "hnd", "padded", "offset"]
QLayout = Literal["contiguous", "fused_qkv", "transposed_heads", "far"]
OutLayout = Literal["allocated", "given", "padded", "far"]
Values = Literal[
    "normal",
    "peaked",
    "uniform",
    "gather",
    "large",
    "tiny",
    "ties",
    "cancelling",
    "ascending_max",
    "descending_max",
    "two_level",
    "powers_of_two",
    "far_above",
    "far_below",
    "edges",
]
Poison = Literal["nan", "inf", "huge", "zero", "random_bits"]

#: Where K and V of the new tokens are.
NEW_KV = ("in_cache", "dense")
#: Operations that write new tokens into the cache.
WRITING = ("cache_write", "step")
#: Operations that take any number of new tokens per sequence.
NEW_TOKENS = ("extend", *WRITING)
#: Operations whose batch a CUDA graph may pad.
PADDED = ("decode", *NEW_TOKENS)


class InvalidCase(ValueError):
    """A Case that contradicts itself, or JSON that is no Case; the message says got, expected and where."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of all that is written to JSON: immutable, defaults left out, unknown fields refused."""


class Seq(Record, frozen=True):
    """One sequence. `tag` names its data and stays when other sequences are removed."""

    query_len: int = 1
    kv_len: int = 1
    tag: int = 0
    shares_prefix_with: int | None = None  # the tag of the owner
    shared_blocks: int = 0


#: What a graph appends to a batch that is smaller than the captured one.
PADDING_ROW = Seq(query_len=1, kv_len=0, tag=-1)


class Slots(Record, frozen=True):
    """How new tokens map to slots (cache_write, step)."""

    order: Literal["in_order", "shuffled"] = "in_order"
    holes: int = 0
    tail_padding: int = 0


class Tile(Record, frozen=True):
    """The range of slots that `gather` loads."""

    start: int = 0
    end: int = 1


class States(Record, frozen=True):
    """How `merge` partitions the keys, and which parts are empty."""

    partition: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()


class Hints(Record, frozen=True):
    """Tuning knobs; 0 leaves the choice to the subject. Without the knob, splits are declined and the rest ignored."""

    num_splits: int = 0
    tile_q: int = 0
    tile_kv: int = 0
    num_warps: int = 0
    num_stages: int = 0
    config: int = 0  # which config of an autotuned kernel runs, of those that its own pruning leaves


class Case(Record, frozen=True):
    """One input. Every default is the simplest legal value, so JSON shows only what matters."""

    schema: int = SCHEMA
    op: Op = "decode"
    seqs: tuple[Seq, ...] = (Seq(),)
    padding_rows: int = 0
    num_q_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 16
    head_dim_v: int | None = None
    v_is_k_prefix: bool = False
    block_size: int = 16
    dtype: Float = "float32"
    kv_dtype: KvFloat = "same"
    k_scale: float = 1.0
    v_scale: float = 1.0
    scale_granularity: Literal["tensor", "head"] = "tensor"
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    slid_out: bool = False  # tokens before the window are gone: their slots and table entries may hold anything
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    scale: float | None = None
    want_lse: bool = False
    new_kv: str = "in_cache"  # one of NEW_KV
    max_len_slack: int = 0
    placement: Placement = "in_order"
    table_pad: TablePad = "minus_one"
    extra_columns: int = 0
    table_dtype: Literal["int32", "int64"] = "int32"
    spare_blocks: int = 0
    layout: Layout = "nhd"
    v_layout: SoloLayout = "same"
    q_layout: QLayout = "contiguous"
    out_layout: OutLayout = "allocated"
    values: Values = "normal"
    k_poison: Poison = "nan"
    v_poison: Poison = "nan"
    spare_poison: Poison = "nan"
    row_poison: Poison = "nan"  # q of padding rows, dense K and V of rows without a position, empty states
    slots: Slots = Slots()
    tile: Tile = Tile()
    states: States = States()
    hints: Hints = Hints()
    before: "Case | None" = None  # a call that comes first, in a process that has seen no other
    geometry_seed: int = 0
    data_seed: int = 0

    def __post_init__(self) -> None:
        for complaint in complaints(self):
            raise InvalidCase(complaint)

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def value_dim(self) -> int:
        """The head dim of V and of the output."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def cache_dtype(self) -> str:
        """The type of the KV cache."""
        return self.dtype if self.kv_dtype == "same" else self.kv_dtype

    @property
    def softmax_scale(self) -> float:
        """The factor of q·k."""
        return 1.0 / math.sqrt(self.head_dim) if self.scale is None else self.scale

    @property
    def kv_layouts(self) -> tuple[str, str]:
        """The layouts of K and of V."""
        return self.layout, (self.layout if self.v_layout == "same" else self.v_layout)

    @property
    def is_far(self) -> bool:
        """Whether blocks or rows lie so far apart that their offsets do not fit in 32 bits."""
        return self.placement in FAR or "far" in (self.q_layout, self.out_layout)

    @property
    def batch(self) -> tuple[Seq, ...]:
        """The sequences, and the graph's padding rows behind them."""
        return (*self.seqs, *(PADDING_ROW,) * self.padding_rows)

    @property
    def tokens(self) -> int:
        """Query tokens of the whole batch."""
        return sum(seq.query_len for seq in self.batch)

    def cached_len(self, seq: Seq) -> int:
        """Tokens of the sequence that are in the cache when the call begins."""
        new = seq.query_len if self.op in WRITING or self.new_kv == "dense" else 0
        return max(seq.kv_len - new, 0)

    def paged_len(self, seq: Seq) -> int:
        """Tokens that have slots in the sequence's blocks: all, but for dense new ones."""
        return self.cached_len(seq) if self.new_kv == "dense" else seq.kv_len

    def slid(self, seq: Seq) -> int:
        """How many tokens of the sequence have slid out of the window of all its queries, and are gone."""
        return max(seq.kv_len - seq.query_len - self.window[0], 0) if self.slid_out else 0

    def blocks_of(self, seq: Seq) -> int:
        """How many logical blocks the sequence needs."""
        return -(-self.paged_len(seq) // self.block_size)


def complaints(case: Case) -> list[str]:
    """What is contradictory in the case, each with the value and what was expected."""
    return [complaint for part in PARTS for complaint in part(case)]


def _shape_complaints(case: Case) -> list[str]:
    found = []
    if case.schema != SCHEMA:
        found.append(f"schema is {case.schema}, but this version reads {SCHEMA}")
    if not case.seqs:
        found.append("seqs is empty, but a case needs at least one sequence")
    for name in ("num_q_heads", "num_kv_heads", "head_dim", "block_size", "value_dim"):
        if getattr(case, name) < 1:
            found.append(f"{name} is {getattr(case, name)}, but should be at least 1")
    if case.num_kv_heads > 0 and case.num_q_heads % case.num_kv_heads:
        found.append(f"num_q_heads is {case.num_q_heads}, but should be a multiple of num_kv_heads {case.num_kv_heads}")
    for name in ("padding_rows", "extra_columns", "spare_blocks", "max_len_slack", "geometry_seed", "data_seed"):
        if getattr(case, name) < 0:
            found.append(f"{name} is {getattr(case, name)}, but should not be negative")
    for i, seq in enumerate(case.seqs):
        if seq.query_len < 0 or seq.kv_len < 0:
            found.append(f"seqs[{i}] has query_len {seq.query_len} and kv_len {seq.kv_len}: neither may be negative")
    return found


def _feature_complaints(case: Case) -> list[str]:
    found = []
    if min(case.window) < -1:
        found.append(f"window is {list(case.window)}, but each side should be -1 (unlimited) or a count from 0")
    if case.slid_out and case.window[0] < 0:
        found.append(f"slid_out is True, but window is {list(case.window)}: nothing slides out of an unlimited one")
    if not (case.softcap >= 0 and math.isfinite(case.softcap)):
        found.append(f"softcap is {case.softcap}, but should be 0 (off) or a positive number")
    if case.scale is not None and not (case.scale > 0 and math.isfinite(case.scale)):
        found.append(f"scale is {case.scale}, but should be a positive number")
    if case.v_layout != "same" and case.layout in ("kv_stacked", "kv_interleaved"):
        found.append(f"v_layout is {case.v_layout!r}, but layout {case.layout!r} holds K and V in one buffer")
    if case.head_dim_v not in (None, case.head_dim) and case.layout in ("kv_stacked", "kv_interleaved"):
        found.append(f"head_dim_v is {case.head_dim_v}, but layout {case.layout!r} needs it equal to {case.head_dim}")
    if case.op == "decode" and any(seq.query_len != 1 for seq in case.seqs):
        found.append("op is 'decode', but a sequence has query_len other than 1")
    return found


def _batch_complaints(case: Case) -> list[str]:
    found = []
    if case.new_kv not in NEW_KV:
        hint = ": op 'step' is the appended form" if case.new_kv == "append" else ""
        found.append(f"new_kv is {case.new_kv!r}, but should be {' or '.join(map(repr, NEW_KV))}{hint}")
    elif case.new_kv == "dense" and case.op != "extend":
        found.append(f"new_kv is 'dense', but op is {case.op!r}: only 'extend' takes dense new tokens")
    if case.padding_rows and case.op not in PADDED:
        found.append(f"padding_rows is {case.padding_rows}, but op is {case.op!r}: only {', '.join(PADDED)} have them")
    return found


def _operation_complaints(case: Case) -> list[str]:
    found = []
    if case.v_is_k_prefix and (case.num_kv_heads != 1 or case.value_dim > case.head_dim):
        found.append("v_is_k_prefix needs one KV head and head_dim_v at most head_dim")
    if case.v_is_k_prefix and (case.layout in ("kv_stacked", "kv_interleaved") or case.v_layout != "same"):
        found.append(
            f"v_is_k_prefix needs a cache of its own, but layout is {case.layout!r}, v_layout {case.v_layout!r}"
        )
    if case.v_is_k_prefix and case.v_scale != case.k_scale:
        found.append(f"v_is_k_prefix needs one scale, but k_scale is {case.k_scale} and v_scale {case.v_scale}")
    if not 0 <= case.tile.start <= case.tile.end:
        found.append(f"tile is [{case.tile.start}, {case.tile.end}), but should be an ascending range from 0")
    states = len(case.states.partition) or 2
    if any(not 0 <= empty < states for empty in case.states.empty):
        found.append(f"states.empty is {list(case.states.empty)}, but there are {states} states")
    if min(case.slots.holes, case.slots.tail_padding) < 0:
        found.append(
            f"slots has holes {case.slots.holes} and tail_padding {case.slots.tail_padding}: neither is negative"
        )
    if case.op == "step" and case.slots.holes:
        found.append(f"slots.holes is {case.slots.holes}, but a step attends to every new token: it should be 0")
    for name in ("k_scale", "v_scale"):
        if not (getattr(case, name) > 0 and math.isfinite(getattr(case, name))):
            found.append(f"{name} is {getattr(case, name)}, but should be a positive number")
    scaled = (case.k_scale, case.v_scale, case.scale_granularity) != (1.0, 1.0, "tensor")
    if scaled and case.cache_dtype not in FP8:
        scales = f"k_scale {case.k_scale}, v_scale {case.v_scale} per {case.scale_granularity}"
        found.append(f"a cache of {case.cache_dtype} has {scales}, but only FP8 is scaled: 1.0, 1.0 per tensor")
    return found


def _sharing_complaints(case: Case) -> list[str]:
    found = []
    seen: dict[int, Seq] = {}
    for i, seq in enumerate(case.seqs):
        if seq.tag in seen:
            found.append(f"seqs[{i}].tag is {seq.tag}, but an earlier sequence has that tag")
        owner = seen.get(seq.shares_prefix_with) if seq.shares_prefix_with is not None else None
        if seq.shared_blocks and owner is None:
            found.append(f"seqs[{i}] shares blocks with {seq.shares_prefix_with}, but no earlier sequence has that tag")
        elif owner and seq.shared_blocks * case.block_size > min(case.cached_len(seq), case.cached_len(owner)):
            found.append(f"seqs[{i}].shared_blocks is {seq.shared_blocks}, but only whole common blocks can be shared")
        seen[seq.tag] = seq
    return found


def _order_complaints(case: Case) -> list[str]:
    if case.before is None:
        return []
    found = []
    if case.before.op != case.op:
        found.append(f"before has op {case.before.op!r}, but should be a call of the same op {case.op!r}")
    if case.before.before is not None:
        found.append("before has a call before it as well, but there should be one at most")
    return found


PARTS = (
    _shape_complaints,
    _feature_complaints,
    _batch_complaints,
    _operation_complaints,
    _sharing_complaints,
    _order_complaints,
)


def to_json(record: msgspec.Struct) -> str:
    """Readable JSON, a field a line; defaults are left out, but never the schema of a case."""
    return _lines(_with_schema(record), indent=0) + "\n"


def without_defaults(record: msgspec.Struct) -> dict[str, Any]:
    """The record in plain words; msgspec by itself keeps a default that is equal, but not the same object.

    The sequences of a case stay: they are what a reader looks for.
    """
    plain = {field.name: field.default for field in msgspec.structs.fields(record)}
    fields: dict[str, Any] = msgspec.to_builtins(record)
    fields |= {name: without_defaults(value) for name in fields if isinstance(value := getattr(record, name), Case)}
    return {name: value for name, value in fields.items() if name == "seqs" or getattr(record, name) != plain[name]}


def _with_schema(record: msgspec.Struct) -> dict[str, Any]:
    fields = without_defaults(record)
    for name in record.__struct_fields__:
        if isinstance(getattr(record, name), Case):
            fields[name] = _with_schema(getattr(record, name))
    return {"schema": SCHEMA} | fields


def _lines(fields: dict[str, Any], indent: int) -> str:
    pad = "  " * (indent + 1)
    lines = [f"{pad}{_compact(name)}: {_value(value, indent)}" for name, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n" + "  " * indent + "}"


def _value(value: Any, indent: int) -> str:
    return _lines(value, indent + 1) if isinstance(value, dict) and value else _compact(value)


def _compact(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def from_json(text: str | bytes, where: str = "the case") -> Case:
    """Read a Case; raises InvalidCase naming the value, what was expected and the place."""
    return decode(text, Case, where)


def decode(text: str | bytes, kind: type[T], where: str) -> T:
    """Read a record of the given kind strictly; raises InvalidCase."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise InvalidCase(f"{where}: {error}") from None


def digest(case: Case) -> str:
    """Twelve hex digits that name the case's content."""
    canonical = msgspec.json.encode(without_defaults(case), order="deterministic")
    return hashlib.sha256(canonical).hexdigest()[:12]


def replace(case: Case, **changes: Any) -> Case:
    """The case with some fields changed, checked again."""
    return msgspec.structs.replace(case, **changes)
