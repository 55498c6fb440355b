"""Numbers in words: runs of them, and no more than a few."""

from collections.abc import Iterable

#: So many runs are spelt out.
MOST_RUNS = 3


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs (first, last)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def listed(numbers: Iterable[int], noun: str) -> str:
    """For example "tokens 16-20, 33 and 2 more runs"."""
    spans = runs(int(number) for number in numbers)
    words = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans[:MOST_RUNS])
    more = f" and {len(spans) - MOST_RUNS} more runs" if len(spans) > MOST_RUNS else ""
    return f"{noun}{'' if len(spans) == 1 and spans[0][0] == spans[0][1] else 's'} {words}{more}"
