"""Reads a kernel's arithmetic from its IR: where sums, products and casts round, so the bound is the kernel's own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from harness.arithmetic import FORMATS, Arithmetic
from harness.case import FP8
from harness.executors.gridsim import Block, Function, Op, parse
from harness.subjects import WrongUse

_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8E4M3FN": "e4m3",
    "f8E5M2": "e5m2",
}
_CASTS = ("arith.truncf", "arith.extf", "tt.fp_to_fp")
_ROUNDS = ("arith.truncf", "tt.fp_to_fp")
_SHAPES = ("tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.splat")
_EXPONENTIALS = ("math.exp", "math.exp2")
_SUMS = ("tt.dot", "tt.reduce", "scf.for", "scf.while", "scf.if")
#: Behind these, another tile, another kernel's value or a finished sum begins.
_ENDS = ("tt.load", "tt.reduce", "tt.dot", "scf.for", "scf.while", "scf.if")
#: From least to most precise.
_DOTS = ("tf32", "tf32x3", "ieee")


#: The type of the queries, whichever it is, as a declaration calls it.
QUERY = "query"


@dataclass(frozen=True)
class Reading:
    """The arithmetic, and what a kernel's author should know about it."""

    arithmetic: Arithmetic
    notes: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()  # what the IR shows to be less precise than the subject declares, with its line


def read(ttir: tuple[str, ...], declared: dict[str, Any] | None, dtype: str, block_size: int) -> Reading:
    """What the launched kernels do; declared fields win, and without any IR the widest default is taken.

    `dtype` is that of the queries, which a declared type may be called as well: `"query"`.
    """
    declared = {name: dtype if value == QUERY else value for name, value in (declared or {}).items()}
    seen = _seen(ttir, dtype, block_size)
    arithmetic = _declared(seen.arithmetic, declared)
    return replace(seen, arithmetic=arithmetic, broken=_broken(ttir, tuple(declared.items())))


@lru_cache(maxsize=1024)
def _seen(ttir: tuple[str, ...], dtype: str, block_size: int) -> Reading:
    """What the text of the kernels shows."""
    if not ttir:
        return Reading(Arithmetic.widest(dtype))
    kernels = {text: kernel_of(text) for text in ttir}
    parts = [kernel.arithmetic(block_size) for kernel in kernels.values()]
    notes = [note for kernel in kernels.values() for note in kernel.notes()]
    if not any(kernel.weighs_values() for kernel in kernels.values()):
        parts.append(Arithmetic.widest(dtype))
        notes.append("no kernel is seen to multiply softmax weights by v, so the widest arithmetic is allowed for")
    seen = _joined(parts)
    if any(kernel.merged() for kernel in kernels.values()):
        seen = replace(seen, **_SPLIT)
    handed_on = _least(
        [kernel.stored() if text != ttir[-1] else kernel.stored(kernel.merged()) for text, kernel in kernels.items()]
    )
    if handed_on != "float32":
        handing = ("score_dtype", "p_dtype", "partial_dtype")
        widened: dict[str, Any] = {name: _wider(getattr(seen, name), handed_on) for name in handing}
        seen = replace(seen, **widened)
    return Reading(seen, tuple(dict.fromkeys(notes)))


@lru_cache(maxsize=1024)
def attending(ttir: tuple[str, ...]) -> tuple[str, ...]:
    """The kernels that sum or exponentiate, if any: one that only fills the cache has no part in the attention."""
    found = tuple(text for text in ttir if kernel_of(text).computes())
    return found or ttir


def _declared(arithmetic: Arithmetic, declared: dict[str, Any]) -> Arithmetic:
    known = Arithmetic.__dataclass_fields__
    for name, value in declared.items():
        options = _OPTIONS.get(name, (*FORMATS, QUERY) if name in _TYPED else ())
        if name not in known:
            raise WrongUse(f"@subject: arithmetic has no {name!r}; there are: {', '.join(known)}")
        if options and value not in options:
            raise WrongUse(f"@subject: arithmetic has {name}={value!r}, but it should be one of {', '.join(options)}")
    return replace(arithmetic, **declared)


#: What a subject may promise, in words.
_PROMISED = {
    "dot": "products of float32",
    "qk_accumulator": "the sums of q*k",
    "pv_accumulator": "the sums of p*v",
    "score_dtype": "the scores",
    "p_dtype": "the softmax weights",
    "sum_accumulator": "the sum of the weights",
    "partial_dtype": "what one program hands to the next",
}


@lru_cache(maxsize=1024)
def _broken(ttir: tuple[str, ...], declared: tuple[tuple[str, Any], ...]) -> tuple[str, ...]:
    """Promises of the declaration that an operation breaks."""
    return tuple(_breaches(ttir, dict(declared)))


