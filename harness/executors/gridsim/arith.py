"""Elementwise operations: each maps the carriers of its operands to the carrier of its result, rounded to its type."""
# ruff: noqa: ARG001 - every maker of a table has one signature

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from harness.executors.gridsim.codecs import CODECS, Array, same
from harness.executors.gridsim.ir import Op, Type, Unsupported

Function = Callable[..., Array]
Builder = Callable[[Op, tuple[Type, ...]], Function]


def refuse(op: Op, why: str = "") -> Unsupported:
    """Name an operation that gridsim does not run, and where the kernel uses it."""
    words = " ".join(str(op.attributes[key]) for key in ("symbol", "words", "callee") if op.attributes.get(key))
    return Unsupported(f"{op.name} {words} is not supported{why and ': ' + why} ({op.line.path}:{op.line.number})")


def unsigned(x: Array) -> Array:
    """Take integers' bits as unsigned; whether an integer is signed, its operation says."""
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "i" else x


def _signless(apply: Function) -> Function:
    def run(a: Array, b: Array) -> Array:
        found = apply(unsigned(a), unsigned(b))
        return found.view(a.dtype) if found.dtype != np.bool_ else found

    return run


def _quotient(a: Array, b: Array) -> Array:
    """Divide towards zero, as machines do."""
    return (a - np.fmod(a, b)) // b


