"""One gate from end to end: where the two sides are, what is gated, and the outcome."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness import git, known, narrowing, settings, touched
from harness.case import Case
from harness.commands import DEFAULT_OP, check_writable, chosen_executor
from harness.corpus import Corpus
from harness.fixed import fixed_cases, seed_of, shard_of
from harness.gate_report import first_line
from harness.gating import Task, Tell, Trial, gate_subject
from harness.outcome import Gate, Gated, Narrowing, Verdict
from harness.settings import Settings
from harness.shifts import accepted
from harness.sides import Place, Side, sides
from harness.subjects import Declaration, WrongUse

#: Says a line, and how far a subject is.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """Everything that is fixed before a worker starts."""

    options: dict[str, Any]
    change: Place
    base: Place
    base_name: str
    was: Settings
    now: Settings
    paths: set[Path] | None  # that the change touches; None where all subjects are gated
    executor: str

    @property
    def op(self) -> str:
        """Of a function that declares none."""
        return str(self.options["op"] or DEFAULT_OP)

    @property
    def corpus(self) -> Path:
        """The kept cases of the change."""
        return self.change.root / str(self.options["corpus"])

    @property
    def whole(self) -> Settings:
        """What is gated."""
        return settings.joined(self.was, self.now)


def run(options: dict[str, Any], say: Say, tell: Tell) -> Gate:
    """The outcome of the gate; raises WrongUse where there is nothing to compare."""
    began = time.monotonic()
    if options["base"] is None and options["base_python"] is None:
        raise WrongUse("neither --base nor --base-python is given: there is nothing to compare the change with")
    _check_outputs(options)
    with ExitStack() as stack:
        return _gate(_setting(options, stack), began, say, tell)


def _check_outputs(options: dict[str, Any]) -> None:
    for name in ("junit", "sarif", "summary"):
        if options[name]:
            check_writable(f"--{name}", options[name].absolute().parent)
    if options["corpus"].is_absolute():
        raise WrongUse(f"--corpus is {str(options['corpus'])!r}, but should be a path from the root of the project")


def _setting(options: dict[str, Any], stack: ExitStack) -> Setting:
    root = Path.cwd()
    python = options["base_python"]
    executor = chosen_executor(options["executor"])
    change = Place("change", root)
    if options["base"] is None:
        same = settings.read(root)
        name = git.commit(root, "HEAD")
        return Setting(options, change, _base(root, python), name, same, same, None, executor)
    name = git.merge_base(root, options["base"])
    base = _base(stack.enter_context(git.worktree(root, name)), python)
    paths = None if options["everything"] or python else git.changed(root, name)
    return Setting(options, change, base, name, settings.read(base.root), settings.read(root), paths, executor)


def _base(root: Path, python: str | None) -> Place:
    return Place("base", root, python) if python else Place("base", root)


def _gate(setting: Setting, began: float, say: Say, tell: Tell) -> Gate:
    subjects = _subjects(setting)
    uses = {subject: _used(setting, subject) for subject in subjects}
    _check_committed(setting, uses)
    because = {subject: _touching(setting, subject, files) for subject, files in uses.items()}
    chosen = tuple(name for name in subjects if setting.paths is None or because[name])
    outcome = Gate(
        base=setting.base_name,
        head=git.commit(setting.change.root, "HEAD"),
        executor=setting.executor,
        shard="{}/{}".format(*setting.options["shard"]),
        untouched=tuple(name for name in subjects if name not in chosen),
        narrowings=tuple(_of_files(setting)),
    )
    if chosen:
        say(first_line(outcome, chosen))
        outcome = _on_sides(setting, outcome, chosen, began, tell)
    return _finished(setting, outcome, because, uses, began)


def _subjects(setting: Setting) -> tuple[str, ...]:
    """Those that the change has; to have lost one that was gated is a narrowing, told elsewhere."""
    wanted = setting.options["subjects"] or setting.whole.subjects
    if not wanted:
        raise WrongUse(f"no subject to gate: name some in {settings.FILE} (subjects = [...]) or with --subject")
    for subject in wanted:
        asked_for = subject in setting.options["subjects"] or subject in setting.now.subjects
        if asked_for and not setting.change.has(subject):
            raise WrongUse(f"subject {subject!r}: {setting.change.root} does not have it")
    return tuple(subject for subject in wanted if setting.change.has(subject))


def _used(setting: Setting, subject: str) -> set[Path]:
    """The subject's files on either side: one that it no longer imports is a change as well."""
    roots = (setting.change.root, setting.base.root)
    return set().union(*(touched.used(root, subject, setting.whole) for root in roots))


def _touching(setting: Setting, subject: str, files: set[Path]) -> tuple[str, ...]:
    paths = setting.paths or set()
    found = (paths & files) | touched.mapped(paths, setting.whole.globs(subject))
    return tuple(sorted(map(str, found)))


def _check_committed(setting: Setting, uses: dict[str, set[Path]]) -> None:
    """A verdict is about a commit; files that no subject uses may be as they are."""
    corpus = setting.options["corpus"]
    for path in sorted(git.uncommitted(setting.change.root)):
        users = [subject for subject, files in uses.items() if path in files]
        if users or path == settings.source(setting.change.root) or path.is_relative_to(corpus):
            who = users[0] if users else "the gate"
            raise WrongUse(f"{path} is not committed, and {who} depends on it: commit it or stash it first")


