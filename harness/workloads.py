"""Workloads: named sizes of a call as servers make them, on which kernels are timed."""

import random
from dataclasses import dataclass

from harness.case import Case, Op, Seq
from harness.subjects import WrongUse


@dataclass(frozen=True)
class Workload:
    """A call: new and cached tokens of each sequence, in bfloat16 with heads as in models of 8 billion parameters."""

    name: str
    op: Op
    seqs: tuple[tuple[int, int], ...]  # (new tokens, all tokens)
    block_size: int = 16
    num_q_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128

    def case(self) -> Case:
        """The call as a case: what a subject declines by; it is never materialised."""
        return Case(
            op=self.op,
            seqs=tuple(Seq(query_len=new, kv_len=kv_len, tag=i) for i, (new, kv_len) in enumerate(self.seqs)),
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=self.block_size,
            dtype="bfloat16",
            placement="shuffled",
        )


def _ragged(number: int, longest: int) -> tuple[tuple[int, int], ...]:
    """Lengths spread evenly from 1 to the longest, in an order of no meaning."""
    lens = [longest * (i + 1) // number for i in range(number)]
    random.Random(0).shuffle(lens)  # noqa: S311  (an order, not secrecy)
    return tuple((1, kv_len) for kv_len in lens)


_DECODE = {
    "1x8k": ((1, 8192),),
    "1x32k": ((1, 32768),),
    "8x8k": ((1, 8192),) * 8,
    "32x1k": ((1, 1024),) * 32,
    "32x8k": ((1, 8192),) * 32,
    "128x1k": ((1, 1024),) * 128,
    "32x32k": ((1, 32768),) * 32,
    "ragged": _ragged(64, 16384),
}
_EXTEND = {
    "prefill-8k": ((8192, 8192),),
    "chunk-2k-after-14k": ((2048, 16384),),
    "4x512-after-7k": ((512, 8192),) * 4,
    "16x64-after-4k": ((64, 4160),) * 16,
}

#: By name; `decode-32x8k-16` has blocks of 16.
WORKLOADS = {
    workload.name: workload
    for workload in (
        *(Workload(f"decode-{name}-16", "decode", seqs) for name, seqs in _DECODE.items()),
        *(Workload(f"decode-{name}-64", "decode", _DECODE[name], 64) for name in ("32x8k", "ragged")),
        *(Workload(f"extend-{name}-16", "extend", seqs) for name, seqs in _EXTEND.items()),
        *(Workload(f"extend-{name}-64", "extend", seqs, 64) for name, seqs in _EXTEND.items()),
        Workload("cache_write-8k-16", "cache_write", ((8192, 8192),)),
    )
}


def chosen(names: tuple[str, ...], op: str) -> tuple[Workload, ...]:
    """The workloads of these names, or all of the operation; raises WrongUse for an unknown one."""
    for name in names:
        if name not in WORKLOADS:
            raise WrongUse(f"workload is {name!r}, but expected one of {', '.join(WORKLOADS)}")
    return tuple(w for w in WORKLOADS.values() if (w.name in names if names else w.op == op))
