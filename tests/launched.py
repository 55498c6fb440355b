"""A paged decode to run under gridsim, what it should give, and the lines of kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl


@triton.jit
def decode(q, k_cache, v_cache, table, lens, out, lse, scale, softcap, window,
           stride_qs, stride_qh, stride_kb, stride_kt, stride_kh, stride_table,
           GROUP: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr):  # fmt: skip
    seq, head = tl.program_id(0), tl.program_id(1)
    n = tl.load(lens + seq)
    d, o = tl.arange(0, D), tl.arange(0, BLOCK)
    query = tl.load(q + seq * stride_qs + head * stride_qh + d).to(tl.float32) * scale
    m, l, acc = float("-inf"), 0.0, tl.zeros([D], tl.float32)
    for i in range(tl.cdiv(n, BLOCK)):
        block = tl.load(table + seq * stride_table + i).to(tl.int64)
        at = i * BLOCK + o
        keep = at < n
        if window > 0:
            keep &= at >= n - window
        offsets = block * stride_kb + o[:, None] * stride_kt + (head // GROUP) * stride_kh + d[None, :]
        k = tl.load(k_cache + offsets, mask=(at < n)[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_cache + offsets, mask=(at < n)[:, None], other=0.0).to(tl.float32)
        s = tl.sum(query[None, :] * k, axis=1)
        if softcap > 0:
            s = softcap * (2 * tl.sigmoid(2 * s / softcap) - 1)
        s = tl.where(keep, s, float("-inf"))
        new = tl.maximum(m, tl.max(s, 0))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p, old = tl.exp(s - safe), tl.exp(m - safe)
        l = l * old + tl.sum(p, 0)
        acc = acc * old + tl.sum(p[:, None] * v, axis=0)
        m = new
    tl.store(out + seq * stride_qs + head * stride_qh + d, (acc / l).to(out.dtype.element_ty))
    tl.store(lse + seq * tl.num_programs(1) + head, m + tl.log(l))


def attend(q, k, v, lens, table, scale, softcap=0.0, window=0):
    """The same in float64, one sequence and head after the other."""
    (sequences, heads, _), block, group = q.shape, k.shape[1], q.shape[1] // k.shape[2]
    q, k, v = (x.double().numpy() for x in (q, k, v))
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:2])
    for s in range(sequences):
        slots = np.arange(int(lens[s]))
        blocks, inner = table[s].numpy()[slots // block], slots % block
        for h in range(heads):
            scores = k[blocks, inner, h // group] @ q[s, h] * scale
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            scores = scores[-window:] if window else scores
            values = v[blocks, inner, h // group][-len(scores) :]
            top = scores.max()
            weights = np.exp(scores - top)
            out[s, h], lse[s, h] = weights @ values / weights.sum(), top + np.log(weights.sum())
    return out, lse


def case(kind, lens, heads=4, group=2, block=16, d=64):
    torch.manual_seed(0)
    blocks = sum(-(-n // block) for n in lens)
    q = torch.randn(len(lens), heads, d).to(kind)
    k, v = (torch.randn(blocks + 2, block, heads // group, d).to(kind) for _ in range(2))
    order, table = torch.randperm(blocks).int(), torch.zeros(len(lens), -(-max(lens) // block), dtype=torch.int32)
    for s, n in enumerate(lens):
        used = -(-n // block)
        table[s, :used], order = order[:used], order[used:]
    return q, k, v, torch.tensor(lens, dtype=torch.int32), table


def launch(q, k, v, lens, table, softcap=0.0, window=0):
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
    decode[q.shape[:2]](q, k, v, table, lens, out, lse, q.shape[-1] ** -0.5, softcap, window, q.stride(0), q.stride(1),
                        k.stride(0), k.stride(1), k.stride(2), table.stride(0), GROUP=q.shape[1] // k.shape[2],
                        BLOCK=k.shape[1], D=q.shape[-1])  # fmt: skip
    return out, lse


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))


def line_of(kernel, text):
    """`file.py:line` of the first line of a kernel that holds the text."""
    start, source = kernel.starting_line_number, kernel.raw_src
    number = start + next(i for i, line in enumerate(source) if text in line)
    return f"{Path(kernel.fn.__code__.co_filename).name}:{number}"


def lines(accesses):
    """What was found of which tensor at which line."""
    return {(found.kind, found.tensor, found.line) for found in accesses}
