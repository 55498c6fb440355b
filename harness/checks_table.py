"""`python -m harness.checks_table`: docs/checks.md, a row for each check and relation, from what they declare."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import checks, relations
from harness.contract import Violation
from harness.files import write_atomically
from harness.folders import PACKAGE
from harness.laws import Law
from harness.lifting import Lifting
from harness.looks import LOOKS, Look
from harness.relations import Relation
from harness.results import Finding
from harness.sensitivity import Sensitivity

FILE = PACKAGE.parent / "docs" / "checks.md"


@dataclass(frozen=True)
class Check:
    """What a check is and where it is proved; `find` does the work."""

    find: Callable[[checks.Run], Iterator[Finding]]
    kinds: tuple[str, ...]
    expects: str  # exact, bound, or nothing (the kind alone is a fault)
    accuses: str
    fires: str  # the test with a planted fault
    silent: str  # the test with a right kernel
    requires: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    kinds: str
    expects: str
    requires: str
    accuses: str
    fires: str
    silent: str


RIGHT = "test_checks.test_no_check_blames_a_right_kernel"
RIGHT_WRITE = "test_checks.test_no_check_blames_a_right_write"
RIGHT_ACCESS = "test_access_checks.test_a_right_kernel_with_scratch_is_silent"
CHECKS = (
    Check(
        checks.raised,
        ("exception", "crash"),
        "nothing",
        "the line that raised; an illegal memory access where the device context is lost",
        "test_checks.test_an_exception_is_told_with_its_type_and_line",
        RIGHT,
    ),
    Check(
        checks.misshapen,
        ("wrong shape",),
        "exact",
        "the wrapper",
        "test_checks.test_an_output_of_the_wrong_kind_is_named",
        RIGHT,
    ),
    Check(
        checks.bad_accesses,
        ("bad read", "bad write"),
        "nothing",
        "a mask or an address, with its line",
        "test_checks.test_a_read_beyond_a_tensor_is_a_bad_read_though_the_output_is_right",
        RIGHT,
        "gridsim",
    ),
    Check(
        checks.wrapped,
        ("overflow read", "overflow write"),
        "nothing",
        "an index that is not made 64 bits wide before it is multiplied",
        "test_access_checks.test_a_block_id_that_is_multiplied_in_32_bits_is_told_with_its_numbers",
        RIGHT_ACCESS,
        "gridsim",
    ),
    Check(
        checks.raced,
        ("race",),
        "nothing",
        "two programs without an order",
        "test_access_checks.test_two_heads_that_write_one_row_are_a_race_named_with_both_programs",
        RIGHT_ACCESS,
        "gridsim",
    ),
    Check(
        checks.wrote_outside,
        ("wrote outside",),
        "exact",
        "a store's mask or strides",
        "test_checks.test_a_write_just_outside_a_tensor_is_seen",
        RIGHT,
    ),
    Check(
        checks.changed_inputs,
        ("inputs changed", "wrong cache"),
        "exact",
        "the slot or the strides of a write",
        "test_checks.test_a_token_in_the_wrong_slot_is_a_wrong_cache_told_at_both_places",
        RIGHT_WRITE,
    ),
    Check(
        checks.unwritten,
        ("unwritten output",),
        "exact",
        "the grid, or the mask of the last store",
        "test_checks.test_a_given_out_that_is_left_in_part_is_unwritten",
        RIGHT,
        "a given out, or gridsim",
    ),
    Check(
        checks.inaccurate,
        ("accuracy", "not finite"),
        "bound",
        "what the x-ray says of the weights",
        "test_checks.test_a_wrong_element_is_told_with_got_expected_place_and_times_the_bound",
        RIGHT,
    ),
    Check(
        checks.inexact,
        ("inexact",),
        "exact",
        "the slot that was read, the key that does not count or counts twice",
        "test_exact.test_one_key_too_few_or_too_many_is_found_and_named",
        "test_exact.test_a_right_kernel_is_exact",
        "values uniform, two_level or gather; sums in float32; no ALiBi, no sinks",
    ),
    Check(
        checks.miscopied,
        ("accuracy", "not finite"),
        "exact",
        "the rows that were not loaded, or the slots that were loaded instead",
        "test_checks.test_rows_lost_at_a_block_boundary_are_found",
        "test_checks.test_no_check_blames_a_right_gather",
        "op gather",
    ),
)

FIRES_ON_DEAD = "test_relations.test_a_subject_that_looks_at_dead_data_is_found_and_the_culprit_named"
FIRES_ON_CALLS = "test_relations.test_a_subject_that_differs_from_call_to_call_is_not_repeatable_and_nothing_else"
#: Where each relation is proved, by its name, unless it says so itself.
FIRES = {
    "re-poisoned K": FIRES_ON_DEAD,
    "re-poisoned V": FIRES_ON_DEAD,
    "re-poisoned spare blocks": FIRES_ON_DEAD,
    "re-poisoned rows": "test_relations."
    "test_a_subject_that_looks_at_the_rows_of_a_graphs_padding_is_found_and_the_culprit_named",
    "re-poisoned table padding": FIRES_ON_DEAD,
    "re-poisoned all": "test_relations.test_what_only_all_changes_together_move_is_still_found",
    "renumbered blocks": "test_relations.test_a_subject_that_looks_at_block_ids_is_found",
    "repeated": FIRES_ON_CALLS,
    "program order": "test_relations.test_a_sum_in_the_order_in_which_programs_happen_to_run_is_not_repeatable",
    "refilled scratch": "test_access_checks.test_a_part_of_the_scratch_that_nobody_writes_is_named_where_it_is_read",
    "undefined lanes": "test_access_checks."
    "test_lanes_that_a_masked_load_without_other_leaves_undefined_are_found_and_named",
}
#: Where each look is proved, and of which kind its findings are.
LOOK_FIRES = "test_looks.test_a_look_fires_on_its_planted_fault"
LOOK_SILENT = "test_looks.test_a_look_is_silent_where_its_fault_is_not"
LOOK_KINDS: dict[type, str] = {
    Law: "relation, determinism",
    Lifting: "accuracy in float32",
    Sensitivity: "ignored argument",
    Violation: "contract",
}
SILENT = {
    "refilled scratch": "test_access_checks.test_a_read_of_unwritten_scratch_that_is_not_used_is_legal",
    "undefined lanes": "test_access_checks.test_undefined_lanes_that_are_masked_later_are_legal",
}

HEAD = """\
# Checks and relations

