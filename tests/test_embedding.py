"""An adapter's source with all that it uses: it must stand alone, and say what the adapter says."""

import sys
from pathlib import Path

import pytest

from harness.adapters import PROJECTS, adapters
from harness.adapters.adapter import Adapter
from harness.embedding import Embedded, adapted
from harness.subjects import WrongUse

ADAPTERS = [adapter for project in PROJECTS for adapter in adapters(project).values()]

PARTS = """
import math
from math import pi, tau
from collections import OrderedDict as Ordered
from functools import cache

HALF = pi / 2

def unused():
    return tau

@cache
def sine(x):
    return math.sin(x) + later(x)

def later(x):
    return 0 if x < HALF else sine(0)
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of ours and a helper of it."""
    (tmp_path / "harness_like.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("harness_like", None)


def test_what_a_function_uses_comes_before_it_and_nothing_else_comes(parts: Path) -> None:
    embedded = Embedded()
    embedded.add("harness_like", "sine")
    assert [name for _, name in embedded.definitions] == ["HALF", "later", "sine"]
    assert list(embedded.imports) == ["from functools import cache", "from math import pi", "import math"]
    scope: dict[str, object] = {}
    exec(embedded.text(), scope)
    assert scope["sine"](0) == 0  # type: ignore[operator]
    assert scope["sine"].cache_info().misses == 1, "its decorator came with it"  # type: ignore[attr-defined]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=[adapter.name for adapter in ADAPTERS])
def test_every_adapter_stands_alone(adapter: Adapter) -> None:
    """Its definitions run without the harness, and every global name in them is there."""
    import builtins

    source, call, _ = adapted(adapter.name, adapter.declaration.op)
    assert "harness" not in source
    definitions, _, _ = source.partition("\ndef kernel(")
    scope: dict[str, object] = {}
    exec(definitions, scope)
    function = scope[adapter.function.__name__]
    ours = [made for made in scope.values() if getattr(made, "__globals__", None) is scope]
    wanted = {name for made in ours for name in global_names(made.__code__)}
    assert wanted <= set(scope) | set(vars(builtins))
    assert call == f"returned = {function.__name__}(*KERNELS, inputs)"  # type: ignore[attr-defined]


def global_names(code: object) -> set[str]:
    """What a function and the functions inside it look up outside."""
    import dis

    found = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}  # type: ignore[arg-type]
    for inner in code.co_consts:  # type: ignore[attr-defined]
        if hasattr(inner, "co_code"):
            found |= global_names(inner)
    return found


def test_a_case_of_another_operation_is_refused() -> None:
    with pytest.raises(WrongUse, match=r"subject is 'torch.paged_attention', but the case is for decode"):
        adapted("torch.paged_attention", "decode")
