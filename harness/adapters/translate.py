"""What several adapters translate: our inputs in the conventions of the projects."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


def aligned_table(tables: Any, block_size: int, tokens: int) -> Any:
    """The block table [seqs, columns] with columns for a multiple of so many tokens; the new ones name block 0."""
    columns = tables.shape[1]
    missing = -columns % (tokens // math.gcd(tokens, block_size))
    if not missing:
        return tables
    wider = tables.new_zeros(tables.shape[0], columns + missing)
    wider[:, :columns] = tables
    return wider


def freed_blocks(tables: Any, block_size: int, inputs: Any) -> Any:
    """The block table [seqs, columns] with a block that is there for those that lie before the window of all queries.

    A cache manager frees these blocks and names a null block instead; here it is the first that is still in use.
    """
    if inputs.window[0] < 0:
        return tables
    query_lens = inputs.query_starts[1:] - inputs.query_starts[:-1]
    gone = ((inputs.kv_lens - query_lens - inputs.window[0]) // block_size).clamp(0, tables.shape[1] - 1)[:, None]
    columns = gone.new_ones(tables.shape[1]).cumsum(0) - 1
    return tables.where(columns >= gone, tables.gather(1, gone.long()))


def starts_without_padding(inputs: Any) -> Any:
    """query_starts [seqs + 1] where a graph's padding rows have no query: their tokens come after all others."""
    lens = (inputs.query_starts[1:] - inputs.query_starts[:-1]) * (inputs.kv_lens > 0)
    starts = inputs.query_starts.new_zeros(len(inputs.query_starts))
    starts[1:] = lens.cumsum(0)
    return starts


@contextmanager
def generation(tensor: Any, capability: tuple[int, int]) -> Iterator[None]:
    """Where there is no GPU, what torch says of one when a wrapper asks it how to launch."""
    if tensor.is_cuda:
        yield
        return
    with patch("torch.cuda.get_device_capability", lambda *_: capability):
        yield