A check looks at one call, a relation compares two. *exact*: one output is right, bit by bit or up to the rounding that
is named. *bitwise*: no bit may move. *bound*: every element within its derived error bound. *nothing*: what is seen
is a fault by itself. A bitwise relation that fails while both outputs are within the bound is of kind `determinism`; a
subject without the promise that a relation requires is held to the bound alone. Looks are asked of some clean cases
on top of these: *moves*: some bit must move; *refused*: the call must raise, or give what the right call gives. The
last two columns name the test with a planted fault and the test with a right kernel.

Written by `python -m harness.checks_table`; `tests/test_checks_table.py` holds it to what the code declares.
"""


#: What only the supervisor sees.
PROCESS = (
    Row(
        "died",
        "crash",
        "nothing",
        "a worker process",
        "the place in the subject, as far as it is known",
        "test_worker.test_a_crash_is_a_finding_that_names_the_signal_and_the_place",
        RIGHT,
    ),
    Row(
        "hung",
        "hang",
        "nothing",
        "a worker process",
        "the place in the subject where it was",
        "test_worker.test_a_hang_is_killed_at_its_limit_and_says_where_it_was",
        RIGHT,
    ),
)


def rows() -> tuple[Row, ...]:
    """Checks in the order in which they are made, then relations and looks in the order of their declaration."""
    checked = (*PROCESS, *(_of_check(check) for check in CHECKS))
    return (*checked, *(_of_relation(one) for one in all_relations()), *(_of_look(one) for one in LOOKS))


def all_relations() -> tuple[Relation, ...]:
    """Every relation that is declared, once."""
    found: dict[str, Relation] = {}
    for declared in vars(relations).values():
        for one in declared if isinstance(declared, tuple) else (declared,):
            if isinstance(one, Relation):
                found.setdefault(one.name, one)
    return tuple(found.values())


def _of_check(check: Check) -> Row:
    return Row(
        check.find.__name__, ", ".join(check.kinds), check.expects, check.requires, check.accuses, check.fires,
        check.silent,
    )  # fmt: skip


def _of_relation(relation: Relation) -> Row:
    """A relation compares bits, unless it says more; what it requires are promises, else the bound alone is held."""
    expects = str(getattr(relation, "expect", "bitwise"))
    requires = [*getattr(relation, "requires", ("deterministic",)), *(["gridsim"] if relation.under else [])]
    fires = str(getattr(relation, "fires", "") or FIRES.get(relation.name, ""))
    silent = str(getattr(relation, "silent", "") or SILENT.get(relation.name, RIGHT))
    return Row(relation.name, relation.kind, expects, ", ".join(requires), relation.accuses, fires, silent)


def _of_look(look: Look) -> Row:
    kinds = LOOK_KINDS[type(look)]
    return Row(
        look.name, kinds, look.expect, ", ".join(look.requires), look.accuses, LOOK_FIRES, LOOK_SILENT,
    )  # fmt: skip


def text() -> str:
    """The whole file."""
    titles = ("name", "kind", "expects", "requires", "accuses", "fires", "silent")
    lines = [_line(titles), _line(("---",) * len(titles))]
    lines += [_line((*vars(row).values(),)) for row in rows()]
    return HEAD + "\n" + "\n".join(lines) + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def main(file: Path = FILE) -> None:
    """Write the file."""
    write_atomically(file, text())


if __name__ == "__main__":
    main()
