"""Claims about materialised cases: live data where it belongs, poison everywhere else."""

import numpy as np
import pytest
from hypothesis import given, settings

from harness import values
from harness.case import Case, Seq, replace
from harness.executors.base import bits
from harness.inputs import gathered, materialise
from harness.strategies import Profile, cases
from harness.tensors import DEAD, FENCE, LIVE, OUT_OF_REACH

LAYOUTS = ("nhd", "hnd", "kv_stacked", "kv_interleaved", "padded", "offset")
CASE = Case(
    seqs=(Seq(kv_len=33), Seq(kv_len=20, tag=1, shares_prefix_with=0, shared_blocks=1), Seq(kv_len=0, tag=2)),
    num_q_heads=4,
    num_kv_heads=2,
    spare_blocks=2,
    extra_columns=1,
)


@settings(max_examples=60, database=None, deadline=None)
@given(cases(Profile()))
def test_gathered_tokens_are_the_recipes_values(case):
    materials = materialise(case)
    for i, seq in enumerate(case.seqs):
        _, k, v = gathered(materials, i)
        assert np.array_equal(bits(k), bits(values.cast(values.keys(case, seq), case.cache_dtype)))
        assert np.array_equal(bits(v), bits(values.cast(values.values(case, seq), case.cache_dtype)))


@settings(max_examples=60, database=None, deadline=None)
@given(cases(Profile(placements=("in_order", "shuffled"))))
def test_live_elements_are_exactly_the_tokens(case):
    materials = materialise(case)
    owned = sum(seq.kv_len - seq.shared_blocks * case.block_size for seq in case.seqs)
    for cache in (materials.inputs.k_cache, materials.inputs.v_cache):
        assert (cache.state == LIVE).sum() == owned * case.num_kv_heads * cache.shape[3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_of_every_layout_address_every_element_once(layout):
    cache = materialise(replace(CASE, layout=layout)).inputs.k_cache
    places = cache.offset + sum(
        np.arange(n).reshape([-1 if i == j else 1 for j in range(4)]) * stride
        for i, (n, stride) in enumerate(zip(cache.shape, cache.strides, strict=True))
    )
    assert len(np.unique(places)) == np.prod(cache.shape)
    assert places.min() >= FENCE
    assert places.max() < len(cache.storage.data) - FENCE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dead_slots_spare_blocks_and_gaps_are_poisoned(layout):
    case = replace(CASE, layout=layout, k_poison="nan", v_poison="inf", spare_poison="huge")
    inputs = materialise(case).inputs
    k, v = inputs.k_cache, inputs.v_cache
    assert np.isnan(k.view[2, 1:]).all()
    assert np.isinf(v.view[2, 1:]).all()
    assert (k.view[4:] == np.finfo(np.float32).max).all()
    assert np.isnan(k.storage.data[k.storage.state == OUT_OF_REACH]).all()


def test_random_bits_are_keyed_by_place_and_differ_from_slot_to_slot():
    k = materialise(replace(CASE, k_poison="random_bits")).inputs.k_cache
    assert len(np.unique(bits(k.view[2, 1:].copy()))) > 100


def test_table_padding_is_dead_and_entries_in_use_are_live():
    tables = materialise(CASE).inputs.block_tables
    assert tables.view.tolist() == [[0, 1, 2, -1], [0, 3, -1, -1], [-1, -1, -1, -1]]
    assert (tables.state == np.where(tables.view >= 0, LIVE, DEAD)).all()


@pytest.mark.parametrize(("pad", "entry"), [("zero", 0), ("huge", 2**31 - 1), ("other", 1)])
def test_table_padding_can_be_what_a_kernel_would_believe(pad, entry):
    assert materialise(replace(CASE, table_pad=pad)).inputs.block_tables.view[1, -1] == entry


def test_a_table_can_be_exactly_as_wide_as_needed():
    assert materialise(replace(CASE, extra_columns=0)).inputs.block_tables.shape == (3, 3)


def test_far_blocks_pass_32_bits_in_both_caches_and_cost_no_memory():
    inputs = materialise(replace(CASE, placement="far", v_layout="hnd")).inputs
    for cache in (inputs.k_cache, inputs.v_cache):
        assert cache.storage.sparse
        assert int(inputs.block_tables.view[0, 0]) * cache.strides[0] >= 2**31


def test_a_given_output_comes_poisoned_between_fences():
    out = materialise(replace(CASE, out_layout="padded")).inputs.out
    assert np.isnan(out.storage.data).all()
    assert (out.storage.state[:FENCE] == OUT_OF_REACH).all()
    assert out.strides[2] == 1
    assert out.strides[1] > out.shape[2]


@pytest.mark.parametrize("layout", ["contiguous", "fused_qkv", "transposed_heads"])
def test_q_holds_the_same_values_in_every_layout(layout):
    q = materialise(replace(CASE, q_layout=layout)).inputs.q
    assert np.array_equal(q.view, materialise(CASE).inputs.q.view)
