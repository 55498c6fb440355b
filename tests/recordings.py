"""Calls to record, for tests: functions that take what kernels' wrappers take, called with the tensors of a case."""

import msgspec

from harness.calls import read
from harness.case import Case
from harness.executors.base import Placement
from harness.inputs import materialise
from harness.likeness import Recorded, recorded
from harness.parameters import bind

#: What no Case knows of a call: values, and with them what lies where nobody reads.
UNKNOWN = ("k_poison", "v_poison", "spare_poison", "row_poison", "values", "data_seed", "geometry_seed")


def decode(
    q, k_cache, v_cache, block_tables, kv_lens, *, out=None, scale=None, window=(-1, -1), softcap=0.0, causal=True,
    alibi_slopes=None, sinks=None, k_scale=None, v_scale=None, want_lse=False, max_kv_len=None, num_splits=0,
):  # fmt: skip
    """What a decode kernel's wrapper takes."""
    return q


def extend(
    q, k_cache, v_cache, block_tables, kv_lens, query_starts, *, k_new=None, v_new=None, out=None, scale=None,
    window=(-1, -1), softcap=0.0, causal=True, alibi_slopes=None, sinks=None, k_scale=None, v_scale=None,
    want_lse=False, max_kv_len=None, num_splits=0,
):  # fmt: skip
    """What an extend kernel's wrapper takes."""
    return q


def step(
    q, k_cache, v_cache, block_tables, kv_lens, query_starts, k_new, v_new, slot_mapping, *, out=None, scale=None,
    window=(-1, -1), softcap=0.0, causal=True, alibi_slopes=None, sinks=None, k_scale=None, v_scale=None,
    want_lse=False, max_kv_len=None, num_splits=0,
):  # fmt: skip
    """What writes new tokens and attends to them takes."""
    return q


def cache_write(k_new, v_new, k_cache, v_cache, slot_mapping, *, k_scale=None, v_scale=None):
    """What a store kernel's wrapper takes."""


FUNCTIONS = {function.__name__: function for function in (decode, extend, step, cache_write)}


def arguments(case: Case) -> dict:
    """The tensors and numbers of the case, by the parameters of the function of its operation."""
    inputs = Placement(materialise(case), "cpu").inputs
    code = FUNCTIONS[case.op].__code__
    given = vars(inputs) | {"num_splits": case.hints.num_splits}
    return {name: given[name] for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}


def like(case: Case, **changes) -> Recorded:
    """What a call of this case, with some arguments changed, is recorded as."""
    return recorded(read(bind(FUNCTIONS[case.op], {}).values((), arguments(case) | changes)))


def plain(case: Case) -> Case:
    """The case without what a call does not show: its seeds and poison, and the names of its sequences."""
    number = {seq.tag: i for i, seq in enumerate(case.seqs)}
    seqs = tuple(
        msgspec.structs.replace(seq, tag=number[seq.tag], shares_prefix_with=number.get(seq.shares_prefix_with))
        if seq.shared_blocks
        else msgspec.structs.replace(seq, tag=number[seq.tag], shares_prefix_with=None)
        for seq in case.seqs
    )
    return msgspec.structs.replace(case, seqs=seqs, **{name: getattr(Case(), name) for name in UNKNOWN})
