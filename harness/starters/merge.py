"""A naive kernel to replace: merge, partial attention outputs with their log-sum-exp combined into one."""

import torch
import triton
import triton.language as tl

from harness import subject


@triton.jit
def merge_kernel(
    out_ptr,   # [tokens, q_heads, head_dim], contiguous
    lse_ptr,   # [tokens, q_heads] float32, contiguous
    outs_ptr,  # [states, tokens, q_heads, head_dim]
    lses_ptr,  # [states, tokens, q_heads] float32, natural logarithm; -inf: an empty state
    states,
    head_dim,
    stride_outs_state, stride_outs_token, stride_outs_head,
    stride_lses_state, stride_lses_token, stride_lses_head,
    TILE_D: tl.constexpr,
):  # fmt: skip
    """One program per token and query head."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    dim = tl.arange(0, TILE_D)  # [TILE_D]
    in_head = dim < head_dim  # [TILE_D]

    m = -float("inf")  # the largest lse so far
    l = 0.0  # the sum of exp(lse - m)
    acc = tl.zeros([TILE_D], tl.float32)  # the sum of exp(lse - m) * out
    for i in range(states):
        state = tl.cast(i, tl.int64)
        lse = tl.load(lses_ptr + state * stride_lses_state + token * stride_lses_token + head * stride_lses_head)
        if lse != -float("inf"):  # what an empty state holds for an output may be anything
            offset = state * stride_outs_state + token * stride_outs_token + head * stride_outs_head + dim
            out = tl.load(outs_ptr + offset, mask=in_head, other=0.0).to(tl.float32)  # [TILE_D]
            m_new = tl.maximum(m, lse)
            rescale = tl.exp(m - m_new)
            p = tl.exp(lse - m_new)
            l = l * rescale + p
            acc = acc * rescale + p * out
            m = m_new

    l = tl.where(l > 0, l, 1.0)  # all states are empty: the output is 0, the lse -inf
    row = token * tl.num_programs(1) + head
    tl.store(out_ptr + row * head_dim + dim, acc / l, mask=in_head)
    tl.store(lse_ptr + row, m + tl.log(l))


@subject(
    op="merge",
    lse=True,  # (out, lse) is returned
    # All head dims, strides and types are drawn. Lines that rule some out:
    # head_dims=(16, 32, 64, 128, 256),  # powers of two
    # dtypes=("float16", "bfloat16"),  # no float32
    # empty_rows=False,  # no empty state
    # q_layouts=("contiguous",),  # nothing but dense tensors
    # Lines that open a feature, which is not drawn without them.
    # out=True,  # inputs.out: write there, and return it
    # head_dim_v=True,  # outputs have a head dim that K has not
)
def merge(inputs):
    """The average weighted by exp(lse), and its lse; raise NotImplementedError while there is no kernel."""
    outs, lses = inputs.state_outs, inputs.state_lses
    states, tokens, heads, head_dim = outs.shape
    out = torch.empty(outs.shape[1:], dtype=outs.dtype, device=outs.device)
    lse = torch.empty(lses.shape[1:], dtype=torch.float32, device=outs.device)
    merge_kernel[(tokens, heads)](
        out, lse, outs, lses, states, head_dim, *outs.stride()[:3], *lses.stride(),
        TILE_D=triton.next_power_of_2(head_dim),
    )  # fmt: skip
    return out, lse
