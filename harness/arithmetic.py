"""How a kernel computes, as plain data: which products, sums and roundings the error bound has to allow for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.case import FP8
from harness.platforms import Platform

#: Unit roundoff to nearest and half the smallest subnormal of each format (IEEE 754; OCP FP8).
FORMATS = {
    "float64": (2.0**-53, 2.0**-1074),
    "float32": (2.0**-24, 2.0**-150),
    "float16": (2.0**-11, 2.0**-25),
    "bfloat16": (2.0**-8, 2.0**-134),
    "e4m3": (2.0**-4, 2.0**-10),
    "e5m2": (2.0**-3, 2.0**-17),
}
#: Spacing of subnormal TF32 numbers.
ETA_TF32 = 2.0**-136

Array = npt.NDArray[Any]


def rounding(dtype: str, platform: Platform) -> tuple[float, float]:
    """Relative and absolute error of one rounding to `dtype` on `platform`; raises ValueError for an unknown type."""
    if dtype not in FORMATS:
        raise ValueError(f"no rounding error is known for {dtype!r}: known are {', '.join(FORMATS)}")
    unit, eta = FORMATS[dtype]
    if dtype in FP8 and platform.fp8_cast == "broken":
        return 0.5, eta
    if dtype == "bfloat16" and platform.truncates_bf16:
        return 2 * unit, 2 * eta
    return unit, eta


@dataclass(frozen=True)
class Arithmetic:
    """What a kernel does with its numbers; the defaults are a careful kernel in float32."""

    dot: str = "ieee"
    """Operands of float32 dots: "ieee", "tf32" or "tf32x3"."""
    tensor_core: bool = False
    """Whether products go through `tl.dot` on matrix units."""
    qk_accumulator: str = "float32"
    """Type in which the products of q and k are summed; likewise for p and v."""
    pv_accumulator: str = "float32"
    qk_product: str = "float32"
    """Type to which a product of q and k is rounded before it is summed; likewise for p and v."""
    pv_product: str = "float32"
    scaled_q_dtype: str = "float32"
    """Type to which q is rounded, mostly after it was multiplied by the scale; float32 if it is taken as it is."""
    score_dtype: str = "float32"
    """Type to which scores and their differences from the maximum are rounded."""
    p_dtype: str = "float32"
    """Type to which the softmax weights are cast before they meet v."""
    p_scale: float = 1.0
    """Factor on the weights before that cast (FP8)."""
    normalised_p: bool = False
    """Whether the weights are divided by their sum before the cast (a textbook softmax) rather than the output."""
    normaliser: str = "uncast"
    """Whether the sum takes the weights "cast" or "uncast"; "unknown" allows for either."""
    sum_accumulator: str = "float32"
    """Type in which the weights are summed."""
    dequant_dtype: str = "float32"
    """Type to which a cached FP8 value is rounded after it was multiplied by its scale."""
    partial_dtype: str = "float32"
    """Type in which the partial outputs of splits are stored."""
    tile_kv: int = 1
    """Fewest keys per tile, each of which may rescale; a kernel with larger tiles errs less."""
    seams: int = 0
    """Places within a row's keys at which a tile is cut short: 1 where new tokens lie apart from the cached ones."""
    max_splits: int = 1
    """Most parts that the keys of a row are split into."""
    divisions: int = 1
    """Divisions by a normaliser that an output passes: 2 if partial outputs are normalised too."""

    @classmethod
    def widest(cls, dtype: str) -> Arithmetic:
        """What to assume of a Triton kernel of which nothing is known but the `dtype` of its tensors.

        A `tl.dot` on float32 is TF32 on NVIDIA; p is cast to the type of v; the output may be combined from up to 128
        splits. Sums in 16 bits and a scaled q in 16 bits are not assumed: they are found in a kernel's IR, or declared.
        """
        tf32 = "tf32" if dtype == "float32" else "ieee"
        return cls(dot=tf32, tensor_core=True, p_dtype=dtype, normalised_p=True,
                   normaliser="unknown", dequant_dtype=dtype, max_splits=128, divisions=2)  # fmt: skip

    @classmethod
    def float64(cls) -> Arithmetic:
        """A witness in float64 throughout; to be used with the platform of that name."""
        wide = "float64"
        return cls(qk_accumulator=wide, pv_accumulator=wide, qk_product=wide, pv_product=wide, scaled_q_dtype=wide,
                   score_dtype=wide, p_dtype=wide, normalised_p=True, normaliser="unknown", sum_accumulator=wide,
                   dequant_dtype=wide, partial_dtype=wide)  # fmt: skip

    def describe(self) -> str:
        """The arithmetic in words, for reports."""
        through = f"{self.dot} dots on matrix units" if self.tensor_core else f"{self.dot} products"
        divided = "normalised, then " if self.normalised_p else ""
        splits = f"up to {self.max_splits} splits in {self.partial_dtype}" if self.max_splits > 1 else "no splits"
        return (
            f"{through}; q*k summed in {self.qk_accumulator}, p*v in {self.pv_accumulator}; "
            f"scores in {self.score_dtype}; p {divided}cast to {self.p_dtype}, "
            f"the normaliser sums it {self.normaliser} in {self.sum_accumulator}; "
            f"tiles of {self.tile_kv} keys or more; {splits}; divisions: {self.divisions}"
        )


def lossy(dtype: str, platform: Platform) -> tuple[float, float]:
    """The error of keeping a value in `dtype`: none if that is no narrower than the working precision."""
    unit, eta = rounding(dtype, platform)
    return (0.0, 0.0) if unit <= platform.unit else (unit, eta)


def growth(terms: Array | float, extra: Array | float, dtype: str, arithmetic: Arithmetic, platform: Platform) -> Any:
    """Relative to sum|x y|, the error of a sum of products; `extra` counts the dots it is broken into.

    A matrix unit truncates each of the products, the accumulator and the result at every step (Fasi et al. 2021).
    """
    if not arithmetic.tensor_core or dtype != "float32":
        return terms * max(lossy(dtype, platform)[0], platform.unit)
    unit = platform.fp8_dot_unit if arithmetic.p_dtype in FP8 else platform.dot_unit
    steps = np.ceil(terms / platform.dot_block) + extra if platform.dot_block else 0.0
    return (terms + 2 * steps) * unit


def tf32_error(arithmetic: Arithmetic, platform: Platform) -> float:
    """Relative error of a product of operands in TF32; tf32x3 loses only products of remainders."""
    u = platform.u_tf32
    return {"ieee": 0.0, "tf32": 2 * u + u * u, "tf32x3": 3 * u * u}[arithmetic.dot]


def operand_eta(arithmetic: Arithmetic, platform: Platform) -> float:
    """Absolute error of an operand that is subnormal: TF32 keeps 10 of its 23 bits, a platform that flushes none."""
    return max(platform.eta, ETA_TF32 if platform.u_tf32 and arithmetic.dot != "ieee" else 0.0)
