"""What the gate asks of git: where the base is, what changed since, what is not committed, a worktree of the base."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.subjects import WrongUse

#: Git sets these in hooks and in `git bisect run`; they would point a worktree's commands at another index.
OF_HOOKS = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX")
DIFF = ("diff", "--name-only", "--no-renames", "--relative", "-z")


def git(folder: Path, *arguments: str) -> str:
    """What git prints; raises WrongUse with git's own last line where it fails."""
    environ = {name: value for name, value in os.environ.items() if name not in OF_HOOKS}
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise WrongUse("git is not on the PATH, but the gate compares two revisions of a repository") from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise WrongUse(f"git {' '.join(arguments)} failed in {folder}: {words}")
    return done.stdout


def prefix(folder: Path) -> Path:
    """The folder, from the top of its repository; raises WrongUse where it is in none."""
    return Path(git(folder, "rev-parse", "--show-prefix").strip())


def commit(folder: Path, revision: str) -> str:
    """The full name of a revision's commit."""
    try:
        return git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    except WrongUse:
        _complain_if_shallow(folder, f"revision {revision!r}")
        raise WrongUse(f"--base is {revision!r}, but this repository has no such revision") from None


def merge_base(folder: Path, revision: str) -> str:
    """Where HEAD left the revision: what was committed there since is not this change's doing."""
    base = commit(folder, revision)
    try:
        return git(folder, "merge-base", base, "HEAD").strip()
    except WrongUse:
        _complain_if_shallow(folder, f"a common ancestor of {revision!r} and HEAD")
        raise WrongUse(f"--base is {revision!r}, but HEAD has no ancestor in common with it") from None


def _complain_if_shallow(folder: Path, wanted: str) -> None:
    if git(folder, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise WrongUse(
            f"this clone is shallow and does not hold {wanted}: fetch the whole history first "
            "(git fetch --unshallow, or fetch-depth: 0 of actions/checkout)"
        )


def changed(folder: Path, base: str) -> set[Path]:
    """Files of the folder that differ between the base and HEAD, deleted ones too, from the folder."""
    return _paths(git(folder, *DIFF, base, "HEAD"))


def uncommitted(folder: Path) -> set[Path]:
    """Files of the folder that differ from HEAD or are not tracked; what git ignores does not count."""
    return _paths(git(folder, *DIFF, "HEAD") + git(folder, "ls-files", "--others", "--exclude-standard", "-z"))


def _paths(text: str) -> set[Path]:
    return {Path(name) for name in text.split("\0") if name}


@contextmanager
def worktree(folder: Path, revision: str) -> Iterator[Path]:
    """The folder as it was at the revision, in a temporary worktree, which is removed whatever happens."""
    inside = prefix(folder)
    with tempfile.TemporaryDirectory(prefix="kvetch-base-") as temporary:
        path = Path(temporary).resolve() / "base"
        try:
            git(folder, "worktree", "add", "--quiet", "--detach", str(path), revision)
            yield path / inside
        finally:
            with suppress(WrongUse):  # what was not yet added need not be removed
                git(folder, "worktree", "remove", "--force", str(path))
