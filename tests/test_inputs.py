"""Claims about materialised cases: live data where it belongs, poison everywhere else."""

import numpy as np
import pytest
from hypothesis import given, settings
from meanings import kept, meaning

from harness import values
from harness.case import Case, Seq, Slots, States, replace
from harness.executors.base import bits
from harness.inputs import gathered, materialise
from harness.profiles import Profile
from harness.strategies import cases
from harness.tensors import DEAD, FENCE, LIVE, OUT_OF_REACH
from harness.writes import apply

LAYOUTS = ("nhd", "hnd", "kv_stacked", "kv_interleaved", "padded", "offset")
CASE = Case(
    seqs=(Seq(kv_len=33), Seq(kv_len=20, tag=1, shares_prefix_with=0, shared_blocks=1), Seq(kv_len=0, tag=2)),
    num_q_heads=4,
    num_kv_heads=2,
    spare_blocks=2,
    extra_columns=1,
)


@pytest.mark.parametrize(("digest", "case"), kept())
def test_a_case_means_the_bytes_that_it_always_meant(digest, case):
    assert meaning(case) == digest
    values.forget()
    assert meaning(case) == digest


def test_another_value_and_another_place_are_another_meaning():
    others = ({"data_seed": 1}, {"placement": "reversed"}, {"k_poison": "zero"}, {"layout": "hnd"}, {"sinks": True})
    assert len({meaning(CASE), *(meaning(replace(CASE, **changes)) for changes in others)}) == 1 + len(others)


def test_cases_that_differ_in_placing_alone_have_tensors_of_their_own():
    first, second = (materialise(replace(CASE, k_poison=poison)).inputs.tensors() for poison in ("nan", "zero"))
    for name in first:
        assert not np.shares_memory(first[name].storage.data, second[name].storage.data)
        assert not np.shares_memory(first[name].storage.state, second[name].storage.state)


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


@pytest.mark.parametrize("poison", ["nan", "inf", "huge", "zero"])
@pytest.mark.parametrize("kv_dtype", ["same", "e4m3", "e5m2"])
def test_a_skipped_token_written_anywhere_is_seen(kv_dtype, poison):
    case = Case(op="cache_write", slots=Slots(tail_padding=1), kv_dtype=kv_dtype, k_poison=poison)
    inputs = materialise(case).inputs
    assert inputs.slot_mapping.view.tolist() == [0, -1]
    for scale in (0.125, 8.0):
        written = values.encode(inputs.k_new.view[1:].astype(np.float64), np.array([scale]), case.cache_dtype)
        assert not np.isin(bits(written), bits(inputs.k_cache.view[0, 1:].copy())).any()
    assert (inputs.k_new.state[1] == DEAD).all()


@pytest.mark.parametrize("layout", ["contiguous", "fused_qkv", "transposed_heads"])
def test_q_holds_the_same_values_in_every_layout(layout):
    q = materialise(replace(CASE, q_layout=layout)).inputs.q
    assert np.array_equal(q.view, materialise(CASE).inputs.q.view)


# --- operations that write ---------------------------------------------------------------------------------------

WRITE = Case(
    op="cache_write",
    seqs=(Seq(query_len=3, kv_len=19), Seq(query_len=2, kv_len=20, tag=1, shares_prefix_with=0, shared_blocks=1)),
    num_q_heads=2,
    num_kv_heads=2,
)


def left(case: Case, name: str) -> np.ndarray:
    """The cache after a right write."""
    materials = materialise(case)
    return apply(materials.stored, name, getattr(materials.inputs, name).view)


