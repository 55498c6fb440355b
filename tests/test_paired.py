"""The speed gate: a planted slowdown is seen and noise alone is not; the timing itself needs a GPU."""

import importlib

import numpy as np
import pytest
from click.testing import CliRunner

from harness.paired import Compared, Side, tell, timed, verdict
from harness.pool import HarnessFault, Worker
from harness.subjects import WrongUse

TURNS = 20


def noisy(seed: int, slower: float, noise: float) -> Compared:
    """Pairs of turns with a drift that both have in common, noise of their own, and now and then a turn of thrice."""
    dice = np.random.default_rng(seed)
    drift = 1.0 + 0.2 * np.linspace(0, 1, TURNS)
    base, change = drift * np.exp(noise * dice.standard_normal((2, TURNS)))
    change = change * slower * np.where(dice.random(TURNS) < 0.05, 3.0, 1.0)
    return verdict("decode", base.tolist(), change.tolist())


def test_a_planted_slowdown_is_seen_through_noise_and_drift():
    found = [noisy(seed, 1.08, noise=0.02) for seed in range(100)]
    assert sum(each.verdict == "slower" for each in found) >= 98
    assert sum(each.low <= 1.08 <= each.high for each in found) >= 95


def test_a_planted_speedup_is_seen_as_well():
    found = [noisy(seed, 0.92, noise=0.02) for seed in range(100)]
    assert sum(each.verdict == "faster" for each in found) >= 98


@pytest.mark.parametrize("noise", [0.001, 0.02, 0.1])
def test_noise_alone_is_no_slowdown(noise):
    found = [noisy(seed, 1.0, noise) for seed in range(300)]
    assert sum(each.verdict == "slower" for each in found) <= 3, "99 % intervals may err once in 200 on each side"


def test_what_is_slower_by_less_than_the_threshold_is_no_news():
    assert {noisy(seed, 1.01, noise=0.001).verdict for seed in range(20)} == {"no difference seen"}
    assert verdict("decode", [1.0] * 20, [1.01] * 20, threshold=0.005).verdict == "slower"


def test_a_slowdown_is_told_with_its_interval():
    found = verdict("decode-32x8k-16", [1.0] * 5, [1.03, 1.04, 1.04, 1.04, 1.05], how="as a CUDA graph")
    assert tell(found) == "decode-32x8k-16: slower by 4 % (3 to 5), 1.040 ms, base 1.000 ms, as a CUDA graph"
    assert "faster by 100 % (100 to 100)" in tell(verdict("w", [2.0] * 5, [1.0] * 5))
    assert "no difference seen (x1.000, 1.000 to 1.000)" in tell(verdict("w", [2.0] * 5, [2.0] * 5))


class Told:
    """A side that takes given times, and says when it was asked."""

    def __init__(self, name: str, times: list[float], asked: list[str], way: str = "as a CUDA graph") -> None:
        self.name, self.times, self.asked, self.way = name, iter(times), asked, way

    def prepare(self, workload: str, seed: int) -> str:
        return self.way

    def turn(self, workload: str) -> float:
        self.asked.append(self.name)
        return next(self.times)


def test_the_sides_take_turns_and_begin_in_turn():
    asked: list[str] = []
    found = timed(Told("b", [1.0] * 6, asked), Told("c", [2.0] * 6, asked, "launched one by one"), "decode", turns=6)
    assert "".join(asked) == "bccbbccbbccb"
    assert (found.verdict, found.ratio) == ("slower", 2.0)
    assert found.how == "base as a CUDA graph, change launched one by one"


def test_a_subject_that_raises_cannot_be_timed():
    class Broken:
        def call(self, *arguments, limit_seconds):
            raise HarnessFault("Traceback (most recent call last):\n  ...\nValueError: no such head dim")

    with pytest.raises(WrongUse, match=r"^a.py:f cannot be timed on decode-1x8k-16: ValueError: no such head dim$"):
        Side(Broken(), "a.py:f").prepare("decode-1x8k-16", 0)


def test_without_a_gpu_it_is_wrong_use(monkeypatch):
    monkeypatch.setattr("harness.commands.has_gpu", lambda: False)
    command = importlib.import_module("harness.paired").main
    done = CliRunner().invoke(command, ["--base", "ours.decode", "--change", "ours.decode"])
    assert done.exit_code == 2
    assert "this machine has none" in done.output


# --- on a GPU ------------------------------------------------------------------------------------------------------

TWICE = """
from harness import ours, subject

@subject(op="decode")
def decode(inputs):
    ours.decode(inputs)
    return ours.decode(inputs)

@subject(op="decode")
def waits(inputs):
    inputs.kv_lens.max().item()
    return ours.decode(inputs)
"""


@pytest.fixture(scope="module")
def workers():
    with Worker("gpu") as base, Worker("gpu") as change:
        yield base, change


@pytest.mark.gpu
def test_a_kernel_is_no_slower_than_itself_on_the_gpu(workers):
    for name in ("decode-8x8k-16", "decode-32x1k-16"):
        found = timed(*(Side(worker, "ours.decode") for worker in workers), name)
        assert found.verdict == "no difference seen", tell(found)
        assert found.how == "as a CUDA graph"


@pytest.mark.gpu
def test_a_kernel_that_runs_twice_is_slower_on_the_gpu(workers, tmp_path):
    (tmp_path / "twice.py").write_text(TWICE)
    base, change = workers
    found = timed(Side(base, "ours.decode"), Side(change, f"{tmp_path}/twice.py:decode"), "decode-32x8k-16")
    assert found.verdict == "slower", tell(found)
    assert 1.8 < found.ratio < 2.1, tell(found)


@pytest.mark.gpu
def test_what_waits_for_the_device_is_launched_one_by_one(workers, tmp_path):
    (tmp_path / "waits.py").write_text(TWICE)
    assert Side(workers[0], f"{tmp_path}/waits.py:waits").prepare("decode-1x8k-16", 0) == "launched one by one"
    assert Side(workers[0], "ours.decode").prepare("decode-1x8k-16", 0) == "as a CUDA graph"
