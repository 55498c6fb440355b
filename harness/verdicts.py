"""What an exam makes of each mutant, and the score of them all: JSON, like every record that travels."""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from harness.case import Case, Record
from harness.injections import Threshold
from harness.mutants import JUDGE, Mutant, diff
from harness.results import Finding
from harness.subjects import WrongUse
from harness.summary import Found, Summary
from harness.trials import Trial


class Verdict(Record, frozen=True):
    """One mutant: whether it was found, by what, how soon, and how well it was explained."""

    name: str
    bug_class: str = msgspec.field(default="", name="class")
    subject: str = ""
    file: str = ""
    story: str = ""
    after: tuple[str, ...] = ()
    systematic: bool = False
    unfound: str = ""  # why it cannot be found, where that is accepted
    found: bool = False
    meant: bool = False  # whether the first finding is one that was to be found; any is for a systematic mutant
    kind: str = ""
    detail: str = ""
    message: str = ""
    cases: int = 0  # judged until it was found, or at all
    seconds: float = 0.0  # from the first drawn case until it was found, or at all
    total: float = 0.0  # seconds in all: planting, importing, shrinking, explaining
    sequences: int = 0  # of the smallest case, as are the next two; 0 where nothing was shrunk
    blocks: int = 0
    tokens: int = 0
    again: str = ""  # "3 of 3": how often the smallest case failed when run again
    explained: bool = False  # whether all that must be said of it was said
    unsaid: tuple[str, ...] = ()
    says: tuple[str, ...] = ()  # what was said instead
    diff: str = ""  # of a mutant that was not found
    fault: str = ""  # of the harness, which leaves the mutant without a verdict
    others: tuple[Trial, ...] = ()  # what other projects' recipes made of it, where they were tried

    @property
    def passed(self) -> bool:
        """Whether it counts as found."""
        return self.found and self.meant

    @property
    def check(self) -> str:
        """By what it was found."""
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


def verdict(mutant: Mutant, summary: Summary, total: float, systematic: bool) -> Verdict:
    """The verdict on one mutant from the campaign that hunted it."""
    blank = msgspec.structs.replace(_blank(mutant, systematic), total=round(total, 3))
    if summary.harness_faults and mutant.is_of_judge:
        return msgspec.structs.replace(blank, **_noticed(mutant, summary))
    if summary.harness_faults:
        return msgspec.structs.replace(blank, fault=summary.harness_faults[0])
    if not summary.findings:
        return msgspec.structs.replace(blank, cases=summary.cases, seconds=summary.seconds, diff=diff(mutant))
    found = summary.findings[0]
    unsaid = () if systematic else _unsaid(mutant, found)
    return msgspec.structs.replace(
        blank,
        found=True,
        meant=systematic or mutant.means(found.finding),
        kind=found.finding.kind,
        detail=found.finding.detail,
        message=found.finding.message,
        cases=found.after_cases,
        seconds=found.after_seconds,
        again=found.again,
        explained=bool(mutant.says) and not unsaid,
        unsaid=unsaid,
        says=_says(found) if unsaid else (),
        **({} if systematic else _size(found.case)),
    )


def _noticed(mutant: Mutant, summary: Summary) -> dict[str, Any]:
    """Of a fault of the judge: the first case on which a witness contradicts it."""
    said = summary.harness_faults[0]
    unsaid = tuple(words for words in mutant.says if words not in said)
    return {
        "found": True,
        "meant": mutant.finds == (JUDGE,),
        "kind": JUDGE,
        "message": said,
        "cases": summary.cases,
        "seconds": summary.seconds,
        "explained": bool(mutant.says) and not unsaid,
        "unsaid": unsaid,
    }


def faulty(mutant: Mutant, fault: str, systematic: bool) -> Verdict:
    """None at all, since the harness failed."""
    return msgspec.structs.replace(_blank(mutant, systematic), fault=fault)


def _blank(mutant: Mutant, systematic: bool) -> Verdict:
    return Verdict(
        name=mutant.name,
        bug_class=mutant.bug_class,
        subject=mutant.subject,
        file=mutant.file,
        story=mutant.story,
        after=mutant.after,
        systematic=systematic,
        unfound=mutant.unfound,
    )


