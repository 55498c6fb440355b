"""A fault of class ORACLE is planted in a process of its own, where a witness notices it."""

from pathlib import Path

import pytest
from hunting import MUTANTS

from harness.case import Case, Seq, replace
from harness.folders import load_file
from harness.mutants import JUDGE, Mutant, plant
from harness.pool import Worker
from harness.spoiling import spoil, spoiling
from harness.subjects import load, operation
from harness.summary import Summary
from harness.verdicts import verdict

FAULTS = [mutant for mutant in MUTANTS if mutant.is_of_judge]
PLAIN = Case(seqs=(Seq(kv_len=20), Seq(kv_len=33, tag=1)), num_q_heads=4, num_kv_heads=2, values="peaked")
#: A case on which each of them shows.
SHOWN = {
    "reference-window-short": {"window": (3, -1)},
    "reference-without-sink": {"sinks": True},
    "truth-aligned-top-left": {"seqs": (Seq(query_len=3, kv_len=20),)},
    "truth-capped-at-one": {"softcap": 5.0},
}


@pytest.mark.parametrize("mutant", FAULTS, ids=lambda mutant: mutant.name)
def test_a_fault_of_the_judge_is_noticed_by_a_witness(mutant: Mutant, tmp_path: Path) -> None:
    case = replace(PLAIN, op=operation(mutant.subject), **SHOWN.get(mutant.name, {}))
    with Worker("gridsim") as worker:
        fault = worker.run(case, plant(mutant, tmp_path), 60.0, thorough=True).harness_fault
        assert all(words in fault for words in mutant.says), fault
        worker.renew()
        assert worker.run(case, mutant.subject, 60.0, thorough=True).harness_fault == ""


def test_there_are_three_faults_of_the_judge_at_least() -> None:
    assert len(FAULTS) >= 3


def test_whoever_holds_a_function_gets_the_code_of_the_other_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("def inner():\n    return 1\n\n\ndef outer():\n    return inner()\n")
    second.write_text(first.read_text().replace("1", "2"))
    module = load_file(first, "spoilt_by_test")
    held = module.outer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.spoiling._module", lambda file: module)
        spoil("references/first.py", second)
    assert held() == 2


def test_importing_a_planted_subject_changes_nothing_yet(tmp_path: Path) -> None:
    mutant = next(mutant for mutant in FAULTS if mutant.name == "nan-passes")
    subject = load(plant(mutant, tmp_path), "decode")
    assert subject.declaration == load("ours.decode").declaration
    assert subject.validate is not None


def test_a_spoiling_subject_gives_what_it_gave() -> None:
    assert spoiling(lambda inputs: inputs + 1, {})(1) == 2


def test_a_harness_at_fault_is_what_finds_a_fault_of_the_judge_and_no_other() -> None:
    mutant = next(mutant for mutant in FAULTS if mutant.name == "nan-passes")
    summary = Summary(subjects=("ours.decode",), executor="gridsim", cases=3, harness_faults=(mutant.says[0],))
    found = verdict(mutant, summary, 1.0, systematic=False)
    assert (found.passed, found.kind, found.explained, found.fault) == (True, JUDGE, True, "")
    assert not verdict(mutant, Summary(subjects=(), executor="gridsim"), 1.0, systematic=False).found
    kernel = next(mutant for mutant in MUTANTS if not mutant.is_of_judge)
    assert verdict(kernel, summary, 1.0, systematic=False).fault == mutant.says[0]
