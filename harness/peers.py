"""Runs another project's recipe on a subject, in a worker: what its suite would say of it."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from harness import values
from harness.arithmetic import Arithmetic
from harness.executors.base import Observed, to_numpy
from harness.folders import load as load_module
from harness.inputs import Materials, gathered, materialise
from harness.judge import features, judge
from harness.pipeline import the_executor
from harness.platforms import platform
from harness.recipes import RECIPES, Numbers, Recipe, Tolerance
from harness.subjects import Subject, load
from harness.tensors import Array
from harness.writes import CACHES, Stored, apply

#: Share of the states' lse that vLLM's test of the merge makes infinite.
EMPTY = 0.1


def verdict(name: str, number: int, subject: str) -> dict[str, str]:
    """What case `number` of the recipe says: `fails` in words, or `declined`; both empty where it passes."""
    recipe = next(recipe for recipe in RECIPES if recipe.name == name)
    case = recipe.cases[number]
    tested = load(subject, case.op)
    if reason := tested.declines(case):
        return {"declined": reason, "fails": ""}
    materials = refilled(materialise(case), recipe.numbers)
    return {"declined": "", "fails": complaint(recipe, tested, materials)}


def complaint(recipe: Recipe, subject: Subject, materials: Materials) -> str:
    """The assertion that fails, nothing where the suite is satisfied."""
    called = _Called(subject)
    observed = the_executor("gridsim").observe(replace(subject, run=called), materials)
    if observed.failure is not None:
        return f"{observed.failure.type}: {observed.failure.message}"
    if recipe.oracle == "nothing":
        return ""
    wrote = _cache_complaint(recipe.tolerance, materials, called.inputs) if materials.stored is not None else ""
    if wrote or materials.case.op == "cache_write":
        return wrote
    return observed.complaint or _output_complaint(recipe, subject, materials, observed)


class _Called:
    """A subject's function that keeps what it was called with."""

    def __init__(self, subject: Subject) -> None:
        self._run, self.inputs = subject.run, None

    def __call__(self, inputs: Any) -> Any:
        self.inputs = inputs
        return self._run(inputs)


# --- data --------------------------------------------------------------------------------------------------------


def refilled(materials: Materials, numbers: Numbers) -> Materials:
    """The same call with the suite's numbers, its caches full: no poison, no fence, as other suites have them."""
    random, case, inputs = np.random.default_rng(case_seed(materials)), materials.case, materials.inputs
    for name in ("q", "k_new", "v_new", "state_outs"):
        if getattr(inputs, name) is not None:
            view = getattr(inputs, name).view
            view[...] = values.cast(_drawn(random, numbers, view.shape), case.dtype)
    if inputs.state_lses is not None:
        _fill_lses(random, inputs.state_lses.view)
    for name in CACHES:
        _fill_cache(random, numbers, materials, name)
    stored = materials.stored
    return materials if stored is None else replace(materials, stored=_stored(materials, stored))


def case_seed(materials: Materials) -> int:
    """One for each case, the same in every run."""
    return len(msgspec.json.encode(materials.case))


def _drawn(random: np.random.Generator, numbers: Numbers, shape: tuple[int, ...]) -> Array:
    unit = random.uniform(-1, 1, shape) if numbers.kind == "uniform" else random.normal(size=shape)
    return numbers.mean + numbers.spread * np.asarray(unit)


def _fill_lses(random: np.random.Generator, lses: Array) -> None:
    """Some of each state's are empty, never both of one row."""
    lses[...] = random.normal(size=lses.shape)
    empty = random.random(lses.shape) < EMPTY
    lses[empty & ~empty.all(axis=0)] = -np.inf


