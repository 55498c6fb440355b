"""Rows of q, of the output and of dense new tokens that lie so far apart that their offsets do not fit in 32 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attending import lens
from hunting import changed

from harness import subjects
from harness.case import Case, Seq, Slots, replace
from harness.executors.base import Placement, same_bits, to_numpy
from harness.inputs import far_bytes, materialise
from harness.mutants import plant
from harness.pipeline import run_case
from harness.profiles import profile
from harness.subjects import declare
from harness.tensors import LIVE
from harness.verdicts import told

FAR = Case(seqs=lens(5, 20, 3), q_layout="far")
CHUNK = Case(op="extend", seqs=(Seq(query_len=3, kv_len=20),), q_layout="far", new_kv="dense")


@pytest.mark.parametrize("case", [FAR, CHUNK, replace(FAR, seqs=lens(1, 2, 3, 4, 5)), replace(FAR, dtype="float16")])
def test_the_last_row_lies_beyond_32_bits_and_the_stride_does_not(case: Case) -> None:
    inputs = materialise(case).inputs
    for tensor in filter(None, (inputs.q, inputs.k_new, inputs.v_new)):
        stride, last = tensor.strides[0], tensor.shape[0] - 1
        assert stride < 2**31 <= stride * last
        assert tensor.storage.sparse
        assert (tensor.state == LIVE).all()


def test_the_rows_hold_what_those_side_by_side_hold() -> None:
    near = materialise(replace(FAR, q_layout="contiguous")).inputs
    assert np.array_equal(materialise(FAR).inputs.q.view, near.q.view)


def test_an_output_of_far_rows_is_poison_before_every_call() -> None:
    materials = materialise(Case(seqs=lens(5, 20, 3), out_layout="far"))
    for _ in range(2):
        placement = Placement(materials, "cpu")
        assert placement.inputs.out.isnan().all()
        assert placement.unwritten().all()
        placement.inputs.out.zero_()
        assert placement.unwritten() is None


RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "decode": ("decode", {}),
    "split_decode": ("split_decode", {"dtype": "bfloat16"}),
    "extend": ("extend", {"seqs": (Seq(query_len=2, kv_len=20), Seq(query_len=3, kv_len=3, tag=1)), "padding_rows": 1}),
    "dense": ("extend", {"new_kv": "dense", "seqs": (Seq(query_len=4, kv_len=20),)}),
    "step": ("step", {"seqs": (Seq(query_len=4, kv_len=20),), "slots": Slots(tail_padding=1)}),
    "an empty row": ("decode", {"seqs": lens(0, 5, 0)}),
    "one row": ("decode", {"seqs": lens(5)}),
    "no row": ("extend", {"seqs": (Seq(query_len=0, kv_len=5),)}),
}


@pytest.mark.parametrize(
    "layouts", [{"q_layout": "far"}, {"out_layout": "far"}, {"q_layout": "far", "out_layout": "far"}]
)
@pytest.mark.parametrize(("name", "changes"), RIGHT.values(), ids=RIGHT)
def test_our_kernels_are_right_over_far_rows(name: str, changes: dict[str, Any], layouts: dict[str, Any]) -> None:
    case = Case(**({"op": subjects.operation(f"ours.{name}"), "seqs": lens(5, 20, 3)} | changes | layouts))
    result = run_case(case, subjects.load(f"ours.{name}"), "gridsim", thorough=True)
    assert (result.findings, result.declined, result.harness_fault) == ((), "", "")


@pytest.mark.parametrize("layout", ["far", "contiguous"])
def test_new_tokens_in_far_rows_are_written_where_they_belong(layout: str) -> None:
    case = Case(op="cache_write", seqs=(Seq(query_len=4, kv_len=20),), q_layout=layout, slots=Slots(holes=1))
    result = run_case(case, subjects.load("ours.cache_write"), "gridsim", thorough=True)
    assert (result.findings, result.declined, result.harness_fault) == ((), "", "")


@pytest.mark.parametrize(
    ("case", "tensor", "old", "new"),
    [
        (FAR, "read of q", "q_offset = seq * stride_q_seq", "q_offset = seq.to(tl.int32) * stride_q_seq"),
        (
            replace(FAR, q_layout="contiguous", out_layout="far"),
            "write of out",
            "out_offset = seq * stride_out_seq",
            "out_offset = seq.to(tl.int32) * stride_out_seq",
        ),
    ],
)
def test_a_row_times_its_stride_in_32_bits_is_found(
    case: Case, tensor: str, old: str, new: str, tmp_path: Path
) -> None:
    subject = subjects.load(plant(changed("decode.py", old, new), tmp_path))
    result = run_case(case, subject, "gridsim", thorough=True)
    assert result.headline is not None
    assert result.headline.kind == f"overflow {tensor.partition(' ')[0]}"
    assert "does not fit in 32 bits" in told(result.findings)
    assert tensor in told(result.findings)


def test_far_rows_are_drawn_from_the_rung_of_far_blocks_on() -> None:
    assert "far" in profile(declare(), 1, rungs=5).q_layouts
    assert "far" not in profile(declare(), 1, rungs=4).q_layouts
    assert profile(declare(q_layouts=("contiguous",)), 1).q_layouts == ("contiguous",)


@pytest.mark.parametrize("changes", [{}, {"out_layout": "far"}, {"placement": "farther"}, {"dtype": "float16"}])
@pytest.mark.parametrize("case", [FAR, CHUNK, replace(FAR, q_layout="contiguous", placement="far")])
def test_the_bytes_of_a_far_case_are_known_before_it_is_made(case: Case, changes: dict[str, Any]) -> None:
    case = replace(case, **changes)
    storages = {id(t.storage): t.storage.data.nbytes for t in materialise(case).inputs.tensors().values()}
    assert far_bytes(case) == pytest.approx(sum(storages.values()), rel=0.001)


@pytest.mark.parametrize("kv_dtype", ["same", "e4m3", "e5m2"])
def test_far_blocks_are_placed_bit_by_bit(kv_dtype: str) -> None:
    case = Case(seqs=lens(20, 3, 40), placement="far", kv_dtype=kv_dtype, block_size=1, k_poison="random_bits")
    materials = materialise(case)
    placement = Placement(materials, "cpu")
    for name in ("k_cache", "v_cache"):
        tensor, rows = getattr(materials.inputs, name), materials.geometry.used
        assert len(rows) == 63
        placed = to_numpy(getattr(placement.inputs, name)[torch.from_numpy(rows)])
        assert same_bits(placed, tensor.view[rows])
