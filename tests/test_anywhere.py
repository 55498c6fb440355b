"""`anywhere`: one block of lines launches kernels on a GPU or on a CPU."""

import pytest
import torch
from recordings import arguments

from harness import anywhere, commands
from harness.case import Case, Seq
from harness.folders import load
from harness.subjects import WrongUse

CASE = Case(seqs=(Seq(kv_len=20), Seq(kv_len=5, tag=1)), dtype="float16")
NAMES = ("q", "k_cache", "v_cache", "block_tables", "kv_lens")


def test_without_a_gpu_a_kernel_runs_on_the_cpu(monkeypatch):
    monkeypatch.setattr(commands, "has_gpu", lambda: False)
    values = [arguments(CASE)[name] for name in NAMES]
    with anywhere() as device:
        assert device == "cpu"
        out = load("kernels", "decode").paged_decode(*values)
    q, k, v = values[0].double(), *(cache.double() for cache in values[1:3])
    block = values[3].long()
    for row, kv_len in enumerate((20, 5)):
        token = torch.arange(kv_len)
        keys, rows = (cache[block[row, token // 16], token % 16, 0] for cache in (k, v))
        expected = torch.softmax(keys @ q[row, 0] / 4.0, 0) @ rows
        assert torch.allclose(out[row, 0].double(), expected, atol=2e-3)


def test_outside_the_block_nothing_is_changed(monkeypatch):
    import triton

    monkeypatch.setattr(commands, "has_gpu", lambda: False)
    before = triton.runtime.driver._active
    with pytest.raises(KeyError), anywhere():
        raise KeyError
    assert triton.runtime.driver._active is before


def test_with_a_gpu_tensors_belong_there_and_nothing_else_happens(monkeypatch):
    monkeypatch.setattr(commands, "has_gpu", lambda: True)
    with anywhere() as device:
        assert device == "cuda"
    with anywhere("gridsim") as device:
        assert device == "cpu"


def test_wrong_use_is_told(monkeypatch):
    monkeypatch.setattr(commands, "has_gpu", lambda: False)
    with pytest.raises(WrongUse, match="executor is 'gpu', but this machine has none"), anywhere("gpu"):
        pass
    with pytest.raises(WrongUse, match="executor is 'tpu', but should be 'gpu' or 'gridsim'"), anywhere("tpu"):
        pass
