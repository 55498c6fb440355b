"""The outcome of a gate as SARIF 2.1.0: each new finding at the line of the kernel that is accused of it."""

import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import PurePath
from typing import Any

from harness import paired
from harness.builds import Worse, tell_worse
from harness.gate_report import counts, loss
from harness.outcome import Clocked, Gate, Gated, Narrowing, Rebuilt, Shift, Verdict
from harness.paired import Compared
from harness.report import in_words
from harness.settings import FILE
from harness.touched import file_of

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

#: The level of each verdict; what does not fail is a note.
LEVELS = {True: "error", False: "note"}


def text(outcome: Gate) -> str:
    """The whole document."""
    results = list(_results(outcome))
    names = dict.fromkeys(result["ruleId"] for result in results)
    driver = {"name": "kvetch", "rules": [_rule(name) for name in names]} | _version()
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(outcome)],
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _version() -> dict[str, str]:
    try:
        return {"version": metadata.version("kvetch")}
    except metadata.PackageNotFoundError:
        return {}


def _rule(name: str) -> dict[str, Any]:
    return {"id": name, "shortDescription": {"text": name.replace("-", " ")}}


def _invocation(outcome: Gate) -> dict[str, Any]:
    notes = [{"level": "error", "message": {"text": fault}} for fault in outcome.harness_faults]
    done: dict[str, Any] = {"executionSuccessful": not outcome.harness_faults and not outcome.cut}
    return done | ({"toolExecutionNotifications": notes} if notes else {})


def _results(outcome: Gate) -> Iterator[dict[str, Any]]:
    for gated in outcome.gated:
        yield from (_of_verdict(gated, verdict) for verdict in gated.verdicts)
        yield from (_of_shift(shift) for shift in gated.shifts if shift.lost)
        yield from _of_builds(gated, gated.rebuilt) if gated.rebuilt else ()
        yield from _of_speed(gated, gated.clocked) if gated.clocked else ()
    yield from map(_of_narrowing, outcome.narrowings)


def _of_verdict(gated: Gated, verdict: Verdict) -> dict[str, Any]:
    finding = verdict.found.finding
    words = [f"{verdict.word}: {finding.message}", *finding.explains, counts(verdict), in_words(verdict.found.case)]
    file, line = place(gated, finding.line)
    needs = " ".join(sorted(verdict.found.needs))
    return _result(
        finding.kind, verdict.fails, ". ".join(words), file, line, f"{gated.subject} {finding.family} {needs}"
    )


def place(gated: Gated, line: str) -> tuple[str, int]:
    """The file from the root, and the line: of the kernel where the executor knows it, else of the subject."""
    name, _, number = line.rpartition(":")
    found = [file for file in gated.files if name and PurePath(file).name == PurePath(name).name]
    if len(found) == 1 and number.isdecimal():
        return found[0], max(int(number), 1)
    return file_of(gated.subject).as_posix(), 1


def _of_shift(shift: Shift) -> dict[str, Any]:
    words = f"{shift.configuration}{loss(shift)}"
    key = f"{shift.subject} accuracy {shift.configuration}"
    return _result("accuracy lost", not shift.accepted, words, file_of(shift.subject).as_posix(), 1, key)


def _of_builds(gated: Gated, rebuilt: Rebuilt) -> Iterator[dict[str, Any]]:
    for worse in rebuilt.worse:
        file, line = place(gated, _line(worse))
        fails = worse.fails and not rebuilt.accepted
        key = f"{gated.subject} {worse.build.kernel} {worse.build.target} {worse.kind}"
        yield _result(worse.kind, fails, tell_worse(worse), file, line, key)


def _line(worse: Worse) -> str:
    """Where the compiler complains, if it says so; else where the kernel begins."""
    told = re.search(r"\(([^()\s]+\.py:\d+)[;)]", worse.message)
    return told[1] if told else worse.build.place


def _of_speed(gated: Gated, clocked: Clocked) -> Iterator[dict[str, Any]]:
    """What is slower; a viewer of findings has no place for what is not."""
    for compared in clocked.slower:
        yield _of_slower(gated, compared, fails=not clocked.accepted)


def _of_slower(gated: Gated, compared: Compared, *, fails: bool) -> dict[str, Any]:
    file, key = file_of(gated.subject).as_posix(), f"{gated.subject} speed {compared.workload}"
    return _result("slower", fails, paired.tell(compared), file, 1, key)


def _of_narrowing(narrowing: Narrowing) -> dict[str, Any]:
    words = f"{narrowing.subject}: {narrowing.words}"
    key = f"{narrowing.subject} {narrowing.field}"
    return _result("narrowed", not narrowing.accepted, words, str(FILE), 1, key)


def _result(kind: str, fails: bool, words: str, file: str, line: int, key: str) -> dict[str, Any]:
    """`key` tells a viewer that it is the same finding as in an earlier run, wherever its line has moved to."""
    where = {"artifactLocation": {"uri": file, "uriBaseId": "%SRCROOT%"}, "region": {"startLine": line}}
    return {
        "ruleId": re.sub(r"[^a-z0-9]+", "-", kind.lower()),
        "level": LEVELS[fails],
        "message": {"text": words},
        "locations": [{"physicalLocation": where}],
        "partialFingerprints": {"kvetch/v1": key},
    }