def told(findings: Iterable[Finding]) -> str:
    """All that findings say of what is wrong."""
    return "\n".join(line for f in findings for line in (f.message, f.accuses, *f.explains))


def _says(found: Found) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, told((found.finding, *found.others)).splitlines())))


def _unsaid(mutant: Mutant, found: Found) -> tuple[str, ...]:
    said = told((found.finding, *found.others))
    return tuple(words for words in mutant.says if words not in said)


def _size(case: Case) -> dict[str, int]:
    lens = [seq.kv_len for seq in case.seqs]
    blocks = sum(-(-kv_len // case.block_size) for kv_len in lens)
    return {"sequences": len(lens), "blocks": blocks, "tokens": sum(lens)}


# --- all of them -------------------------------------------------------------------------------------------------


class Exam(Record, frozen=True):
    """A whole exam."""

    executor: str = ""
    seed: int = 0
    limit: float = 60.0  # seconds that drawing could take for each mutant
    workers: int = 1
    seconds: float = 0.0  # the whole of it took
    min_score: float = 0.0
    min_systematic: float = 0.0
    equivalent: int = 0  # systematic mutants that change nothing, which were left out
    interrupted: bool = False
    mutants: tuple[Verdict, ...] = ()
    thresholds: tuple[Threshold, ...] = ()  # of injected errors, where these were hunted instead of mutants

    def of(self, systematic: bool) -> tuple[Verdict, ...]:
        """Either the systematic mutants or the planted faults."""
        return tuple(verdict for verdict in self.mutants if verdict.systematic == systematic)

    def score(self, systematic: bool) -> float:
        """The part that was found as it was meant to be; 1 of none."""
        verdicts = self.of(systematic)
        return sum(verdict.passed for verdict in verdicts) / len(verdicts) if verdicts else 1.0

    @property
    def median_seconds(self) -> float:
        """From the first drawn case to the finding, over the planted faults that were found."""
        seconds = [verdict.seconds for verdict in self.of(systematic=False) if verdict.passed]
        return round(statistics.median(seconds), 3) if seconds else 0.0


def exit_code(exam: Exam) -> int:
    """0 passed, 1 a score too low, 3 a fault of the harness, 5 it was interrupted before that was known."""
    steps = (step for threshold in exam.thresholds for step in threshold.steps)
    if any(verdict.fault for verdict in exam.mutants) or any(step.fault for step in steps):
        return 3
    enough = exam.score(systematic=False) >= exam.min_score and exam.score(systematic=True) >= exam.min_systematic
    return 1 if not enough else 5 if exam.interrupted else 0


def to_builtins(exam: Exam) -> dict[str, Any]:
    """For `--json`: the figures, then every field."""
    planted, systematic = exam.of(systematic=False), exam.of(systematic=True)
    figures = {
        "planted": len(planted),
        "found": sum(verdict.passed for verdict in planted),
        "found_otherwise": sum(verdict.found and not verdict.meant for verdict in planted),
        "explained": sum(verdict.passed and verdict.explained for verdict in planted),
        "median_seconds": exam.median_seconds,
        "systematic": len(systematic),
        "systematic_found": sum(verdict.passed for verdict in systematic),
        "score": round(exam.score(systematic=False), 4),
        "systematic_score": round(exam.score(systematic=True), 4),
        "exit_code": exit_code(exam),
    }
    plain: dict[str, Any] = _every_field(exam)
    return figures | plain


def _every_field(value: Any) -> Any:
    """Those that have their default as well, so that no reader has to know it."""
    if isinstance(value, tuple):
        return [_every_field(part) for part in value]
    if not isinstance(value, Record):
        return value
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    return {encoded: _every_field(getattr(value, name)) for encoded, name in names}


def from_file(path: Path) -> Exam:
    """What `--json` printed; raises WrongUse where it is something else."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert({name: plain[name] for name in Exam.__struct_fields__ if name in plain}, Exam)
    except (ValueError, TypeError, msgspec.ValidationError) as error:
        raise WrongUse(f"{path} is no JSON of an exam: {error}") from None
