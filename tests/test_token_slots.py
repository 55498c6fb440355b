"""Slots of tokens as CSR, a cache by slots, an output: what an adapter translates, on two sequences by hand."""

import three_tokens
import torch

from harness.adapters.translate import flat, output, token_slots
from harness.inputs import Inputs


def two(**some: object) -> Inputs:
    """Blocks of two slots: the first sequence has blocks 3, 1 and 2, the second block 0."""
    tables = torch.tensor([[3, 1, 2], [0, -1, -1]], dtype=torch.int32)
    return three_tokens.attending(1, **{"block_tables": tables, "kv_lens": torch.tensor([5, 1])} | some)


def test_slots_are_those_of_the_tokens_asked_for_in_their_order() -> None:
    inputs, first = two(), torch.tensor([3, 1])
    starts, slots = token_slots(inputs.block_tables, 2, inputs.kv_lens)
    assert (starts.tolist(), slots.tolist()) == ([0, 5, 6], [6, 7, 2, 3, 4, 0])
    assert (starts.dtype, slots.dtype) == (torch.int32, torch.int64)
    starts, slots = token_slots(inputs.block_tables, 2, inputs.kv_lens, first)
    assert (starts.tolist(), slots.tolist()) == ([0, 2, 2], [3, 4])


def test_a_far_slot_does_not_wrap() -> None:
    table = torch.tensor([[2**30 + 1]], dtype=torch.int32)
    assert token_slots(table, 2, torch.tensor([2]), torch.tensor([1]))[1].tolist() == [2**31 + 3]


def test_a_cache_by_slots_is_a_view() -> None:
    cache = torch.zeros(4, 2, 1, 16)
    flat(cache)[5] = 1.0
    assert cache[2, 1].all()
    assert flat(cache[..., :8]).shape == (8, 1, 8)


def test_the_given_output_is_taken_and_else_a_new_one_of_the_dim_of_v() -> None:
    given = torch.zeros(1, 1, 8)
    assert output(two(out=given)) is given
    assert output(two(v_cache=torch.zeros(4, 2, 1, 8))).shape == (1, 1, 8)
