"""`python -m harness.paired`: two kernels timed in turn on one GPU, and whether one is slower beyond what is noise."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import click
import msgspec
import numpy as np

from harness.case import Case, Record
from harness.commands import DEFAULT_OP, NOTHING_RAN, Verb, chosen_executor, device_option, one_line_errors, op_option
from harness.pool import Died, HarnessFault, Worker
from harness.subjects import Declaration, WrongUse, declines
from harness.workloads import chosen

#: Turns of each side; what is slower by less than a share is no news.
TURNS, THRESHOLD = 20, 0.03
#: The interval that the ratio lies in 99 times of 100, from so many resamplings of the turns.
CONFIDENCE, RESAMPLINGS = 0.99, 4000
#: Seconds that one side may take to compile, tune and capture; a turn takes a twentieth of a second.
PREPARING, TURNING = 600.0, 60.0

Verdict = Literal["slower", "faster", "no difference seen"]


class Compared(Record, frozen=True):
    """What came of one workload: milliseconds of a call, and the ratio of change to base with its interval."""

    workload: str
    base: float
    change: float
    ratio: float
    low: float
    high: float
    verdict: Verdict
    how: str = ""


class NotTimed(WrongUse):
    """A side cannot do a workload; which one, and why in words."""

    def __init__(self, side: "Side", words: str) -> None:
        super().__init__(words)
        self.side = side


@dataclass(frozen=True)
class Side:
    """Base or change: a subject in a worker of its own."""

    worker: Worker
    subject: str

    def prepare(self, workload: str, seed: int) -> str:
        """Make it ready; how its calls are made. Raises NotTimed where the subject cannot do it."""
        how: str = self._ask(workload, PREPARING, "harness.timing:prepare", self.subject, workload, seed)
        return how

    def turn(self, workload: str) -> float:
        """Milliseconds of a call: the median of one turn. Raises NotTimed where a call fails all at once."""
        times: list[float] = self._ask(workload, TURNING, "harness.timing:turn")
        return median(times)

    def _ask(self, workload: str, seconds: float, target: str, *arguments: Any) -> Any:
        try:
            return self.worker.call(target, *arguments, limit_seconds=seconds)
        except (Died, HarnessFault) as fault:
            words = (str(fault).strip().splitlines() or [""])[-1]
            raise NotTimed(self, f"{self.subject} cannot be timed on {workload}: {words}") from None


# --- the statistics ------------------------------------------------------------------------------------------------


def verdict(
    workload: str, base: Sequence[float], change: Sequence[float], threshold: float = THRESHOLD, how: str = ""
) -> Compared:
    """Judge turns that were taken in pairs, so that what drifts slowly is in both of a pair.

    The ratio is the median of the pairs' ratios, its interval a percentile bootstrap (Efron 1979) over the pairs.
    Slower or faster: the interval excludes 1 and the ratio is beyond the threshold.
    """
    ratios = np.asarray(change, float) / np.asarray(base, float)
    picks = np.random.default_rng(0).integers(0, len(ratios), (RESAMPLINGS, len(ratios)))
    tails = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    low, high = (float(q) for q in np.quantile(np.median(ratios[picks], axis=1), tails))
    ratio = float(np.median(ratios))
    said: Verdict = "no difference seen"
    if low > 1 and ratio >= 1 + threshold:
        said = "slower"
    elif high < 1 and ratio <= 1 / (1 + threshold):
        said = "faster"
    return Compared(workload, median(base), median(change), ratio, low, high, said, how)


def timed(base: Side, change: Side, workload: str, turns: int = TURNS, threshold: float = THRESHOLD) -> Compared:
    """Time both on the same inputs, in turn; which of them begins changes from pair to pair. Raises NotTimed."""
    ways = [side.prepare(workload, seed=0) for side in (base, change)]
    times: dict[int, list[float]] = {0: [], 1: []}
    for number in range(turns):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            times[which].append((base, change)[which].turn(workload))
    how = ways[0] if ways[0] == ways[1] else f"base {ways[0]}, change {ways[1]}"
    return verdict(workload, times[0], times[1], threshold, how)


def tell(found: Compared) -> str:
    """For example "decode-32x8k-16: slower by 4 % (3 to 5), 1.204 ms, base 1.158 ms"."""
    times = f"{found.change:.3f} ms, base {found.base:.3f} ms"
    return f"{found.workload}: {_said(found)}, {times}{f', {found.how}' if found.how else ''}"


def _said(found: Compared) -> str:
    if found.verdict == "no difference seen":
        return f"{found.verdict} (x{found.ratio:.3f}, {found.low:.3f} to {found.high:.3f})"
    bounds = (found.low, found.high) if found.verdict == "slower" else (1 / found.high, 1 / found.low)
    ratio = found.ratio if found.verdict == "slower" else 1 / found.ratio
    by, low, high = (_percent(value) for value in (ratio, *bounds))
    return f"{found.verdict} by {by} % ({low} to {high})"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.2g}" if ratio < 1.1 else f"{100 * (ratio - 1):.0f}"


# --- the command ---------------------------------------------------------------------------------------------------


@click.command(cls=Verb)
@click.option("--base", required=True, metavar="NAME|FILE.py:FUNCTION", help="What is compared with.")
@click.option("--change", required=True, metavar="NAME|FILE.py:FUNCTION", help="What may be slower.")
@op_option
@click.option("--workload", "workloads", multiple=True, help="By name; default: all of the operation.")
@click.option("--turns", type=click.IntRange(min=5), default=TURNS, show_default=True, help="Of each, in pairs.")
@click.option("--threshold", type=click.FloatRange(min=0), default=THRESHOLD, show_default=True, help="As a share.")
@device_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@one_line_errors
def main(base: str, change: str, op: str | None, workloads: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Time two subjects in turn on the same inputs, each call with cold caches.

    Exit code: 0 none is slower; 1 one is; 2 wrong use; 3 the harness is at fault; 5 nothing was timed.
    """
    chosen_executor("gpu")
    say: Callable[[str], None] = lambda line: click.echo(line, err=as_json)  # noqa: E731
    with ExitStack() as stack:
        base_side, change_side = (
            Side(stack.enter_context(Worker("gpu", options["device"])), name) for name in (base, change)
        )
        found = tuple(_compared(base_side, change_side, op or DEFAULT_OP, workloads, say, options))
    slower = any(compared.verdict == "slower" for compared in found)
    code = int(slower) if found else NOTHING_RAN
    if as_json:
        click.echo(json.dumps({"compared": msgspec.to_builtins(found), "exit_code": code}))
    return code


def _compared(
    base: Side, change: Side, op: str, names: tuple[str, ...], say: Callable[[str], None], options: dict[str, Any]
) -> Iterator[Compared]:
    sides = [(side.subject, side.worker.describe(side.subject, op)) for side in (base, change)]
    for workload in chosen(names, sides[1][1].op):
        if reason := declined(sides, workload.case()):
            say(f"{workload.name}: declined, {reason}")
            continue
        found = timed(base, change, workload.name, options["turns"], options["threshold"])
        say(tell(found))
        yield found


def declined(sides: list[tuple[str, Declaration]], case: Case) -> str:
    """Why one of the sides, by name, declines the case; nothing where none does."""
    reasons = (f"{name}: {reason}" for name, declared in sides if (reason := declines(declared, case)))
    return next(reasons, "")


if __name__ == "__main__":
    main()
