"""One gate from end to end: where the two sides are, what is gated, and the outcome."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness import git, known, narrowing, settings, touched
from harness.building import rebuilt
from harness.case import Case
from harness.clocking import Runner, clocked
from harness.compiles import CASES, distinct
from harness.corpus import Corpus
from harness.fixed import fixed_cases, seed_of, shard_of
from harness.gate_report import first_line
from harness.gating import Task, Tell, Trial, gate_subject
from harness.outcome import Clocked, Gate, Gated, Narrowing, Rebuilt, Verdict
from harness.premises import Premises, check, premises_of
from harness.settings import Accepted
from harness.shifts import accepted
from harness.sides import Side, sides
from harness.subjects import Declaration, WrongUse

#: Says a line.
Say = Callable[[str], None]
#: Seconds that are left.
Left = Callable[[], float]
#: What else is compared, where it was asked for.
Part = TypeVar("Part", Rebuilt | None, Clocked | None)


def run(options: dict[str, Any], say: Say, tell: Tell) -> Gate:
    """The outcome of the gate; raises WrongUse where there is nothing to compare."""
    began = time.monotonic()
    check(options)
    with ExitStack() as stack:
        return _gate(premises_of(options, stack), began, say, tell)


def _gate(premises: Premises, began: float, say: Say, tell: Tell) -> Gate:
    subjects = _subjects(premises)
    uses = {subject: _used(premises, subject) for subject in subjects}
    _check_committed(premises, uses)
    because = {subject: _touching(premises, subject, files) for subject, files in uses.items()}
    chosen = tuple(name for name in subjects if premises.paths is None or because[name])
    outcome = Gate(
        base=premises.base_name,
        head=git.commit(premises.change.root, "HEAD"),
        executor=premises.executor,
        shard="{}/{}".format(*premises.options["shard"]),
        untouched=tuple(name for name in subjects if name not in chosen),
        narrowings=tuple(_of_files(premises)),
    )
    if chosen:
        say(first_line(outcome, chosen))
        outcome = _on_sides(premises, outcome, chosen, began, tell)
    return _finished(premises, outcome, because, uses, began)


def _subjects(premises: Premises) -> tuple[str, ...]:
    """Those that the change has; to have lost one that was gated is a narrowing, told elsewhere."""
    wanted = premises.options["subjects"] or premises.whole.subjects
    if not wanted:
        raise WrongUse(f"no subject to gate: name some in {settings.FILE} (subjects = [...]) or with --subject")
    for subject in wanted:
        asked_for = subject in premises.options["subjects"] or subject in premises.now.subjects
        if asked_for and not premises.change.has(subject):
            raise WrongUse(f"subject {subject!r}: {premises.change.root} does not have it")
    return tuple(subject for subject in wanted if premises.change.has(subject))


def _used(premises: Premises, subject: str) -> set[Path]:
    """The subject's files on either side: one that it no longer imports is a change as well."""
    roots = (premises.change.root, premises.base.root)
    return set().union(*(touched.used(root, subject, premises.whole) for root in roots))


def _touching(premises: Premises, subject: str, files: set[Path]) -> tuple[str, ...]:
    paths = premises.paths or set()
    found = (paths & files) | touched.mapped(paths, premises.whole.globs(subject))
    return tuple(sorted(map(str, found)))


def _check_committed(premises: Premises, uses: dict[str, set[Path]]) -> None:
    """A verdict is about a commit; files that no subject uses may be as they are."""
    corpus = premises.options["corpus"]
    for path in sorted(git.uncommitted(premises.change.root)):
        users = [subject for subject, files in uses.items() if path in files]
        if users or path == settings.source(premises.change.root) or path.is_relative_to(corpus):
            who = users[0] if users else "the gate"
            raise WrongUse(f"{path} is not committed, and {who} depends on it: commit it or stash it first")


