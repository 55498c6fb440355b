"""Programs that share the keys of a sequence: what each leaves for the last of them, and how that one merges it."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from decode import check_devices, check_dtype, check_shape

# --- in a kernel -------------------------------------------------------------------------------------------------


@triton.jit
def leave_split(
    outs_ptr,          # [ROWS, TILE_DV]: the outputs of the first split
    lses_ptr,          # [ROWS]: its lses
    split,
    live,              # [ROWS] which of them are somebody's
    in_out,            # [ROWS, TILE_DV] which of their outputs are
    m, l, acc,
    HEAD_DIM_V: tl.constexpr,
):  # fmt: skip
    """Store what one split summed, all of it before its program goes on."""
    # Where a row saw nothing l is 0: its lse is -inf, and nobody reads its output, which is left as it was.
    tl.store(outs_ptr + split * HEAD_DIM_V, acc / l[:, None], mask=in_out & (l > 0.0)[:, None])
    tl.store(lses_ptr + split, m + tl.log2(l), mask=live)
    tl.debug_barrier()


@triton.jit
def arrives_last(arrived_ptr, num_splits):
    """Whether this is the last of the splits, which sees what the others left and sets their counter back to 0."""
    is_last = tl.atomic_add(arrived_ptr, 1, sem="acq_rel", scope="gpu") == num_splits - 1
    if is_last:
        tl.store(arrived_ptr, 0)
    return is_last


@triton.jit
def merge_splits(
    outs_ptr,          # [ROWS, TILE_DV]: the outputs of the first split
    lses_ptr,          # [ROWS]: its lses
    live,              # [ROWS] which of them are somebody's
    num_splits,
    HEAD_DIM_V: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_DV: tl.constexpr,
):  # fmt: skip
    """m, l and acc of all splits, always in one order; one that saw nothing has lse -inf, its output is not read."""
    m = tl.full([ROWS], -float("inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, TILE_DV], tl.float32)
    in_head = (tl.arange(0, TILE_DV) < HEAD_DIM_V)[None, :]  # [1, TILE_DV]
    for split in range(num_splits):
        lse = tl.load(lses_ptr + split, mask=live, other=-float("inf"))  # [ROWS]
        seen = lse > -float("inf")  # [ROWS]
        out = tl.load(outs_ptr + split * HEAD_DIM_V, mask=seen[:, None] & in_head, other=0.0)  # [ROWS, TILE_DV]
        m_new = tl.maximum(m, lse)  # [ROWS]
        # Before anything was seen, and for a split that saw nothing, there is no difference to take.
        rescale = tl.where(m > -float("inf"), tl.exp2(m - m_new), 0.0)  # [ROWS]
        weight = tl.where(seen, tl.exp2(lse - m_new), 0.0)  # [ROWS]
        l = l * rescale + weight
        acc = acc * rescale[:, None] + weight[:, None] * out
        m = m_new
    return m, l, acc


# --- in a wrapper ------------------------------------------------------------------------------------------------


class Workspace(NamedTuple):
    """What splits leave for the last of them; with one given, a call allocates nothing and may be captured."""

    outs: torch.Tensor  # [queries, num_q_heads, num_splits, head_dim_v] float32
    lses: torch.Tensor  # [queries, num_q_heads, num_splits] float32
    arrived: torch.Tensor  # [queries, num_q_heads] int32, zeros


def split_workspace(q, v_cache, num_splits):
    """The workspace of calls with this q and v_cache, one after the other on one stream."""
    rows = tuple(q.shape[:2])
    outs = q.new_empty((*rows, num_splits, v_cache.shape[3]), dtype=torch.float32)
    return Workspace(outs, outs.new_empty((*rows, num_splits)), q.new_zeros(rows, dtype=torch.int32))


def used_workspace(q, v_cache, num_splits, given):
    """The workspace, a new one where none is given; with one split there is none."""
    if num_splits == 1:
        return None, None, None
    if given is None:
        return split_workspace(q, v_cache, num_splits)
    rows = tuple(q.shape[:2])
    check_scratch("outs", given.outs, (*rows, num_splits, v_cache.shape[3]), torch.float32)
    check_scratch("lses", given.lses, (*rows, num_splits), torch.float32)
    check_scratch("arrived", given.arrived, rows, torch.int32)
    check_devices(q, *given)
    return given


def multiprocessors(q):
    """Of the GPU that q is on; a CPU has none."""
    return torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 0


# --- what a wrapper refuses --------------------------------------------------------------------------------------


def check_scratch(name, tensor, shape, dtype):
    check_shape(f"workspace.{name}", tensor, shape, "as split_workspace makes it")
    check_dtype(f"workspace.{name}", tensor, (dtype,))
    if not tensor.is_contiguous():
        raise ValueError(f"workspace.{name} has strides {list(tensor.stride())}, but expected it to be contiguous")


def check_count(name, count):
    if not (isinstance(count, int) and count >= 1):
        raise ValueError(f"{name} is {count}, but expected a whole number from 1")
