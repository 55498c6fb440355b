"""A large case made smaller: within the budget, and like the case in what finds faults."""

import pytest

from harness.case import Case, Seq
from harness.fixed import fixed_cases
from harness.ours import decode, extend, step
from harness.scaling import KEPT, MOST_ELEMENTS, MOST_SCORES, Budget, elements, scores, smaller, told, too_large
from harness.workloads import WORKLOADS

TIGHT = Budget(2**14, 2**12, 3, 64)
SERVER = WORKLOADS["decode-ragged-16"].case()


@pytest.mark.parametrize("keep_heads", [True, False])
@pytest.mark.parametrize("budget", [KEPT, TIGHT], ids=["kept", "tight"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_of_servers_fits_a_budget(name, budget, keep_heads):
    case = WORKLOADS[name].case()
    small = smaller(case, budget, keep_heads)
    assert elements(small) <= budget.elements
    assert scores(small) <= max(budget.scores, small.num_q_heads * 2)
    assert len(small.seqs) <= budget.seqs
    assert (small.group, small.head_dim, small.block_size, small.dtype) == (
        case.group, case.head_dim, case.block_size, case.dtype
    )  # fmt: skip


@pytest.mark.parametrize("declared", [decode, extend, step], ids=lambda function: function.__name__)
def test_any_drawn_case_becomes_a_case_that_contradicts_nothing(declared):
    for case in fixed_cases(declared.__kvetch__, 3, 60):
        small = smaller(case, TIGHT)
        assert elements(small) <= TIGHT.elements or small.head_dim * small.num_kv_heads > 512
        assert (small.placement, small.window[1], small.slid_out) == (case.placement, case.window[1], case.slid_out)


def test_what_fits_stays_as_it_is():
    case = Case(seqs=(Seq(kv_len=50), Seq(kv_len=20, tag=1)))
    assert smaller(case) is case
    assert told(case, case) == ()


def test_lengths_keep_their_remainders_by_block_and_tile():
    case = Case(
        seqs=tuple(Seq(kv_len=length, tag=length) for length in (8192, 8191, 4097)), num_kv_heads=4, num_q_heads=4
    )
    small = smaller(case, Budget(2**17, 2**20, 5, 128))
    for seq in small.seqs:
        assert seq.kv_len % 128 == seq.tag % 128
        assert 0 < seq.kv_len < seq.tag


def test_the_longest_the_shortest_and_one_that_shares_stay():
    seqs = [Seq(kv_len=1000 + i, tag=i) for i in range(40)]
    seqs[0], seqs[7] = Seq(kv_len=5000), Seq(kv_len=3, tag=7)
    seqs[20] = Seq(kv_len=1020, tag=20, shares_prefix_with=11, shared_blocks=60)
    small = smaller(Case(seqs=tuple(seqs)), Budget(2**30, 2**30, 4, 128))
    assert [seq.tag for seq in small.seqs] == [0, 7, 11, 20]
    assert small.seqs[3].shared_blocks == 60


def test_what_is_shared_is_no_more_than_is_left_in_common():
    seqs = (Seq(kv_len=5000), Seq(kv_len=4500, tag=1, shares_prefix_with=0, shared_blocks=280))
    small = smaller(Case(seqs=seqs, head_dim=64), Budget(2**16, 2**20, 4, 128))
    shared = small.seqs[1].shared_blocks
    assert shared == min(seq.kv_len for seq in small.seqs) // 16
    assert 0 < shared < 280


def test_a_window_that_cut_the_longest_still_does():
    case = Case(seqs=(Seq(kv_len=8192),), window=(4095, 0), head_dim=64)
    small = smaller(case, Budget(2**16, 2**20, 4, 128))
    assert 0 <= small.window[0] < small.seqs[0].kv_len
    assert small.window[0] % 128 == 4095 % 128
    unlimited = Case(seqs=(Seq(kv_len=8192),), head_dim=64)
    assert smaller(unlimited, Budget(2**16, 2**20, 4, 128)).window == (-1, -1)


@pytest.mark.parametrize(
    "seq", [Seq(query_len=2000, kv_len=2000), Seq(query_len=500, kv_len=4000), Seq(query_len=9, kv_len=5)]
)
def test_a_prefill_stays_a_prefill_and_a_chunk_a_chunk(seq):
    small = smaller(Case(op="extend", seqs=(seq,), num_q_heads=4, num_kv_heads=4), TIGHT).seqs[0]
    assert (small.query_len > small.kv_len) == (seq.query_len > seq.kv_len)
    assert (small.query_len == small.kv_len) == (seq.query_len == seq.kv_len)


def test_heads_go_where_lengths_are_to_stay():
    case = Case(seqs=(Seq(kv_len=4000),), num_q_heads=32, num_kv_heads=8, head_dim=128)
    both = [smaller(case, Budget(2**18, 2**20, 4, 128), keep_heads) for keep_heads in (True, False)]
    assert [(small.num_q_heads, small.num_kv_heads) for small in both] == [(32, 8), (4, 1)]
    assert both[0].seqs[0].kv_len < both[1].seqs[0].kv_len


def test_what_became_smaller_is_told():
    case = Case(seqs=tuple(Seq(kv_len=8192, tag=i) for i in range(64)), num_q_heads=32, num_kv_heads=8, head_dim=128)
    assert told(case, smaller(case)) == ("made smaller: 8 of 64 sequences, the longest has 256 of 8192 tokens",)


def test_too_large_is_told_with_the_number_and_what_helps():
    case = Case(seqs=tuple(Seq(kv_len=8192, tag=i) for i in range(64)), num_q_heads=32, num_kv_heads=8, head_dim=128)
    assert too_large(case) == (
        f"has 1073741824 elements of K and V, but at most {MOST_ELEMENTS} are run; "
        "`python -m harness.recorded FOLDER --smaller INTO` makes it smaller"
    )
    assert too_large(smaller(case)) is None
    long = Case(op="extend", seqs=(Seq(query_len=8192, kv_len=8192),))
    assert f"has 67108864 scores, but at most {MOST_SCORES} are run" in str(too_large(long))
    assert too_large(Case()) is None
