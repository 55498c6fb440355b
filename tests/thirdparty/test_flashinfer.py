"""What FlashInfer's kernels would be passed for three tokens. The kernels need a GPU, so stand-ins record the call."""

import math
from typing import Any

import pytest
import three_tokens
import torch
from recorded import Recorder, as_modules, installed
from three_tokens import attending, given, merging, writing

from harness.adapters import adapters
from harness.adapters.adapter import Adapter
from harness.adapters.flashinfer import append, decode, merge, prefill
from harness.subjects import WrongUse


class Wrapper:
    """A wrapper that records; its output is 0 and its lse is 2, in base 2."""

    def __init__(self, **made: Any) -> None:
        self.made = made
        Wrapper.last = self

    def plan(self, **planned: Any) -> None:
        self.planned = planned

    def run(self, **ran: Any) -> Any:
        self.ran = ran
        out = torch.zeros_like(ran["q"])
        return (out, torch.full(out.shape[:2], 2.0)) if ran["return_lse"] else out


def test_decode_is_planned_with_lists_of_pages_and_the_tokens_of_the_last() -> None:
    decode.function(Wrapper, attending(1, window=(5, -1), softcap=30.0, scale=0.5))
    planned = Wrapper.last.planned
    assert [planned[name].tolist() for name in ("indptr", "indices", "last_page_len")] == [[0, 2], [3, 1], [1]]
    assert (planned["window_left"], planned["logits_soft_cap"], planned["sm_scale"]) == (5, 30.0, 0.5)
    assert (planned["num_qo_heads"], planned["num_kv_heads"], planned["head_dim"], planned["page_size"]) == (
        1,
        1,
        16,
        2,
    )
    assert planned["q_data_type"] == planned["kv_data_type"] == torch.float16


def test_its_lse_of_base_2_becomes_a_natural_one() -> None:
    """2 in base 2 is ln 4, what all three tokens have."""
    _, lse = decode.function(Wrapper, attending(1, want_lse=True))
    three_tokens.assert_lses(lse, 1)


def test_what_is_not_asked_for_is_off() -> None:
    out = decode.function(Wrapper, attending(1))
    planned = Wrapper.last.planned
    assert (planned["window_left"], planned["logits_soft_cap"]) == (-1, None)
    assert out.shape == (1, 1, 16)


def test_heads_before_slots_are_hnd_and_the_same_memory() -> None:
    plain, heads = torch.zeros(4, 2, 3, 16), torch.zeros(4, 3, 2, 16).transpose(1, 2)
    assert layout_of(plain)[0] == "NHD"
    layout, cache = layout_of(heads)
    assert layout == "HND"
    assert cache[0].data_ptr() == heads.data_ptr()
    assert (cache[0].shape, cache[0].is_contiguous()) == ((4, 3, 2, 16), True)


def layout_of(cache: torch.Tensor) -> tuple[str, Any]:
    decode.function(Wrapper, attending(1, k_cache=cache, v_cache=cache))
    return Wrapper.last.made["kv_layout"], Wrapper.last.ran["paged_kv_cache"]


def test_prefill_is_planned_with_the_starts_of_the_queries() -> None:
    _, lse = prefill.function(Wrapper, attending(3, window=(1, -1), want_lse=True))
    planned = Wrapper.last.planned
    assert planned["qo_indptr"].tolist() == [0, 3]
    assert planned["paged_kv_indptr"].tolist() == [0, 2]
    assert planned["paged_kv_indices"].tolist() == [3, 1]
    assert planned["paged_kv_last_page_len"].tolist() == [1]
    assert (planned["causal"], planned["window_left"]) == (True, 1)
    assert lse.flatten().tolist() == pytest.approx([math.log(4)] * 3)


def test_an_append_writes_where_the_slots_say() -> None:
    """The stand-in does what the docstring says: a token's page is that of its position in its sequence's list."""
    inputs = writing()
    inputs.slot_mapping[1] = -1

    def kernel(**passed: Any) -> None:
        k_cache, v_cache = passed["paged_kv_cache"]
        size = k_cache.shape[1]
        for row, (seq, place) in enumerate(zip(passed["batch_indices"], passed["positions"], strict=True)):
            page = passed["kv_indices"][passed["kv_indptr"][seq] + place // size]
            k_cache[page, place % size] = passed["append_key"][row]
            v_cache[page, place % size] = passed["append_value"][row]
        ends = (passed["kv_indptr"][1] - 1) * size + passed["kv_last_page_len"][0]
        assert (passed["positions"] < ends).all()

    append.function(kernel, inputs)
    assert inputs.k_cache.view(-1, 16)[7].isnan().all(), "the token that is skipped"
    append.function(kernel, all_three := writing())
    three_tokens.assert_written(all_three)


def test_a_merge_takes_tokens_first_and_base_2_and_gives_the_natural_lse() -> None:
    """Weights of 1 and 3, that is 0 and log2 3; the lse of both is 2 in base 2."""
    kernel = Recorder((torch.full((1, 1, 16), 7.0), torch.full((1, 1), 2.0)))
    _, lse = merge.function(kernel, merging())
    assert kernel.passed["v"].shape == (1, 2, 1, 16)
    assert kernel.passed["s"].flatten().tolist() == pytest.approx([0.0, math.log2(3)])
    assert lse.item() == pytest.approx(math.log(4))
    assert merge.function(kernel, given(**vars(merging()) | {"want_lse": False})).shape == (1, 1, 16)


@pytest.mark.thirdparty
@pytest.mark.parametrize("adapter", adapters("flashinfer").values(), ids=list(adapters("flashinfer")))
def test_every_call_binds_to_the_installed_signature(adapter: Adapter) -> None:
    """Read from the source: importing FlashInfer needs a compiled library that comes with CUDA."""
    modules = as_modules(lambda module: installed("flashinfer", f"{module.partition('.')[2]}.py"), list(adapter.calls))
    bind(adapter, modules)


@pytest.mark.thirdparty
def test_a_parameter_that_is_gone_is_noticed() -> None:
    modules = as_modules(lambda module: installed("flashinfer", f"{module.partition('.')[2]}.py"), list(merge.calls))
    modules["flashinfer.cascade"].merge_states = staticmethod(lambda v, lse: None)
    with pytest.raises(WrongUse, match="adapter out of date"):
        bind(merge, modules)


def bind(adapter: Adapter, modules: dict[str, Any]) -> None:
    """Hold the adapter's calls against these modules, as it does with those that it imports."""
    for place, passed in adapter.calls.items():
        module, _, path = place.partition(":")
        called = modules[module]
        for name in path.split("."):
            called = adapter._there(called, name, place)
        adapter._bind(called, passed.split(), place, bound="." in path)
