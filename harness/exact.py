"""Checks that need no bound: values for which every weight is 0 or 1, so that an output names what was read.

`uniform` and `two_level` have K = 0: each key counts once, and sums of small whole numbers are exact. In `gather` one
key has all the weight, and V spells out its own slot. What is left of an error is what no platform can promise away:
one division, one rounding to the output's type, and where a score is multiplied by an inexact scale, that.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.arithmetic import FORMATS, Arithmetic
from harness.bounds import Bound
from harness.case import FP8, Case
from harness.inputs import Materials, gathered
from harness.operations import ATTENTION
from harness.results import Finding
from harness.tensors import Array
from harness.values import cast, scales

#: Five ulp of float32: a division may be two and a half off, and the next rounding moves by as much (tolerance.md 13).
DIVISION = 5 * 2.0**-23
#: Scores of a gather must be so far apart that exp of their difference is 0 in float32, subnormals included.
LEAST_GAP = 150.0
#: q and the hot key of `gather` are 16 in every channel, all other keys -16.
PRODUCT = 256.0

EQUAL_WEIGHTS = ("uniform", "two_level")


@dataclass(frozen=True)
class Exact:
    """What an output must be, whatever the bound says: one number, or two where a rounding may fall either way."""

    truth: Array  # [tokens, heads, dim]
    low: Array
    high: Array
    rows: Array  # [tokens, heads]: where it applies

    def broken(self, out: Array) -> Array:
        """Which elements differ, bool [tokens, heads, dim]."""
        out = np.asarray(out).astype(np.float64)
        with np.errstate(invalid="ignore"):
            return np.asarray(~((out >= self.low) & (out <= self.high)) & self.rows[:, :, None])


def expected(case: Case, bound: Bound, arithmetic: Arithmetic) -> Exact | None:
    """The exact output, or None where the values, a feature or the kernel's own sums leave nothing exact."""
    if case.op not in ATTENTION or case.v_is_k_prefix or case.alibi or case.sinks or not _whole(case, arithmetic):
        return None
    division = DIVISION * arithmetic.divisions
    if case.values in EQUAL_WEIGHTS and arithmetic.max_splits == 1:
        return Exact(bound.truth, *_between(bound.truth, case.dtype, division, 0.0), np.isfinite(bound.truth_lse))
    top = PRODUCT * case.head_dim * case.softmax_scale
    if case.values == "gather" and case.softcap == 0 and 2 * top > LEAST_GAP:
        alone = np.abs(bound.truth_lse - top) < 2.0**-20 * top  # one hot key is seen, not none and not two
        copies = 0 if arithmetic.tensor_core else case.head_dim
        return Exact(bound.truth, *_between(bound.truth, case.dtype, division, (4 + copies) * top), alone)
    return None


def _whole(case: Case, arithmetic: Arithmetic) -> bool:
    """Whether small whole numbers are summed without rounding, and scaled by powers of two only."""
    sums = (arithmetic.qk_accumulator, arithmetic.pv_accumulator, arithmetic.sum_accumulator, arithmetic.partial_dtype)
    wide = all(FORMATS[name][0] <= FORMATS["float32"][0] for name in sums)
    powers = all(np.frexp(factors)[0].min() == np.frexp(factors)[0].max() == 0.5 for factors in scales(case))
    plain = not arithmetic.normalised_p and arithmetic.p_scale == 1 and arithmetic.p_dtype not in FP8
    return bool(wide and powers and plain)


def _between(truth: Array, dtype: str, division: float, roundings: float) -> tuple[Array, Array]:
    """What the truth may round to, the error of its divisions below and above it.

    A weight exp(s - m) of the largest score is 1 but for the rounding of s, which a product that is fused with the
    subtraction leaves in: in base 2, 2^-24 of s log2(e) twice, and once more for a second copy of the weight. Without
    a matrix unit each copy sums a q of its own, scaled beforehand maybe. `roundings` is their number times s.
    """
    apart = (division + np.expm1(2.0**-24 * roundings * np.log2(np.e))) * np.abs(truth)
    low, high = (cast(edge, dtype).astype(np.float64) for edge in (truth - apart, truth + apart))
    return low, high


# --- the check ---------------------------------------------------------------------------------------------------


