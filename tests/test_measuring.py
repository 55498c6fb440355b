"""A workload in full size: what is wrong is told, as it is called and as it is timed, and what is right is not."""

import re
from dataclasses import replace

import pytest
import torch
from clocks import DECODE, EXTEND, WRITE, Missing, Told

from harness import measuring, ours
from harness.arithmetic import Arithmetic
from harness.executors import gridsim
from harness.executors.gridsim import Unsupported
from harness.measuring import measured
from harness.speeds import Speed
from harness.subjects import from_function, load, subject
from harness.workloads import WORKLOADS, Workload


def speed(tested, workload=DECODE, clock=None) -> Speed:
    tested = load(tested, workload.op) if isinstance(tested, str) else from_function(tested, workload.op)
    with gridsim.active():
        return measured(tested, workload, clock or Told(3.0, 1.0, 2.0), 3, "cpu")


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("ours.decode", DECODE),
        ("ours.split_decode", DECODE),
        ("ours.extend", DECODE),
        ("ours.extend", EXTEND),
        ("ours.cache_write", WRITE),
    ],
)
def test_a_right_kernel_is_right_and_timed(name, workload):
    found = speed(name, workload)
    assert (found.state, found.says, found.repeats) == ("right", "", (3.0, 1.0, 2.0))
    assert (found.milliseconds, found.spread) == (2.0, 1.0)
    assert found.margin <= 1
    assert found.places == (0 if workload is WRITE else 32)