@pytest.mark.parametrize("kv_dtype", ["same", "e4m3"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_write_leaves_the_cache_that_a_decode_would_find(layout, kv_dtype):
    scales = {"k_scale": 2.0, "v_scale": 0.5} if kv_dtype != "same" else {}
    case = replace(WRITE, layout=layout, kv_dtype=kv_dtype, **scales)
    whole = replace(case, op="extend")
    for name in ("k_cache", "v_cache"):
        assert np.array_equal(bits(left(case, name)), bits(getattr(materialise(whole).inputs, name).view.copy()))


def test_before_the_write_the_slots_of_new_tokens_are_poison_that_may_be_read_afterwards():
    cache = materialise(WRITE).inputs.k_cache
    assert np.isnan(cache.view[1, :3]).all()
    assert (cache.state[1, :3] == LIVE).all()
    assert (cache.state[1, 3:] == DEAD).all()


def test_the_slot_of_a_skipped_token_stays_poison_and_dead():
    case = replace(WRITE, seqs=(Seq(query_len=3, kv_len=19),), slots=Slots(holes=1))
    materials = materialise(case)
    after = left(case, "k_cache")
    written = np.isfinite(after[1, :3]).all(axis=(1, 2))
    assert written.sum() == 2
    assert np.isnan(after[1, :3][~written]).all()
    assert (materials.inputs.k_cache.state[1, :3][~written] == DEAD).all()


def test_a_skipped_tokens_k_and_v_are_dead_and_unlike_the_poison_of_its_slot():
    inputs = materialise(replace(WRITE, slots=Slots(holes=1, tail_padding=2))).inputs
    skipped = inputs.slot_mapping.view < 0
    for new, cache in ((inputs.k_new, inputs.k_cache), (inputs.v_new, inputs.v_cache)):
        assert (new.state[skipped] == DEAD).all()
        assert (new.state[~skipped] == LIVE).all()
        assert not np.isin(bits(new.view[skipped].copy()), bits(cache.view[1, 3:].copy())).any()


@settings(max_examples=60, database=None, deadline=None)
@given(cases(Profile(op="cache_write", placements=("in_order", "shuffled"))))
def test_no_shared_prefix_and_no_cached_token_is_ever_written(case):
    materials = materialise(case)
    cells = set(zip(materials.stored.blocks.tolist(), materials.stored.offsets.tolist(), strict=True))
    assert len(cells) == len(materials.stored.blocks)
    for seq, table in zip(case.seqs, materials.geometry.tables, strict=True):
        assert not {int(block) for block in table[: seq.shared_blocks]} & {block for block, _ in cells}
        cached = np.arange(max(seq.kv_len - seq.query_len, 0))
        kept = zip(table[cached // case.block_size].tolist(), (cached % case.block_size).tolist(), strict=True)
        assert not set(kept) & cells


#: In float32, from which FP8 is rounded once, as it is when the whole cache is filled.
STEPS = Profile(
    op="step",
    dtypes=("float32",),
    features=("mla", "head_dim_v"),
    kv_dtypes=("same", "e4m3", "e5m2"),
    placements=("in_order", "shuffled"),
    max_kv_len=100,
)


@settings(max_examples=30, database=None, deadline=None)
@given(cases(STEPS))
def test_a_step_attends_to_what_a_decode_of_the_whole_cache_would(case):
    materials, whole = materialise(case), materialise(replace(case, op="extend"))
    for i in range(len(case.seqs)):
        for seen, wanted in zip(gathered(materials, i), gathered(whole, i), strict=True):
            assert np.array_equal(bits(seen), bits(wanted))


def test_v_that_is_a_prefix_of_k_lies_in_the_same_memory():
    inputs = materialise(Case(head_dim=32, head_dim_v=16, v_is_k_prefix=True)).inputs
    assert inputs.v_cache.storage is inputs.k_cache.storage
    assert np.array_equal(inputs.v_cache.view, inputs.k_cache.view[..., :16], equal_nan=True)


def test_only_an_fp8_cache_comes_with_scales_one_or_one_a_head():
    assert materialise(WRITE).inputs.k_scale is None
    fp8 = replace(WRITE, kv_dtype="e5m2", k_scale=4.0, v_scale=0.25)
    assert materialise(fp8).inputs.k_scale.view.tolist() == [4.0]
    per_head = materialise(replace(fp8, scale_granularity="head")).inputs
    assert (per_head.k_scale.view.tolist(), per_head.v_scale.view.tolist()) == ([2.0, 4.0], [0.125, 0.25])


@pytest.mark.parametrize("op", ["decode", "extend", "step", "cache_write"])
@pytest.mark.parametrize(("poison", "holds"), [("nan", np.isnan), ("inf", np.isinf), ("zero", lambda x: x == 0)])
def test_a_graphs_padding_rows_have_a_dead_query_a_padded_table_row_and_nothing_to_write(op, poison, holds):
    plain = Case(op=op, seqs=(Seq(kv_len=3), Seq(kv_len=20, tag=1)), num_q_heads=2, table_pad="other")
    made = materialise(replace(plain, padding_rows=2, row_poison=poison)).inputs
    assert made.kv_lens.view.tolist() == [3, 20, 0, 0]
    assert made.query_starts.view.tolist() == [0, 1, 2, 3, 4]
    assert holds(made.q.view[2:]).all()
    assert (made.q.state[2:] == DEAD).all()
    assert np.array_equal(made.q.view[:2], materialise(plain).inputs.q.view)
    assert (made.block_tables.state[2:] == DEAD).all()
    if made.slot_mapping is not None:
        assert made.slot_mapping.view[2:].tolist() == [-1, -1]
        assert (made.k_new.state[2:] == DEAD).all()


DENSE = Case(op="extend", new_kv="dense", seqs=(Seq(query_len=3, kv_len=20), Seq(query_len=4, kv_len=2, tag=1)))


def test_a_cache_holds_only_what_comes_before_dense_new_tokens():
    made = materialise(DENSE)
    assert (made.inputs.k_cache.state == LIVE).sum() == 17 * 16
    assert made.inputs.block_tables.view.tolist() == [[0, 1], [-1, -1]]
    assert made.inputs.slot_mapping is None
    assert made.stored is None


def test_what_is_gathered_of_a_sequence_ends_with_its_dense_tokens():
    made = materialise(replace(DENSE, dtype="float16"))
    for i, seq in enumerate(DENSE.seqs):
        _, k, v = gathered(made, i)
        assert np.array_equal(bits(k), bits(values.cast(values.keys(DENSE, seq), "float16")))
        assert np.array_equal(bits(v), bits(values.cast(values.values(DENSE, seq), "float16")))


def test_dense_tokens_beside_an_fp8_cache_are_in_the_type_of_q_and_not_scaled():
    case = replace(DENSE, dtype="bfloat16", kv_dtype="e4m3", k_scale=4.0, v_scale=0.5)
    made = materialise(case)
    assert made.inputs.k_new.view.dtype == values.DTYPES["bfloat16"]
    _, k, _ = gathered(made, 0)
    dense = values.cast(values.keys(case, case.seqs[0]), "bfloat16").astype(np.float64)
    assert np.array_equal(k[17:], dense[17:])
    assert not np.array_equal(k[:17], dense[:17])


def test_a_dense_row_without_a_position_is_dead():
    made = materialise(replace(DENSE, padding_rows=1, row_poison="huge")).inputs
    for tensor in (made.k_new, made.v_new):
        dead = (tensor.state == DEAD).all(axis=(1, 2))
        assert dead.tolist() == [False, False, False, True, True, False, False, True]
        assert (tensor.view[dead] == np.finfo(np.float32).max).all()


@pytest.mark.parametrize("poison", ["nan", "inf", "huge", "random_bits"])
def test_an_empty_state_holds_the_poison_of_rows_and_is_dead(poison):
    made = materialise(Case(op="merge", states=States(partition=(1, 2), empty=(1,)), row_poison=poison)).inputs
    full, empty = made.state_outs.view
    assert (made.state_outs.state[0] == LIVE).all()
    assert (made.state_outs.state[1] == DEAD).all()
    assert np.isfinite(full).all()
    assert poison == "random_bits" or {"nan": np.isnan, "inf": np.isinf, "huge": np.isfinite}[poison](empty).all()
    assert (bits(empty) != bits(full)).all()


def test_rows_of_dense_v_lie_unlike_those_of_k_where_the_caches_do():
    same, apart = (materialise(replace(DENSE, v_layout=layout)).inputs for layout in ("same", "padded"))
    assert same.v_new.strides == same.k_new.strides == (16, 16, 1)
    assert apart.v_new.strides == (19, 16, 1)
    fused = materialise(replace(DENSE, q_layout="fused_qkv")).inputs
    assert fused.k_new.strides == (3 * 16 + 1, 16, 1)
