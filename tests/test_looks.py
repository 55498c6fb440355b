"""Every look fires on the fault planted for it, stays silent without it, and has its turn."""

from collections import Counter
from dataclasses import replace as replace_fields
from typing import Any, get_args

import numpy as np
import pytest
import torch
from attending import lens
from controls import CONTROLS, DECODE, EXTEND, MERGE, Control, Fault, faulty, first_call
from hypothesis import HealthCheck, Phase, given, seed, settings

from harness import looks, ours
from harness.campaign import Campaign, Plan
from harness.case import Case, Hints, Op, replace
from harness.editing import living
from harness.hunt import Hunt
from harness.lifting import lifted
from harness.looks import LOOKS, Look
from harness.pipeline import Session, run_case
from harness.profiles import profile
from harness.results import SEVERITY, Finding, Result
from harness.strategies import cases
from harness.subjects import Declaration, Promise, Subject, from_function, load
from harness.summary import Found

every_look = pytest.mark.parametrize("asked", LOOKS, ids=lambda asked: asked.name)


def right(control: Control) -> Subject:
    """The kernel in which the fault of the control is planted."""
    return from_function(getattr(ours, "split_decode" if control.case.op == "decode" else control.case.op))


def answer(asked: Look, subject: Subject, case: Case) -> list[Finding]:
    found = asked.ask(first_call(subject, case))
    assert found is not None, "the look does not apply to the case of its own control"
    return found


@every_look
def test_a_look_without_a_control_would_be_vacuous(asked: Look) -> None:
    assert asked.name in CONTROLS, f"{asked.name} is vacuous: no planted fault shows that it can fail"


@every_look
def test_a_look_fires_on_its_planted_fault(asked: Look) -> None:
    control = CONTROLS[asked.name]
    (finding,) = answer(asked, faulty(control), control.case)
    assert finding.kind == control.kind
    assert finding.kind in SEVERITY
    assert finding.message


@every_look
def test_a_look_is_silent_where_its_fault_is_not(asked: Look) -> None:
    control = CONTROLS[asked.name]
    assert answer(asked, right(control), control.case) == []


def test_names_are_told_apart_and_no_control_is_left_over() -> None:
    assert sorted(asked.name for asked in LOOKS) == sorted(CONTROLS)


