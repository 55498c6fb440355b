"""Workloads: named sizes of a call as servers make them, on which kernels are timed."""

import random
from dataclasses import dataclass
from typing import Any, Literal

from harness.case import Case, Op, Seq
from harness.subjects import WrongUse

#: Bytes of a number in bfloat16.
BYTES = 2
#: Operations whose subjects can do a workload: a decode is an extend by one token.
TAKEN_AS: dict[str, tuple[str, ...]] = {
    "decode": ("decode", "extend"),
    "extend": ("extend",),
    "cache_write": ("cache_write",),
}


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
    usual: bool = True  # among those that are timed where an operation is named, and no workload

    def case(
        self, op: str = "", new_kv: str = "in_cache", poison: Literal["zero", "nan"] = "zero", scale: int = 1
    ) -> Case:
        """The call as a case of an operation that can do it: what a subject declines by; materialised only when small.

        `scale` divides lengths and number of sequences, of which two stay where there were several. A slot mapping is
        of int64, as servers have it; a full-size cache holds numbers in slots of nobody, so `poison` is tame.
        """
        return Case(
            op=op or self.op,  # type: ignore[arg-type]  # a Case says what is none
            seqs=tuple(Seq(query_len=new, kv_len=kv_len, tag=i) for i, (new, kv_len) in enumerate(self._scaled(scale))),
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=self.block_size,
            dtype="bfloat16",
            placement="shuffled",
            new_kv=new_kv,
            table_pad="zero",
            table_dtype="int64" if self.op == "cache_write" else "int32",
            k_poison=poison,
            v_poison=poison,
            spare_poison=poison,
        )

    def _scaled(self, scale: int) -> tuple[tuple[int, int], ...]:
        kept = min(len(self.seqs), max(2, len(self.seqs) // scale)) if scale > 1 else len(self.seqs)
        sizes = ((max(new // scale, 1), kv_len // scale) for new, kv_len in self.seqs[:kept])
        return tuple((new, max(new, kv_len)) for new, kv_len in sizes)

    @property
    def tokens(self) -> tuple[int, int]:
        """New tokens and all tokens of the batch."""
        return sum(new for new, _ in self.seqs), sum(kv_len for _, kv_len in self.seqs)

    @property
    def bytes_moved(self) -> int:
        """What a call has to move at least: K and V of every token, q and the output, each counted once.

        Of a cache write: K and V of the new tokens, read and written. Block tables, lengths and slots are left out.
        """
        new, tokens = self.tokens
        row = self.num_kv_heads * self.head_dim * BYTES
        if self.op == "cache_write":
            return 4 * new * row
        return 2 * tokens * row + 2 * new * self.num_q_heads * self.head_dim * BYTES

    @property
    def flops(self) -> int:
        """4 x head dim x query heads x pairs of a query and a key that it sees: two products, causal halves left out.

        A new token sees all before it and itself: n new ones of m in all see n m - n (n - 1) / 2 keys.
        """
        if self.op == "cache_write":
            return 0
        pairs = sum(new * kv_len - new * (new - 1) // 2 for new, kv_len in self.seqs)
        return 4 * self.head_dim * self.num_q_heads * pairs

    @property
    def words(self) -> str:
        """The sizes, for a reader."""
        new, tokens = self.tokens
        heads = f"{self.num_q_heads} query and {self.num_kv_heads} KV heads of dim {self.head_dim}"
        many = f"{len(self.seqs)} sequence{'s' if len(self.seqs) > 1 else ''}"
        return f"{many}, {new} new of {tokens} tokens, {heads}, blocks of {self.block_size}, bfloat16"


def _ragged(number: int, longest: int) -> tuple[tuple[int, int], ...]:
    """Lengths spread evenly from 1 to the longest, in an order of no meaning."""
    return _shuffled([longest * (i + 1) // number for i in range(number)])


def _between(number: int, shortest: int, longest: int) -> tuple[tuple[int, int], ...]:
    """Lengths spread evenly from the shortest to the longest, both among them."""
    return _shuffled([shortest + (longest - shortest) * i // (number - 1) for i in range(number)])


def _shuffled(lens: list[int]) -> tuple[tuple[int, int], ...]:
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
#: A few new tokens at the end of many: a chunk of a prompt, and tokens to be verified.
_FEW = {"1x64-of-32k": ((64, 32768),), "1x8-of-32k": ((8, 32768),)}
#: The heads of Qwen3-0.6B, which small servers are written for.
_QWEN: dict[str, Any] = {"num_q_heads": 16, "num_kv_heads": 8, "usual": False}

#: By name; `decode-32x8k-16` has blocks of 16.
WORKLOADS = {
    workload.name: workload
    for workload in (
        *(Workload(f"decode-{name}-16", "decode", seqs) for name, seqs in _DECODE.items()),
        *(Workload(f"decode-{name}-64", "decode", _DECODE[name], 64) for name in ("32x8k", "ragged")),
        Workload("decode-tutorial-16", "decode", _between(32, 100, 1000), num_kv_heads=32, usual=False),
        *(Workload(f"decode-qwen-{name}-16", "decode", _DECODE[name], **_QWEN) for name in ("1x8k", "32x1k")),
        *(Workload(f"extend-{name}-16", "extend", seqs) for name, seqs in _EXTEND.items()),
        *(Workload(f"extend-{name}-64", "extend", seqs, 64) for name, seqs in _EXTEND.items()),
        *(Workload(f"extend-{name}-16", "extend", seqs, usual=False) for name, seqs in _FEW.items()),
        Workload("extend-qwen-4x1k-16", "extend", ((1024, 1024),) * 4, **_QWEN),
        Workload("cache_write-8k-16", "cache_write", ((8192, 8192),)),
    )
}


def chosen(names: tuple[str, ...], op: str) -> tuple[Workload, ...]:
    """The workloads of these names, or the usual ones of the operation; raises WrongUse for an unknown one."""
    return named(names) if names else tuple(w for w in WORKLOADS.values() if w.op == op and w.usual)


def named(names: tuple[str, ...]) -> tuple[Workload, ...]:
    """The workloads of these names, all where none is given; raises WrongUse for an unknown one."""
    for name in names:
        if name not in WORKLOADS:
            raise WrongUse(f"workload is {name!r}, but expected one of {', '.join(WORKLOADS)}")
    return tuple(workload for workload in WORKLOADS.values() if not names or workload.name in names)
