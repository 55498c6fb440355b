"""The landscape: what is measured of small subjects, and that a fault changes its cell and no other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from harness.adapters import translate
from harness.case import Case
from harness.folders import PACKAGE
from harness.landscape import WORDS, cell, installed, main, margins, page, told
from harness.pool import Worker
from harness.questions import ATTENDING, BARE, TABLES, plain, questions_for
from harness.results import RELATIONAL_KINDS, SEVERITY, Finding, Result
from harness.subjects import SUBJECTS, declare

SOURCE = '''
import os
import signal

import torch

from harness import subject

SMALL = {"dtypes": ("float32",), "head_dims": (16,), "block_sizes": (16,), "layouts": ("nhd",),
         "q_layouts": ("contiguous",), "placements": ("in_order", "shuffled"), "table_dtypes": ("int32",)}


def attention(inputs, weight=torch.where):
    out = torch.zeros_like(inputs.q)
    size, group = inputs.k_cache.shape[1], inputs.q.shape[1] // inputs.k_cache.shape[2]
    for row, kv_len in enumerate(inputs.kv_lens.tolist()):
        if not kv_len:
            continue
        slots = -(-kv_len // size) * size
        block = inputs.block_tables[row, : slots // size].long()
        k, v = (x[block].flatten(0, 1).double().repeat_interleave(group, 1) for x in (inputs.k_cache, inputs.v_cache))
        live = torch.arange(slots) < kv_len
        scores = torch.einsum("hd,shd->sh", inputs.q[row].double(), k) * inputs.scale
        p = scores.masked_fill(~live[:, None], -torch.inf).softmax(0)[:, :, None]
        out[row] = weight(live[:, None, None], p * v, torch.zeros(())).sum(0)
    return out


@subject(**SMALL)
def right(inputs):
    return attention(inputs)


@subject(finite_dead_slots=True, **SMALL)
def leaks(inputs):
    return attention(inputs, weight=lambda live, weighed, none: weighed)


@subject(empty_rows=False, **SMALL)
def dies(inputs):
    if not inputs.kv_lens.all():
        os.kill(os.getpid(), signal.SIGKILL)
    return attention(inputs)


@subject(**SMALL)
def particular(inputs):
    if inputs.block_tables.dtype != torch.int32:
        raise TypeError("block_tables are not int32")
    return attention(inputs)


@subject(padded_table=True, **SMALL)
def trusts(inputs):
    """Takes what is behind a row for the last of its blocks."""
    inputs.block_tables[inputs.block_tables < 0] = 0
    return attention(inputs)


def aligned_table(tables, *_):
    return torch.nn.functional.pad(tables, (0, -tables.shape[1] % 8))


def starts_without_padding(inputs):
    return inputs.query_starts + 1


@subject(**SMALL)
def eased(inputs):
    """Its wrapper wants tables of a width that a server gives, and its rows where they are."""
    if aligned_table(inputs.block_tables, 16, 128).shape[1] % 8:
        raise ValueError("block_tables are too narrow")
    if not starts_without_padding(inputs)[0]:
        raise KeyError("rows")
    return attention(inputs)


@subject(executors=("gridsim", "gpu"), **SMALL)
def no_triton(inputs):
    return attention(inputs)
'''
SOURCE += """

@subject(**SMALL)
def half(inputs):
    if inputs.kv_lens[0] % 2:
        raise NotImplementedError("odd lengths")
    return attention(inputs)