@subject(op="extend", new_kv=("dense",))
def takes_dense(inputs):
    """Attends to the dense rows, which must be those of the cache."""
    rows = [inputs.block_tables[i, p // 16] * 16 + p % 16 for i, p in ((0, 69), (1, 32), (2, 2))]
    assert torch.equal(inputs.k_new[[4, 11, 14]], inputs.k_cache.flatten(0, 1)[torch.stack(rows)])
    return ours.extend(replace(inputs, k_new=None, v_new=None))


def test_a_subject_that_takes_dense_new_tokens_gets_them():
    assert speed(takes_dense, EXTEND).state == "right"


# --- planted faults ------------------------------------------------------------------------------------------------


def shorter(inputs):
    return ours.decode(inputs.map(lambda name, tensor: (tensor - 1).clamp(min=1) if name == "kv_lens" else tensor))


def one_head(inputs):
    out = ours.decode(inputs)
    out[1, 3] *= 1.1
    return out


def nothing(inputs):
    return torch.empty_like(inputs.q)


def spoils(inputs):
    out = ours.decode(inputs)
    inputs.k_cache[0, 0, 0, 0] += 1
    return out


def lends(inputs):
    return inputs.q


def flat(inputs):
    return ours.decode(inputs).flatten(1)


def wide(inputs):
    return ours.decode(inputs).float()


@pytest.mark.parametrize(
    ("tested", "says"),
    [
        (shorter, r"^out\[sequence \d, token \d, head \d, dim \d+\] is .*, but should be .* ± "),
        (one_head, r"^out\[sequence 1, token 1, head 3, dim \d+\] is "),
        (nothing, r"^384 of 384 elements are not finite"),
        (spoils, r"^inputs changed: k_cache"),
        (lends, r"^out lies in the memory of an input"),
        (flat, r"^out is \[3, 128\] of torch.bfloat16, but should be \[3, 4, 32\]"),
        (wide, r"^out is \[3, 4, 32\] of torch.float32, but should be .* torch.bfloat16"),
        (lambda inputs: None, r"^out is NoneType"),
    ],
)
def test_a_planted_fault_is_wrong_and_its_time_stays(tested, says):
    found = speed(tested)
    assert (found.state, found.repeats) == ("wrong", (3.0, 1.0, 2.0))
    assert re.search(says, found.says), found.says


LONG = Workload("decode-long", "decode", ((1, 4096),) * 4, num_q_heads=8, num_kv_heads=2, head_dim=64)


def plain(inputs):
    """Attention in float32 by torch, in no time on a CPU."""
    outs, group = [], inputs.q.shape[1] // inputs.k_cache.shape[2]
    for row, kv_len in enumerate(inputs.kv_lens.tolist()):
        at = torch.arange(kv_len)
        slots = inputs.block_tables[row].long()[at // inputs.k_cache.shape[1]], at % inputs.k_cache.shape[1]
        k, v = (cache[slots].float().repeat_interleave(group, 1) for cache in (inputs.k_cache, inputs.v_cache))
        weights = torch.einsum("hd,khd->hk", inputs.q[row].float(), k).mul(inputs.scale).softmax(-1)
        outs.append(torch.einsum("hk,khd->hd", weights, v))
    return torch.stack(outs).to(inputs.q.dtype)


def less_a_token(inputs):
    return plain(replace(inputs, kv_lens=inputs.kv_lens - 1))


def less_a_block(inputs):
    tables = inputs.block_tables.clone()
    tables[:, 100] = tables[:, 0]
    return plain(replace(inputs, block_tables=tables))


def less_every_other_token(inputs):
    kept = inputs.k_cache.clone()
    kept[:, ::2] = -kept[:, ::2].abs()
    return plain(replace(inputs, k_cache=kept))


def two_per_cent_of_one_head(inputs):
    out = plain(inputs)
    out[2, 5] *= 1.02
    return out


def test_thousands_of_tokens_hide_no_fault():
    assert speed(plain, LONG).state == "right"
    for tested in (less_a_token, less_a_block, less_every_other_token, two_per_cent_of_one_head):
        assert speed(tested, LONG).state == "wrong", tested


def test_what_a_subject_spoils_is_not_left_to_the_next_one():
    assert speed(spoils).state == "wrong"
    assert speed("ours.decode").state == "right"


@pytest.mark.parametrize(("name", "workload"), [("ours.decode", DECODE), ("ours.cache_write", WRITE)])
def test_a_graph_that_missed_a_launch_is_wrong_as_it_is_timed(name, workload):
    found = speed(name, workload, Missing())
    assert found.state == "wrong"
    assert found.says.startswith("as it is timed, as a CUDA graph: "), found.says


def test_a_write_that_skips_a_token_or_takes_another_slot_is_wrong():
    def skips(inputs):
        ours.cache_write(inputs.map(lambda name, t: t.where(t != t[5], -1) if name == "slot_mapping" else t))

    def swaps(inputs):
        ours.cache_write(inputs.map(lambda name, t: t[[1, 0, *range(2, len(t))]] if name == "slot_mapping" else t))

    assert "is nan, but should be" in speed(skips, WRITE).says
    assert speed(swaps, WRITE).says.startswith("k_cache [")


def test_a_kernel_whose_text_does_not_read_is_judged_by_the_widest_arithmetic(monkeypatch):
    seen, read = [], measuring.reading_of

    def reading_of(case, tested, observed):
        if observed.ttir:
            raise Unsupported("the text of the kernel does not read")
        seen.append(read(case, tested, observed).arithmetic)
        return read(case, tested, observed)

    def undeclared(inputs):
        return ours.decode(inputs)

    monkeypatch.setattr(measuring, "reading_of", reading_of)
    assert speed(undeclared).state == "right"
    assert seen == [Arithmetic.widest("bfloat16")]


def test_what_raises_fails_alone_and_says_where():
    def raises(inputs):
        raise KeyError("no such block")

    found = speed(raises)
    assert (found.state, found.repeats) == ("failed", ())
    assert "KeyError at test_measuring.py:" in found.says
    assert speed("ours.decode").state == "right"


def test_what_is_declined_says_why_and_is_not_called():
    @subject(op="decode", block_sizes=(256,))
    def large(inputs):
        raise AssertionError

    assert (speed(large).state, speed(large).says) == ("declined", "declares block_sizes=(256,)")


def test_the_driver_is_told_where_there_is_one(tmp_path):
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version:  gcc 12.3.0\n"
    )
    assert measuring.driver(tmp_path / "version") == {"driver": "580.95.05"}
    assert measuring.driver(tmp_path / "none") == {}


# --- on a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "op", "workload"),
    [
        ("ours.decode", "decode", "decode-8x8k-16"),
        ("ours.split_decode", "decode", "decode-ragged-64"),
        ("ours.extend", "extend", "extend-16x64-after-4k-16"),
        ("ours.cache_write", "cache_write", "cache_write-8k-16"),
    ],
)
def test_ours_are_right_in_full_size_on_the_gpu(name, op, workload):
    from harness.timing import GpuClock

    found = measured(load(name, op), WORKLOADS[workload], GpuClock(10.0), 3)
    assert (found.state, found.says, found.how) == ("right", "", "as a CUDA graph")
    assert len(found.repeats) == 3


@pytest.mark.gpu
def test_planted_faults_are_wrong_in_full_size_on_the_gpu():
    from harness.timing import GpuClock

    for tested in (shorter, nothing, spoils, lends):
        found = measured(from_function(tested), WORKLOADS["decode-8x8k-16"], GpuClock(10.0), 3)
        assert found.state == "wrong", (tested, found)