def _fill_cache(random: np.random.Generator, numbers: Numbers, materials: Materials, name: str) -> None:
    """All of the pool, or the live slots alone."""
    view, case = getattr(materials.inputs, name).view, materials.case
    drawn = values.cast(_drawn(random, numbers, view.shape), case.cache_dtype)
    if numbers.unused == "zero":
        live = np.zeros(view.shape[:2], np.bool_)
        for index, seq in enumerate(case.seqs):
            position = np.arange(case.cached_len(seq))
            live[materials.geometry.tables[index][position // case.block_size], position % case.block_size] = True
        drawn[~live] = 0
    view[...] = drawn


def _stored(materials: Materials, stored: Stored) -> Stored:
    """What a right write of the new numbers leaves; the rows that are skipped are none of it."""
    inputs, case = materials.inputs, materials.case
    rows = {int(slot): row for row, slot in enumerate(inputs.slot_mapping.view.tolist())}
    order = [rows[int(b) * case.block_size + int(o)] for b, o in zip(stored.blocks, stored.offsets, strict=True)]
    k_scales, v_scales = values.scales(case)
    k, v = (tensor.view[order].astype(np.float64) for tensor in (inputs.k_new, inputs.v_new))
    encoded = values.encode(k, k_scales, case.cache_dtype), values.encode(v, v_scales, case.cache_dtype)
    return replace(stored, k=encoded[0], v=encoded[1])


# --- what they assert --------------------------------------------------------------------------------------------


def _cache_complaint(tolerance: Tolerance, materials: Materials, inputs: Any) -> str:
    """The caches, whole, as numbers."""
    assert materials.stored is not None
    for name in CACHES:
        wanted = apply(materials.stored, name, getattr(materials.inputs, name).view).astype(np.float64)
        differs = _beyond(tolerance, to_numpy(getattr(inputs, name)).astype(np.float64), wanted)
        if differs.mean() > tolerance.share:
            return f"{name}: {int(differs.sum())} of {differs.size} elements differ"
    return ""


def _output_complaint(recipe: Recipe, subject: Subject, materials: Materials, observed: Observed) -> str:
    truth, truth_lse = _truth(recipe, subject, materials)
    tolerance = _fixed(recipe.tolerance, materials, truth)
    differs = _beyond(tolerance, observed.out.astype(np.float64), truth)
    if differs.any():
        return f"out: {int(differs.sum())} of {differs.size} elements differ"
    if recipe.lse and _beyond(tolerance, observed.lse.astype(np.float64), truth_lse).any():
        return "lse differs"
    return ""


def _beyond(tolerance: Tolerance, got: Array, wanted: Array) -> Array:
    """Where the two are not close; NaN is close to NaN, as torch.testing and NumPy have it where it is asked for."""
    with np.errstate(invalid="ignore"):
        close = np.abs(got - wanted) <= tolerance.atol + tolerance.rtol * np.abs(wanted)
    return np.asarray(~(close | (got == wanted) | (np.isnan(got) & np.isnan(wanted))))


def _truth(recipe: Recipe, subject: Subject, materials: Materials) -> tuple[Array, Array]:
    if recipe.oracle == "blocks of one":
        return _of_itself(recipe, subject, materials)
    if materials.case.op == "merge":
        judged = judge(materials, Arithmetic(divisions=2), platform("gridsim"))
        return judged.truth, judged.truth_lse
    parts = _attended(materials)
    return np.concatenate([out for out, _ in parts]), np.concatenate([lse for _, lse in parts])


def _attended(materials: Materials) -> list[tuple[Array, Array]]:
    attention = load_module("references", "float64").attention
    wanted = features(materials)
    parts: list[tuple[Array, Array]] = []
    for i in range(len(materials.case.seqs)):
        parts.append(attention(*gathered(materials, i), **wanted))
    return parts


def _of_itself(recipe: Recipe, subject: Subject, materials: Materials) -> tuple[Array, Array]:
    """The output of the same kernel on the same tokens in blocks of one."""
    case = msgspec.structs.replace(materials.case, block_size=1)
    other = refilled(materialise(case), recipe.numbers)
    other.inputs.q.view[...] = materials.inputs.q.view
    for index in range(len(case.seqs)):
        _, k, v = gathered(materials, index)
        blocks = other.geometry.tables[index]
        other.inputs.k_cache.view[blocks, 0], other.inputs.v_cache.view[blocks, 0] = k, v
    observed = the_executor("gridsim").observe(subject, other)
    if observed.failure is not None or observed.out is None:
        return np.full(materials.inputs.q.shape, np.inf), np.empty(0)
    return observed.out.astype(np.float64), np.empty(0)


def _fixed(tolerance: Tolerance, materials: Materials, truth: Array) -> Tolerance:
    """flash-attn's rule as one number: so many times what plain attention in q's own type errs by."""
    if not tolerance.times:
        return tolerance
    low = np.concatenate([_in_low_precision(materials, i) for i in range(len(materials.case.seqs))])
    return Tolerance(tolerance.times * float(np.abs(low - truth).max()) + tolerance.atol)


def _in_low_precision(materials: Materials, index: int) -> Array:
    """Plain attention of one sequence with every result rounded to q's type, as flash-attn's own reference has it."""
    import torch

    case, wanted = materials.case, features(materials)
    kind = getattr(torch, case.dtype)
    q, k, v = (torch.from_numpy(x.astype(np.float32)).to(kind) for x in gathered(materials, index))
    k, v = (x.repeat_interleave(case.group, dim=1) for x in (k, v))
    scores = torch.einsum("thd,shd->hts", q * wanted["scale"], k)
    float64 = load_module("references", "float64")
    ahead = np.arange(len(k)) - float64.positions(len(q), len(k))[:, None]
    if wanted["alibi_slopes"] is not None:
        bias = -wanted["alibi_slopes"][:, None, None] * np.abs(ahead)
        scores = scores + torch.from_numpy(bias.astype(np.float32)).to(kind)
    seen = torch.from_numpy(float64.visible(len(q), len(k), case.causal, case.window))
    p = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
    return np.asarray(torch.einsum("hts,shd->thd", p, v).double().numpy())
