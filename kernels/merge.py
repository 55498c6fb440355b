"""Merging partial attention states: the average of their outputs, weighted by exp(lse), in one walk over the states."""

import torch
import triton
import triton.language as tl
from decode import DTYPES, check_devices, check_dtype, check_rank, check_shape, strides

# --- the kernel --------------------------------------------------------------------------------------------------


@triton.jit
def add_state(out, lse, m, l, acc):
    """Add one state to the running maximum `m`, the sum of weights `l` and the weighted outputs `acc`."""
    m_new = tl.maximum(m, lse)
    # lse is finite, so m_new is too and nothing here is -inf minus -inf.
    rescale = tl.exp(m - m_new)
    weight = tl.exp(lse - m_new)
    return m_new, l * rescale + weight, acc * rescale + weight * out  # acc: [TILE_D]


# These numbers are used once per program: not worth a compilation each time one of them is 1 or a multiple of 16.
UNSPECIALISED = (
    "states", "head_dim",
    "stride_out_token", "stride_out_head", "stride_lse_token", "stride_lse_head",
    "stride_outs_state", "stride_outs_token", "stride_outs_head",
    "stride_lses_state", "stride_lses_token", "stride_lses_head",
)  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def merge_kernel(
    # Outputs
    out_ptr,   # [tokens, heads, head_dim]
    lse_ptr,   # [tokens, heads] float32; None: not wanted
    # Inputs
    outs_ptr,  # [states, tokens, heads, head_dim]
    lses_ptr,  # [states, tokens, heads] float32, natural log
    # Numbers
    states,
    head_dim,
    # Strides, in elements
    stride_out_token, stride_out_head, stride_out_dim,
    stride_lse_token, stride_lse_head,
    stride_outs_state, stride_outs_token, stride_outs_head, stride_outs_dim,
    stride_lses_state, stride_lses_token, stride_lses_head,
    # One head, rounded up to a power of two
    TILE_D: tl.constexpr,
):  # fmt: skip
    # Every index that meets a stride is 64 bits wide.
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    dim = tl.arange(0, TILE_D).to(tl.int64)  # [TILE_D]
    in_head = dim < head_dim  # [TILE_D]
    outs_ptr += token * stride_outs_token + head * stride_outs_head
    lses_ptr += token * stride_lses_token + head * stride_lses_head

    m = -float("inf")
    l = 0.0
    acc = tl.zeros([TILE_D], tl.float32)
    for i in range(states):
        state = tl.cast(i, tl.int64)
        lse = tl.load(lses_ptr + state * stride_lses_state)
        # An empty state has no weight, and what is stored as its output may be anything: it is not even read.
        if lse != -float("inf"):
            outs_offset = state * stride_outs_state + dim * stride_outs_dim  # [TILE_D]
            out = tl.load(outs_ptr + outs_offset, mask=in_head, other=0.0).to(tl.float32)
            m, l, acc = add_state(out, lse, m, l, acc)

    # If all are empty, l = 0 and acc = 0: the output is 0, the lse m = -inf.
    l = tl.where(l == 0.0, 1.0, l)
    out_offset = token * stride_out_token + head * stride_out_head + dim * stride_out_dim
    tl.store(out_ptr + out_offset, (acc / l).to(out_ptr.dtype.element_ty), mask=in_head)
    if lse_ptr is not None:
        tl.store(lse_ptr + token * stride_lse_token + head * stride_lse_head, m + tl.log(l))


# --- the wrapper -------------------------------------------------------------------------------------------------


def merge_states(outs, lses, *, out=None, lse=None):
    """Merge partial outputs with their natural-log lse: (out, lse) of attention over the keys of all states."""
    check(outs, lses, out, lse)
    out = outs.new_empty(outs.shape[1:]) if out is None else out
    lse = lses.new_empty(lses.shape[1:]) if lse is None else lse
    launch_merge(outs, lses, out, lse)
    return out, lse


def launch_merge(outs, lses, out, lse):
    """The launch alone, for a caller who made the tensors: `out` may be of any type, `lse` None."""
    states, tokens, heads, head_dim = outs.shape
    merge_kernel[(tokens, heads)](
        out_ptr=out,
        lse_ptr=lse,
        outs_ptr=outs,
        lses_ptr=lses,
        states=states,
        head_dim=head_dim,
        **strides("out", out, "token head dim"),
        **strides("lse", lse, "token head"),
        **strides("outs", outs, "state token head dim"),
        **strides("lses", lses, "state token head"),
        TILE_D=triton.next_power_of_2(head_dim),
    )


# --- what the wrapper refuses ------------------------------------------------------------------------------------


def check(outs, lses, out, lse):
    check_rank("outs", outs, "[states, tokens, heads, head_dim_v]")
    check_shape("lses", lses, outs.shape[:3], "to have a number per state, token and head")
    check_dtype("outs", outs, DTYPES)
    check_dtype("lses", lses, (torch.float32,))
    if outs.shape[3] < 1:
        raise ValueError(f"outs has shape {list(outs.shape)}, but expected a head_dim_v of at least 1")
    if out is not None:
        check_shape("out", out, outs.shape[1:], "to be like a state of outs")
        check_dtype("out", out, (outs.dtype,))
    if lse is not None:
        check_shape("lse", lse, lses.shape[1:], "to be like a state of lses")
        check_dtype("lse", lse, (torch.float32,))
    check_devices(outs, lses, out, lse)
