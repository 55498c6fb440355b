"""nano-vllm's kernel on three tokens."""

from importlib.util import find_spec

import pytest
import three_tokens
import torch

from harness.adapters import load

pytestmark = [
    pytest.mark.thirdparty,
    pytest.mark.skipif(find_spec("nanovllm") is None, reason="nano-vllm is on no package index: a checkout of yours"),
]


def test_new_tokens_go_to_their_slots_and_one_without_is_skipped() -> None:
    inputs = three_tokens.writing()
    three_tokens.call(load("nano_vllm.store_kvcache"), inputs)
    three_tokens.assert_written(inputs)
    kept = inputs.k_cache.clone()
    inputs.k_new.fill_(5.0)
    inputs.slot_mapping.copy_(torch.tensor([-1, -1, -1]))
    three_tokens.call(load("nano_vllm.store_kvcache"), inputs)
    torch.testing.assert_close(inputs.k_cache, kept, atol=0, rtol=0, equal_nan=True)