@pytest.mark.parametrize("name", ["decode", "split_decode", "extend", "step", "gather", "merge", "cache_write"])
def test_our_kernels_keep_every_law_on_drawn_cases(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, asked = from_function(getattr(ours, name)), Counter[str]()

    def look(first: object) -> list[Finding]:
        """A few of all looks for each case, in turn."""
        turn = asked["cases"] % 7
        answers = {each.name: each.ask(first) for each in LOOKS[turn::7]}  # type: ignore[arg-type]
        asked.update(each for each, found in answers.items() if found is not None)
        asked.update(["cases"])
        return [finding for found in answers.values() for finding in found or ()]

    monkeypatch.setattr(looks, "look", look)

    @seed(11)
    @settings(
        max_examples=8, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(cases(profile(subject.declaration, 11)))
    def keeps(case: Case) -> None:
        assert run_case(case, subject, "gridsim").findings == ()

    keeps()
    assert len(asked) > 4


# --- how a look is chosen ----------------------------------------------------------------------------------------


def test_one_case_in_so_many_is_looked_at_and_a_plain_one_is_not() -> None:
    for questions, every, many in looks.DRAWN:
        asked = [seed for seed in range(64) if (questions, many) in looks.due(Case(data_seed=seed))]
        assert len(asked) == 64 // every
    assert looks.due(Case()) == []


def test_every_look_has_its_turn() -> None:
    for questions, _, _ in looks.DRAWN:
        first = {looks.in_turn(Case(data_seed=seed), questions)[0].name for seed in range(4000)}
        assert first == {asked.name for asked in questions}


def test_the_turn_depends_on_the_seed_alone() -> None:
    plain = [asked.name for asked in looks.in_turn(Case(data_seed=5), LOOKS)]
    for case in (replace(DECODE, data_seed=5), replace(EXTEND, data_seed=5), replace(MERGE, data_seed=5)):
        assert [asked.name for asked in looks.in_turn(case, LOOKS)] == plain


@every_look
def test_a_look_says_all_that_a_table_of_them_needs(asked: Look) -> None:
    assert asked.expect in ("bitwise", "bound", "exact", "moves", "refused")
    assert asked.says
    assert asked.accuses
    known = {*Declaration.__struct_fields__, *get_args(Promise)}
    assert set(asked.requires) <= known


def test_a_fault_that_only_a_look_shows_is_found_by_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    law = next(asked for asked in LOOKS if asked.name == "negated V")
    monkeypatch.setattr(looks, "DRAWN", (((law,), 4, 1),))
    case = replace(DECODE, data_seed=3)
    (finding,) = run_case(case, faulty(CONTROLS["negated V"]), "gridsim").findings
    assert (finding.kind, finding.family) == ("determinism", "determinism")
    assert finding.message.startswith("when V was negated, out")
    assert run_case(replace(case, data_seed=0), faulty(CONTROLS["negated V"]), "gridsim").findings == ()


# --- who is held to what -----------------------------------------------------------------------------------------


def law(name: str) -> Look:
    return next(asked for asked in LOOKS if asked.name == name)


def promising(control: Control, **declared: bool) -> Subject:
    subject = faulty(control)
    return Subject(subject.name, replace_declaration(subject, declared), subject.run)


def replace_declaration(subject: Subject, declared: dict[str, bool]) -> object:
    return replace(subject.declaration, **declared)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("sequence alone", {"batch_invariant": False}),
        ("loose maximum", {"fixed_splits": False}),
        ("other cache layout", {"layout_invariant": False}),
        ("negated V", {"deterministic": False}),
    ],
)
def test_who_does_not_promise_it_is_held_to_the_bound_alone(name: str, declared: dict[str, bool]) -> None:
    control = CONTROLS[name]
    assert answer(law(name), promising(control, **declared), control.case) == []


@pytest.mark.parametrize(
    ("declared", "splits", "found"),
    [({"own_splits": True}, 0, 0), ({"own_splits": True}, 1, 1), ({"own_splits": False}, 0, 1)],
)
def test_where_the_batch_decides_on_the_splits_of_a_gpu_only_a_number_of_them_is_held_to_the_bit(
    declared: dict[str, bool], splits: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "compiles", lambda _: True)
    for name in ("sequence alone", "loose maximum"):
        control = CONTROLS[name]
        case = replace(control.case, hints=Hints(num_splits=splits))
        assert len(answer(law(name), promising(control, **declared), case)) == found


def test_where_a_compiler_makes_another_kernel_of_the_call_the_bound_is_all_that_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Session, "compiles", lambda _: True)
    for name, found in (("other cache layout", 0), ("negated V", 1)):
        assert len(answer(law(name), faulty(CONTROLS[name]), CONTROLS[name].case)) == found


def test_other_bits_of_a_call_that_need_not_be_refused_break_a_contract_only_where_nothing_is_compiled_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = replace_fault(CONTROLS["lengths apart"], CONTROLS["negated V"].fault)
    assert len(answer(law("lengths apart"), faulty(control), control.case)) == 1
    monkeypatch.setattr(Session, "compiles", lambda _: True)
    assert answer(law("lengths apart"), faulty(control), control.case) == []


def test_a_contract_that_is_not_promised_is_not_asked_for() -> None:
    control = CONTROLS["negative length"]
    assert law("negative length").ask(first_call(promising(control, promises=()), control.case)) is None


def test_a_law_of_the_bound_says_what_was_apart_and_by_how_much() -> None:
    control = CONTROLS["other block size"]
    (finding,) = answer(law("other block size"), faulty(control), control.case)
    assert finding.message.startswith("when the same tokens lay in blocks of another size, out[0, 0, 0] is ")
    assert " ± " in finding.message
    assert finding.accuses == "a tile that is taken for a block"
    assert finding.family == "wrong output"


