"""The premises of a gate: everything that is fixed before a worker starts."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import git, settings
from harness.commands import DEFAULT_OP, check_gpu, check_writable, chosen_executor
from harness.settings import Settings
from harness.sides import Place
from harness.subjects import WrongUse


@dataclass(frozen=True)
class Premises:
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
    def compiles(self) -> bool:
        """Whether kernels are compiled for GPUs that are not here."""
        return bool(self.options["compile"]) or self.whole.compile

    @property
    def executors(self) -> tuple[str, ...]:
        """Where workers of both sides are needed, that of the cases first."""
        compiling = ("gridsim",) if self.compiles else ()
        timing = ("gpu",) if self.options["speed"] else ()
        return tuple(dict.fromkeys((self.executor, *compiling, *timing)))

    @property
    def whole(self) -> Settings:
        """What is gated."""
        return settings.joined(self.was, self.now)


def check(options: dict[str, Any]) -> None:
    """Raise WrongUse for what cannot work, before hours of work are lost on it."""
    if options["base"] is None and options["base_python"] is None:
        raise WrongUse("neither --base nor --base-python is given: there is nothing to compare the change with")
    if options["speed"]:
        check_gpu("--speed times kernels on a GPU")
    for name in ("junit", "sarif", "summary", "html"):
        if options[name]:
            check_writable(f"--{name}", options[name].absolute().parent)
    if options["corpus"].is_absolute():
        raise WrongUse(f"--corpus is {str(options['corpus'])!r}, but should be a path from the root of the project")


def premises_of(options: dict[str, Any], stack: ExitStack) -> Premises:
    """Where the two sides are and what they say; the base's folder is there until the stack is closed."""
    root = Path.cwd()
    python = options["base_python"]
    executor = chosen_executor(options["executor"])
    change = Place("change", root)
    if options["base"] is None:
        same = settings.read(root)
        name = git.commit(root, "HEAD")
        return Premises(options, change, _base(root, python), name, same, same, None, executor)
    name = git.merge_base(root, options["base"])
    base = _base(stack.enter_context(git.worktree(root, name)), python)
    paths = None if options["everything"] or python else git.changed(root, name)
    return Premises(options, change, base, name, settings.read(base.root), settings.read(root), paths, executor)


def _base(root: Path, python: str | None) -> Place:
    return Place("base", root, python) if python else Place("base", root)
