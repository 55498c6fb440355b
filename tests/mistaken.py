"""The naive decode kernel with a mistake in it, as readers of tutorials make them, for tests of what is said of it."""

import re
from pathlib import Path

STARTERS = Path(__file__).parent.parent / "harness" / "starters"
#: Lines of the naive kernel that a mistake changes.
TABLE = "block = tl.load(table_ptr + seq * columns + column).to(tl.int64)"
K = "k_offset = block * stride_k_block + slot * stride_k_slot + kv_head * stride_k_head + dim"
V = "v_offset = block * stride_v_block + slot * stride_v_slot + kv_head * stride_v_head + dim"
SUM = "l = l * rescale + tl.sum(p)"
ACC = "acc = acc * rescale + tl.sum(p * v, axis=0, keep_dims=True)"
DIVIDE = "acc = acc / tl.where(l > 0, l, 1.0)"


def naive(op: str = "decode") -> str:
    """The text of a starter."""
    return (STARTERS / f"{op}.py").read_text()


def line_of(part: str, op: str = "decode") -> int:
    """The line of the starter that holds a part of its text."""
    return naive(op)[: naive(op).index(part)].count("\n") + 1


def mistaken(folder: Path, old: str, new: str, name: str = "my_kernel") -> str:
    """A file with the change, as a subject; the old text has to be there once."""
    text = naive()
    assert text.count(old) == 1, old
    (folder / f"{name}.py").write_text(text.replace(old, new))
    return f"{folder / name}.py:decode"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def change(diff: str) -> tuple[str, str]:
    """The lines that a diff takes away, and what it puts in their place."""
    lines = diff.splitlines(keepends=True)
    return tuple("".join(" " + line[2:] for line in lines if line[0] == sign) for sign in "-+")  # type: ignore[return-value]
