"""A mix: recorded calls and how often each was seen; what `fuzz --profile` draws near."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness.case import SCHEMA, Case, InvalidCase, Record, decode, replace, without_defaults
from harness.corpus import Corpus, Entry
from harness.profiles import BUDGET_PROGRAMS, MAX_SEQS, whole_profile
from harness.scaling import Budget, smaller
from harness.subjects import Declaration, WrongUse, declines

#: What a drawn relative of a recorded call may have: more than a case that is drawn from nothing, since real heads and
#: head dims leave few tokens.
DRAWN = Budget(2**20, 2**18, MAX_SEQS, BUDGET_PROGRAMS)
#: Shares of all calls are kept to one part in so many.
PARTS = 400


class Share(Record, frozen=True):
    """One recorded case, and how many calls of the sample it stands for."""

    case: Case
    seen: int = 1


class Mix(Record, frozen=True):
    """Recorded calls, the most frequent first."""

    calls: tuple[Share, ...]
    schema: int = SCHEMA
    why: str = ""  # where it comes from


def mixed(entries: Iterable[tuple[Path, Entry]], why: str) -> Mix:
    """The mix of recorded entries; one case that several processes have seen is added up."""
    seen: dict[Case, int] = {}
    for _, entry in entries:
        seen[entry.case] = seen.get(entry.case, 0) + entry.seen
    most_first = sorted(seen.items(), key=lambda item: -item[1])
    return Mix(calls=tuple(Share(case=case, seen=count) for case, count in most_first), why=why)


def to_json(mix: Mix) -> str:
    """A line per call: readable, and kind to diffs."""
    lines = [json.dumps({"seen": share.seen, "case": without_defaults(share.case)}) for share in mix.calls]
    calls = ",\n    ".join(lines)
    return f'{{\n  "schema": {mix.schema},\n  "why": {json.dumps(mix.why)},\n  "calls": [\n    {calls}\n  ]\n}}\n'


def read(path: Path) -> Mix:
    """A file that was written so, or a folder that was recorded into; raises InvalidCase or WrongUse for another."""
    mix = mixed(Corpus(path).entries(), f"recorded in {path}") if path.is_dir() else _decoded(path)
    if not mix.calls:
        raise WrongUse(f"profile is {str(path)!r}, but there is no recorded call in it")
    if mix.schema != SCHEMA:
        raise InvalidCase(f"{path}: schema is {mix.schema}, but this version reads {SCHEMA}")
    for number, share in enumerate(mix.calls):
        if share.seen < 1:
            raise InvalidCase(f"{path}: seen is {share.seen}, but should be at least 1 - at `$.calls[{number}].seen`")
    return mix


def _decoded(path: Path) -> Mix:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise WrongUse(f"profile is {str(path)!r}, but it cannot be read: {error.strerror}") from None
    try:
        return decode(text, Mix, str(path))
    except InvalidCase as error:
        raise InvalidCase(f"{error}{_value_at(text, str(error))}") from None


def _value_at(text: bytes, message: str) -> str:
    """The value that the message tells the place of."""
    place = re.search(r"at `\$([^`]*)`", message)
    if place is None:
        return ""
    try:
        value: Any = json.loads(text)
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", place[1]):
            value = value[name or int(index)]
    except (ValueError, LookupError, TypeError):
        return ""
    return f", where {json.dumps(value)[:80]} stands"


def near(mix: Mix, declared: dict[str, Declaration], say: Callable[[str], None]) -> dict[str, tuple[Case, ...]]:
    """What each subject's cases are drawn near, as often as it was seen; says which calls a subject declines.

    A subject that declines them all is left out; raises WrongUse when all do.
    """
    found: dict[str, tuple[Case, ...]] = {}
    for name, one in declared.items():
        cases, declined = drawable(mix, one)
        total = sum(share.seen for share in mix.calls)
        say(f"profile: {name} takes {total - sum(declined.values())} of {total} recorded calls")
        for reason, count in declined.items():
            say(f"profile: {name} declines {count}: {reason}")
        found |= {name: cases} if cases else {}
    if not found:
        raise WrongUse(
            f"profile has {len(mix.calls)} recorded cases, but {' and '.join(declared)} declines all of them"
        )
    return found


def drawable(mix: Mix, declared: Declaration) -> tuple[tuple[Case, ...], dict[str, int]]:
    """The calls that a subject takes, each as often as its share; and how many it declines, by reason.

    Each call stands there twice: with all its heads, and with more of its tokens instead.
    """
    total = sum(share.seen for share in mix.calls)
    found: list[Case] = []
    declined: dict[str, int] = {}
    for share in mix.calls:
        cases = [smaller(_poisoned(share.case, declared), DRAWN, keep_heads) for keep_heads in (True, False)]
        if reason := next(filter(None, (declines(declared, case) for case in cases)), None):
            declined[reason] = declined.get(reason, 0) + share.seen
        else:
            found += cases * max(round(PARTS * share.seen / total), 1)
    return tuple(sorted(found, key=lambda case: sum(seq.kv_len for seq in case.seqs))), declined


def _poisoned(case: Case, declared: Declaration) -> Case:
    """No Case knows what lies in dead slots of a call: what the subject may be given."""
    poison = whole_profile(declared).poisons[0]
    return replace(case, **dict.fromkeys(("k_poison", "v_poison", "spare_poison", "row_poison"), poison))