def _of_files(premises: Premises) -> Iterator[Narrowing]:
    base, change = premises.base.root, premises.change.root
    if base == change:
        return
    corpus = premises.options["corpus"]
    yield from narrowing.of_settings(premises.was, premises.now)
    yield from narrowing.of_known(base / corpus / "known.toml", change / corpus / "known.toml")
    yield from narrowing.of_corpus(base / corpus, change / corpus)


def _on_sides(premises: Premises, outcome: Gate, chosen: tuple[str, ...], began: float, tell: Tell) -> Gate:
    places, device = (premises.change, premises.base), premises.options["device"]
    with ExitStack() as stack:
        pairs = {name: stack.enter_context(sides(places, name, device, chosen)) for name in premises.executors}
        for side in pairs[premises.executor]:
            side.worker.call("harness.executors:platform_of", premises.executor)
        versions = {side.place.name: side.worker.call("harness.corpus:versions") for side in pairs[premises.executor]}
        outcome = msgspec.structs.replace(outcome, versions=versions)
        for subject in chosen:
            outcome = _with_subject(premises, outcome, _Sides(subject, premises.executor, pairs), began, tell)
        return outcome


@dataclass(frozen=True)
class _Sides:
    """A subject on both sides, which have workers on some executors."""

    subject: str
    executor: str
    pairs: Mapping[str, tuple[Side, ...]]

    @property
    def change(self) -> Side:
        """The side that is gated."""
        return self.pairs[self.executor][0]

    @property
    def base(self) -> Side:
        """What it is held against."""
        return self.pairs[self.executor][1]

    @property
    def is_new(self) -> bool:
        """Whether the base does not have the subject."""
        return not self.base.place.has(self.subject)


def _with_subject(premises: Premises, outcome: Gate, on: _Sides, began: float, tell: Tell) -> Gate:
    declared = on.change.describe(on.subject, premises.op)
    drawn = _drawn(premises, on.subject, declared)
    narrowed = () if on.is_new else tuple(_narrowed(premises, on, declared, drawn))
    trials = shard_of([*_kept(premises, declared.op), *map(Trial, drawn)], *premises.options["shard"])
    left: Left = lambda: premises.options["minutes"] * 60 - (time.monotonic() - began)  # noqa: E731
    task = Task(on.subject, declared, trials, left(), known.read(premises.corpus / "known.toml"))
    gated, platform, faults = gate_subject(task, on.change, None if on.is_new else on.base, premises.executor, tell)
    more = {"rebuilt": _rebuilt(premises, on, declared, drawn, left), "clocked": _clocked(premises, on, declared, left)}
    for _, base in on.pairs.values():
        _check_apart(premises, base)  # once more: some imports wait until they are needed
    return msgspec.structs.replace(
        outcome,
        gated=(*outcome.gated, msgspec.structs.replace(gated, **more)),
        narrowings=(*outcome.narrowings, *narrowed),
        platform=platform or outcome.platform,
        harness_faults=(*outcome.harness_faults, *faults),
    )


def _rebuilt(premises: Premises, on: _Sides, declared: Declaration, drawn: list[Case], left: Left) -> Rebuilt | None:
    """Of this shard's share of the cases in which the compiler sees something new."""
    if not premises.compiles:
        return None
    if left() <= 0:
        return Rebuilt(missing="not compiled: time was over")
    cases = dict(shard_of(list(distinct(drawn, CASES).items()), *premises.options["shard"]))
    change, base = on.pairs["gridsim"]
    from_seed = seed_of(premises.base_name, on.subject)
    return rebuilt(on.subject, declared, cases, from_seed, change, None if on.is_new else base)


def _clocked(premises: Premises, on: _Sides, declared: Declaration, left: Left) -> Clocked | None:
    if not premises.options["speed"]:
        return None
    if on.is_new:
        return Clocked(notes=("not timed: the base does not have it",))
    if left() <= 0:
        return Clocked(missing="not timed: time was over")
    change, base = on.pairs["gpu"]
    before = on.base.describe(on.subject, premises.op)
    return clocked(on.subject, Runner(change, declared), Runner(base, before))