"""
NAMES = [question.name for question in ATTENDING]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("gridsim") as made:
        yield made


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("landscape") / "small.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("function", "unlike"),
    [
        ("right", {}),
        ("leaks", {"NaN in dead slots": "NaN"}),
        ("dies", {"empty row": "crash"}),
        ("particular", {"int64 table": "declined by an error: TypeError"}),
        ("trusts", {"-1 padding": "wrong"}),
        (
            "eased",
            {
                "empty row": "declined by an error: KeyError",
                "table as wide as needed": "declined by an error: ValueError",
            },
        ),
        ("no_triton", {"far blocks": "not asked"}),
    ],
)
def test_a_fault_changes_its_cell_and_no_other(
    function: str, unlike: dict[str, str], worker: Worker, file: Path
) -> None:
    """Each is asked what it declares that it does not take, too."""
    subject = f"{file}:{function}"
    declared = worker.describe(subject, "decode")
    cells = {question.name: cell(worker, subject, declared, question) for question in ATTENDING}
    assert cells == dict.fromkeys(NAMES, "right") | unlike


def test_the_page_has_a_row_for_each_subject_with_its_margin(file: Path) -> None:
    told_lines: list[str] = []
    text = page([f"{file}:right", f"{file}:leaks"], 5, told_lines.append)
    assert told_lines == [f"{file}:{name}: 11 questions, 5 cases" for name in ("right", "leaks")]
    assert f"| {file}:right | ours | {' | '.join(['right'] * 11)} |" in text
    assert f"| {file}:leaks | ours | right | right | NaN | right |" in text
    assert f"| {file}:right | 5 | 0 | 0 | 0." in text
    assert "## Writes" not in text


def test_the_command_prints_it(file: Path) -> None:
    ran = CliRunner().invoke(main, ["--subject", f"{file}:right", "--cases", "1"])
    assert ran.exit_code == 0
    assert ran.stdout.startswith("# Landscape\n")


@pytest.mark.parametrize("op", [op for _, ops, _ in TABLES for op in ops])
def test_every_operation_has_a_plain_case_that_lies_within_a_bare_declaration(op: str) -> None:
    from harness.subjects import declines

    declared = declare(op=op)
    questions = questions_for(op)
    assert declines(declared, plain(declared)) is None
    assert len({question.changes(plain(declared)) for question in questions}) >= len(questions) - 1


def test_every_kind_that_one_call_shows_has_a_word() -> None:
    apart = RELATIONAL_KINDS | {"not repeatable", "platform"}
    assert set(WORDS) >= set(SEVERITY) - apart


def test_the_worst_word_comes_first_and_once() -> None:
    kinds = ("accuracy", "not finite", "dead data read", "bad read", "overflow read", "determinism")
    result = Result(case=Case(), subject="", executor="", findings=tuple(Finding(kind=k, message="") for k in kinds))
    assert told(result) == "reads out of reach, wrong"
    assert told(replace(result, findings=result.findings[1:3])) == "NaN"
    assert told(Result(case=Case(), subject="", executor="", declined="too far")) == "not asked: too far"
    assert told(Result(case=Case(), subject="", executor="", harness_fault="judge")) == "fault of the harness"


def test_what_an_adapter_cannot_pass_is_no_error_of_its_kernel() -> None:
    def raised(detail: str) -> str:
        finding = Finding(kind="exception", message="", detail=detail)
        return told(Result(case=Case(), subject="", executor="", findings=(finding,)))

    assert raised("RuntimeError torch.py:87") == "cannot be passed"
    assert raised("RuntimeError decode_attention.py:87") == "declined by an error: RuntimeError"


def test_more_is_drawn_where_some_is_declined(worker: Worker, file: Path) -> None:
    """Half of the lengths that a declaration allows are declined by a kernel that is not written for them."""
    subject = f"{file}:half"
    found = margins(worker, subject, worker.describe(subject, "decode"), 10)
    assert found.clean == 10
    assert found.declined > 0


def test_what_is_asked_by_default_is_ours_and_what_is_installed() -> None:
    found = installed()
    assert set(SUBJECTS) <= set(found)
    assert "torch.paged_attention" in found
    assert "torch.varlen_attn" not in found, "it needs a GPU"


def test_what_a_question_sets_aside_is_a_helper_that_an_adapter_uses() -> None:
    """A helper that is renamed would be left in its place without a word."""
    sources = "".join(path.read_text() for path in (PACKAGE / "adapters").glob("*.py") if path.stem != "translate")
    for name in BARE:
        assert callable(getattr(translate, name)), name
        assert f"{name}(" in sources, name
