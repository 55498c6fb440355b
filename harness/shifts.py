"""How the accuracy of a change moved against its base, on the same cases, configuration by configuration."""

import math
from collections.abc import Iterable
from statistics import median

import msgspec

from harness.against import Pair
from harness.case import Case
from harness.outcome import Shift
from harness.results import Result
from harness.settings import Accepted

#: A median error below this, in units of the last place, is that of a correctly rounded output: nobody can do better.
ROUNDED = 0.25
#: A loss is of a whole bit.
BIT = 2.0
#: How seldom a gate may call a change less accurate that is not, over all its configurations.
DOUBT = 1e-6


def configuration(case: Case) -> str:
    """What decides how a kernel rounds: types, and whether parts are merged."""
    words: list[str] = [case.dtype]
    if case.kv_dtype != "same":
        words.append(f"{case.kv_dtype} cache")
    if case.hints.num_splits > 1:
        words.append("splits")
    return ", ".join(words)


def shifts(subject: str, pairs: Iterable[tuple[Case, Pair]]) -> tuple[Shift, ...]:
    """One for each configuration with cases that both sides got right, in the order of names."""
    found: dict[str, list[Pair]] = {}
    for case, (now, before) in pairs:
        if before is not None and _comparable(now) and _comparable(before):
            found.setdefault(configuration(case), []).append((now, before))
    told = [_shift(subject, name, found[name]) for name in sorted(found)]
    return tuple(judged(shift, len(told)) for shift in told)


def _comparable(result: Result) -> bool:
    return bool(result.bits) and not (result.findings or result.declined or result.harness_fault)


def _shift(subject: str, name: str, pairs: list[Pair]) -> Shift:
    results = [(now, before) for now, before in pairs if before is not None]
    return Shift(
        subject=subject,
        configuration=name,
        cases=len(results),
        changed=sum(now.bits != before.bits for now, before in results),
        errors_before=_middle([before.errors for _, before in results]),
        errors_now=_middle([now.errors for now, _ in results]),
        margin_before=max(before.margin for _, before in results),
        margin_now=max(now.margin for now, _ in results),
        coarser=sum(is_coarser(now.errors, before.errors) for now, before in results),
    )


def _middle(rows: list[tuple[float, ...]]) -> tuple[float, ...]:
    """The median of each quantile over the cases."""
    columns = zip(*(row for row in rows if row), strict=True)
    return tuple(round(median(column), 4) for column in columns)


def is_coarser(now: tuple[float, ...], before: tuple[float, ...]) -> bool:
    """Whether the median error of one case has more than doubled, beyond what rounding alone gives."""
    return bool(now and before) and now[0] > max(BIT * before[0], ROUNDED)


def judged(shift: Shift, configurations: int) -> Shift:
    """The shift with its verdict, by a sign test.

    If the configuration's errors have not doubled, a case looks doubled by chance at most every other time, whatever
    the errors are distributed like. So `coarser` of `cases` happens with at most the upper tail of a binomial
    distribution of probability 1/2; the doubt is shared out between the configurations (Bonferroni).
    """
    chance = upper_tail(shift.coarser, shift.cases)
    return msgspec.structs.replace(shift, chance=chance, lost=chance * configurations <= DOUBT)


def upper_tail(k: int, n: int) -> float:
    """The probability of at least k heads among n coins."""
    return float(sum(math.comb(n, i) for i in range(k, n + 1)) / 2**n)


def accepted(shift: Shift, fresh: tuple[Accepted, ...]) -> Shift:
    """The shift with the reason that the change gives for it, as `accuracy`."""
    reason = next((entry.reason for entry in fresh if shift.lost and entry.covers(shift.subject, "accuracy")), "")
    return msgspec.structs.replace(shift, accepted=reason)
