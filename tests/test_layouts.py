"""Which layout real strides are most like, and that what is not held is told."""

import pytest
import torch
from recordings import arguments

from harness.calls import View, read
from harness.case import Case, Seq
from harness.layouts import cache_layouts, out_layout, q_layout

SEVERAL = {"seqs": (Seq(kv_len=20), Seq(kv_len=3, tag=1)), "num_q_heads": 4, "num_kv_heads": 2, "spare_blocks": 1}


def caches(k, v):
    call = read({"k_cache": k, "v_cache": v})
    return cache_layouts(call.views["k_cache"], call.views["v_cache"], call.v_from_k, call.misaligned)


@pytest.mark.parametrize("layout", ["nhd", "hnd", "kv_stacked", "kv_interleaved", "padded", "offset"])
def test_each_layout_of_a_case_is_recognised(layout):
    values = arguments(Case(layout=layout, **SEVERAL))
    found = caches(values["k_cache"], values["v_cache"])
    assert found.fields == {"layout": layout}
    assert bool(found.lost) == (layout == "padded")  # whose real strides are told


@pytest.mark.parametrize(("layout", "v_layout"), [("nhd", "hnd"), ("hnd", "nhd"), ("hnd", "offset"), ("nhd", "padded")])
def test_layouts_of_k_and_v_apart_are_recognised(layout, v_layout):
    values = arguments(Case(layout=layout, v_layout=v_layout, **SEVERAL))
    assert caches(values["k_cache"], values["v_cache"]).fields == {"layout": layout, "v_layout": v_layout}


def test_v_as_a_prefix_of_k_is_recognised():
    values = arguments(Case(v_is_k_prefix=True, head_dim=32, head_dim_v=16, num_q_heads=4))
    found = caches(values["k_cache"], values["v_cache"])
    assert found.fields == {"layout": "nhd", "v_is_k_prefix": True, "head_dim_v": 16}


def test_the_caches_of_one_layer_of_many_are_blocks_with_gaps_and_their_strides_are_told():
    pool = torch.zeros(5, 3, 2, 16, 2, 8)  # [blocks, layers, K or V, slots, heads, dim]
    found = caches(pool[:, 1, 0], pool[:, 1, 1])
    assert found.fields == {"layout": "kv_interleaved"}
    assert found.lost == (
        "strides of K are [1536, 16, 8, 1]: the case has layout 'kv_interleaved' with strides of its own",
    )
    layers = torch.zeros(3, 2, 5, 16, 2, 8)  # [layers, K or V, blocks, ...]: dense in each layer
    assert caches(layers[1, 0], layers[1, 1]).fields == {"layout": "kv_stacked"}
    assert caches(layers[0, 0], layers[2, 0]).fields == {"layout": "nhd"}


@pytest.mark.parametrize("strides", [(256, 8, 128, 1), (600, 8, 128, 1)])
def test_heads_before_slots_are_hnd_with_gaps_or_without(strides):
    view = View((5, 16, 2, 8), strides, "float16")
    found = cache_layouts(view, view, None, ())
    assert found.fields == {"layout": "hnd"}
    assert bool(found.lost) == (strides[0] == 600)


@pytest.mark.parametrize("layout", ["contiguous", "fused_qkv", "transposed_heads", "far"])
def test_each_layout_of_q_is_recognised(layout):
    case = Case(q_layout=layout, **SEVERAL | {"seqs": tuple(Seq(tag=i) for i in range(3))})
    found = q_layout(read({"q": arguments(case)["q"]}).views["q"], 4 + 2 * 2)
    assert found.fields.get("q_layout", "contiguous") == layout
    assert found.lost == ()


def test_a_stride_that_a_case_does_not_have_is_told():
    rows = View((3, 4, 16), (100, 16, 1), "float16")
    assert q_layout(rows, 8).lost == (
        "strides of q are [100, 16, 1]: the case has layout 'fused_qkv' with strides of its own",
    )


@pytest.mark.parametrize("layout", ["allocated", "given", "padded", "far"])
def test_each_layout_of_an_output_is_recognised(layout):
    case = Case(out_layout=layout, **SEVERAL | {"seqs": tuple(Seq(tag=i) for i in range(3))})
    given = arguments(case)["out"]
    found = out_layout(None if given is None else read({"out": given}).views["out"])
    assert found.fields.get("out_layout", "allocated") == layout