def _drawn(premises: Premises, subject: str, declared: Declaration) -> list[Case]:
    return fixed_cases(declared, seed_of(premises.base_name, subject), premises.options["cases"])


def _narrowed(premises: Premises, on: _Sides, declared: Declaration, drawn: list[Case]) -> Iterator[Narrowing]:
    """What the change declares less, counted on the cases that the base's declaration draws."""
    before = on.base.describe(on.subject, premises.op)
    _check_apart(premises, on.base)
    cases = drawn if before == declared else _drawn(premises, on.subject, before)
    yield from narrowing.of_declaration(on.subject, before, declared, cases)


def _kept(premises: Premises, op: str) -> Iterator[Trial]:
    for path, entry in Corpus(premises.corpus).entries():
        if entry.case.op == op:
            yield Trial(entry.case, str(path.relative_to(premises.corpus)))


def _check_apart(premises: Premises, base: Side) -> None:
    if premises.base.root != premises.change.root and (strays := base.strays(premises.change)):
        raise WrongUse(
            f"the base loads {strays[0]} of the change, so it is not the base that would be tested; "
            "is the project installed by absolute paths?"
        )


def _finished(
    premises: Premises, outcome: Gate, because: dict[str, tuple[str, ...]], uses: dict[str, set[Path]], began: float
) -> Gate:
    """The outcome with what the change acknowledges, and the new findings saved."""
    fresh = tuple(entry for entry in premises.now.accept if entry not in premises.was.accept)
    found = narrowing.acknowledged(outcome.narrowings, fresh)
    save = premises.options["save"]

    def whole(part: Gated) -> Gated:
        return msgspec.structs.replace(
            part,
            because=because[part.subject],
            files=tuple(sorted(map(str, uses[part.subject]))),
            verdicts=tuple(_saved(verdict, save) for verdict in part.verdicts),
            shifts=tuple(accepted(shift, fresh) for shift in part.shifts),
            rebuilt=_accepted(part.rebuilt, part.subject, "compile", fresh),
            clocked=_accepted(part.clocked, part.subject, "speed", fresh),
        )

    gated = tuple(map(whole, outcome.gated))
    return msgspec.structs.replace(
        outcome,
        gated=gated,
        narrowings=found,
        stale=tuple(_stale(premises, gated, found)),
        seconds=round(time.monotonic() - began, 3),
    )


def _accepted(part: Part, subject: str, field: str, fresh: tuple[Accepted, ...]) -> Part:
    """The part with the reason that the change gives for what is wrong there."""
    if part is None:
        return part
    return msgspec.structs.replace(part, accepted=narrowing.reason_for(fresh, subject, field))


def _saved(verdict: Verdict, folder: Path) -> Verdict:
    if not verdict.fails:
        return verdict
    path = Corpus(folder).save(verdict.found)
    return msgspec.structs.replace(verdict, found=msgspec.structs.replace(verdict.found, file=str(path)))


def _stale(premises: Premises, gated: tuple[Gated, ...], found: tuple[Narrowing, ...]) -> Iterator[str]:
    """Acknowledgements that are of no use any more, and tolerated findings whose day has passed."""
    names = [(narrowing.subject, narrowing.field) for narrowing in found]
    names += [(shift.subject, "accuracy") for part in gated for shift in part.shifts if shift.lost]
    names += [(part.subject, "compile") for part in gated if part.rebuilt is None or part.rebuilt.lost]
    names += [(part.subject, "speed") for part in gated if part.clocked is None or part.clocked.slower]
    for entry in premises.now.accept:
        if entry in premises.was.accept:
            yield f"[[accept]] {entry.field} of {entry.subject}: the base acknowledges it already; take it out"
        elif not any(entry.covers(*name) for name in names):
            yield f"[[accept]] {entry.field} of {entry.subject}: there is nothing to acknowledge"
    tolerated = known.read(premises.corpus / "known.toml")
    yield from (f"known.toml: {line}" for line in known.expired(tolerated, premises.whole.subjects))