def _breaches(ttir: tuple[str, ...], declared: dict[str, Any]) -> Iterator[str]:
    for name, what in _PROMISED.items():
        for kept, op in (found for text in ttir for found in kernel_of(text).kept(is_last=text == ttir[-1])[name]):
            if name in declared and _coarser(kept, declared[name]):
                yield f"{what}: declared {declared[name]}, but {kept} at {op.line}"
                break


def _coarser(kept: str, promised: str) -> bool:
    if promised in _DOTS:
        return kept not in _DOTS or _DOTS.index(kept) < _DOTS.index(promised)
    return FORMATS[kept][0] > FORMATS[promised][0]


def _joined(parts: list[Arithmetic]) -> Arithmetic:
    """Several kernels make one output: the least precise of each; between them partial results are normalised."""
    whole = parts[0]
    for part in parts[1:]:
        changes: dict[str, Any] = {name: _wider(getattr(whole, name), getattr(part, name)) for name in _TYPED}
        whole = replace(
            whole,
            **changes,
            dot=min(whole.dot, part.dot, key=_DOTS.index),
            tensor_core=whole.tensor_core or part.tensor_core,
            normalised_p=whole.normalised_p or part.normalised_p,
            normaliser=whole.normaliser if whole.normaliser == part.normaliser else "unknown",
            tile_kv=min(whole.tile_kv, part.tile_kv),
            **_SPLIT,
        )
    return whole


#: What partial results cost: as many as a server would have, each normalised before they are merged.
_SPLIT: dict[str, Any] = {"max_splits": 128, "divisions": 2}
_TYPED = (
    "qk_accumulator", "pv_accumulator", "qk_product", "pv_product", "scaled_q_dtype", "score_dtype", "p_dtype",
    "sum_accumulator", "dequant_dtype", "partial_dtype",
)  # fmt: skip
#: What the type of an operation says.
_SUMMED = ("qk_accumulator", "pv_accumulator", "score_dtype", "p_dtype", "sum_accumulator")
#: What a declaration may say where a word is asked for that is no type.
_OPTIONS = {"dot": _DOTS, "normaliser": ("cast", "uncast", "unknown")}


def _wider(a: str, b: str) -> str:
    return max(a, b, key=lambda name: FORMATS[name][0])