def _ceiling(a: Array, b: Array) -> Array:
    return -(-a // b)


def _high(a: Array, b: Array) -> Array:
    """Give the high half of an unsigned product."""
    if a.dtype.itemsize < 8:
        width = 8 * a.dtype.itemsize
        product: Array = a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(width)
        return product.astype(a.dtype)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    cross = (a & low) * (b >> shift) + ((a & low) * (b & low) >> shift)
    other = (a >> shift) * (b & low) + (cross & low)
    high: Array = (a >> shift) * (b >> shift) + (cross >> shift) + (other >> shift)
    return high


def _by_torch(apply: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    """Take from torch what NumPy lacks."""
    return lambda x: apply(torch.from_numpy(np.ascontiguousarray(x))).numpy()


_erf = _by_torch(torch.erf)


def _fma(a: Array, b: Array, c: Array) -> Array:
    # The product of two float32 is exact in float64, so only the sum is rounded twice.
    return (a.astype(np.float64) * b + c).astype(a.dtype)


def _clamp(x: Array, low: Array, high: Array) -> Array:
    return np.fmin(np.fmax(x, low), high)


def _clamp_nan(x: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _rsqrt(x: Array) -> Array:
    return (1 / np.sqrt(x)).astype(x.dtype)


def _exp10(x: Array) -> Array:
    found: Array = np.power(x.dtype.type(10), x)
    return found


def _saturate(x: Array) -> Array:
    """Clamp to 0 and 1; a NaN becomes 0."""
    found: Array = np.fmin(np.fmax(x, x.dtype.type(0)), x.dtype.type(1))
    return found


def _away(x: Array) -> Array:
    """Round to an integer, halves away from zero."""
    found: Array = np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)
    return found


EXACT: dict[str, Function] = {
    "arith.negf": np.negative,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "math.absf": np.abs,
    "math.absi": np.abs,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.trunc": np.trunc,
    "math.round": _away,
    "math.roundeven": np.rint,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.divsi": _quotient,
    "arith.remsi": np.fmod,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": _ceiling,
    "arith.divui": _signless(np.floor_divide),
    "arith.remui": _signless(np.remainder),
    "arith.maxui": _signless(np.maximum),
    "arith.minui": _signless(np.minimum),
    "arith.shrui": _signless(np.right_shift),
    "tt.mulhiui": _signless(_high),
}
BOOLEAN: dict[str, Function] = {
    "arith.addi": np.bitwise_xor,
    "arith.subi": np.bitwise_xor,
    "arith.muli": np.bitwise_and,
}
ROUNDED: dict[str, Function] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "tt.precise_divf": np.divide,
    "tt.approx_divf": np.divide,
    "tt.precise_sqrt": np.sqrt,
    "math.sqrt": np.sqrt,
    "math.rsqrt": _rsqrt,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.log10": np.log10,
    "math.log1p": np.log1p,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.tan": np.tan,
    "math.tanh": np.tanh,
    "math.atan2": np.arctan2,
    "math.powf": np.power,
    "math.erf": _erf,
    "math.fma": _fma,
}
LIBRARY: dict[str, Function] = {
    **{
        name: getattr(np, name)
        for name in [
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sqrt",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
        ]
    },
    **{
        name: getattr(np, name)
        for name in ["floor", "ceil", "trunc", "rint", "fmod", "hypot", "copysign", "isnan", "nextafter", "cbrt"]
    },
    **{f"a{name}": getattr(np, f"arc{name}") for name in ["sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh"]},
    "fabs": np.abs,
    "abs": np.abs,
    "pow": np.power,
    "erf": _erf,
    "erfc": _by_torch(torch.erfc),
    "erfinv": _by_torch(torch.erfinv),
    "lgamma": _by_torch(torch.lgamma),
    "exp10": _exp10,
    "saturate": _saturate,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "fma": _fma,
    "rsqrt": _rsqrt,
    "round": _away,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "nearbyint": np.rint,
    "isinf": np.isinf,
    "finite": np.isfinite,
    "fdiv_rn": np.divide,
    "div_rn": np.divide,
    "fdivide": np.divide,
    "fsqrt_rn": np.sqrt,
    "frcp_rn": np.reciprocal,
    "fadd_rn": np.add,
    "fmul_rn": np.multiply,
    "fsub_rn": np.subtract,
    "fma_rn": _fma,
}
EQUAL = {"eq": np.equal, "ne": np.not_equal}
LESS = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
OPPOSITE = {"lt": np.greater_equal, "le": np.greater, "gt": np.less_equal, "ge": np.less}


def _between(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def _not(apply: Function) -> Function:
    return lambda a, b: ~apply(a, b)


FLOATING: dict[str, Function] = {
    "oeq": np.equal,
    "une": np.not_equal,
    "one": _between,
    "ueq": _not(_between),
    "uno": _unordered,
    "ord": _not(_unordered),
    **{f"o{name}": apply for name, apply in LESS.items()},
    **{f"u{name}": _not(apply) for name, apply in OPPOSITE.items()},
}


def _signed(apply: Function) -> Function:
    """Compare as signed numbers; a signed bit is 0 or -1."""
    return lambda a, b: apply(-a.astype(np.int8), -b.astype(np.int8)) if a.dtype == np.bool_ else apply(a, b)


INTEGER: dict[str, Function] = {
    **EQUAL,
    **{f"s{name}": _signed(apply) for name, apply in LESS.items()},
    **{f"u{name}": _signless(apply) for name, apply in LESS.items()},
}


def _exact(op: Op, kinds: tuple[Type, ...]) -> Function:
    return BOOLEAN.get(op.name, EXACT[op.name]) if kinds[0].element == "i1" else EXACT[op.name]


def _rounded(op: Op, kinds: tuple[Type, ...]) -> Function:
    return rounding(ROUNDED[op.name], op.result_types[0].element)


def rounding(apply: Function, element: str) -> Function:
    """Round what a function gives to the result's type."""
    bring = CODECS[element].round
    return apply if bring is same else lambda *given: bring(apply(*given))


def _library(op: Op, kinds: tuple[Type, ...]) -> Function:
    symbol = str(op.attributes["symbol"]).removeprefix("__nv_").removeprefix("fast_")
    found = LIBRARY.get(symbol) or LIBRARY.get(symbol.removesuffix("f")) or LIBRARY.get(symbol[:-1])
    if found is None:
        raise refuse(op)
    kind = CODECS[op.result_types[0].element].carrier
    return lambda *given: found(*given).astype(kind, copy=False)


def _compare(op: Op, kinds: tuple[Type, ...]) -> Function:
    return (FLOATING if op.name == "arith.cmpf" else INTEGER)[op.words[0]]


def _clampf(op: Op, kinds: tuple[Type, ...]) -> Function:
    return _clamp if op.attributes.get("propagateNan") == "none" else _clamp_nan


def _count_bits(op: Op, kinds: tuple[Type, ...]) -> Function:
    return lambda x: np.bitwise_count(unsigned(x)).astype(x.dtype)


ELEMENTWISE: dict[str, Builder] = {
    **dict.fromkeys(EXACT, _exact),
    **dict.fromkeys(ROUNDED, _rounded),
    **dict.fromkeys(("arith.cmpi", "arith.cmpf"), _compare),
    "tt.clampf": _clampf,
    "tt.extern_elementwise": _library,
    "math.ctpop": _count_bits,
}
