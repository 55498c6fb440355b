"""Partial attention states for `merge`: outputs and lse as a split or a prefix would have stored them."""

import numpy as np

from harness import values
from harness.case import Case
from harness.values import Floats, hashed, normal

#: The number of states when the case names none.
DEFAULT_STATES = 2


def count(case: Case) -> int:
    """How many states are merged."""
    return len(case.states.partition) or DEFAULT_STATES


def partial_states(case: Case) -> tuple[Floats, Floats]:
    """Outputs [states, tokens, num_q_heads, head_dim_v] and lse [states, tokens, num_q_heads].

    The state's share of the keys moves its lse; an empty state has lse -inf and poison for an output.
    """
    tokens, heads, states = case.tokens, case.num_q_heads, count(case)
    state, token, head = np.ogrid[:states, :tokens, :heads]
    hashes = hashed(
        case.data_seed, values.V, state[..., None], token[..., None], head[..., None], np.arange(case.value_dim)
    )
    outs = normal(hashes) * (2.0**10 if case.values == "large" else 1.0)
    lses = 3 * normal(hashed(case.data_seed, values.K, state, token, head)) * (30 if case.values == "peaked" else 1)
    if case.states.partition:
        lses += np.log2(np.maximum(np.array(case.states.partition, dtype=np.float64), 1.0))[:, None, None]
    for empty in case.states.empty:
        outs[empty], lses[empty] = np.nan, -np.inf
    return outs, lses
