"""Other projects' recipes: right kernels satisfy them, a gross fault does not; what they cannot see is held here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hunting import MUTANTS

from harness.mutants import plant
from harness.pool import Worker
from harness.recipes import RECIPES, Recipe, recipes

#: The subjects of ours that do each operation.
SUBJECTS = {
    "decode": ("ours.decode", "ours.split_decode"),
    "extend": ("ours.extend",),
    "step": ("ours.step",),
    "cache_write": ("ours.cache_write",),
    "merge": ("ours.merge",),
}
#: Quick, and one of each operation.
IN_CI = {"SGLang decode", "vLLM prefix prefill", "vLLM cache write", "vLLM merge", "flash-attn, step"}

ZEROS = """
import torch
from harness import subject

@subject(op="extend", new_kv=("in_cache", "dense"), window=True, dtypes=("float16",), kv_dtypes=("same", "e4m3"))
def zeros(inputs):
    return torch.zeros_like(inputs.q)
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("gridsim") as shared:
        yield shared


def complaints(worker: Worker, recipe: Recipe, subject: str) -> list[str]:
    """What each case of the recipe says, nothing where it passes."""
    told = (worker.call("harness.peers:verdict", recipe.name, i, subject) for i in range(len(recipe.cases)))
    return [verdict["fails"] or verdict["declined"] for verdict in told]


def named(name: str) -> Recipe:
    return next(recipe for recipe in RECIPES if recipe.name == name)


def fault(name: str, folder: Path) -> str:
    """A subject with that planted fault."""
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    return plant(mutant, folder)


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(r, id=r.name, marks=() if r.name in IN_CI else pytest.mark.nightly) for r in RECIPES],
)
def test_our_kernels_satisfy_every_suite(recipe: Recipe, worker: Worker) -> None:
    for subject in SUBJECTS[recipe.op]:
        assert complaints(worker, recipe, subject) == [""] * len(recipe.cases)


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("SGLang decode", "last-token-dropped"),
        ("vLLM merge", "merged-in-base-two"),
        ("flash-attn, extend", "causal-top-left"),
    ],
)
def test_a_gross_fault_is_seen(recipe: str, name: str, worker: Worker, tmp_path: Path) -> None:
    assert any(complaints(worker, named(recipe), fault(name, tmp_path)))


def test_a_write_of_v_with_the_strides_of_k_passes_where_both_have_the_same(worker: Worker, tmp_path: Path) -> None:
    recipe = named("vLLM cache write")
    assert not any(complaints(worker, recipe, fault("k-strides-for-v-written", tmp_path)))


@pytest.mark.parametrize("recipe", ["vLLM cache write FP8", "SGLang cache write FP8"])
def test_a_scale_that_is_multiplied_in_is_seen_by_suites_that_have_one(
    recipe: str, worker: Worker, tmp_path: Path
) -> None:
    assert any(complaints(worker, named(recipe), fault("written-times-scale", tmp_path)))


def test_a_kernel_that_returns_zeros_passes_where_the_tolerance_is_as_large_as_the_values(
    worker: Worker, tmp_path: Path
) -> None:
    (tmp_path / "zeros.py").write_text(ZEROS)
    passed = complaints(worker, named("vLLM prefix prefill e4m3"), f"{tmp_path}/zeros.py:zeros")
    assert passed == [""] * len(passed)


def test_a_test_without_an_assertion_sees_only_an_exception(worker: Worker, tmp_path: Path) -> None:
    append = named("FlashInfer append")
    assert complaints(worker, append, fault("slot-in-32-bits", tmp_path)) == [""]
    (tmp_path / "raising.py").write_text(
        'from harness import subject\n\n@subject(op="cache_write")\ndef raising(inputs):\n    raise KeyError("no")\n'
    )
    assert "KeyError" in complaints(worker, append, f"{tmp_path}/raising.py:raising")[0]


def test_each_recipe_says_where_it_was_read_and_has_one_operation() -> None:
    for recipe in RECIPES:
        assert recipe.source
        assert {case.op for case in recipe.cases} == {recipe.op}
        assert recipe in recipes(recipe.op)
    assert recipes("gather") == ()
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)
