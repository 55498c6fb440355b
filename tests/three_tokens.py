"""Three tokens in two blocks, small enough to be computed by hand: the first call of every adapter.

Block 3 holds tokens 0 and 1, block 1 holds token 2 and a slot that is nobody's. A query is ln 2 along the first
dimension and K is 0, 0 and 1 there, so that the weights of all three are 1/4, 1/4 and 1/2; V is 4, 4 and 2 in a
dimension of each token's own, so that what sees all three is (1, 1, 1, 0, ...), and its lse is ln 4.
"""

import math
from typing import Any

import torch

from harness.case import Hints
from harness.executors import gridsim
from harness.inputs import TENSOR_NAMES, Inputs

BLOCK_SIZE, BLOCKS, SLOTS = 2, 4, (6, 7, 2)
#: What sees one, two and all three tokens.
ROWS = ((4.0, 0.0, 0.0), (2.0, 2.0, 0.0), (1.0, 1.0, 1.0))
LSES = (0.0, math.log(2), math.log(4))
#: A 16-bit ln 2 and weights of 16 bits move a weight by less than this.
NEAR = 4e-3
SCALARS: dict[str, Any] = {
    "scale": 1.0,
    "causal": True,
    "window": (-1, -1),
    "softcap": 0.0,
    "want_lse": False,
    "max_query_len": 1,
    "max_kv_len": 3,
    "tile_start": 0,
    "tile_end": 0,
    "hints": Hints(),
}


def given(**some: Any) -> Inputs:
    """Inputs with nothing but what is given."""
    return Inputs(**(dict.fromkeys(TENSOR_NAMES) | SCALARS | some))


def caches(dtype: torch.dtype, dim: int, filled: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [4, 2, 1, dim], NaN where no token is."""
    pair = torch.full((2, BLOCKS, BLOCK_SIZE, 1, dim), math.nan, dtype=dtype)
    if filled:
        for cache, rows in zip(pair, tokens(dtype, dim), strict=True):
            cache.view(-1, 1, dim)[list(SLOTS)] = rows
    return pair[0], pair[1]


def tokens(dtype: torch.dtype, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [3, 1, dim] of the tokens."""
    k, v = torch.zeros(3, 1, dim, dtype=dtype), torch.zeros(3, 1, dim, dtype=dtype)
    k[2, 0, 0] = 1.0
    v[0, 0, 0], v[1, 0, 1], v[2, 0, 2] = 4.0, 4.0, 2.0
    return k, v


def attending(queries: int, dtype: torch.dtype = torch.float16, dim: int = 16, **some: Any) -> Inputs:
    """A call for the last `queries` tokens: 1 for decode, 3 for a prefill. One head."""
    q = torch.zeros(queries, 1, dim, dtype=dtype)
    q[:, 0, 0] = math.log(2)
    k_cache, v_cache = caches(dtype, dim)
    batch = {
        "block_tables": torch.tensor([[3, 1]], dtype=torch.int32),
        "kv_lens": torch.tensor([3], dtype=torch.int32),
        "query_starts": torch.tensor([0, queries], dtype=torch.int32),
        "max_query_len": queries,
    }
    return given(**({"q": q, "k_cache": k_cache, "v_cache": v_cache} | batch | some))


def writing(dtype: torch.dtype = torch.float16, dim: int = 16) -> Inputs:
    """A call that writes the three tokens into an empty cache."""
    k_cache, v_cache = caches(dtype, dim, filled=False)
    k_new, v_new = tokens(dtype, dim)
    slots = torch.tensor(SLOTS, dtype=torch.int64)
    return given(k_cache=k_cache, v_cache=v_cache, k_new=k_new, v_new=v_new, slot_mapping=slots)


def merging(dtype: torch.dtype = torch.float16, dim: int = 16) -> Inputs:
    """Two states of one token, of weights 1/4 and 3/4: 4 and 8 make 7, the lse is that of 1 + 3."""
    outs = torch.stack([torch.full((1, 1, dim), value, dtype=dtype) for value in (4.0, 8.0)])
    lses = torch.tensor([0.0, math.log(3)]).reshape(2, 1, 1)
    q = torch.zeros(1, 1, dim, dtype=dtype)
    return given(q=q, state_outs=outs, state_lses=lses, want_lse=True)


def call(subject: Any, inputs: Inputs) -> Any:
    """What the subject returns under gridsim."""
    with gridsim.active():
        return subject.run(inputs)


def assert_rows(out: torch.Tensor, queries: int) -> None:
    """The output of an attending call: what its last `queries` rows should be."""
    wanted = torch.zeros(queries, 1, out.shape[2])
    wanted[:, 0, :3] = torch.tensor(ROWS[-queries:])
    torch.testing.assert_close(out.float(), wanted, atol=NEAR, rtol=0)


def assert_lses(lse: torch.Tensor, queries: int) -> None:
    """The lse [queries, 1] of the same."""
    torch.testing.assert_close(lse.float(), torch.tensor(LSES[-queries:]).reshape(-1, 1), atol=NEAR, rtol=0)


def assert_written(inputs: Inputs) -> None:
    """The three tokens are in their slots, and every other slot is as it was."""
    k, v = caches(inputs.k_new.dtype, inputs.k_new.shape[2])
    torch.testing.assert_close(inputs.k_cache, k, atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(inputs.v_cache, v, atol=0, rtol=0, equal_nan=True)
