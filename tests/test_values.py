"""Claims about the values of tensors."""

import hashlib

import numpy as np
import pytest

from harness import values
from harness.case import Case, Seq, replace
from harness.inputs import materialise

FAMILIES = (
    "normal", "peaked", "uniform", "gather", "large", "tiny", "ties", "cancelling", "ascending_max", "descending_max",
    "two_level", "powers_of_two", "far_above", "far_below", "edges",
)  # fmt: skip
TWO = Case(seqs=(Seq(kv_len=40, tag=3), Seq(kv_len=40, tag=1)), num_q_heads=2, num_kv_heads=2)


def hash_of(case: Case) -> str:
    tensors = materialise(case).inputs.tensors()
    return hashlib.sha256(b"".join(t.storage.data.tobytes() for t in tensors.values())).hexdigest()[:16]


@pytest.mark.parametrize(
    ("family", "dtype", "golden"),
    [
        ("normal", "float32", "558fb296198524c2"),
        ("ascending_max", "float16", "455fde5d48bc64cb"),
        ("gather", "bfloat16", "63d19a7c88e102dc"),
        ("cancelling", "bfloat16", "ffa8d70e4d0a201d"),
    ],
)
def test_a_case_gives_the_same_bytes_on_every_machine_and_version(family, dtype, golden):
    case = replace(TWO, values=family, dtype=dtype, placement="shuffled", spare_blocks=2, k_poison="random_bits")
    assert hash_of(case) == golden


def test_normal_values_look_normal():
    sample = values.normal(values.hashed(1, values.K, np.arange(200_000)))
    assert abs(sample.mean()) < 0.01
    assert abs(sample.std() - 1) < 0.03
    assert sample.max() < 3.2


def test_a_sequence_keeps_its_data_when_the_other_is_removed():
    alone = replace(TWO, seqs=TWO.seqs[1:])
    assert np.array_equal(values.keys(TWO, TWO.seqs[1]), values.keys(alone, alone.seqs[0]))


def test_a_shared_block_holds_the_owners_data():
    case = replace(TWO, seqs=(Seq(kv_len=40, tag=3), Seq(kv_len=40, tag=1, shares_prefix_with=3, shared_blocks=2)))
    owner, sharer = values.values(case, case.seqs[0]), values.values(case, case.seqs[1])
    assert np.array_equal(owner[:32], sharer[:32])
    assert not np.array_equal(owner[32:], sharer[32:])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_family_is_finite_and_one_wrong_token_shows(family, dtype):
    case = replace(TWO, values=family, dtype=dtype)
    data = [make(case, case.seqs[0]) for make in (values.query, values.keys, values.values)]
    for array in data:
        assert np.isfinite(values.cast(array, dtype).astype(np.float64)).all()
    if family not in ("uniform", "powers_of_two"):
        assert len(np.unique(values.cast(data[2], dtype).reshape(40, -1).astype(np.float64), axis=0)) == 40


def test_large_values_keep_the_truth_finite_in_float32():
    case = replace(TWO, values="large", head_dim=256, scale=1.0)
    q, k, v = (make(case, case.seqs[0]) for make in (values.query, values.keys, values.values))
    assert (np.abs(q[0, 0]) @ np.abs(k[:, 0]).T).max() < 2.0**126
    assert 40 * np.abs(v).max() < 2.0**126


@pytest.mark.parametrize(("family", "sign"), [("far_above", 1), ("far_below", -1)])
def test_every_score_is_far_beyond_any_softcap_and_exp_of_it(family, sign):
    case = replace(TWO, values=family)
    q, k = values.query(case, case.seqs[0])[0, 0], values.keys(case, case.seqs[0])[:, 0]
    assert (sign * (k @ q) * case.softmax_scale).min() > 3000


@pytest.mark.parametrize(("kv_dtype", "largest", "normal"), [("e4m3", 448.0, 2.0**-6), ("e5m2", 57344.0, 2.0**-14)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_edges_are_what_fp8_saturates_and_its_subnormals_whatever_the_scale(dtype, kv_dtype, largest, normal):
    case = replace(TWO, op="cache_write", values="edges", dtype=dtype, kv_dtype=kv_dtype, k_scale=4.0, v_scale=0.125)
    for make, scale in ((values.keys, 4.0), (values.values, 0.125)):
        sizes = np.abs(make(case, case.seqs[0])) / scale
        if largest * scale < 65504:
            assert (sizes == largest).any()
            assert (sizes > largest).any()
        assert ((sizes > 0) & (sizes < normal)).any()


def test_edges_of_a_cache_that_is_not_fp8_are_plain_values():
    plain, edges = TWO, replace(TWO, values="edges")
    assert np.array_equal(values.values(plain, TWO.seqs[0]), values.values(edges, TWO.seqs[0]))


def test_the_maximum_moves_in_every_tile_of_ascending_scores():
    case = replace(TWO, values="ascending_max", head_dim=64)
    q, k = values.query(case, case.seqs[0])[0, 0], values.keys(case, case.seqs[0])[:, 0]
    tiles = (k @ q).reshape(5, 8).max(axis=1)
    assert (np.diff(tiles) > 0).all()


def test_values_that_were_made_for_another_case_are_those_of_the_case():
    first = Case(seqs=(Seq(kv_len=20),), data_seed=1)
    for changed in (
        replace(first, placement="shuffled", geometry_seed=5, spare_blocks=3, k_poison="huge", table_pad="zero"),
        replace(first, data_seed=2),
        replace(first, values="ties"),
        replace(first, head_dim=32),
    ):
        for make in (values.query, values.keys, values.values):
            make(first, first.seqs[0])
            again = make(changed, changed.seqs[0])
            np.testing.assert_array_equal(again, make.__wrapped__(changed, changed.seqs[0]))