class Kernel:
    """One function of TTIR with its values by name."""

    def __init__(self, function: Function) -> None:
        blocks = list(_all_blocks(function))
        self.ops = [op for block in blocks for op in block.ops]
        self.defined = {result: op for op in self.ops for result in op.results}
        self.types = dict(zip(function.args, function.arg_types, strict=True))
        for part in blocks:
            self.types.update(zip(part.args, part.arg_types, strict=True))
        for op in self.ops:
            self.types.update(zip(op.results, op.result_types, strict=False))
        self.users: dict[str, list[Op]] = {}
        for op in self.ops:
            for operand in op.operands:
                self.users.setdefault(operand, []).append(op)
        self.sums = [op for op in self.ops if op.name == "tt.reduce" and self._adds(op)]
        self.dots = [op for op in self.ops if op.name == "tt.dot"]
        loops = [op for op in self.ops if op.name in ("scf.for", "scf.while")]
        inner = [op for loop in loops for region in loop.regions for block in _nested(region) for op in block.ops]
        self.repeated = {result for op in inner for result in op.results}
        self.entered: dict[str, str] = {}  # what loops carry, and what it is at first
        for loop in loops:
            if loop.name == "scf.for":
                for names in (loop.regions[0][0].args[1:], loop.results):
                    self.entered.update(zip(names, loop.operands[3:], strict=False))

    def arithmetic(self, block_size: int) -> Arithmetic:
        """Everything that the bound asks for."""
        scores, outputs, normalisers = self.sorted_sums()
        _, output_dots = self.sorted_dots()
        kept = {name: _least([kind for kind, _ in found]) for name, found in self.kept().items() if name in _SUMMED}
        return Arithmetic(
            **kept,  # type: ignore[arg-type]  # names of types only
            dot=self._dot_precision(),
            tensor_core=bool(self.dots),
            qk_product=_least([self._product_type(op) for op in scores]),
            pv_product=_least([self._product_type(op) for op in outputs]),
            scaled_q_dtype=_least([_element(op) for op in self._scaled_queries(scores)]),
            normalised_p=any(self._has(op.operands[0], ("arith.divf",)) for op in outputs + output_dots),
            normaliser=self._normaliser(normalisers, self._weight_casts()),
            tile_kv=min([self._length(op) for op in normalisers] + [block_size]) if normalisers else 1,
        )

    def kept(self, is_last: bool = False) -> dict[str, list[tuple[str, Op]]]:
        """What may be promised, with the operations that decide on it and the type, or precision, of each.

        What the last kernel of a call stores is handed on only where its own programs read it again.
        """
        scores, outputs, normalisers = self.sorted_sums()
        score_dots, output_dots = self.sorted_dots()
        by_type = {
            "qk_accumulator": scores + score_dots,
            "pv_accumulator": outputs + output_dots,
            "score_dtype": self._rounded_scores(),
            "p_dtype": self._weight_casts(),
            "sum_accumulator": normalisers,
        }
        found = {name: [(_element(op), op) for op in ops] for name, ops in by_type.items()}
        merged = self.merged() if is_last else []
        handed_on = [op for op in self._rounded_stores() if not is_last or op in merged]
        stored = [(self._type(op.operands[1]), op) for op in handed_on]
        return found | {"partial_dtype": stored, "dot": [(_precision(dot), dot) for dot in self._dots_on_float32()]}

    def weighs_values(self) -> bool:
        """Whether a product of softmax weights and values is recognised."""
        _, outputs, _ = self.sorted_sums()
        return bool(outputs) or any(self._from_exponential(dot.operands[0]) for dot in self.dots)

    def stored(self, stores: list[Op] | None = None) -> str:
        """The least precise type that something computed is rounded to before it is stored, there or anywhere."""
        return _least([self._type(op.operands[1]) for op in self._rounded_stores() if stores is None or op in stores])

    def merged(self) -> list[Op]:
        """Stores of sums to a tensor that the kernel loads from: partial results that its own programs merge."""
        loaded = {self._base(op.operands[0]) for op in self.ops if op.name == "tt.load"}
        stores = [op for op in self.ops if op.name == "tt.store" and self._base(op.operands[0]) in loaded]
        return [op for op in stores if self._type(op.operands[1]) in FORMATS and self._has(op.operands[1], _SUMS)]

    def _rounded_stores(self) -> list[Op]:
        return [op for op in self.ops if op.name == "tt.store" and self._has(op.operands[1], _ROUNDS)]

    def _base(self, pointer: str) -> str:
        """The argument that a pointer was made of."""
        while True:
            op = self.defined.get(pointer)
            if pointer in self.entered:
                pointer = self.entered[pointer]
            elif op is not None and op.operands:
                pointer = op.operands[0]
            else:
                return pointer

    def computes(self) -> bool:
        """Whether it sums, multiplies matrices or exponentiates."""
        return bool(self.sums or self.dots or any(op.name in _EXPONENTIALS for op in self.ops))

    def notes(self) -> Iterator[str]:
        """What costs accuracy, with the line where it happens."""
        scores, outputs, _ = self.sorted_sums()
        for what, sums in (("q*k", scores), ("p*v", outputs)):
            for op in sums:
                if _element(op) in ("float16", "bfloat16"):
                    unit = FORMATS[_element(op)][0]
                    yield (
                        f"{what} is summed in {_element(op)} at {op.line}: each term may cost {unit:.1g} of the sum, "
                        f"in float32 {FORMATS['float32'][0]:.1g}; write `.to(tl.float32)` before the product"
                    )
        for op in self._queries_in_fp8():
            yield f"q is rounded to {_element(op)}, the type of the cache, at {op.line}"
        if self._dot_precision() == "tf32":
            yield "a tl.dot on float32 runs in TF32, which drops 13 bits of its operands; write input_precision='ieee'"

    def sorted_sums(self) -> tuple[list[Op], list[Op], list[Op]]:
        """Sums over q*k, over p*v, and over p alone."""
        products = [op for op in self.sums if self._product(op) is not None]
        outputs = [op for op in products if self._from_exponential(op.operands[0])]
        scores = [op for op in products if op not in outputs]
        normalisers = [op for op in self.sums if op not in products and self._from_exponential(op.operands[0])]
        return scores, outputs, normalisers

    def sorted_dots(self) -> tuple[list[Op], list[Op]]:
        """Matrix products of q and k, and of p and v."""
        scores = [dot for dot in self.dots if not self._from_exponential(dot.operands[0])]
        return scores, [dot for dot in self.dots if dot not in scores]

    def _adds(self, reduce: Op) -> bool:
        inner = [op for region in reduce.regions for block in region for op in block.ops]
        return inner[0].name == "arith.addf" and len(inner) == 2

    def _product(self, reduce: Op) -> Op | None:
        """The multiplication that a sum takes its terms from, casts looked through."""
        op = self.defined.get(reduce.operands[0])
        while op is not None and op.name in (*_CASTS, *_SHAPES, "arith.select"):
            op = self.defined.get(op.operands[1 if op.name == "arith.select" else 0])
        return op if op is not None and op.name == "arith.mulf" else None

    def _product_type(self, reduce: Op) -> str:
        product = self._product(reduce)
        return "float32" if product is None else _element(product)

    def _scaled_queries(self, scores: list[Op]) -> list[Op]:
        """Roundings before the scores: a q scaled in 16 bits, or scaled and then cast, or cast to FP8 as K is."""
        products = [self._product(op) for op in scores]
        narrow = [op for op in self.ops if op.name == "arith.mulf" and _element(op) in ("float16", "bfloat16")]
        before = [op for op in narrow if op not in products and not self._from_exponential(op.results[0])]
        scaled = [op for op in self._factors() if self._has(op.operands[0], ("arith.mulf",))]
        return before + scaled + self._queries_in_fp8()

    def _queries_in_fp8(self) -> list[Op]:
        """Casts to FP8 of what a matrix product makes scores of."""
        dots, _ = self.sorted_dots()
        met = {name for dot in dots for operand in dot.operands[:2] for name in self.ancestors(operand)}
        return [op for op in self.ops if op.name in _ROUNDS and _element(op) in FP8 and op.results[0] in met]

    def _factors(self) -> list[Op]:
        """Casts to a narrower type of what is multiplied next and is no softmax weight."""
        casts = [op for op in self.ops if op.name in _ROUNDS and not self._from_exponential(op.operands[0])]
        return [op for op in casts if self._is_multiplied(op.results[0])]

    def _rounded_scores(self) -> list[Op]:
        """The exponentials, and the casts between a sum of q*k and them."""
        exponentials = [op for op in self.ops if op.name in _EXPONENTIALS]
        before = {name for op in exponentials for name in self.ancestors(op.operands[0])}
        casts = [op for op in self.ops if op.name in _ROUNDS and op.results[0] in before]
        return exponentials + [op for op in casts if not self._from_exponential(op.operands[0])]

    def _weight_casts(self) -> list[Op]:
        """Casts of p to a narrower type that is multiplied by v, not stored."""
        casts = [op for op in self.ops if op.name in _ROUNDS]
        return [op for op in casts if self._from_exponential(op.operands[0]) and self._is_multiplied(op.results[0])]

    def _is_multiplied(self, name: str) -> bool:
        for user in self.users.get(name, []):
            if user.name in ("tt.dot", "arith.mulf", "math.fma", "tt.reduce"):
                return True
            if user.name in (*_SHAPES, *_CASTS) and any(self._is_multiplied(result) for result in user.results):
                return True
        return False

    def _normaliser(self, normalisers: list[Op], casts: list[Op]) -> str:
        cast_names = {op.results[0] for op in casts}
        if not casts or not normalisers:
            return "uncast" if normalisers else "unknown"
        cast = [bool(cast_names & set(self.ancestors(op.operands[0]))) for op in normalisers]
        return "cast" if all(cast) else "unknown" if any(cast) else "uncast"

    def _dot_precision(self) -> str:
        found = [_precision(dot) for dot in self._dots_on_float32()]
        return min(found, key=lambda name: _DOTS.index(name) if name in _DOTS else 0, default="ieee")

    def _dots_on_float32(self) -> list[Op]:
        return [dot for dot in self.dots if self._type(dot.operands[0]) == "float32"]

    def _type(self, name: str) -> str:
        return _NAMES.get(self.types[name].element, "float32") if name in self.types else "float32"

    def _length(self, reduce: Op) -> int:
        """How many keys one sum takes: the size of the axis that it removes."""
        source = self.defined[reduce.operands[0]]
        axis = reduce.attributes["axis"]
        return source.result_types[0].shape[int(axis)] if isinstance(axis, int) else 1

    def _from_exponential(self, name: str) -> bool:
        return self._has(name, _EXPONENTIALS)

    def _has(self, name: str, wanted: tuple[str, ...]) -> bool:
        return any(op.name in wanted for value in self.ancestors(name) if (op := self.defined.get(value)))

    def ancestors(self, name: str) -> Iterator[str]:
        """The values that this one is computed from, within its own tile."""
        waiting, seen = [name], {name}
        while waiting:
            value = waiting.pop()
            yield value
            op = self.defined.get(value)
            if op is None or (op.name in _ENDS and value != name):
                continue
            waiting += [operand for operand in op.operands if operand not in seen]
            seen.update(op.operands)


@cache
def kernel_of(text: str) -> Kernel:
    """Once per specialisation."""
    return Kernel(parse(text))


def _all_blocks(function: Function) -> Iterator[Block]:
    yield from _nested(function.body)


def _nested(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks and those inside them, what a reduction does to two numbers left out."""
    waiting = list(blocks)
    while waiting:
        block = waiting.pop(0)
        yield block
        for op in block.ops:
            if op.name != "tt.reduce":
                waiting += [inner for region in op.regions for inner in region]


def _precision(dot: Op) -> str:
    return str(dot.attributes.get("inputPrecision", "ieee"))


def _element(op: Op) -> str:
    return _NAMES.get(op.result_types[0].element, "float32")


def _least(names: list[str]) -> str:
    return max(names, key=lambda name: FORMATS[name][0], default="float32")
