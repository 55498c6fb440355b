"""PyTorch's paged attention on three tokens computed by hand; torch is always here, so these are in every run."""

import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import three_tokens
import torch
from recorded import Recorder
from three_tokens import LSES, NEAR, attending
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.varlen import AuxRequest

from harness.adapters import load
from harness.adapters.torch import varlen_attn
from harness.case import Case, Seq, Slots
from harness.case import replace as changed
from harness.executors.base import Placement
from harness.inputs import materialise
from harness.pipeline import run_case
from harness.subjects import Subject

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

FINDINGS = Path(__file__).parents[2] / "docs" / "findings"
BATCH = Case(
    op="extend",
    seqs=(Seq(query_len=3, kv_len=20), Seq(query_len=1, kv_len=5, tag=1), Seq(query_len=2, kv_len=2, tag=2)),
    num_q_heads=4,
    num_kv_heads=2,
    head_dim_v=24,
    placement="shuffled",
    table_pad="zero",
    k_poison="huge",
    v_poison="huge",
    spare_poison="huge",
    row_poison="huge",
    spare_blocks=2,
    want_lse=True,
)
STEP = Case(
    op="step",
    seqs=(Seq(query_len=3, kv_len=20), Seq(query_len=2, kv_len=5, tag=1), Seq(query_len=2, kv_len=1, tag=2)),
    placement="shuffled",
    table_pad="zero",
    spare_blocks=2,
    k_poison="zero",
    v_poison="huge",
    spare_poison="zero",
    row_poison="zero",
)


def finite(inputs):
    """Slots that are nobody's hold a finite number: the corner that the adapter declares."""
    caches = {name: getattr(inputs, name).nan_to_num(7.0) for name in ("k_cache", "v_cache")}
    return replace(inputs, **caches)


@pytest.mark.parametrize("queries", [1, 3])
def test_paged_attention_on_three_tokens(queries: int) -> None:
    out, lse = three_tokens.call(load("torch.paged_attention"), finite(attending(queries, want_lse=True)))
    three_tokens.assert_rows(out, queries)
    three_tokens.assert_lses(lse, queries)


def test_a_window_counts_the_tokens_beside_the_querys_own() -> None:
    """(1, -1): the last query sees tokens 1 and 2, of weights 1 and 2."""
    out = three_tokens.call(load("torch.paged_attention"), finite(attending(1, window=(1, -1))))
    assert out[0, 0, :3].tolist() == pytest.approx([0, 4 / 3, 4 / 3], abs=NEAR)


def test_without_a_causal_mask_every_query_sees_all_three() -> None:
    out = three_tokens.call(load("torch.paged_attention"), finite(attending(3, causal=False)))
    assert out[:, 0, :3].flatten().tolist() == pytest.approx([1.0] * 9, abs=NEAR)


def test_alibi_takes_from_what_is_far() -> None:
    """A slope of ln 2: weights 1/4, 1/2 and 2 at the distances 2, 1 and 0."""
    slopes = torch.tensor([math.log(2)])
    out, lse = three_tokens.call(
        load("torch.paged_attention"), finite(attending(1, alibi_slopes=slopes, want_lse=True))
    )
    assert out[0, 0, :3].tolist() == pytest.approx([4 * 0.25 / 2.75, 4 * 0.5 / 2.75, 2 * 2 / 2.75], abs=NEAR)
    assert lse.item() == pytest.approx(math.log(2.75), abs=NEAR)


def test_softcap_bends_the_score_of_the_last_token() -> None:
    """1/10 of tanh(10 ln 2) is all but 1/10."""
    out = three_tokens.call(load("torch.paged_attention"), finite(attending(1, softcap=0.1)))
    last = math.exp(0.1 * math.tanh(10 * math.log(2)))
    assert out[0, 0, 2].item() == pytest.approx(2 * last / (2 + last), abs=NEAR)


@pytest.mark.parametrize("changes", [{}, {"causal": False}, {"window": (3, -1)}, {"alibi": True}, {"softcap": 2.0}])
def test_a_batch_of_unequal_sequences_is_right(changes: dict[str, object]) -> None:
    result = run_case(changed(BATCH, **changes), load("torch.paged_attention"), "gridsim")
    assert (result.declined, result.findings) == ("", ())


def test_nan_in_a_slot_that_is_nobodys_reaches_the_output() -> None:
    """The corner that is declared away is really there."""
    out = three_tokens.call(load("torch.paged_attention"), attending(1))
    assert out.isnan().all()


def test_the_bits_depend_on_where_pages_lie() -> None:
    """The other corner that is declared away: a sum in the order of the pool, seen in some batch of these."""
    subject = load("torch.paged_attention")

    def out(placement: str, seed: int) -> torch.Tensor:
        case = changed(BATCH, placement=placement, data_seed=seed, block_size=2)
        return run_on(subject, case)

    assert any(not torch.equal(out("in_order", seed), out("reversed", seed)) for seed in range(5))


