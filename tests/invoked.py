"""Runs commands for the tests: in this process on one worker that they share, or as processes of their own."""

import importlib
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner, Result

from harness import campaign
from harness.pool import Worker

ROOT = Path(__file__).parent.parent
#: By their full names: `harness.replay` is the function that test suites call.
FUZZ, REPLAY, SCRIPT, SHOW = (
    importlib.import_module(f"harness.{name}") for name in ("fuzz", "replay", "script", "show")
)
VERBS = {"fuzz": FUZZ.main, "replay": REPLAY.main, "show": SHOW.main}

#: Subjects that need torch only; `mended` appears beside the file when `mended` is to be right.
SUBJECTS = """
import os
import signal
import time
from pathlib import Path

import torch

from harness import subject

SMALL = {"dtypes": ("float32",), "head_dims": (16,), "block_sizes": (16,), "layouts": ("nhd",),
         "q_layouts": ("contiguous",), "placements": ("in_order", "shuffled"), "table_dtypes": ("int32",)}
CALLS = iter(range(10**9))


def attention(inputs):
    q, k, v, table = inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    kv_head = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[2])
    for row, kv_len in enumerate(inputs.kv_lens.tolist()):
        if kv_len:
            token = torch.arange(kv_len)
            block, slot = table[row, token // k.shape[1]].long()[:, None], (token % k.shape[1])[:, None]
            keys, values = k[block, slot, kv_head].double(), v[block, slot, kv_head].double()
            p = torch.softmax((keys * q[row].double()).sum(-1) * inputs.scale, 0)
            out[row] = (p[:, :, None] * values).sum(0).to(q.dtype)
    return out


def is_long(inputs):
    return bool((inputs.kv_lens > 3).any())


@subject(op="decode", **SMALL)
def right(inputs):
    return attention(inputs)


@subject(op="decode", **(SMALL | {"dtypes": ("float32", "float16")}))
def two_faults(inputs):
    out = attention(inputs)
    if inputs.q.dtype == torch.float16:
        out = out * 1.5
    if inputs.q.shape[1] != inputs.k_cache.shape[2]:
        raise RuntimeError(f"group of {inputs.q.shape[1] // inputs.k_cache.shape[2]}")
    return out


@subject(op="decode", **(SMALL | {"groups": (1,)}))
def wrong(inputs):
    return attention(inputs) + 1


@subject(op="decode", **SMALL)
def raises(inputs):
    if is_long(inputs):
        raise KeyError("no such block")
    return attention(inputs)


@subject(op="decode", **SMALL)
def dies(inputs):
    if is_long(inputs):
        os.kill(os.getpid(), signal.SIGSEGV)
    return attention(inputs)


@subject(op="decode", **SMALL)
def hangs(inputs):
    if is_long(inputs):
        time.sleep(1000)
    return attention(inputs)


@subject(op="decode", **SMALL)
def sleeps(inputs):
    (Path(__file__).parent / "asleep").write_text(str(os.getpid()))
    time.sleep(1000)


@subject(op="decode", **SMALL)
def mended(inputs):
    return attention(inputs) + (0 if Path(__file__).with_name("mended").exists() else 1)


@subject(op="decode", **SMALL)
def flaky(inputs):
    return attention(inputs) + next(CALLS) // 4 % 2


@subject(op="extend")
def for_extend(inputs):
    return attention(inputs)


def not_written(inputs):
    raise NotImplementedError
"""

#: Put before a subject's text, it makes the witness disagree with the judge in the worker that imports it.
SABOTAGE = """
import harness.judge
harness.judge.disagreement = lambda *_: "sdpa has 1, float64 has 2"
"""


class Lent:
    """What a command takes for a worker of its own."""

    def __init__(self, worker):
        self.worker = worker

    def __enter__(self):
        return self.worker

    def __exit__(self, *exception):
        pass


class Commands:
    """The verbs, on one worker; the journal lies in the folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.file = folder / "kernels.py"
        self.file.write_text(SUBJECTS)
        self.worker = Worker("gridsim")
        self.env = {"XDG_CACHE_HOME": str(folder / "cache")}

    def subject(self, name: str) -> str:
        return f"{self.file}:{name}"

    def __call__(self, verb: str, *arguments: object) -> Result:
        """Invoke the verb in this process; what it has to say for `--executor` is the shared worker's business."""
        with ExitStack() as stack:
            for module in (FUZZ, REPLAY, SCRIPT, SHOW):
                stack.enter_context(patch.object(module, "Worker", lambda *_: Lent(self.worker)))
            stack.enter_context(patch("harness.commands.has_gpu", lambda: False))
            return CliRunner(env=self.env).invoke(VERBS[verb], [str(argument) for argument in arguments])

    def fuzz(self, name: str, corpus: Path, *arguments: object) -> Result:
        """A campaign of half a minute at most."""
        options = ("--corpus", corpus, "--minutes", 0.5, "--seed", 1, *arguments)
        return self("fuzz", "--subject", self.subject(name), *options)

    def summary(self, name: str, corpus: Path, *arguments: object) -> dict:
        """The same, as JSON."""
        result = self.fuzz(name, corpus, "--json", *arguments)
        return json.loads(result.stdout) | {"exit": result.exit_code}

    def popen(self, verb: str, *arguments: object) -> subprocess.Popen:
        """The verb in a process of its own, which leads a process group."""
        command = [sys.executable, "-m", f"harness.{verb}", *map(str, arguments)]
        pipe = subprocess.PIPE
        env = os.environ | self.env
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=env, start_new_session=True)

    def sabotaged(self, name: str) -> str:
        """A subject whose worker has a witness that disagrees; `renew` the worker afterwards."""
        (self.folder / "sabotage.py").write_text(SABOTAGE + SUBJECTS)
        return f"{self.folder}/sabotage.py:{name}"

    def renew(self) -> None:
        """Let the spare take over."""
        self.worker._replace()

    def close(self) -> None:
        """End the worker."""
        self.worker.close()


def be_impatient(monkeypatch) -> None:
    """A case hangs after a third of a second."""
    for limit in ("FIRST_LIMIT", "LEAST_LIMIT", "SHRINKING_LIMIT"):
        monkeypatch.setattr(campaign, limit, {"gridsim": 0.3})


def one_line(result: Result) -> str:
    """What wrong use wrote, which is one line and no traceback."""
    assert result.exit_code == 2, (result.exit_code, result.stderr)
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "Traceback" not in result.output
    return result.stderr