def test_a_lost_row_of_a_padded_batch_is_no_determinism() -> None:
    control = replace_fault(CONTROLS["padding row more"], CONTROLS["other block size"].fault)
    (finding,) = answer(law("padding row more"), faulty(control), control.case)
    assert finding.kind == "relation"


def replace_fault(control: Control, fault: Fault) -> Control:
    return Control(control.case, fault, control.sees, control.kind)


def test_splits_are_asked_only_of_whom_takes_them() -> None:
    decode = from_function(ours.decode)
    assert law("other number of splits").ask(first_call(decode, replace(DECODE, hints=Hints()))) is None


def test_an_argument_that_should_not_move_the_output_is_not_asked_to() -> None:
    case = replace(DECODE, seqs=lens(1, 1))  # one key: no window hides it
    assert answer(law("sensitive to window"), from_function(ours.decode), case) == []


@pytest.mark.parametrize("op", ["decode", "merge"])
def test_what_is_lifted_are_the_numbers_of_the_16_bit_tensors_whatever_float32_would_have_drawn(op: Op) -> None:
    case = Case(op=op, seqs=lens(20), dtype="float16", values="large", data_seed=3)
    first = first_call(load(f"ours.{op}", op), case)
    wide = lifted(first)
    for name in ("state_outs",) if op == "merge" else ("q", "k_cache", "v_cache"):
        there = living(first.materials, name)
        assert np.isfinite(there).all()
        np.testing.assert_array_equal(living(wide, name), there)


def test_a_fault_that_the_changed_case_alone_has_is_blamed_on_what_was_changed() -> None:
    """A kernel that takes q for contiguous is found by the law of q's strides, and its limit is known already."""

    def contiguous(inputs: Any) -> Any:
        flat = torch.as_strided(inputs.q, inputs.q.shape, (inputs.q.shape[1] * inputs.q.shape[2], inputs.q.shape[2], 1))
        return ours.decode(replace_fields(inputs, q=flat))

    case = Case(seqs=lens(20, 9), num_q_heads=2, num_kv_heads=2)
    subject = Subject("contiguous", Declaration(layout_invariant=True), contiguous)
    (law,) = (look for look in LOOKS if look.name == "other strides of q")
    found = law.ask(first_call(subject, case))
    assert found
    assert {"strided q"} == set(found[0].beyond)
    known = Found("contiguous", case, found[0], needs=("several sequences", "strided q"))
    hunting = Hunt(Campaign(Plan({"contiguous": subject.declaration}, "gridsim", 60.0), Silent()), "contiguous")
    result = Result(case, "contiguous", "gridsim", findings=tuple(found))
    assert hunting._new_family(result) == "wrong output"
    hunting.campaign.findings.append(known)
    assert hunting._new_family(result) == ""


class Silent:
    """A runner that is not asked."""

    restarts = 0


def test_of_several_questions_those_that_apply_are_asked_until_one_finds_something() -> None:
    asked: list[str] = []

    class Question:
        weight = 1

        def __init__(self, name: str, answer: list[Finding] | None) -> None:
            self.name, self.answer = name, answer

        def ask(self, first: Any) -> list[Finding] | None:
            asked.append(self.name)
            return self.answer

    first = type("First", (), {"case": Case(data_seed=7)})()
    wrong = [Finding(kind="contract", message="it was taken")]
    quiet = [Question(f"quiet {i}", []) for i in range(4)] + [Question(f"none {i}", None) for i in range(4)]
    assert looks.ask(first, quiet, 3) == []
    assert sum(name.startswith("quiet") for name in asked) == 3
    asked.clear()
    assert looks.ask(first, [Question(f"wrong {i}", wrong) for i in range(4)], 3) == wrong
    assert len(asked) == 1
