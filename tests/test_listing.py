"""Numbers in words."""

from harness.listing import listed, runs


def test_neighbours_are_one_run():
    assert runs([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 7), (9, 10)]
    assert runs([]) == []


def test_one_number_is_singular_and_of_many_runs_a_few_are_spelt_out():
    assert listed([4], "slot") == "slot 4"
    assert listed([4, 5], "slot") == "slots 4-5"
    assert listed([0, 2, 4, 6, 8], "token") == "tokens 0, 2, 4 and 2 more runs"
