"""Each of vLLM's kernels on three tokens, computed by hand."""

import pytest
import three_tokens

from harness.adapters import load

pytestmark = pytest.mark.thirdparty


@pytest.mark.parametrize("queries", [1, 3])
def test_unified_attention_on_three_tokens(queries: int) -> None:
    out = three_tokens.call(load("vllm.unified_attention"), three_tokens.attending(queries))
    three_tokens.assert_rows(out, queries)
