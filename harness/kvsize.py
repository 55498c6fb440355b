"""`python -m harness.kvsize`: what a KV cache takes a token, and what preallocating and block sizes waste of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from harness.columns import aligned
from harness.commands import Verb, one_line_errors
from harness.mix import read
from harness.subjects import WrongUse

#: Bytes of an element, by the names that people use.
BYTES = {
    "fp32": 4, "float32": 4, "fp16": 2, "float16": 2, "bf16": 2, "bfloat16": 2,
    "fp8": 1, "e4m3": 1, "e5m2": 1, "int8": 1,
}  # fmt: skip
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Token:
    """What one token keeps in every layer: a key and a value a head, or one latent vector for all heads (MLA)."""

    layers: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    itemsize: int
    latent: int | None = None

    @property
    def bytes(self) -> int:
        """In all layers together."""
        elements = self.kv_heads * (self.head_dim + self.head_dim_v) if self.latent is None else self.latent
        return self.layers * elements * self.itemsize

    @property
    def words(self) -> str:
        """The product, as one would write it down."""
        dims = f"2 x {self.head_dim}" if self.head_dim == self.head_dim_v else f"({self.head_dim} + {self.head_dim_v})"
        each = f"{self.kv_heads} KV heads x {dims}" if self.latent is None else f"{self.latent} latent"
        return f"{self.layers} layers x {each} x {self.itemsize} bytes"


class Lengths(click.ParamType[tuple[int, ...]]):
    """Lengths of sequences: "100,2048,17"."""

    name = "lengths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Each a number from 0."""
        parts = str(value).split(",")
        for part in parts:
            if not re.fullmatch(r"[0-9]{1,18}", part.strip()):
                self.fail(f"{part.strip()!r} in {value!r} is no length, which is a number from 0", param, ctx)
        return tuple(int(part) for part in parts)


positive = click.IntRange(min=1)


@click.command(cls=Verb)
@click.option("--layers", type=positive, required=True)
@click.option("--kv-heads", type=positive, default=None, help="KV heads; not for MLA.")
@click.option("--head-dim", type=positive, default=None, help="Head dim; not for MLA.")
@click.option("--head-dim-v", type=positive, default=None, help="Head dim of V, if it is another.")
@click.option("--mla", "latent", type=positive, default=None, help="Latent and rope dims of MLA together, such as 576.")
@click.option("--dtype", type=click.Choice(list(BYTES)), default="bf16", show_default=True)
@click.option("--tokens", type=positive, default=None, help="Tokens of one sequence.")
@click.option("--lengths", type=Lengths(), default=None, help="Tokens of each sequence instead: 100,2048,17.")
@click.option("--recorded", type=click.Path(path_type=Path), default=None, help="Lengths of the largest recorded call.")
@click.option("--max-len", type=positive, default=None, help="What is preallocated for each. Default: the longest.")
@one_line_errors
def main(
    tokens: int | None, lengths: tuple[int, ...] | None, recorded: Path | None, max_len: int | None, **options: Any
) -> int:
    """Tell the size of a KV cache: a token, all of them, and what preallocating and each block size leave unused.

    Exit code: 0 told; 2 wrong use.
    """
    token = _token(**options)
    sources = {"--tokens": tokens, "--lengths": lengths, "--recorded": recorded}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise WrongUse(f"got {' and '.join(given) or 'no length'}, but expected one of {', '.join(sources)}")
    lens = lengths or ((tokens,) if tokens else _longest_batch(recorded))
    if max_len is not None and max_len < max(lens):
        raise WrongUse(f"--max-len is {max_len}, but a sequence has {max(lens)} tokens")
    for line in lines(token, lens, max_len or max(lens)):
        click.echo(line)
    return 0


def _token(
    layers: int, kv_heads: int | None, head_dim: int | None, head_dim_v: int | None, latent: int | None, dtype: str
) -> Token:
    if latent is not None and (kv_heads or head_dim or head_dim_v):
        raise WrongUse(f"--mla is {latent}, but MLA keeps one vector for all heads: without --kv-heads and --head-dim")
    if latent is None and not (kv_heads and head_dim):
        raise WrongUse(f"--kv-heads is {kv_heads} and --head-dim {head_dim}, but both are needed, or --mla instead")
    dim = head_dim or 0
    return Token(layers, kv_heads or 0, dim, head_dim_v or dim, BYTES[dtype], latent)


def _longest_batch(recorded: Path | None) -> tuple[int, ...]:
    calls = read(recorded or Path("recorded")).calls
    return max((tuple(seq.kv_len for seq in share.case.seqs) for share in calls), key=sum)


def lines(token: Token, lens: tuple[int, ...], max_len: int) -> Iterator[str]:
    """Bytes of a token and of all, then a row for preallocating and for each block size."""
    held = sum(lens)
    many = f"{len(lens)} sequences of {min(lens)} to {max(lens)} tokens" if len(lens) > 1 else f"{held} tokens"
    yield f"a token takes {token.bytes} bytes ({in_units(token.bytes)}): {token.words}"
    yield f"{many}: {in_units(held * token.bytes)}" + (f" for {held} tokens" if len(lens) > 1 else "")
    yield ""
    head = ("", "slots", "takes", "unused slots", "unused", "share", "expected unused")
    rows = [_row(f"preallocated for {max_len}", token, held, max_len * len(lens), "")]
    for size in BLOCK_SIZES:
        slots = sum(-(-length // size) * size for length in lens)
        rows.append(_row(f"blocks of {size}", token, held, slots, in_units(expected(size, len(lens)) * token.bytes)))
    yield from aligned([head, *rows])
    yield "expected: where all remainders of lengths are equally likely, (block - 1) / 2 slots a sequence"


def expected(block_size: int, sequences: int) -> float:
    """Slots left unused on average: the mean of 0 to block_size - 1 for each sequence."""
    return sequences * (block_size - 1) / 2


def _row(name: str, token: Token, held: int, slots: int, mean: str) -> tuple[str, ...]:
    unused = slots - held
    share = f"{unused / slots:.1%}" if slots else "0.0%"
    return name, str(slots), in_units(slots * token.bytes), str(unused), in_units(unused * token.bytes), share, mean


def in_units(size: float) -> str:
    """In the largest of bytes, KiB, MiB, GiB and TiB of which there is one."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while size >= 1024 and power < len(units) - 1:
        size, power = size / 1024, power + 1
    return f"{size:.4g} {units[power]}"


if __name__ == "__main__":
    main()
