"""The flash-attention witness says why it cannot run, and agrees with the judge where it can."""

import numpy as np
import pytest
import torch

from harness.arithmetic import Arithmetic
from harness.bounds import attention_bound, exceeds, margin
from harness.folders import load
from harness.platforms import platform

flash_attn = load("references", "flash_attn")
PLAIN = {
    "dtype": torch.float16,
    "kv_dtype": torch.float16,
    "head_dim": 64,
    "head_dim_v": 64,
    "block_size": 256,
    "shortest": 1,
}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dtype": torch.float32}, "float32"),
        ({"kv_dtype": torch.float8_e4m3fn}, "q's type"),
        ({"head_dim_v": 32}, "head_dim"),
        ({"head_dim": 20, "head_dim_v": 20}, "multiple of 8"),
        ({"block_size": 16}, "256"),
        ({"sinks": torch.zeros(1)}, "sinks"),
        ({"query_len": 2}, "one query token"),
        ({"shortest": 0}, "without keys"),
    ],
)
def test_declines_in_words(change, word):
    assert flash_attn.declines(**PLAIN) is None
    assert word in flash_attn.declines(**PLAIN | change)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_says_that_it_is_not_available():
    assert flash_attn.available().startswith("not available: ")
    empty = torch.zeros(0)
    with pytest.raises(RuntimeError, match="not available"):
        flash_attn.attention(empty, empty, empty, empty, empty, scale=1.0)


@pytest.mark.gpu
@pytest.mark.skipif(flash_attn.available() is not None, reason=str(flash_attn.available()))
def test_agrees_with_the_judge_on_a_gpu():
    rng = np.random.default_rng(0)
    kv_lens, blocks, block = [1, 300, 512], 8, 256
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((3, 4, 64), *[(blocks, block, 2, 64)] * 2))
    tables = np.array([[5, -1], [0, 7], [3, 2]], dtype=np.int32)
    on_gpu = (torch.from_numpy(x).cuda() for x in (q, k, v, tables, np.int32(kv_lens)))
    out, lse = (x.cpu().numpy() for x in flash_attn.attention(*on_gpu, scale=0.125))
    arithmetic = Arithmetic(tensor_core=True, p_dtype="float16", max_splits=128, divisions=2)
    for i, n in enumerate(kv_lens):
        keys, values = (x[tables[i]].reshape(-1, 2, 64)[:n] for x in (k, v))
        bound = attention_bound(
            q[i : i + 1], keys, values, scale=0.125, causal=True, window=(-1, -1), softcap=0.0, alibi_slopes=None,
            sinks=None, arithmetic=arithmetic, platform=platform("sm90"), out_dtype="float16",
        )  # fmt: skip
        assert not exceeds(out[i : i + 1], bound).any(), margin(out[i : i + 1], bound).max()
        assert not exceeds(lse[i : i + 1], bound.truth_lse, bound.lse).any()
