"""A runner that takes the base away from the change: what is left of a result's findings is the change's own."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from harness.case import Case
from harness.results import Result
from harness.sides import Side

Pair = tuple[Result, Result | None]


@dataclass
class Against:
    """Runs cases on both sides at once, or on the change first and on the base only where that fails."""

    subject: str
    change: Side
    base: Side | None  # None for a subject that the base does not have
    met: dict[Case, Pair] = field(default_factory=dict)
    hands: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2))

    @property
    def restarts(self) -> int:
        """Workers of the change that died and were replaced."""
        return self.change.worker.restarts

    def meet(self, case: Case, limit_seconds: float) -> Pair:
        """Run the case on both sides at once; the next `run` of it takes what came out."""
        other = self.hands.submit(self.base.run, case, self.subject, limit_seconds) if self.base else None
        try:
            result = self.change.run(case, self.subject, limit_seconds)
        finally:
            before = other.result() if other else None
        self.met[case] = result, before
        return result, before

    def run(self, case: Case, subject: str, limit_seconds: float, **options: Any) -> Result:
        """The change's result, without the findings of families that the base shows on the same case."""
        result, before = self.met.pop(case, (None, None)) if not options else (None, None)
        if result is None:
            result = self.change.run(case, subject, limit_seconds, **options)
        if not result.findings or subject != self.subject or self.base is None:  # another one is a control
            return result
        if before is None:
            asked = {name: options[name] for name in options if name != "explain"}  # nobody reads it of a base
            before = self.base.run(case, subject, limit_seconds, **asked)
        return self._without(result, before)

    def failing_probes(self) -> list[str]:
        """What fails of the probes where the change runs."""
        return self.change.worker.failing_probes()

    @staticmethod
    def _without(result: Result, before: Result) -> Result:
        own = tuple(finding for finding in result.findings if finding.family not in families(before))
        fault = f"on the base: {before.harness_fault}" if before.harness_fault else result.harness_fault
        return msgspec.structs.replace(result, findings=own, harness_fault=fault)


def families(result: Result | None) -> set[str]:
    """Of the result's findings."""
    return {finding.family for finding in result.findings} if result else set()
