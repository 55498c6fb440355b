"""What flash attention 2 and 3 would be passed for three tokens; stand-ins record it, since the kernels need a GPU.

The packages are built with CUDA and are not installed here, so the parameters below are those that their sources have:
flash_attn/flash_attn_interface.py and hopper/flash_attn_interface.py of https://github.com/Dao-AILab/flash-attention.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import three_tokens
import torch
from three_tokens import LSES, attending, tokens

from harness.adapters import adapters
from harness.adapters.adapter import Adapter
from harness.adapters.flash_attn import decode, fa3_gathered, fa3_paged, varlen, varlen_gathered
from harness.subjects import WrongUse

FA2, FA3 = "flash_attn.flash_attn_interface", "flash_attn_interface"
#: Name of module and function: the parameters that have no default, and those that have one.
PUBLISHED = {
    f"{FA2}:flash_attn_with_kvcache": (
        "q k_cache v_cache",
        "k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table softmax_scale causal "
        "window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse",
    ),
    f"{FA2}:flash_attn_varlen_func": (
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
        "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs block_table",
    ),
    f"{FA3}:flash_attn_with_kvcache": (
        "q k_cache v_cache",
        "k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad page_table cu_seqlens_q "
        "cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale softmax_scale causal window_size "
        "attention_chunk softcap rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin "
        "return_softmax_lse",
    ),
    f"{FA3}:flash_attn_varlen_func": (
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
        "seqused_q seqused_k softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap "
        "num_splits pack_gqa deterministic sm_margin return_attn_probs",
    ),
}


@dataclass
class Kernel:
    """Records a call, after holding it against the published parameters."""

    adapter: Adapter
    returns: Any

    def __call__(self, **passed: Any) -> Any:
        place = next(iter(self.adapter.calls))
        published(place).bind(**passed)
        assert set(passed) == set(self.adapter.calls[place].split()), "what it declares that it passes"
        self.passed = passed
        return self.returns


def published(place: str) -> inspect.Signature:
    needed, defaulted = (names.split() for names in PUBLISHED[place])
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            *(inspect.Parameter(name, kind) for name in needed),
            *(inspect.Parameter(name, kind, default=None) for name in defaulted),
        ]
    )


def called(adapter: Adapter, returns: Any, inputs: Any) -> tuple[dict[str, Any], Any]:
    kernel = Kernel(adapter, returns)
    returned = adapter.function(kernel, inputs)
    return kernel.passed, returned


@pytest.mark.parametrize("adapter", adapters("flash_attn").values(), ids=list(adapters("flash_attn")))
def test_every_call_binds_to_the_published_parameters(adapter: Adapter) -> None:
    for place, passed in adapter.calls.items():
        adapter._bind(with_signature(published(place)), passed.split(), place, bound=False)


def test_a_parameter_that_is_gone_is_noticed() -> None:
    place, passed = next(iter(varlen.calls.items()))
    signature = published(place)
    fewer = signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "softcap"])
    with pytest.raises(WrongUse, match=r"adapter out of date: .* takes no softcap"):
        varlen._bind(with_signature(fewer), passed.split(), place, bound=False)


def with_signature(signature: inspect.Signature) -> Callable[..., Any]:
    def stand_in(**passed: Any) -> None:
        """Never called."""

    stand_in.__signature__ = signature  # type: ignore[attr-defined]
    return stand_in


def test_decode_has_one_query_per_sequence_and_an_lse_with_heads_first() -> None:
    """[seqs, 1, heads, dim] in and out; the lse is [seqs, heads, 1]."""
    returns = torch.ones(1, 1, 1, 16), torch.full((1, 1, 1), math.log(4))
    passed, (out, lse) = called(decode, returns, attending(1, window=(5, 2), softcap=30.0, scale=0.5, want_lse=True))
    assert passed["q"].shape == (1, 1, 1, 16)
    assert passed["cache_seqlens"].tolist() == [3]
    assert passed["block_table"].tolist() == [[3, 1]]
    assert (passed["window_size"], passed["softcap"], passed["softmax_scale"]) == ((5, 2), 30.0, 0.5)
    assert passed["causal"]
    assert out.shape == (1, 1, 16)
    three_tokens.assert_lses(lse, 1)


def test_decode_without_an_lse_gives_the_output_alone() -> None:
    returns = torch.ones(1, 1, 1, 16), torch.zeros(1, 1, 1)
    assert called(decode, returns, attending(1))[1].shape == (1, 1, 16)


def test_varlen_has_packed_rows_and_turns_the_lse() -> None:
    """[heads, tokens] becomes [tokens, heads]; the third thing that it returns is of no use."""
    returns = torch.ones(3, 1, 16), torch.tensor(LSES).reshape(1, 3), None
    passed, (out, lse) = called(varlen, returns, attending(3, want_lse=True))
    assert (passed["cu_seqlens_q"].tolist(), passed["cu_seqlens_k"].tolist()) == ([0, 3], [0, 3])
    assert (passed["max_seqlen_q"], passed["max_seqlen_k"]) == (3, 3)
    assert passed["block_table"].tolist() == [[3, 1]]
    assert out.shape == (3, 1, 16)
    three_tokens.assert_lses(lse, 3)


@pytest.mark.parametrize("adapter", [varlen_gathered, fa3_gathered])
def test_without_a_block_table_the_tokens_come_in_their_order(adapter: Adapter) -> None:
    passed, out = called(adapter, torch.ones(3, 1, 16), attending(3))
    k, v = tokens(torch.float16, 16)
    assert torch.equal(passed["k"], k)
    assert torch.equal(passed["v"], v)
    assert passed["cu_seqlens_k"].tolist() == [0, 3]
    assert out.shape == (3, 1, 16)


def test_flash_attention_3_has_pages_and_packed_queries() -> None:
    returns = torch.ones(3, 1, 16), torch.tensor(LSES).reshape(1, 3)
    passed, (_, lse) = called(fa3_paged, returns, attending(3, window=(1, -1), want_lse=True))
    assert passed["cache_seqlens"].tolist() == [3]
    assert passed["page_table"].tolist() == [[3, 1]]
    assert passed["cu_seqlens_q"].tolist() == [0, 3]
    assert passed["max_seqlen_q"] == 3
    assert passed["window_size"] == (1, -1)
    three_tokens.assert_lses(lse, 3)
