"""Rows of a large output that are judged: which ones, and that each is held against the truth of a whole case."""

import numpy as np
import pytest
import torch
from clocks import DECODE, EXTEND

from harness import samples
from harness.arithmetic import Arithmetic
from harness.folders import load
from harness.platforms import judging
from harness.samples import MOST_KEYS, MOST_ROWS, places
from harness.timing import inputs_of
from harness.workloads import WORKLOADS, Workload

ATTENDING = [name for name, workload in WORKLOADS.items() if workload.op != "cache_write"]


def judged(workload: Workload) -> tuple:
    inputs = inputs_of(workload, 3, "cpu")
    arithmetic = Arithmetic.widest("bfloat16")
    return inputs, {place: samples.bound(inputs, place, arithmetic, judging("gridsim")) for place in places(workload)}


def truth(inputs) -> np.ndarray:
    """All rows by the plain definition, sequence by sequence."""
    outs, attention = [], load("references", "float64").attention
    for row, kv_len in enumerate(inputs.kv_lens.tolist()):
        at = torch.arange(kv_len)
        slots = inputs.block_tables[row].long()[at // inputs.k_cache.shape[1]], at % inputs.k_cache.shape[1]
        q = inputs.q[inputs.query_starts[row] : inputs.query_starts[row + 1]]
        tensors = (x.double().numpy() for x in (q, inputs.k_cache[slots], inputs.v_cache[slots]))
        outs.append(attention(*tensors, scale=inputs.scale, causal=True, window=(-1, -1), softcap=0.0,
                              alibi_slopes=None, sinks=None)[0])  # fmt: skip
    return np.concatenate(outs)


@pytest.mark.parametrize("workload", [DECODE, EXTEND])
def test_the_truth_of_a_sampled_row_is_that_of_the_whole_definition(workload):
    inputs, bounds = judged(workload)
    whole = truth(inputs)
    for place, bound in bounds.items():
        heads = slice(2 * place.kv_head, 2 * place.kv_head + 2)
        assert np.allclose(bound.truth[0], whole[place.row, heads, place.dims], rtol=0, atol=1e-12)
        assert (bound.out > 0).all()


@pytest.mark.parametrize("name", ATTENDING)
def test_of_every_workload_some_rows_of_every_kv_head_are_judged_within_what_time_allows(name):
    workload, found = WORKLOADS[name], places(WORKLOADS[name])
    new = [new for new, _ in workload.seqs]
    assert 0 < len(found) <= MOST_ROWS
    assert sum(place.seen for place in found) <= MOST_KEYS
    assert {place.kv_head for place in found} == set(range(workload.num_kv_heads))
    for place in found:
        first = sum(new[: place.sequence])
        kv_len = workload.seqs[place.sequence][1]
        assert first <= place.row < first + new[place.sequence]
        assert place.seen == kv_len - (first + new[place.sequence] - 1 - place.row)


def test_a_right_output_passes_and_a_wrong_row_is_told_with_its_place():
    inputs, bounds = judged(EXTEND)
    out = torch.from_numpy(truth(inputs)).to(torch.bfloat16)
    says, margin = samples.complaint(out, bounds)
    assert says == ""
    assert 0 < margin <= 1
    place = next(iter(bounds))
    wrong = out.clone()
    wrong[place.row, 2 * place.kv_head + 1, place.first_dim] += 1
    says, margin = samples.complaint(wrong, bounds)
    assert says.startswith(
        f"out[sequence {place.sequence}, token {place.row}, head {2 * place.kv_head + 1}, dim {place.first_dim}] is "
    )
    assert margin > 1


def test_a_single_number_that_is_not_finite_is_found_wherever_it_is():
    inputs, bounds = judged(DECODE)
    out = torch.from_numpy(truth(inputs)).to(torch.bfloat16)
    for value in (torch.nan, torch.inf):
        wrong = out.clone()
        wrong[2, 3, 31] = value
        assert samples.complaint(wrong, bounds)[0] == "1 of 384 elements are not finite"
