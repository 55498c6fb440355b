"""Each of vLLM's kernels on three tokens, computed by hand."""

import pytest
import three_tokens

from harness.adapters import load

pytestmark = pytest.mark.thirdparty

ATTENDING = ("unified_attention", "unified_attention_split", "context_attention_fwd")


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("name", ATTENDING)
def test_three_tokens_are_attended_to(name: str, queries: int) -> None:
    out = three_tokens.call(load(f"vllm.{name}"), three_tokens.attending(queries))
    three_tokens.assert_rows(out, queries)


def test_decode_on_three_tokens_with_its_lse() -> None:
    out, lse = three_tokens.call(load("vllm.decode_attention_fwd"), three_tokens.attending(1, want_lse=True))
    three_tokens.assert_rows(out, 1)
    three_tokens.assert_lses(lse, 1)


def test_three_tokens_are_written() -> None:
    inputs = three_tokens.writing()
    three_tokens.call(load("vllm.triton_reshape_and_cache_flash"), inputs)
    three_tokens.assert_written(inputs)


def test_two_states_are_merged() -> None:
    out, lse = three_tokens.call(load("vllm.merge_attn_states"), three_tokens.merging())
    assert (out == 7).all()
    assert lse.item() == pytest.approx(1.3862944)
