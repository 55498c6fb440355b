"""The import rule of the design, read from the sources: who may know whom, directly and through others."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TORCH = {"torch", "triton"}
#: What the supervising process is made of, and what it shows and keeps.
WITHOUT_TORCH = (
    "against", "ahead", "attribution", "blocks", "building", "builds", "campaign", "clocking", "columns", "commands",
    "comparing", "comparison", "comparison_figure", "comparison_table", "compiles", "compiles_table", "confirming",
    "anywhere", "batches", "calls", "kvsize", "layouts", "likeness", "mix", "neighbours", "parameters", "placing",
    "recorded", "recording", "scaling",
    "control", "corpus", "crew", "doctor", "drawing", "exam", "exam_page", "exam_table", "examiner", "fields", "fixed",
    "fuzz", "gate", "gate_page", "gate_report", "gating", "git", "hunt", "injections", "journal", "junit", "keeping",
    "known", "machine", "markdown", "mutants", "mutate", "narrowing", "new", "operators", "outcome", "page", "paired",
    "pictures", "platforms", "pool", "premises", "recipes", "replay", "report", "running", "sarif", "screen",
    "selection", "settings", "shifts", "show", "shrink", "sides", "source", "strategies", "subjects", "suite",
    "summary", "synonyms", "tables", "thresholds", "touched", "traits", "trials", "verdicts", "workloads", "wrapping",
    "bench", "benching", "breakdown", "speed_figure", "speed_table", "speeds", "stopwatch", "__main__",
)  # fmt: skip
ATTENTION = {
    "references", "bounds", "judge", "propagation", "arithmetic", "checks", "relations", "reading", "pipeline", "laws",
    "layout_laws", "batch_laws", "value_laws", "feature_laws", "lifting", "sensitivity", "contract", "looks",
}  # fmt: skip


def module_name(path: Path) -> str:
    """`harness.executors.cpu` for its file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "harness").rglob("*.py"))}


def at_load(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is loaded: no functions, nothing for type checkers only."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        yield statement
        for inner in ("body", "orelse", "finalbody"):
            yield from at_load(getattr(statement, inner, []))
        for handler in getattr(statement, "handlers", []):
            yield from at_load(handler.body)


def imported(tree: ast.Module, *, everywhere: bool = False) -> Iterator[str]:
    """The modules that are imported, names of `from harness import name` resolved."""
    for node in ast.walk(tree) if everywhere else at_load(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import of {node.module}"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else str(node.module) for name in inner)


@cache
def imports(name: str, everywhere: bool = False) -> frozenset[str]:
    return frozenset(imported(ast.parse(MODULES[name].read_text()), everywhere=everywhere))


def closure(name: str) -> dict[str, str]:
    """Every module that loading this one loads, with the module that imports it; packages load their __init__."""
    found, waiting = {name: "itself"}, [name]
    while waiting:
        user = waiting.pop()
        wanted = set(imports(user)) | {user.rpartition(".")[0]} - {""}
        for used in sorted(wanted - set(found)):
            found[used] = user
            if used in MODULES:
                waiting.append(used)
    return found


def roots(path: Path) -> set[str]:
    """The top-level packages that a file imports anywhere, the standard library left out."""
    names = {name.partition(".")[0] for name in imported(ast.parse(path.read_text()), everywhere=True)}
    return names - set(sys.stdlib_module_names)


def ours(name: str) -> set[str]:
    return {used for used in imports(name, everywhere=True) if used.partition(".")[0] == "harness"}


def test_case_imports_nothing_of_ours_and_results_only_case() -> None:
    assert ours("harness.case") == set()
    assert ours("harness.results") == {"harness.case"}
    assert not (roots(MODULES["harness.case"]) | roots(MODULES["harness.results"])) & (TORCH | {"numpy"})


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_the_supervisor_never_loads_torch_not_even_through_others(name: str) -> None:
    loaded = closure(f"harness.{name}")
    guilty = {user for used, user in loaded.items() if used.partition(".")[0] in TORCH}
    assert not guilty, f"harness.{name} loads torch or triton through {guilty}"


def test_the_rule_names_modules_that_are_there() -> None:
    assert {f"harness.{name}" for name in WITHOUT_TORCH} <= set(MODULES)
    assert {f"harness.{name}" for name in ATTENTION - {"references"}} <= set(MODULES)


def test_kernels_import_torch_and_triton_only() -> None:
    for path in (ROOT / "kernels").glob("*.py"):
        siblings = {other.stem for other in path.parent.glob("*.py")}
        assert roots(path) <= TORCH | siblings, path


def test_the_judge_knows_arrays_only() -> None:
    assert roots(ROOT / "references" / "float64.py") == {"numpy"}


def test_references_know_nothing_of_the_harness() -> None:
    for path in (ROOT / "references").glob("*.py"):
        assert "harness" not in roots(path), path


def test_executors_know_nothing_of_attention() -> None:
    for name in MODULES:
        if name.startswith("harness.executors"):
            known = {part for used in closure(name) for part in used.split(".")}
            assert not known & ATTENTION, f"{name} knows {known & ATTENTION}"


def test_gridsim_imports_nothing_of_the_harness() -> None:
    inside = "harness.executors.gridsim"
    for name in MODULES:
        if name.startswith(inside):
            assert all(used.startswith(inside) for used in ours(name)), (name, ours(name))


def test_a_command_holds_no_logic_of_torch_even_inside_its_functions() -> None:
    for name in ("campaign", "corpus", "report", "shrink", "strategies", "summary", "traits"):
        assert not {used.partition(".")[0] for used in imports(f"harness.{name}", everywhere=True)} & TORCH, name


@pytest.mark.parametrize(
    "name", ["fuzz", "replay", "gate", "keeping", "doctor", "exam", "examiner", "campaign", "suite"]
)
def test_in_a_fresh_process_torch_stays_out(name: str) -> None:
    code = f"import harness.{name}, sys; sys.exit(', '.join({{'torch', 'triton'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


# --- the reader itself -------------------------------------------------------------------------------------------


def test_the_reader_sees_what_loads_and_not_what_waits() -> None:
    tree = ast.parse(
        "import a.b\nfrom c import d\nif TYPE_CHECKING:\n    import e\ntry:\n    import f\nexcept ImportError:\n"
        "    import g\nclass K:\n    import h\ndef later():\n    import i\n"
    )
    assert set(imported(tree)) == {"a.b", "c", "f", "g", "h"}
    assert set(imported(tree, everywhere=True)) == {"a.b", "c", "e", "f", "g", "h", "i"}


def test_the_reader_follows_others() -> None:
    assert closure("harness.pipeline")["torch"].startswith("harness.executors")
    assert "harness.executors.base" in closure("harness.pipeline")
