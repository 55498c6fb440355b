"""A planted fault for every look: right on the first case, so that only the comparison of two calls shows it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from attending import lens, nudged

from harness import case as cases
from harness import ours
from harness.case import Case, Seq
from harness.checks import Run, base_findings
from harness.inputs import materialise
from harness.laws import First
from harness.pipeline import Session, reading_of, the_executor
from harness.subjects import Subject

Fault = Callable[[Any, torch.Tensor], None]

DECODE = Case(seqs=lens(20, 7), num_q_heads=4, num_kv_heads=2, scale=0.25, data_seed=3)
EXTEND = Case(
    op="extend", seqs=(Seq(query_len=6, kv_len=20), Seq(query_len=3, kv_len=9, tag=1)), num_q_heads=4, num_kv_heads=2
)
STEP, WRITE = cases.replace(EXTEND, op="step"), cases.replace(EXTEND, op="cache_write")
DENSE = cases.replace(EXTEND, new_kv="dense")
MERGE = Case(op="merge", seqs=lens(1, 1), want_lse=True, num_q_heads=2, num_kv_heads=2)
SHARED = (Seq(kv_len=20), Seq(kv_len=20, tag=1, shares_prefix_with=0, shared_blocks=1))


def slightly(_: Any, out: torch.Tensor) -> None:
    """Other bits, within any bound; the row of an empty sequence stays exactly 0."""
    out.copy_(torch.where(out == 0, out, nudged(out)))


def first_head(_: Any, out: torch.Tensor) -> None:
    """Only one head has other bits."""
    out[:, 0] = nudged(out[:, 0])


def add_a_little(_: Any, out: torch.Tensor) -> None:
    """A constant that does not scale with V."""
    out += 2.0**-23


def above_a_half(_: Any, out: torch.Tensor) -> None:
    """Other bits, from a size on that does not scale with V."""
    out.copy_(torch.where(out.abs() > 0.5, nudged(out), out))


def badly(_: Any, out: torch.Tensor) -> None:
    """Far outside."""
    out += 1.0


def lost(_: Any, out: torch.Tensor) -> None:
    """Nothing is computed."""
    out.zero_()


def by_a_thousandth(_: Any, out: torch.Tensor) -> None:
    """Less than bfloat16 shows."""
    out *= 1.001


@dataclass(frozen=True)
class Control:
    """`fault` is applied where `sees` gives something else than in the first call; without `sees`, always."""

    case: Case
    fault: Fault
    sees: Callable[[Any], Any] | None = None
    kind: str = "determinism"


def _numbers(name: str) -> Callable[[Any], Any]:
    return lambda inputs: getattr(inputs, name).float().flatten().tolist()


def _form(name: str) -> Callable[[Any], Any]:
    """Anything but what matters: type, strides, device, or numbers that no valid call has."""
    return lambda inputs: (
        getattr(inputs, name).dtype, getattr(inputs, name).stride(), str(getattr(inputs, name).device),
        tuple(getattr(inputs, name).shape), *(() if getattr(inputs, name).is_meta else _numbers(name)(inputs)),
    )  # fmt: skip


def _live_v(inputs: Any) -> Any:
    return [inputs.v_cache[int(row[0]), 0].float().flatten().tolist() for row in inputs.block_tables]


FP8 = cases.replace(DECODE, kv_dtype="e4m3", k_scale=0.5, v_scale=2.0)
CALM = cases.replace(DECODE, values="ties", scale=0.5)


def _contract(name: str, case: Case = DECODE) -> Control:
    return Control(case, lost, _form(name), "contract")


def ignoring(**plain: Any) -> Fault:
    """The call is made as if the arguments had these values."""

    def fault(inputs: Any, out: torch.Tensor) -> None:
        again = replace(inputs, **plain, out=None)
        found = getattr(ours, "extend" if len(inputs.q) > len(inputs.kv_lens) else "decode")(again)
        out.copy_(found[0] if isinstance(found, tuple) else found)

    return fault


def _deaf(case: Case = DECODE, **plain: Any) -> Control:
    return Control(case, ignoring(**plain), None, "ignored argument")


CONTROLS = {
    "other block size": Control(DECODE, badly, lambda inputs: inputs.k_cache.shape[1], "relation"),
    "other cache layout": Control(DECODE, slightly, lambda inputs: inputs.k_cache.stride()),
    "other strides of q": Control(DECODE, slightly, lambda inputs: inputs.q.stride()),
    "other output buffer": Control(DECODE, slightly, lambda inputs: inputs.out is None),
    "other table": Control(DECODE, slightly, lambda inputs: inputs.block_tables.stride()),
    "private copies": Control(
        cases.replace(DECODE, seqs=SHARED), slightly,
        lambda inputs: bool(inputs.block_tables[0, 0] == inputs.block_tables[1, 0]),
    ),
    "loose maximum": Control(DECODE, slightly, lambda inputs: inputs.max_kv_len),
    "other number of splits": Control(
        cases.replace(DECODE, seqs=lens(60, 40)), badly, lambda inputs: inputs.hints.num_splits, "relation"
    ),
    "sequence alone": Control(DECODE, slightly, lambda inputs: len(inputs.kv_lens)),
    "other order of sequences": Control(DECODE, slightly, lambda inputs: int(inputs.kv_lens[0])),
    "duplicated sequence": Control(DECODE, slightly, lambda inputs: len(inputs.kv_lens)),
    "padding row more": Control(DECODE, slightly, lambda inputs: bool((inputs.kv_lens == 0).any())),
    "first chunk": Control(EXTEND, badly, lambda inputs: len(inputs.q), "relation"),
    "last row alone": Control(EXTEND, badly, lambda inputs: len(inputs.q), "relation"),
    "later tokens changed": Control(EXTEND, slightly, lambda inputs: float(inputs.q[-1, 0, 0])),
    "other order of heads": Control(DECODE, first_head),
    "repeated KV heads": Control(DECODE, badly, lambda inputs: inputs.k_cache.shape[2], "relation"),
    "doubled V": Control(CALM, add_a_little),
    "negated V": Control(DECODE, slightly),
    "negated Q and K": Control(DECODE, slightly, lambda inputs: float(inputs.q[0, 0, 0])),
    "doubled Q, halved K": Control(DECODE, slightly, lambda inputs: float(inputs.q[0, 0, 0])),
    "doubled Q, halved scale": Control(DECODE, slightly, lambda inputs: inputs.scale),
    "shifted keys": Control(
        cases.replace(DECODE, values="ties"), badly, lambda inputs: bool((inputs.k_cache > 1).any()), "relation"
    ),
    "reversed keys": Control(DECODE, badly, _live_v, "relation"),
    "doubled keys": Control(DECODE, badly, lambda inputs: int(inputs.kv_lens[0]), "relation"),
    "constant V": Control(DECODE, badly, _live_v, "relation"),
    "one visible key": Control(DECODE, badly, lambda inputs: inputs.window, "relation"),
    "window wider than all": Control(DECODE, badly, lambda inputs: inputs.window, "relation"),
    "ALiBi slopes of 0": Control(DECODE, badly, lambda inputs: inputs.alibi_slopes is None, "relation"),
    "sinks without weight": Control(DECODE, badly, lambda inputs: inputs.sinks is None, "relation"),
    "other order of states": Control(MERGE, badly, _numbers("state_lses"), "relation"),
    "empty state more": Control(MERGE, badly, lambda inputs: len(inputs.state_lses), "relation"),
    "doubled states": Control(MERGE, above_a_half),
    "lifted to float32": Control(cases.replace(DECODE, dtype="bfloat16"), by_a_thousandth, None, "accuracy in float32"),
    "sensitive to window": _deaf(window=(-1, -1)),
    "sensitive to softcap": _deaf(softcap=0.0),
    "sensitive to ALiBi": _deaf(alibi_slopes=None),
    "sensitive to sinks": _deaf(sinks=None),
    "sensitive to scale": _deaf(scale=0.25),
    "sensitive to causal": _deaf(EXTEND, causal=True),
    "sensitive to k_scale": _deaf(FP8, k_scale=torch.tensor([0.5])),
    "sensitive to v_scale": _deaf(FP8, v_scale=torch.tensor([2.0])),
    "lengths apart": _contract("kv_lens"),
    "table apart": _contract("block_tables"),
    "slopes apart": _contract("alibi_slopes", cases.replace(DECODE, alibi=True)),
    "sinks apart": _contract("sinks", cases.replace(DECODE, sinks=True)),
    "k_scale apart": _contract("k_scale", cases.replace(FP8, scale_granularity="head")),
    "v_scale apart": _contract("v_scale", cases.replace(FP8, scale_granularity="head")),
    "dims of q apart": _contract("q"),
    "dims of K apart": _contract("k_cache"),
    "dims of V apart": _contract("v_cache"),
    "dims of new K apart": _contract("k_new", DENSE),
    "dims of new V apart": _contract("v_new", DENSE),
    "dims of out apart": Control(DECODE, lost, lambda inputs: inputs.out is not None, "contract"),
    "lengths as float": _contract("kv_lens"),
    "lengths as int64": _contract("kv_lens"),
    "table as int16": _contract("block_tables"),
    "table as float": _contract("block_tables"),
    "length beyond the table": _contract("kv_lens"),
    "negative length": _contract("kv_lens"),
    "block beyond the pool": _contract("block_tables"),
    "negative block": _contract("block_tables"),
    "starts apart": _contract("query_starts", EXTEND),
    "starts as float": _contract("query_starts", EXTEND),
    "starts behind q": _contract("query_starts", EXTEND),
    "slots apart": _contract("slot_mapping", STEP),
    "slots as float": _contract("slot_mapping", WRITE),
    "slots elsewhere": _contract("slot_mapping", STEP),
    "slot beyond the cache": _contract("slot_mapping", WRITE),
    "fewer q heads": _contract("q"),
    "fewer V heads": _contract("v_cache"),
    "narrower q": _contract("q"),
    "lengths elsewhere": _contract("kv_lens"),
    "table elsewhere": _contract("block_tables"),
}  # fmt: skip


def faulty(control: Control) -> Subject:
    """Our own kernel with the fault in its output; it refuses nothing where the fault is to have lost the output."""
    right = getattr(ours, "split_decode" if control.case.op == "decode" else control.case.op)
    seen: list[Any] = []

    def run(inputs: Any) -> Any:
        sight = control.sees(inputs) if control.sees else None
        differs = control.sees is None or bool(seen and seen[0] != sight)
        seen.append(sight)
        if differs and control.fault is lost:
            return _nothing(inputs)
        found = right(inputs)
        if differs:
            control.fault(inputs, found[0] if isinstance(found, tuple) else found)
        return found

    return Subject("tests.control", right.__kvetch__, run)


def _nothing(inputs: Any) -> torch.Tensor:
    return torch.zeros(len(inputs.q), 4, inputs.v_cache.shape[3])


def first_call(subject: Subject, case: Case) -> First:
    """The call that laws start from; it has to be right, as far as one call shows."""
    session, materials = Session(case, subject, the_executor("gridsim"), thorough=False), materialise(case)
    observed = session.again(materials)
    arithmetic = reading_of(case, subject, observed).arithmetic
    run = Run(materials, observed, session.bound(materials, observed), arithmetic)
    assert base_findings(run) == []
    return First(run, arithmetic, session)