def _of_files(setting: Setting) -> Iterator[Narrowing]:
    base, change = setting.base.root, setting.change.root
    if base == change:
        return
    corpus = setting.options["corpus"]
    yield from narrowing.of_settings(setting.was, setting.now)
    yield from narrowing.of_known(base / corpus / "known.toml", change / corpus / "known.toml")
    yield from narrowing.of_corpus(base / corpus, change / corpus)


def _on_sides(setting: Setting, outcome: Gate, chosen: tuple[str, ...], began: float, tell: Tell) -> Gate:
    places = (setting.change, setting.base)
    with sides(places, setting.executor, setting.options["device"], chosen) as (change, base):
        for side in (change, base):
            side.worker.call("harness.executors:platform_of", setting.executor)
        versions = {side.place.name: side.worker.call("harness.corpus:versions") for side in (change, base)}
        outcome = msgspec.structs.replace(outcome, versions=versions)
        for subject in chosen:
            outcome = _with_subject(setting, outcome, _Sides(subject, change, base), began, tell)
        return outcome


@dataclass(frozen=True)
class _Sides:
    """A subject on both sides."""

    subject: str
    change: Side
    base: Side

    @property
    def is_new(self) -> bool:
        """Whether the base does not have the subject."""
        return not self.base.place.has(self.subject)


def _with_subject(setting: Setting, outcome: Gate, on: _Sides, began: float, tell: Tell) -> Gate:
    declared = on.change.describe(on.subject, setting.op)
    drawn = _drawn(setting, on.subject, declared)
    narrowed = () if on.is_new else tuple(_narrowed(setting, on, declared, drawn))
    trials = shard_of([*_kept(setting, declared.op), *map(Trial, drawn)], *setting.options["shard"])
    left = setting.options["minutes"] * 60 - (time.monotonic() - began)
    task = Task(on.subject, declared, trials, left, known.read(setting.corpus / "known.toml"))
    gated, platform, faults = gate_subject(task, on.change, None if on.is_new else on.base, setting.executor, tell)
    _check_apart(setting, on.base)  # once more: some imports wait until they are needed
    return msgspec.structs.replace(
        outcome,
        gated=(*outcome.gated, gated),
        narrowings=(*outcome.narrowings, *narrowed),
        platform=platform or outcome.platform,
        harness_faults=(*outcome.harness_faults, *faults),
    )


def _drawn(setting: Setting, subject: str, declared: Declaration) -> list[Case]:
    return fixed_cases(declared, seed_of(setting.base_name, subject), setting.options["cases"])


def _narrowed(setting: Setting, on: _Sides, declared: Declaration, drawn: list[Case]) -> Iterator[Narrowing]:
    """What the change declares less, counted on the cases that the base's declaration draws."""
    before = on.base.describe(on.subject, setting.op)
    _check_apart(setting, on.base)
    cases = drawn if before == declared else _drawn(setting, on.subject, before)
    yield from narrowing.of_declaration(on.subject, before, declared, cases)


def _kept(setting: Setting, op: str) -> Iterator[Trial]:
    for path, entry in Corpus(setting.corpus).entries():
        if entry.case.op == op:
            yield Trial(entry.case, str(path.relative_to(setting.corpus)))


def _check_apart(setting: Setting, base: Side) -> None:
    if setting.base.root != setting.change.root and (strays := base.strays(setting.change)):
        raise WrongUse(
            f"the base loads {strays[0]} of the change, so it is not the base that would be tested; "
            "is the project installed by absolute paths?"
        )


def _finished(
    setting: Setting, outcome: Gate, because: dict[str, tuple[str, ...]], uses: dict[str, set[Path]], began: float
) -> Gate:
    """The outcome with what the change acknowledges, and the new findings saved."""
    fresh = tuple(entry for entry in setting.now.accept if entry not in setting.was.accept)
    found = narrowing.acknowledged(outcome.narrowings, fresh)
    save = setting.options["save"]

    def whole(part: Gated) -> Gated:
        return msgspec.structs.replace(
            part,
            because=because[part.subject],
            files=tuple(sorted(map(str, uses[part.subject]))),
            verdicts=tuple(_saved(verdict, save) for verdict in part.verdicts),
            shifts=tuple(accepted(shift, fresh) for shift in part.shifts),
        )

    gated = tuple(map(whole, outcome.gated))
    return msgspec.structs.replace(
        outcome,
        gated=gated,
        narrowings=found,
        stale=tuple(_stale(setting, gated, found)),
        seconds=round(time.monotonic() - began, 3),
    )


def _saved(verdict: Verdict, folder: Path) -> Verdict:
    if not verdict.fails:
        return verdict
    path = Corpus(folder).save(verdict.found)
    return msgspec.structs.replace(verdict, found=msgspec.structs.replace(verdict.found, file=str(path)))


def _stale(setting: Setting, gated: tuple[Gated, ...], found: tuple[Narrowing, ...]) -> Iterator[str]:
    """Acknowledgements that are of no use any more, and tolerated findings whose day has passed."""
    names = [(narrowing.subject, narrowing.field) for narrowing in found]
    names += [(shift.subject, "accuracy") for part in gated for shift in part.shifts if shift.lost]
    for entry in setting.now.accept:
        if entry in setting.was.accept:
            yield f"[[accept]] {entry.field} of {entry.subject}: the base acknowledges it already; take it out"
        elif not any(entry.covers(*name) for name in names):
            yield f"[[accept]] {entry.field} of {entry.subject}: there is nothing to acknowledge"
    tolerated = known.read(setting.corpus / "known.toml")
    yield from (f"known.toml: {line}" for line in known.expired(tolerated, setting.whole.subjects))
