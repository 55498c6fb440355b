"""Cases near recorded ones: what the call showed stays, lengths move a step, poison is hostile."""

import pytest
from hypothesis import given, settings
from recordings import UNKNOWN

from harness.case import Case, Seq
from harness.fixed import _run, fixed_cases
from harness.ours import extend
from harness.profiles import Profile
from harness.strategies import cases

SERVER = Case(
    seqs=(Seq(kv_len=70), Seq(kv_len=33, tag=1), Seq(kv_len=64, tag=2, shares_prefix_with=0, shared_blocks=2)),
    num_q_heads=4, num_kv_heads=2, head_dim=64, block_size=16, dtype="float16", placement="shuffled", softcap=30.0,
    extra_columns=5, layout="kv_stacked", table_pad="zero", window=(40, 0),
)  # fmt: skip
SMALL = Case(seqs=(Seq(kv_len=5),))
MOVES = ("seqs", "table_pad", *UNKNOWN)


def drawn(recorded, count=20, **options):
    found = []
    for number in range(count):
        found += _run(Profile(recorded=recorded, **options), number)
    return found


def test_everything_that_a_call_shows_stays_but_lengths_and_padding():
    for case in drawn((SERVER,)):
        differ = {name for name in Case.__struct_fields__ if getattr(case, name) != getattr(SERVER, name)}
        assert differ <= set(MOVES)
        assert [seq.tag for seq in case.seqs] == [0, 1, 2]


def test_lengths_stay_within_a_block_and_move_to_its_edges():
    lengths = [{case.seqs[place].kv_len for case in drawn((SERVER,), 60)} for place in (0, 1)]
    assert lengths[0] == {70, 71, 69, 86, 54, 64, 65, 80}
    assert lengths[1] == {33, 34, 32, 49, 17, 48}


def test_poison_values_and_padding_are_as_hostile_as_ever():
    found = drawn((SERVER,), 60)
    for name in ("k_poison", "v_poison", "spare_poison", "row_poison"):
        assert {getattr(case, name) for case in found} == {"nan", "inf", "huge", "random_bits"}
    assert {case.table_pad for case in found} == {"minus_one", "zero", "huge", "other"}
    assert len({case.values for case in found}) > 10
    assert not {case.values for case in found} & {"edges"}


def test_calls_are_drawn_as_often_as_they_stand_there():
    found = drawn((SMALL,) * 9 + (SERVER,), 60)
    assert 0.8 < sum(len(case.seqs) == 1 for case in found) / len(found) < 0.97


def test_new_tokens_stay_and_no_sequence_becomes_shorter_than_they_are():
    recorded = tuple(fixed_cases(extend.__kvetch__, 4, 30))
    queries = {tuple(seq.query_len for seq in case.seqs) for case in recorded}
    for case in drawn(recorded, 30, op="extend"):
        assert tuple(seq.query_len for seq in case.seqs) in queries


@pytest.mark.parametrize("recorded", [(SERVER,), (Case(seqs=(Seq(kv_len=0), Seq(kv_len=1, tag=1))),)])
def test_any_neighbour_is_a_case(recorded):
    @settings(max_examples=200, database=None, deadline=None)
    @given(cases(Profile(recorded=recorded)))
    def holds(case):
        assert all(seq.kv_len >= 0 for seq in case.seqs)

    holds()


def test_without_recorded_calls_cases_are_drawn_as_before():
    assert {case.head_dim for case in drawn(())} - {64}