def findings(materials: Materials, out: Array, bound: Bound, arithmetic: Arithmetic) -> Iterator[Finding]:
    """At most one finding: the first row whose output is not exact, and what it says of the keys that were read."""
    wanted = expected(materials.case, bound, arithmetic)
    if wanted is None or not (wrong := wanted.broken(out)).any():
        return
    at = _first(out, wrong)
    token, head = at[:2]
    sequence = int(np.searchsorted(materials.inputs.query_starts.view, token, side="right")) - 1
    got, should = float(out[at]), float(wanted.truth[at])
    message = (
        f"out[sequence {sequence}, token {token}, head {head}, dim {at[2]}] is {got:.6g}, but should be exactly "
        f"{should:.6g} (values {materials.case.values!r}); {int(wrong.sum())} of {wrong.size} elements differ"
    )
    row = _Row(materials, np.asarray(out[token, head]).astype(np.float64), bound, sequence, token, head)
    yield Finding(kind="inexact", message=message, where=(sequence, *at), explains=tuple(row.decoded()))


def _first(out: Array, wrong: Array) -> tuple[int, ...]:
    """A finite error first: it tells more than a NaN."""
    finite = wrong & np.isfinite(np.asarray(out).astype(np.float64))
    return tuple(int(i) for i in np.argwhere(finite if finite.any() else wrong)[0])


@dataclass(frozen=True)
class _Row:
    """One wrong row of the output, and the V it was made of."""

    materials: Materials
    got: Array  # [head_dim_v]
    bound: Bound
    sequence: int
    token: int
    head: int

    @property
    def case(self) -> Case:
        return self.materials.case

    @property
    def place(self) -> str:
        return f"sequence {self.sequence}, head {self.head}"

    def decoded(self) -> Iterator[str]:
        """What the row says in words; nothing where it fits nothing."""
        if not np.isfinite(self.got).all():
            return
        yield from self._slot() if self.case.values == "gather" else self._count()

    def _v(self, sequence: int) -> Array:
        return gathered(self.materials, sequence)[2].astype(np.float64)

    def _slot(self) -> Iterator[str]:
        """The one slot whose V is in the output."""
        kv_head = self.head // self.case.group
        wanted = self._matches(self._v(self.sequence)[:, kv_head], self.bound.truth[self.token, self.head])
        if not wanted.any():
            return
        token = int(wanted.argmax())
        read = next(self._read(), "no slot of the cache alone: a mixture, or nothing")
        yield f"{self.place} wanted {self._named(self.sequence, token)}, read {read}"

    def _read(self) -> Iterator[str]:
        kv_head, count = self.head // self.case.group, len(self.materials.geometry.tables)
        for sequence in (self.sequence, *(i for i in range(count) if i != self.sequence)):
            found = np.argwhere(self._matches(self._v(sequence), self.got))
            for token, head in sorted(found.tolist(), key=lambda place: place[1] != kv_head):
                owner = f" of sequence {sequence}" if sequence != self.sequence else ""
                other = f" of KV head {head}, not {kv_head}" if head != kv_head else ""
                yield f"{self._named(sequence, token)}{owner}{other}"

    def _matches(self, v: Array, row: Array) -> Array:
        """Which V vectors [..., dim] the row is, whole numbers that differ by at least 1 where they differ."""
        unit = float(scales(self.case)[1].min())
        return np.asarray((np.abs(v - row) < unit / 4).all(axis=-1))

    def _named(self, sequence: int, token: int) -> str:
        table, size = self.materials.geometry.tables[sequence], self.case.block_size
        if token // size >= len(table):
            return f"new token {token}"
        return f"block {table[token // size]} offset {token % size} (token {token})"

    def _count(self) -> Iterator[str]:
        """Which key is missing from a mean of equal weights, or counts once too often."""
        keys = round(float(np.exp(self.bound.truth_lse[self.token, self.head])))
        kv_head = self.head // self.case.group
        unit, v = float(scales(self.case)[1][kv_head]), self._v(self.sequence)[:, kv_head]
        total = self.bound.truth[self.token, self.head] * keys
        if (keys + 1) * FORMATS[self.case.dtype][0] * np.abs(self.got).max(initial=0.0) > unit / 8:
            return  # the output is rounded too coarsely to count by
        missing, more = total - self.got * (keys - 1), self.got * (keys + 1) - total
        for token in np.flatnonzero((np.abs(v - missing) < unit / 4).all(axis=1) & missing.any())[:1]:
            yield f"{self.place}: {self._named(self.sequence, int(token))} does not count"
        for token in np.flatnonzero((np.abs(v - more) < unit / 4).all(axis=1) & (np.abs(more).max() > unit / 4))[:1]:
            yield f"{self.place}: {self._named(self.sequence, int(token))} counts once too often"
        if np.abs(more).max(initial=0.0) < unit / 4:
            yield f"{self.place}: one key more is counted, whose V is 0"
