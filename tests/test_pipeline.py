"""`run_case`: what is declined, what is called how often, and what a result says."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from attending import RAGGED, attend, lens, right, torch_subject

from harness import judge, looks, subjects
from harness.case import Case, replace
from harness.executors import Failure, Observed, executor
from harness.executors.base import Conditions
from harness.inputs import Materials
from harness.ours import decode
from harness.pipeline import SAMPLE, Session, run_case, shown
from harness.results import RETIRE_NOTE, Result
from harness.subjects import Subject

EXAMPLES = Path(__file__).parents[1] / "examples"
OURS = subjects.from_function(decode)
TORCH = torch_subject(right)


def test_what_the_subject_does_not_declare_is_declined_without_a_call() -> None:
    def never(inputs: Any) -> Any:
        raise AssertionError(inputs)

    result = run_case(replace(RAGGED, window=(3, -1)), torch_subject(never, window=False), "gridsim")
    assert (result.declined, result.runs, result.findings) == ("does not declare window", 0, ())
    assert (result.executor, result.platform) == ("gridsim", "gridsim")


def test_what_the_executor_declines_is_not_called() -> None:
    result = run_case(replace(RAGGED, dtype="bfloat16"), TORCH, "interpreter")
    assert (result.declined, result.runs) == ("the interpreter is wrong in bfloat16", 0)


def test_a_template_that_is_still_to_be_filled_is_declined_with_its_line() -> None:
    def template(inputs: Any) -> Any:
        raise NotImplementedError

    result = run_case(RAGGED, torch_subject(template), "gridsim")
    assert result.declined == f"not written yet (test_pipeline.py:{template.__code__.co_firstlineno + 1})"
    assert result.findings == ()


@triton.jit
def assembly(out):
    tl.store(out, tl.inline_asm_elementwise("mov.b32 $0, 1.0;", "=r", [], tl.float32, is_pure=True, pack=1))


def test_an_operation_that_gridsim_lacks_is_declined_by_name() -> None:
    def run(inputs: Any) -> Any:
        assembly[(1,)](torch.empty(1))
        return right(inputs)

    result = run_case(RAGGED, torch_subject(run), "gridsim")
    assert result.declined.startswith("the executor cannot: ")
    assert "elementwise_inline_asm" in result.declined
    assert result.findings == ()


def test_what_the_access_log_proves_is_not_launched_again() -> None:
    case = replace(RAGGED, data_seed=1)
    assert run_case(case, OURS, "gridsim").runs == 2  # once, and with renumbered blocks
    assert run_case(case, OURS, "gridsim", thorough=True).runs == 3  # and repeated
    assert run_case(case, TORCH, "gridsim").runs == 4  # no log, so the dead data were changed as well


def test_one_case_in_eight_is_repeated_and_one_is_shown_to_the_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(judge, "disagreement", lambda materials, _: asked.append(materials.case.data_seed))
    monkeypatch.setattr(looks, "DRAWN", ())
    runs = [run_case(replace(RAGGED, data_seed=seed), OURS, "gridsim").runs for seed in range(2 * SAMPLE)]
    assert sorted(runs) == [2] * (2 * SAMPLE - 2) + [3, 3]
    assert asked == [4, 12]


def test_the_witness_is_asked_about_every_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "disagreement", lambda *_: "they differ")
    result = run_case(replace(RAGGED, data_seed=1), torch_subject(lambda inputs: attend(inputs)[0] + 1), "gridsim")
    assert result.harness_fault == "they differ"
    assert run_case(replace(RAGGED, data_seed=1), TORCH, "gridsim").harness_fault == ""


def test_a_result_tells_the_margin_the_arithmetic_and_the_behaviours() -> None:
    result = run_case(replace(RAGGED, dtype="float16"), OURS, "gridsim")
    assert 0.0 < result.margin <= 1.0
    assert result.margin_term.startswith("which is ")
    assert result.arithmetic.startswith("ieee products; q*k summed in float32")
    assert any("decode.py:" in behaviour for behaviour in result.behaviours)
    assert result.subject == "decode"
    assert result.seconds > 0


def test_notes_on_the_arithmetic_reach_the_result() -> None:
    result = run_case(replace(RAGGED, dtype="float16"), _tutorial(), "gridsim")
    assert any(note.startswith("q*k is summed in float16 at tutorial_decode.py:") for note in result.notes)


def _tutorial() -> Subject:
    return subjects.load(f"{EXAMPLES}/tutorial_decode.py:tutorial_decode")


def test_the_examples_are_as_they_say() -> None:
    name = f"{EXAMPLES}/my_decode"
    case = Case(seqs=lens(20, 7), num_q_heads=2, head_dim=32)
    assert run_case(case, subjects.load(f"{name}.py:my_decode"), "gridsim", thorough=True).findings == ()
    wrong = run_case(case, subjects.load(f"{name}_wrong.py:my_decode_wrong"), "gridsim", thorough=True)
    assert wrong.headline is not None
    assert (wrong.headline.kind, wrong.headline.family) == ("not finite", "wrong output")
    assert run_case(case, _tutorial(), "gridsim", thorough=True).headline is not None  # it has no heads in groups


def test_a_tutorial_kernel_is_right_where_tutorials_are() -> None:
    case = Case(seqs=lens(32, 32), num_q_heads=2, num_kv_heads=2, head_dim=64)
    for dtype in ("float32", "float16", "bfloat16"):
        assert run_case(replace(case, dtype=dtype), _tutorial(), "gridsim", thorough=True).findings == ()


# --- a lost device context ---------------------------------------------------------------------------------------


@dataclass
class Device:
    """An executor that is lost at the n-th call."""

    dies_at: int
    name: str = "gpu"
    platform: str = "gridsim"
    calls: list[Case] = field(default_factory=list)

    def declines(self, case: Case) -> None:
        return None

    def under(self, conditions: Conditions) -> None:
        return None

    def observe(self, subject: Subject, materials: Materials) -> Observed:
        self.calls.append(materials.case)
        if len(self.calls) >= self.dies_at:
            return Observed(failure=Failure("AcceleratorError", "an illegal memory access", "k.py:3", poisoned=True))
        return executor("gridsim").observe(subject, materials)


def on(device: Device) -> Result:
    return Session(RAGGED, TORCH, device, thorough=True).judged()


def test_a_lost_context_is_a_crash_and_retires_the_worker() -> None:
    result = on(Device(dies_at=1))
    assert [(finding.kind, finding.accuses) for finding in result.findings] == [("crash", "an illegal memory access")]
    assert RETIRE_NOTE in result.notes


def test_a_context_that_is_lost_in_a_later_call_retires_the_worker_as_well() -> None:
    device = Device(dies_at=3)
    result = on(device)
    assert [finding.kind for finding in result.findings] == ["block order"]
    assert RETIRE_NOTE in result.notes
    assert len(device.calls) == 3
    assert RETIRE_NOTE not in on(Device(dies_at=99)).notes


def test_dense_new_tokens_lie_behind_a_seam_that_the_bound_knows() -> None:
    dense = {"op": "extend", "new_kv": "dense", "seqs": [{"query_len": 2, "kv_len": 20}]}
    assert shown(dense, "ours.extend")[0]["seams"] == 1
    assert shown(dense | {"new_kv": "in_cache"}, "ours.extend")[0]["seams"] == 0
