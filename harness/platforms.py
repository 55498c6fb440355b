"""The constants of each platform that the error bound needs, every one with its source."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from harness.tables import Measured, Table, Value, tables, told

ULP32 = 2.0**-23
"""Distance from 1 to the next float32: "n ulp" in a manual is a relative error of at most n * ULP32."""


@dataclass(frozen=True)
class Platform:
    """What one executor or chip guarantees about arithmetic: relative errors unless said otherwise.

    The defaults are those of an NVIDIA GPU. Sources: "PTX" is the PTX ISA manual 9.1, "CUDA" the CUDA C++ guide,
    "measured" an H200 (Triton 3.6.0, driver 580) or, for NumPy, 20 million arguments of each function.
    """

    name: str
    unit: float = 2.0**-24
    """Unit roundoff of ordinary arithmetic: scores, sums, rescaling. IEEE 754 float32, to nearest even."""
    eps_exp: float = 2.5 * ULP32
    """exp and exp2. PTX: ex2.approx.f32 within 2 ulp of the rounded result; measured 2.06. exp2(0) is exactly 1."""
    eps_div: float = 2.5 * ULP32
    """x / y. PTX: div.full.f32 within 2 ulp; measured 2.05."""
    eps_log: float = 1.5 * ULP32
    """log and log2, relative. CUDA: 1 ulp; measured 0.58."""
    eps_log_abs: float = 2.0**-22
    """log and log2, absolute. PTX: lg2.approx.f32 is within 2^-22 absolutely for arguments near 1."""
    eps_tanh: float = 2.0 * ULP32
    """tanh, relative. CUDA: tanhf within 2 ulp."""
    eps_tanh_abs: float = 2.0**-20
    """tanh, absolute: Triton kernels write 2 sigmoid(2x) - 1. With eps = 2.5 ulp = 5 u of exp and of division the
    sigmoid errs by 5u/4 + u + 5u, twice that plus the subtraction is below 16 u. Measured: about 2^-22."""
    dot_unit: float = 2.0**-23
    """Accumulation on matrix units: terms are aligned to the largest and truncated. Fasi, Higham, Mikaitis, Pranesh,
    PeerJ CS 2021; Khattak and Mikaitis arXiv 2512.07004. Measured: one-sided, mean -42 of at most 52 units at K 512."""
    dot_block: int = 4
    """Fewest products that a matrix unit adds at once; 0: products are added one by one as elsewhere. Same sources."""
    fp8_dot_unit: float = 2.0**-13
    """Accumulation when operands are FP8: Hopper keeps about 14 bits. DeepSeek-V3 report; Khattak and Mikaitis."""
    u_tf32: float = 2.0**-10
    """An fp32 operand of a TF32 dot: 10 bits kept, truncated. Measured: one-sided, 11,700 to 13,800 units of 2^-24."""
    eta: float = 2.0**-126
    """Absolute error of a result that underflows. Measured: exp2 below -126 gives 0, so subnormals may be flushed."""
    recomputes: bool = True
    """Whether a weight may exist twice, so that numerator and normaliser see different ones. A compiler fuses a product
    with the addition or subtraction that follows, in one copy and not in the other. Measured on an H200: in the
    textbook decode each lane adds its own product, unrounded, to its neighbours' rounded ones, so copies of one score
    differ by 2 ulp (corpus: ours-decode-accuracy-491b9e1e77a2)."""
    truncates_bf16: bool = False
    """Whether a cast to bfloat16 truncates. Measured: no, 0 of 4.2 million patterns differ from nearest even."""
    fp8_cast: str = "saturates"
    """A cast to FP8 out of range "saturates" or is "broken" (any carry lost). Measured: 448 and 57344 on the H200."""
    trusted: bool = True
    """Whether accuracy can be judged here. Where it cannot, only what must be exact can be wrong."""
    notes: tuple[str, ...] = ()
    """What a report has to say about these constants."""


PLATFORMS = {
    entry.name: entry
    for entry in (
        # NVIDIA GPUs: the defaults. sm80 adds 4 TF32 or 8 fp16 products at once (Fasi et al.), later chips at least as
        # many; the smaller block is the safe one. Only sm90 was measured.
        Platform("sm80", fp8_dot_unit=2.0**-23),
        Platform("sm90"),
        Platform("sm100", fp8_dot_unit=2.0**-23),
        # AMD CDNA3: v_exp_f32 and v_log_f32 within 1 ulp and flushing (ISA manual); the fast division of LLVM's AMDGPU
        # backend within 2.5 ulp; MFMA with the NVIDIA constants until a probe shows better. Not measured.
        Platform("gfx942", fp8_dot_unit=2.0**-23),
        # gridsim is NumPy float32 with nearest-even casts, saturating FP8 and truncated TF32 operands. Measured: exp
        # 1.79 and exp2 0.88 of ULP32, log and log2 0.86, tanh 0.92; 2 sigmoid(2x) - 1 within 3.1 * 2^-24 (7.5 * 2^-24
        # by the derivation above). NumPy divides as IEEE 754 says and keeps subnormals; BLAS adds in any order.
        Platform("gridsim", eps_div=2.0**-24, eps_log_abs=2.0**-24, eps_tanh_abs=2.0**-21, dot_unit=2.0**-24,
                 dot_block=0, fp8_dot_unit=2.0**-24, eta=2.0**-149, recomputes=False),
        # Triton's interpreter is NumPy too, does not model TF32 and truncates bfloat16. Measured: half of the bfloat16
        # casts differ from nearest even; FP8 casts lose a carry and err by up to one half (Triton issue 8322).
        Platform("interpreter", eps_div=2.0**-24, eps_log_abs=2.0**-24, eps_tanh_abs=2.0**-21, dot_unit=2.0**-24,
                 dot_block=0, fp8_dot_unit=2.0**-24, u_tf32=0.0, eta=2.0**-149, recomputes=False,
                 truncates_bf16=True, fp8_cast="broken"),
        # The witnesses in float64: NumPy's and PyTorch's functions are within 1 ulp there (measured below 0.6); 2 ulp.
        Platform("float64", unit=2.0**-53, eps_exp=2.0**-51, eps_div=2.0**-53, eps_log=2.0**-51, eps_log_abs=2.0**-52,
                 eps_tanh=2.0**-51, eps_tanh_abs=0.0, dot_unit=2.0**-53, dot_block=0, u_tf32=0.0, eta=2.0**-1074,
                 recomputes=False),
    )
}  # fmt: skip


#: A worst of some hundred thousand arguments is not the worst of all: a measured constant is taken so much larger.
ROOM = 1.25


def platform(name: str) -> Platform:
    """The platform called `name`; raises ValueError naming the known ones."""
    if name not in PLATFORMS:
        raise ValueError(f"unknown platform {name!r}: known are {', '.join(sorted(PLATFORMS))}")
    return PLATFORMS[name]


@cache
def judging(name: str) -> Platform:
    """The constants that judge what ran on the platform called `name`, after what `doctor` measured there.

    A platform that neither this module nor a table knows is not trusted.
    """
    return corrected(name, tables(name))


def flushing(platform: Platform) -> Platform:
    """The platform by which a kernel is judged: kernels are made for GPUs, which may flush what is subnormal.

    gridsim keeps it, and so shows what a kernel loses that no GPU need keep: where a maximum leaves out a sink that is
    89 above it, the sum is infinite in float32, and what should be exp(-89) is 0.
    """
    return replace(platform, eta=max(platform.eta, Platform.eta))


def corrected(name: str, measured: Iterable[tuple[str, Table]]) -> Platform:
    """The platform after its tables, which come with their names; a table also makes an unknown platform known."""
    measured = list(measured)
    found = PLATFORMS.get(name, Platform(name))
    if name not in PLATFORMS and not measured:
        note = (
            f"there is no table of the platform {name}: only what must be exact is judged, accuracy is not "
            "(python -m harness.doctor --save FILE makes one)"
        )
        return replace(found, trusted=False, notes=(note,))
    for source, table in measured:
        for entry in table.probes:
            if entry.verdict == "FAILS":
                found = _widened(found, entry, source)
    return found


def _widened(platform: Platform, entry: Measured, source: str) -> Platform:
    """The platform with a constant that failed replaced; what no constant describes ends the trust in it."""
    constants = {field.name: getattr(platform, field.name) for field in fields(platform)}
    if entry.constant not in constants or entry.measured is None:
        note = f"{source}: {entry.probe} fails ({entry.shows}): accuracy is not judged on {platform.name}"
        return replace(platform, trusted=False, notes=(*platform.notes, note))
    old = constants[entry.constant]
    new = _wider(old, entry.measured)
    if new == old:
        return platform
    values = f"{told(new)} after a measurement, not {told(old)}"
    note = f"{source}: {entry.constant} of {platform.name} is {values} ({entry.probe})"
    changed: dict[str, Any] = {entry.constant: new, "notes": (*platform.notes, note)}
    return replace(platform, **changed)


def _wider(old: Value, measured: Value) -> Value:
    """What allows for both."""
    if isinstance(old, bool):
        return old or measured
    if isinstance(old, float) and isinstance(measured, float):
        return old if measured <= old else measured * ROOM
    return measured
