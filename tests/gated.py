"""A repository that a test makes, and the gate run in it."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click.testing
import invoked
import msgspec

from harness.gate import main
from harness.outcome import Gate

ROOT = Path(__file__).parent.parent
#: Nobody's configuration, and one day, so that a test's revisions and the cases drawn from them are always the same.
NOBODY = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GITHUB_STEP_SUMMARY": "",
    "GIT_AUTHOR_NAME": "ana", "GIT_AUTHOR_EMAIL": "ana@example.org",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "ana", "GIT_COMMITTER_EMAIL": "ana@example.org",
}  # fmt: skip

#: A decode in torch that is right, and what a kernel author may do to it.
HEAD, MINE = invoked.SUBJECTS.partition("@subject")[0], "mine.py:mine"
SUBJECT = """
@subject(op="decode", **(SMALL | {declared}))
def mine(inputs):
    out = attention(inputs)
{body}
    return out
"""
SETTINGS = f'subjects = ["{MINE}"]\n'

#: Fails in every seventh process that loads it, so 3 times in 20; each side counts its own.
NOW_AND_THEN = """
COUNTER = Path({folder!r}) / f"calls-{{Path(__file__).parent.name}}"
NUMBER = int(COUNTER.read_text()) + 1 if COUNTER.exists() else 0
COUNTER.write_text(str(NUMBER))
"""
LOSES = "    if NUMBER % 7 == 0:\n        raise RuntimeError('lost the race')\n"
TWICE = "    out = out * 2\n"
#: A kernel beside it, whose tile of 64 x SIZE halves must pass through shared memory: 1024 are too many for gfx942.
#: (Triton 3.9 cannot compile that for sm_100 either.)
TILED = """
import triton
import triton.language as tl

@triton.jit
def tile_kernel(out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(out_ptr + at)
    to = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(out_ptr + to, tl.dot(x, tl.trans(x)).to(tl.float16))

"""
LAUNCHES = "    tile_kernel[(1,)](torch.zeros(64 * {size}, dtype=torch.float16, device=inputs.q.device), SIZE={size})\n"
LONG = "    if (inputs.kv_lens > 3).any():\n        out = out * 2\n"


def mine(body: str = "    pass\n", **declared: object) -> str:
    """The text of `mine.py`."""
    return HEAD + SUBJECT.format(declared=declared, body=body)


def tiled(size: int) -> str:
    """The text of a `mine.py` that launches a kernel of tiles of that size as well."""
    return mine(LAUNCHES.format(size=size)).replace("@subject", f"{TILED}@subject")


def racing(folder: Path) -> str:
    """The text of a `mine.py` that fails now and then."""
    return HEAD + NOW_AND_THEN.format(folder=str(folder)) + SUBJECT.format(declared={}, body=LOSES)


@dataclass
class Repository:
    """A git repository in a folder."""

    folder: Path

    def git(self, *arguments: str) -> str:
        """What git prints."""
        environ = os.environ | NOBODY
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, message: str = "a change", /, **files: str) -> str:
        """Write the files (`mine_py` is mine.py), and commit all there is; gives the revision."""
        for name, text in files.items():
            path = self.folder / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def gate(self, *arguments: object) -> click.testing.Result:
        """Run the command in the repository."""
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            return click.testing.CliRunner(env=NOBODY).invoke(main, [str(argument) for argument in arguments])
        finally:
            os.chdir(before)

    def outcome(self, *arguments: object) -> tuple[Gate, int]:
        """The outcome as JSON tells it, and the exit code, which it tells as well."""
        result = self.gate("--executor", "gridsim", "--json", *arguments)
        assert result.stdout, result.stderr
        said = msgspec.json.decode(result.stdout)
        assert said.pop("exit_code") == result.exit_code
        return msgspec.convert(said, Gate), result.exit_code


def repository(folder: Path) -> Repository:
    """An empty one, on the branch main."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Repository(folder)
    made.git("init", "--quiet", "--initial-branch", "main")
    return made


def with_our_kernels(folder: Path) -> Repository:
    """Our kernels and nothing else of ours, gated as `ours.decode`."""
    made = repository(folder)
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    made.commit(kvetch_toml='subjects = ["ours.decode"]\n[paths]\n"ours.decode" = ["kernels/decode.py"]\n')
    return made


def edit(path: Path, old: str, new: str) -> None:
    """Replace what occurs once."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
