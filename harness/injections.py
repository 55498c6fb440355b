"""Injected errors: numeric faults of our kernels, each a ladder of mutants from a large error to a small one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from harness.case import Float, Record
from harness.mutants import Mutant

#: What stands for the error in the new text of an injection.
ERROR = "ERROR"


@dataclass(frozen=True)
class Injection:
    """One fault: `old` occurs exactly once in the file, and ERROR in `new` is replaced by one text after the other."""

    name: str
    story: str
    old: str
    new: str
    errors: dict[str, str]  # from large to small: how it is told, and the text
    file: str = "kernels/decode.py"
    subject: str = "ours.decode"

    def mutant(self, error: str, dtype: Float) -> Mutant:
        """The fault with this error, hunted with queries of this type."""
        return Mutant(
            name=f"{self.name}-{list(self.errors).index(error)}-{dtype}",
            file=self.file,
            old=self.old,
            new=self.new.replace(ERROR, self.errors[error]),
            story=f"{self.story}: {error}",
            subject=self.subject,
            dtypes=(dtype,),
        )


def _per_cent(*powers: int) -> dict[str, str]:
    return {f"{10.0 ** (power + 2):g} %": f"1e{power}" for power in powers}


RELATIVE = _per_cent(*range(-1, -8, -1))
ABSOLUTE = {text: text for text in ("1e-0", "1e-1", "1e-2", "1e-3", "1e-4", "1e-5", "1e-6", "1e-7")}
#: 16 bits by their significand, the implicit bit included: 8 in bfloat16, 11 in float16.
SIXTEEN = {"bfloat16": "bfloat16", "float16": "float16"}
#: Significands of so many bits, cut by Veltkamp's splitting: x c - (x c - x) with c = 2^(24 - bits) + 1.
BITS = {f"{bits} bits": f"{2 ** (24 - bits) + 1}.0" for bits in (8, 11, 14, 17, 20, 22)}
KEYS = {f"1 of {keys}": f"{keys}" for keys in (2, 8, 32, 128, 512)}

INJECTIONS = (
    Injection(
        "scale-off",
        "the softmax scale is off by so much of itself",
        "tl.sum(q[None, :] * k, axis=1) * scale",
        "tl.sum(q[None, :] * k, axis=1) * (scale * (1.0 + ERROR))",
        RELATIVE,
    ),
    Injection(
        "scale-off-in-extend",
        "the same in front of a tl.dot",
        "unit = scale * LOG2E",
        "unit = scale * (1.0 + ERROR) * LOG2E",
        RELATIVE,
        file="kernels/tile.py",
        subject="ours.extend",
    ),
    Injection(
        "output-off",
        "the output is off by so much of itself",
        "out = acc / l  # [TILE_DV]",
        "out = acc / l * (1.0 + ERROR)  # [TILE_DV]",
        RELATIVE,
    ),
    Injection(
        "v-scale-off",
        "v_scale of an FP8 cache is off by so much of itself",
        "out *= tl.load(v_scale_ptr + kv_head * stride_v_scale_head)",
        "out *= tl.load(v_scale_ptr + kv_head * stride_v_scale_head) * (1.0 + ERROR)",
        RELATIVE,
    ),
    Injection("lse-off", "the lse is off by so much", "m + tl.log(l))", "m + tl.log(l) + ERROR)", ABSOLUTE),
    Injection(
        "p-cast",
        "the weights are cast to 16 bits",
        "p = tl.exp(scores - m_new)  # [TILE_KV]",
        "p = tl.exp(scores - m_new).to(tl.ERROR).to(tl.float32)  # [TILE_KV]",
        SIXTEEN,
    ),
    Injection(
        "p-rounded",
        "the weights are rounded to so many bits by arithmetic, which the IR does not show",
        "p = tl.exp(scores - m_new)  # [TILE_KV]",
        "p = tl.exp(scores - m_new)  # [TILE_KV]\n    p = p * ERROR - (p * ERROR - p)",
        BITS,
    ),
    Injection(
        "key-dropped",
        "of at least so many keys the one in the middle is dropped",
        "(position < kv_len)  # [TILE_KV]",
        "(position < kv_len) & ((kv_len < ERROR) | (position != kv_len // 2))  # [TILE_KV]",
        KEYS,
    ),
    Injection(
        "scores-in-16-bits",
        "the sum of q k is kept in 16 bits",
        "tl.sum(q[None, :] * k, axis=1) * scale",
        "tl.sum(q[None, :] * k, axis=1).to(tl.ERROR).to(tl.float32) * scale",
        SIXTEEN,
    ),
    Injection(
        "normaliser-in-16-bits",
        "the running sum of the weights is kept in 16 bits",
        "l = l * rescale + tl.sum(p, axis=0)",
        "l = (l * rescale + tl.sum(p, axis=0)).to(tl.ERROR).to(tl.float32)",
        SIXTEEN,
    ),
    Injection(
        "values-in-16-bits",
        "the running sum of p v is kept in 16 bits",
        "acc = acc * rescale + tl.sum(p[:, None] * v, axis=0)",
        "acc = (acc * rescale + tl.sum(p[:, None] * v, axis=0)).to(tl.ERROR).to(tl.float32)",
        SIXTEEN,
    ),
)


class Step(Record, frozen=True):
    """One error of a ladder, hunted."""

    error: str
    found: bool = False
    kind: str = ""
    cases: int = 0  # judged until it was found, or at all
    seconds: float = 0.0
    fault: str = ""  # of the harness


class Threshold(Record, frozen=True):
    """How far down a ladder the errors were found, in one dtype of the queries; it ends at the first that was not."""

    injection: str
    dtype: Float
    subject: str = ""
    story: str = ""
    steps: tuple[Step, ...] = ()

    @property
    def smallest(self) -> Step | None:
        """The smallest error that was found."""
        return next((step for step in reversed(self.steps) if step.found), None)

    @property
    def missed(self) -> Step | None:
        """The first that was not; None where even the smallest was found."""
        return next((step for step in self.steps if not step.found), None)


def blank(injections: Iterable[Injection]) -> Iterator[Threshold]:
    """One for each injection and dtype, with nothing hunted yet."""
    for one in injections:
        for dtype in get_args(Float):
            yield Threshold(injection=one.name, dtype=dtype, subject=one.subject, story=one.story)


def next_mutant(threshold: Threshold) -> tuple[str, Mutant] | None:
    """The next error down the ladder and its mutant; None where one was missed, all were found, or it is no more."""
    injection = next((one for one in INJECTIONS if one.name == threshold.injection), None)
    if injection is None or threshold.missed or len(threshold.steps) == len(injection.errors):
        return None
    errors = list(injection.errors)[len(threshold.steps) :]
    return errors[0], injection.mutant(errors[0], threshold.dtype)
