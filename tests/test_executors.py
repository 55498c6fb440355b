"""What an executor observes of a call: the output as it is, exceptions by type, memory bit by bit."""

import errno
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from attending import RAGGED, attend, right, torch_subject

from harness.case import Case, replace
from harness.executors import NAMES, executor, gpu
from harness.executors.base import (
    Observed,
    Placement,
    Written,
    bits,
    brought_in_one,
    failure,
    observe,
    same_bits,
    sent_in_one,
    to_numpy,
    to_torch,
)
from harness.executors.cpu import TorchReads
from harness.inputs import materialise
from harness.tensors import Storage
from harness.values import DTYPES

GRIDSIM = executor("gridsim")


def observed(run: Any, case: Case = RAGGED) -> Observed:
    return GRIDSIM.observe(torch_subject(run), materialise(case))


# --- placing -----------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stacked": {"layout": "kv_stacked"},
    "interleaved": {"layout": "kv_interleaved"},
    "padded": {"layout": "padded", "v_layout": "offset", "out_layout": "padded"},
    "fused": {"q_layout": "fused_qkv", "dtype": "bfloat16"},
    "heads first": {"q_layout": "transposed_heads", "dtype": "float16"},
    "features": {"alibi": True, "sinks": True, "table_dtype": "int64", "out_layout": "given"},
}


@pytest.mark.parametrize("changes", LAYOUTS.values(), ids=LAYOUTS)
def test_every_tensor_is_placed_with_its_values_strides_and_offset(changes: dict[str, Any]) -> None:
    materials = materialise(replace(RAGGED, **changes))
    placement = Placement(materials, "cpu")
    for name, tensor in materials.inputs.tensors().items():
        placed = getattr(placement.inputs, name)
        assert (placed.shape, placed.stride(), placed.storage_offset()) == (tensor.shape, tensor.strides, tensor.offset)
        assert same_bits(to_numpy(placed), np.ascontiguousarray(tensor.view))
    assert (placement.changed(), placement.outside()) == ((), ())
    out = materials.inputs.out
    unwritten = placement.unwritten()
    assert unwritten is None if out is None else unwritten is not None and unwritten.all()


def test_tensors_of_one_buffer_stay_in_one_buffer() -> None:
    inputs = Placement(materialise(replace(RAGGED, layout="kv_stacked")), "cpu").inputs
    assert inputs.k_cache.untyped_storage().data_ptr() == inputs.v_cache.untyped_storage().data_ptr()


def test_a_call_cannot_reach_the_materials() -> None:
    materials = materialise(RAGGED)
    before = materials.inputs.k_cache.view.copy()
    GRIDSIM.observe(torch_subject(lambda inputs: inputs.k_cache.zero_()), materials)
    assert same_bits(materials.inputs.k_cache.view, before)


def test_what_was_written_is_told_with_place_got_and_was() -> None:
    before = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    after = before.copy()
    assert Written.between("q", after, before) is None
    after[1, 0], after[1, 1] = -3.0, np.nan
    found = Written.between("q", after, before)
    assert found is not None
    assert (found.tensor, found.index, found.got, found.was, found.count) == ("q", (1, 0), -3.0, 3.0, 2)
    assert (found.some[0], found.some[1][1], found.rows) == ((-3.0, 3.0), 4.0, {(1,)})
    assert np.isnan(found.some[1][0])


def test_a_sign_of_zero_and_the_payload_of_a_nan_are_bits() -> None:
    zero = np.array([0.0], dtype=np.float32)
    assert not same_bits(zero, -zero)
    nan, other = np.array([0x7FC00000, 0x7FC00001], dtype=np.uint32).view(np.float32).reshape(2, 1)
    assert same_bits(nan, nan.copy())
    assert not same_bits(nan, other)
    assert not same_bits(np.zeros(2), np.zeros(3))
    assert bits(np.ones(1, dtype=np.float16)).dtype == np.uint16


#: Taken for a device that has memory of its own.
ELSEWHERE = "cpu:0"

