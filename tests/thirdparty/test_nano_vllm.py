"""nano-vllm's kernel on three tokens."""

import pytest
import three_tokens
import torch

from harness.adapters import load

pytestmark = pytest.mark.thirdparty


def test_new_tokens_go_to_their_slots_and_one_without_is_skipped() -> None:
    inputs = three_tokens.writing()
    three_tokens.call(load("nano_vllm.store_kvcache"), inputs)
    three_tokens.assert_written(inputs)
    kept = inputs.k_cache.clone()
    inputs.k_new.fill_(5.0)
    inputs.slot_mapping.copy_(torch.tensor([-1, -1, -1]))
    three_tokens.call(load("nano_vllm.store_kvcache"), inputs)
    torch.testing.assert_close(inputs.k_cache, kept, atol=0, rtol=0, equal_nan=True)
