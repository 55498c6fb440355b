"""The live screen of a campaign: a panel in a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.case import Case
from harness.report import counts, finding_lines
from harness.summary import Summary

#: Seconds between two plain lines where there is no terminal.
PLAIN_EVERY = 10.0
#: Panels a second; more would cost cases.
REFRESH = 4


class Screen:
    """Shows summaries as they come; NO_COLOR and the width of the terminal are rich's business."""

    def __init__(self, console: Console, seconds: float) -> None:
        self.console, self.seconds = console, seconds
        self._live = Live(console=console, refresh_per_second=REFRESH, transient=True) if console.is_terminal else None
        self._told: set[tuple[str, Case]] = set()  # findings may change places
        self._last = time.monotonic()

    def __enter__(self) -> "Screen":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, summary: Callable[[], Summary], activity: str) -> None:
        """Called after every case; asks for the summary only when something is to be drawn."""
        now = time.monotonic()
        if now - self._last < (1 / REFRESH if self._live else PLAIN_EVERY):
            return
        self._last = now
        seen = summary()
        self._tell_new(seen)
        if self._live:
            self._live.update(self._panel(seen, activity))
        else:
            write(self.console, f"{seen.seconds:.0f} s: {counts(seen)}{f'; {activity}' if activity else ''}")

    def _tell_new(self, seen: Summary) -> None:
        for found in seen.findings:
            if (found.subject, found.case) not in self._told:
                self._told.add((found.subject, found.case))
                for line in finding_lines(found, len(self._told)):
                    write(self.console, line)

    def _panel(self, seen: Summary, activity: str) -> Table:
        table = Table.grid(padding=(0, 2))
        rows = {
            "testing": f"{', '.join(seen.subjects)} on {seen.executor}",
            "time left": f"{max(0.0, self.seconds - seen.seconds):.0f} s",
            "cases": f"{seen.cases} ({seen.cases_per_second:.1f} a second)",
            "worst margin": f"{seen.worst_margin:.2f} of the bound",
            "findings": str(len(seen.findings)),
            "last new behaviour": f"{seen.seconds - seen.last_new:.0f} s ago",
            "declined": ", ".join(f"{n} {why}" for why, n in seen.declined.items()) or "nothing",
            "now": f"shrinking: {activity}" if activity else "drawing",
        }
        for name, value in rows.items():
            table.add_row(Text(name, style="bold"), Text(value))
        return table


def write(console: Console, line: str) -> None:
    """One line as it is: no markup, no emoji, no colours for numbers, not wrapped."""
    console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)