def run_on(subject: Subject, case: Case) -> torch.Tensor:
    placed = Placement(materialise(case), "cpu")
    out, _ = subject.run(placed.inputs)
    return out


def test_a_step_assigns_shuffled_tokens_and_attends() -> None:
    case = changed(STEP, slots=Slots(order="shuffled", tail_padding=2))
    result = run_case(case, load("torch.paged_step"), "gridsim")
    assert (result.declined, result.findings) == ("", ())


def test_a_step_that_assigns_to_another_page_is_found() -> None:
    """`assign` by a page table that is one page off."""
    subject = load("torch.paged_step")
    pages, *others = subject.run.args

    class OneOff(pages):
        def assign(self, **passed: Any) -> None:
            self.page_table = (self.page_table + 1) % self.n_pages
            super().assign(**passed)
            self.page_table = (self.page_table - 1) % self.n_pages

    wrong = replace(subject, run=partial(subject.run.func, OneOff, *others))
    assert {f.kind for f in run_case(STEP, wrong, "gridsim").findings} >= {"wrong cache", "accuracy"}


def test_a_page_that_is_not_listed_is_not_seen() -> None:
    """Eager mode would not notice: what compiled kernels visit is the list alone."""
    subject = load("torch.paged_attention")
    pages, *others = subject.run.args

    class Forgetful(pages):
        def convert_logical_block_mask(self, **passed: Any) -> Any:
            physical = super().convert_logical_block_mask(**passed)
            physical.kv_num_blocks = (physical.kv_num_blocks - 1).clamp(min=0)
            return physical

    wrong = replace(subject, run=partial(subject.run.func, Forgetful, *others))
    assert "accuracy" in {f.kind for f in run_case(BATCH, wrong, "gridsim").findings}


def test_what_cannot_be_passed_is_told_with_the_adapters_line() -> None:
    """The innermost frames are those of torch and of the harness itself."""
    subject = load("torch.paged_attention")
    declaration = msgspec.structs.replace(subject.declaration, layouts=None)
    result = run_case(changed(BATCH, layout="padded"), replace(subject, declaration=declaration), "gridsim")
    assert result.headline is not None
    assert result.headline.line.startswith("translate.py:")


@pytest.mark.parametrize("name", ["torch.paged_attention", "torch.paged_step", "torch.varlen_attn"])
def test_every_signature_is_the_one_that_is_installed(name: str) -> None:
    assert load(name).declaration.about.startswith("torch ")


def test_varlen_attn_is_passed_pages_and_an_inclusive_window() -> None:
    """Its lse comes as flash attention gives it: heads before tokens, whatever its docstring says."""
    kernel = Recorder((torch.zeros(3, 1, 16), torch.tensor(LSES).reshape(1, 3)))
    out, lse = varlen_attn.function(kernel, AuxRequest, attending(3, window=(5, -1), want_lse=True))
    assert kernel.passed["window_size"] == (5, 0)
    assert kernel.passed["cu_seq_q"].tolist() == [0, 3]
    assert kernel.passed["cu_seq_k"] is None
    assert kernel.passed["seqused_k"].tolist() == [3]
    assert kernel.passed["block_table"].tolist() == [[3, 1]]
    assert kernel.passed["max_k"] == 4
    three_tokens.assert_lses(lse, 3)
    assert out.shape == (3, 1, 16)


@pytest.mark.parametrize(("window", "causal", "passed"), [((-1, -1), True, (-1, 0)), ((2, 1), False, (2, 1))])
def test_varlen_attn_is_causal_by_the_right_side_of_its_window(
    window: tuple[int, int], causal: bool, passed: tuple[int, int]
) -> None:
    kernel = Recorder((torch.zeros(3, 1, 16), None))
    varlen_attn.function(kernel, AuxRequest, attending(3, window=window, causal=causal))
    assert kernel.passed["window_size"] == passed


@pytest.mark.thirdparty
@pytest.mark.parametrize("script", sorted(FINDINGS.glob("torch_*.py")), ids=lambda path: path.stem)
def test_every_finding_is_still_there(script: Path) -> None:
    """When one is gone, its page and what is declared for it have to follow."""
    ran = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout


def test_the_table_is_fresh_since_erase_leaves_pages_behind() -> None:
    """When this fails, `erase` is mended, and the adapter may use a table that sequences have left."""
    pages = PagedAttention(n_pages=3, page_size=2, max_batch_size=1, device="cpu")
    pages.reserve(torch.tensor([0]), torch.tensor([2]))
    pages.erase(torch.tensor([0]))
    assert (pages.physical_to_logical[0] >= 0).any()