FAULTS: dict[str, Any] = {
    "none": lambda inputs: None,
    "before q": lambda inputs: inputs.q.as_strided((3,), (1,), inputs.q.storage_offset() - 3).fill_(1),
    "a cached token": lambda inputs: inputs.v_cache[0, 1].copy_(inputs.v_cache[0, 0]),
    "a table entry": lambda inputs: inputs.block_tables[0].fill_(7),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("changes", LAYOUTS.values(), ids=LAYOUTS)
def test_what_goes_to_a_device_and_back_in_one_copy_is_seen_as_it_is_here(changes: dict[str, Any], fault: Any) -> None:
    def run(inputs: Any) -> Any:
        returned = right(inputs)
        fault(inputs)
        return returned

    materials = materialise(replace(RAGGED, **changes))
    near, far = (observe(torch_subject(run), Placement(materials, device)) for device in ("cpu", ELSEWHERE))
    assert bool(near.outside or near.changed) == (fault is not FAULTS["none"])
    assert str(far.outside + far.changed) == str(near.outside + near.changed)
    assert same_bits(far.out, near.out)


def test_one_copy_keeps_every_bit_of_every_type_at_odd_lengths() -> None:
    kinds = ("e4m3", "int64", "bfloat16", "e5m2", "int32", "float16", "float32")
    data = [np.arange(3 + 2 * i).astype(DTYPES[kind]) for i, kind in enumerate(kinds)]
    storages = [Storage(array, np.zeros(len(array), np.uint8), kind) for array, kind in zip(data, kinds, strict=True)]
    sent = sent_in_one(storages, ELSEWHERE)
    found = brought_in_one(sent)
    assert [array.dtype for array in found] == [array.dtype for array in data]
    assert all(same_bits(*pair) for pair in zip(found, data, strict=True))
    assert len({flat.untyped_storage().data_ptr() for flat in sent}) == len(kinds)
    assert all(flat.untyped_storage().nbytes() == array.nbytes for flat, array in zip(sent, data, strict=True))


def test_a_call_elsewhere_cannot_reach_the_materials() -> None:
    materials = materialise(RAGGED)
    before = materials.inputs.k_cache.view.copy()
    Placement(materials, ELSEWHERE).inputs.k_cache.zero_()
    assert same_bits(materials.inputs.k_cache.view, before)


def test_far_rows_go_to_a_device_beside_what_goes_in_one_copy() -> None:
    materials = materialise(replace(RAGGED, placement="far"))
    for name, tensor in materials.inputs.tensors().items():
        rows = materials.rows(tensor)
        placed = getattr(Placement(materials, ELSEWHERE).inputs, name)[torch.from_numpy(rows)]
        assert same_bits(to_numpy(placed), np.ascontiguousarray(tensor.view[rows]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numbers_pass_to_torch_and_back_bit_by_bit(dtype: Any) -> None:
    data = materialise(replace(RAGGED, dtype=dtype, k_poison="random_bits")).inputs.k_cache.storage.data
    assert str(to_torch(data, dtype).dtype) == f"torch.{dtype}"
    assert same_bits(to_numpy(to_torch(data, dtype)), data)


# --- what comes back ---------------------------------------------------------------------------------------------


def test_an_output_comes_back_as_it_is() -> None:
    seen = observed(right, replace(RAGGED, want_lse=True, dtype="bfloat16"))
    assert (str(seen.out.dtype), seen.out.shape, seen.lse.dtype, seen.lse.shape) == (
        "bfloat16",
        (2, 2, 16),
        np.float32,
        (2, 2),
    )
    assert (seen.failure, seen.complaint, seen.accesses, seen.ttir) == (None, "", (), ())


def test_an_lse_that_nobody_asked_for_is_ignored() -> None:
    seen = observed(lambda inputs: attend(inputs))
    assert seen.lse is None
    assert seen.complaint == ""


def test_a_given_out_counts_whatever_is_returned() -> None:
    def fills(inputs: Any) -> None:
        inputs.out.copy_(attend(inputs)[0])

    given = replace(RAGGED, out_layout="padded")
    assert same_bits(observed(fills, given).out, observed(right, RAGGED).out)
    assert observed(fills, given).unwritten is None


# --- exceptions --------------------------------------------------------------------------------------------------


@triton.jit
def needs_power_of_two(out):
    tl.store(out + tl.arange(0, 16), tl.zeros([3], tl.float32))


@triton.jit
def misspelt(out):
    tl.store(out, unknown_name)  # noqa: F821


@pytest.mark.parametrize(
    ("kernel", "message"),
    [(needs_power_of_two, "power of 2"), (misspelt, "unknown_name is not defined")],
    ids=["shape", "name"],
)
def test_a_kernel_that_does_not_compile_is_told_by_its_reason_not_by_its_source(kernel: Any, message: str) -> None:
    seen = observed(lambda inputs: kernel[(1,)](inputs.q)).failure
    assert seen is not None
    assert seen.type == "CompilationError"
    assert message in seen.message
    assert seen.line.startswith("test_executors.py:")


def test_only_the_type_of_an_exception_decides() -> None:
    def told(error: BaseException) -> tuple[bool, bool, bool]:
        try:
            raise error
        except BaseException as caught:
            seen = failure(caught)
        return seen.not_written, seen.poisoned, seen.unsupported

    assert told(NotImplementedError("later")) == (True, False, False)
    for error in (ValueError("not implemented yet"), RuntimeError("CUDA error"), SystemExit(3)):
        assert told(error) == (False, False, False)


@pytest.mark.parametrize("error", [SystemExit(3), RecursionError(), AssertionError("a\nb")])
def test_whatever_leaves_a_subject_is_observed(error: BaseException) -> None:
    def raises(inputs: Any) -> Any:
        raise error

    seen = observed(raises).failure
    assert seen is not None
    assert (seen.type, seen.message) == (type(error).__name__, (str(error).splitlines() or [""])[0])


def test_ctrl_c_is_not_the_subjects() -> None:
    def interrupted(inputs: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        observed(interrupted)


def test_a_line_is_the_authors_even_where_torch_raised_it(tmp_path: Path) -> None:
    def raises(inputs: Any) -> Any:
        return torch.nn.functional.linear(inputs.q, inputs.q, bias="no")

    seen = observed(raises).failure
    assert seen is not None
    assert seen.line == f"test_executors.py:{raises.__code__.co_firstlineno + 1}"


# --- what torch reads --------------------------------------------------------------------------------------------

UNREAD = {
    "shapes": lambda inputs: (inputs.k_cache.shape, inputs.k_cache.stride(), len(inputs.block_tables)),
    "a view": lambda inputs: inputs.k_cache.transpose(0, 1)[0, 3:, 0].unsqueeze(0),
    "new tensors": lambda inputs: (torch.empty_like(inputs.v_cache), inputs.v_cache.new_zeros(3)),
    "q and lengths": lambda inputs: (inputs.q.sum(), inputs.kv_lens.max().item()),
    "already contiguous": lambda inputs: inputs.k_cache.contiguous(),
}
READ = {
    "a sum": lambda inputs: inputs.k_cache.sum(),
    "an item": lambda inputs: inputs.block_tables[1, -1].item(),
    "a list": lambda inputs: inputs.block_tables.tolist(),
    "numpy": lambda inputs: inputs.block_tables.numpy(),
    "a gather": lambda inputs: inputs.v_cache[torch.tensor([0])],
    "a copy": lambda inputs: inputs.v_cache.permute(3, 0, 1, 2).contiguous(),
    "a cast": lambda inputs: inputs.block_tables.long(),
    "one of several": lambda inputs: torch.cat([inputs.q.flatten(), inputs.k_cache.flatten()]),
    "a truth value": lambda inputs: bool(inputs.k_cache[0, 0, 0, 0]),
    "a copy into another": lambda inputs: torch.empty_like(inputs.k_cache).copy_(inputs.k_cache),
    "something inside vmap": lambda inputs: torch.vmap(lambda row: row + 1)(inputs.k_cache),
}


@pytest.mark.parametrize(
    ("look", "reads"),
    [(look, False) for look in UNREAD.values()] + [(look, True) for look in READ.values()],
    ids=[*UNREAD, *READ],
)
def test_a_read_by_torch_itself_is_noticed(look: Any, reads: bool) -> None:
    placement = Placement(materialise(RAGGED), "cpu")
    with TorchReads(placement) as noticed:
        look(placement.inputs)
    assert noticed.seen == reads


def test_an_access_log_is_complete_only_where_kernels_did_all_the_reading() -> None:
    from harness.ours import decode

    assert observed(decode).log_is_complete
    assert not observed(right).log_is_complete

    def both(inputs: Any) -> Any:
        return decode(changed(inputs, block_tables=inputs.block_tables.clone()))

    assert not observed(both).log_is_complete


def test_inputs_that_do_not_fit_on_the_gpu_are_no_fault_of_the_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    monkeypatch.setattr(gpu, "Placement", full)
    seen = object.__new__(gpu.Gpu).observe(torch_subject(right), materialise(RAGGED)).failure
    assert seen is not None
    assert (seen.unsupported, seen.poisoned) == (True, False)
    assert seen.message == "tried to allocate 9 GiB"


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_exception_is_a_crash_where_the_device_answers_no_more(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize() -> None:
        if is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def launched(inputs: Any) -> Any:
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    monkeypatch.setattr(gpu, "Placement", lambda materials, _: Placement(materials, "cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    seen = object.__new__(gpu.Gpu).observe(torch_subject(launched), materialise(RAGGED)).failure
    assert seen is not None
    assert (seen.type, seen.poisoned) == ("RuntimeError", is_lost)


def test_an_executor_is_found_by_name_or_named() -> None:
    assert [executor(name).name for name in NAMES if name != "gpu"] == ["gridsim", "interpreter", "echo"]
    with pytest.raises(ValueError, match="executor is 'cpu', but should be one of gridsim, gpu, interpreter"):
        executor("cpu")


def test_the_interpreter_declines_what_it_gets_wrong() -> None:
    interpreter = executor("interpreter")
    assert interpreter.declines(RAGGED) is None
    assert interpreter.declines(replace(RAGGED, dtype="bfloat16")) == "the interpreter is wrong in bfloat16"
    assert "far" in str(interpreter.declines(replace(RAGGED, placement="far")))


def lacking(number: int) -> Any:
    def run(inputs: Any) -> Any:
        raise OSError(number, "as the system says")

    return run


def test_a_full_disk_is_no_fault_of_the_subject() -> None:
    with pytest.raises(OSError, match="as the system says"):
        observed(lacking(errno.ENOSPC))


def test_a_file_that_a_subject_does_not_find_is_its_own_fault() -> None:
    found = observed(lacking(errno.ENOENT)).failure
    assert found is not None
    assert found.type == "FileNotFoundError"
