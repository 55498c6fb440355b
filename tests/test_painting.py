"""What is seen of one more call: each kind of fault leaves its mark where it is, and a right kernel leaves none."""

from pathlib import Path

import msgspec
import pytest
from attending import lens

from harness.case import Case, Seq, Slots, States, Tile, replace
from harness.executors.base import BadAccess, Observed
from harness.inputs import materialise
from harness.painting import MOST_COLUMNS, MOST_ROWS, MOST_WEIGHTS, _marks, laid_out, painted
from harness.results import Finding

ROOT = Path(__file__).parents[1]
WRONG = Finding(kind="accuracy", message="out is 1, but should be 0")
TAME = {"k_poison": "zero", "v_poison": "zero"}
RAGGED = Case(seqs=lens(20, 7), num_q_heads=2, num_kv_heads=1, spare_blocks=1, **TAME)

FAULTS = '''
"""Subjects that do one thing wrong; the right attention is that of the tests."""
import torch
from attending import attend as right
from attending import gather

from harness.ours import cache_write as write
from harness.ours import gather as tile
from harness.ours import merge as merging


def last_token_dropped(inputs):
    shorter = inputs.map(lambda name, x: torch.clamp(x - 1, min=1) if name == "kv_lens" else x)
    return right(shorter)[0]


def lse_wrong(inputs):
    out, lse = right(inputs)
    return out, lse + 1


def nothing(inputs):
    raise KeyError("no such block")


def one_block_off(inputs):
    write(inputs)
    inputs.k_cache.view(-1)[0] = 7


def tile_shifted(inputs):
    out = tile(inputs)
    out[0, 1] = 7
    return out


def state_lost(inputs):
    lses = inputs.state_lses.clone()
    lses[0] = -torch.inf
    return merging(inputs.map(lambda name, x: lses if name == "state_lses" else x))
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Paint a case of a subject above, of ours or of a file."""
    file = tmp_path_factory.mktemp("faults") / "faults.py"
    file.write_text(FAULTS)

    def paint(case, subject, finding=WRONG):
        name = subject if "." in subject else f"{file}:{subject}"
        plain = msgspec.to_builtins(case), name, msgspec.to_builtins(finding), "gridsim"
        return painted(*plain)

    return paint


def marks(picture):
    """(block, slot) to mark."""
    return {
        (block.number, slot): mark
        for block in picture.pool.blocks
        for slot, mark in enumerate(block.marks)
        if mark != " "
    }


# --- a right kernel ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "subject"),
    [
        (RAGGED, "ours.decode"),
        (replace(RAGGED, k_poison="nan", v_poison="nan", want_lse=True), "ours.decode"),
        (Case(op="step", seqs=(Seq(query_len=3, kv_len=20),), slots=Slots(tail_padding=1)), "ours.step"),
        (Case(op="cache_write", seqs=(Seq(query_len=3, kv_len=20),)), "ours.cache_write"),
        (Case(op="gather", seqs=lens(9), tile=Tile(start=2, end=12)), "ours.gather"),
        (Case(op="merge", states=States(partition=(3, 4), empty=(1,))), "ours.merge"),
    ],
    ids=["decode", "poisoned", "step", "cache_write", "gather", "merge"],
)
def test_of_a_right_kernel_nothing_is_marked(seen, case, subject):
    picture = seen(case, subject)
    assert not any(heat.wrong for heat in picture.heats)
    assert all(margin is not None and margin <= 1 for heat in picture.heats for row in heat.margins for margin in row)
    assert picture.weights is None
    if picture.pool is not None:
        assert marks(picture) == {}
        assert not any(row.read for row in picture.table)


# --- faults ------------------------------------------------------------------------------------------------------


def test_a_slot_that_is_read_behind_the_last_token_is_marked_with_its_weight_and_line(seen):
    named = msgspec.structs.replace(WRONG, line="my_decode_wrong.py:38")
    picture = seen(RAGGED, f"{ROOT}/examples/my_decode_wrong.py:my_decode_wrong", named)
    tables = materialise(RAGGED).geometry.tables
    assert marks(picture) == {(int(tables[0][1]), 4): "r", (int(tables[1][0]), 7): "r"}
    assert picture.heats[0].wrong > 0
    extra = [weight for weight in picture.weights.shown if not weight.place.startswith("token")]
    assert [weight.place for weight in extra] == [f"slot 4 of block {tables[0][1]}"]
    assert extra[0].wrong
    assert extra[0].true == 0
    assert extra[0].got > 0
    text = (ROOT / "examples" / "my_decode_wrong.py").read_text().splitlines()
    assert picture.source.marks == {38: "dead read of k_cache", 39: "dead read of v_cache"}
    assert list(picture.source.lines) == text[picture.source.first - 1 :][: len(picture.source.lines)]
    assert picture.source.first > 10  # the function is longer than what is shown


def test_a_token_that_is_not_seen_is_marked_as_missing(seen):
    picture = seen(RAGGED, "last_token_dropped", msgspec.structs.replace(WRONG, where=(1, 1, 0, 0)))
    assert marks(picture) == {(int(materialise(RAGGED).geometry.tables[1][0]), 6): "m"}
    assert picture.weights.row == "sequence 1, head 0"
    (last,) = [weight for weight in picture.weights.shown if weight.place == "token 6"]
    assert (last.got, last.wrong) == (0, True)
    assert last.true > 0
    assert picture.source is None


def test_a_wrong_lse_has_a_map_of_its_own(seen):
    case = replace(RAGGED, want_lse=True)
    heats = seen(case, "lse_wrong").heats
    assert [(heat.name, heat.wrong, heat.elements) for heat in heats] == [("out", 0, 64), ("lse", 4, 4)]
    assert [heat.name for heat in seen(case, "ours.decode").heats] == ["out"]


def test_a_call_that_raises_leaves_the_case_and_what_it_raised(seen):
    picture = seen(RAGGED, "nothing", Finding(kind="exception", message="KeyError"))
    assert picture.heats == ()
    assert picture.pool is not None
    assert picture.notes == ("the call gives no output: KeyError: 'no such block'",)


def test_a_wrong_write_is_marked_where_it_lies(seen):
    case = Case(op="cache_write", seqs=(Seq(query_len=1, kv_len=20),))
    assert marks(seen(case, "one_block_off", Finding(kind="wrong cache", message="m"))) == {(0, 0): "w"}


def test_of_a_copy_every_wrong_bit_counts(seen):
    case = Case(op="gather", seqs=lens(9), tile=Tile(start=2, end=5))
    (heat,) = seen(case, "tile_shifted").heats
    assert heat.rows == ("sequence 0, row 0, head 0", "sequence 0, row 1, head 0", "sequence 0, row 2, head 0")
    assert [set(row) for row in heat.margins] == [{0.0}, {None}, {0.0}]


def test_weights_of_states_are_told_by_state(seen):
    case = Case(op="merge", states=States(partition=(3, 4)))
    picture = seen(case, "state_lost")
    assert [(weight.place, weight.wrong) for weight in picture.weights.shown] == [("state 0", True), ("state 1", True)]
    assert picture.weights.shown[0].got == 0


def test_a_finding_of_a_comparison_says_that_this_call_is_right(seen):
    picture = seen(RAGGED, "ours.decode", Finding(kind="dead data read", message="m"))
    assert picture.notes == ("this one call is right: the finding comes from its comparison with a second call",)


def test_padding_of_the_table_that_is_read_and_a_write_to_dead_slots_are_marked():
    table = BadAccess("dead read", "block_tables", (1, 3), (0, 0, 0), "f.py:1", 1)
    cache = BadAccess(
        "dead write", "k_cache or v_cache", (0, 2, 0, 0), (0, 0, 0), "f.py:2", 1, rows=frozenset({(0, 2, 0)})
    )
    race = BadAccess("race", "k_cache", (0, 3, 0, 0), (0, 0, 0), "f.py:2", 1, rows=frozenset({(0, 3, 0)}))
    observed = Observed(accesses=(table, cache, race))
    assert _marks(materialise(RAGGED), observed, None) == {(0, 2): "w"}


# --- size --------------------------------------------------------------------------------------------------------


def test_a_large_output_is_cut_to_its_worst_rows_and_says_so(seen):
    case = Case(seqs=lens(*[9] * 20), num_q_heads=4, num_kv_heads=4, head_dim=128, **TAME)
    picture = seen(case, "last_token_dropped")
    (heat,) = picture.heats
    assert (len(heat.rows), heat.all_rows, len(heat.margins[0]), heat.per_column) == (MOST_ROWS, 80, MOST_COLUMNS, 2)
    assert heat.elements == 80 * 128
    assert "24 of 80 rows of out are drawn, those with the largest errors" in picture.notes


def test_of_many_weights_the_most_wrong_are_kept_in_the_order_of_tokens(seen):
    picture = seen(Case(seqs=lens(60), **TAME), "last_token_dropped")
    shown = [int(weight.place.removeprefix("token ")) for weight in picture.weights.shown]
    assert (len(shown), picture.weights.count) == (MOST_WEIGHTS, 60)
    assert shown == sorted(shown)
    assert shown[-1] == 59


def test_a_case_is_laid_out_without_a_call():
    picture = laid_out(msgspec.to_builtins(RAGGED))
    assert len(picture.table) == 2
    assert marks(picture) == {}
    assert picture.heats == ()
