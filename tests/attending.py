"""Attention in plain torch, right in every corner of decode, as a subject that tests do one thing wrong with."""

from collections.abc import Callable
from typing import Any

import torch

from harness.case import Case, Seq
from harness.subjects import Subject, declare

#: The features that a subject has to declare.
EVERYTHING = dict.fromkeys(("window", "softcap", "alibi", "sinks", "lse", "out", "non_causal"), True)


def torch_subject(run: Callable[[Any], Any], **declared: Any) -> Subject:
    """A subject that takes every feature, less or more what is declared."""
    return Subject("tests." + run.__name__, declare(**(EVERYTHING | declared)), run)


def lens(*kv_lens: int) -> tuple[Seq, ...]:
    """Sequences of these lengths, each with a tag of its own."""
    return tuple(Seq(kv_len=kv_len, tag=tag) for tag, kv_len in enumerate(kv_lens))


#: Two blocks, the last one partly filled: there are dead slots, a second program, and nothing else.
RAGGED = Case(seqs=lens(20, 7), num_q_heads=2, num_kv_heads=1, extra_columns=1, spare_blocks=1)


def gather(inputs: Any, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of one sequence, only what it owns."""
    at, size = torch.arange(int(inputs.kv_lens[i])), inputs.k_cache.shape[1]
    blocks = inputs.block_tables[i, at // size].long()
    return inputs.k_cache[blocks, at % size], inputs.v_cache[blocks, at % size]


def attend_row(inputs: Any, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """out [heads, dim] and lse [heads] of one sequence in float64."""
    group = inputs.q.shape[1] // inputs.k_cache.shape[2]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in gather(inputs, i))
    distance = torch.arange(len(k) - 1, -1, -1)
    scores = (inputs.q[i].double() * k).sum(2).T * inputs.scale  # [heads, tokens]
    if inputs.softcap:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    if inputs.alibi_slopes is not None:
        scores = scores - inputs.alibi_slopes.double()[:, None] * distance
    if inputs.window[0] >= 0:
        scores = scores.masked_fill(distance > inputs.window[0], -torch.inf)
    heads = inputs.q.shape[1]
    sinks = torch.full((heads,), -torch.inf) if inputs.sinks is None else inputs.sinks
    lse = torch.logsumexp(torch.cat([scores, sinks.double()[:, None]], dim=1), dim=1)
    weights = torch.exp(scores - torch.where(lse.isfinite(), lse, 0.0)[:, None])
    return torch.einsum("ht,thd->hd", weights, v), lse


def attend(inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of the whole batch, out in the type of q."""
    rows = [attend_row(inputs, i) for i in range(len(inputs.q))]
    return torch.stack([out for out, _ in rows]).to(inputs.q.dtype), torch.stack([lse for _, lse in rows]).float()


def give(inputs: Any, out: torch.Tensor, lse: torch.Tensor) -> Any:
    """Hand the output over as the inputs ask for it."""
    out = out if inputs.out is None else inputs.out.copy_(out)
    return (out, lse) if inputs.want_lse else out


def right(inputs: Any) -> Any:
    """A subject without a fault."""
    return give(inputs, *attend(inputs))


def nudged(out: torch.Tensor) -> torch.Tensor:
    """The next representable numbers: within every bound, but other bits."""
    return torch.nextafter(out, torch.full_like(out, torch.inf))
