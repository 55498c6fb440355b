"""Other people's kernels: what is declared, what is bound at load, and light import, on a package made for the test."""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from invoked import Commands

from harness.adapters import PROJECTS, adapters
from harness.adapters.__main__ import main
from harness.adapters.adapter import Adapter, Project
from harness.adapters.light import import_module
from harness.case import Case
from harness.pipeline import run_case
from harness.results import Result
from harness.subjects import Subject, WrongUse, declare, load

KERNEL = """
from strange.platform import current
from strange.tools.numbers import half

GENERATION = current.generation

def attend(q, k, scale=1.0):
    from strange.tools import numbers
    return numbers.half(q) + half(k)

class Wrapper:
    def plan(self, indptr):
        self.indptr = indptr
    def run(self, q):
        return self.indptr + q
"""


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package whose every __init__ raises, and whose platform module asks for hardware."""
    package = tmp_path / "strange"
    (package / "tools").mkdir(parents=True)
    for folder in (package, package / "tools"):
        (folder / "__init__.py").write_text("raise RuntimeError('this starts a server')")
    (package / "platform.py").write_text("raise RuntimeError('no GPU')")
    (package / "kernel.py").write_text(KERNEL)
    (package / "tools" / "numbers.py").write_text("def half(x):\n    return x / 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield package
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == "strange"]:
        del sys.modules[name]


def stubs() -> dict[str, dict[str, Any]]:
    from types import SimpleNamespace

    return {"strange.platform": {"current": SimpleNamespace(generation=90)}}


STRANGE = Project("strange", "strange", "strange", ">=1,<2", "", stubs=stubs)


def made(**calls: str) -> Adapter:
    """An adapter of `strange` that gives what it is given."""

    def attend(*given: Any) -> Any:
        return given

    return STRANGE.adapter({f"strange.kernel:{name.replace('_', '.')}": passed for name, passed in calls.items()})(
        attend
    )


def test_a_kernel_is_loaded_without_its_packages(strange: Path) -> None:
    module = import_module("strange.kernel", "strange", stubs)
    assert module.GENERATION == 90
    assert module.attend(2, 4) == 3, "what is imported in a call is found as well"


def test_without_stubs_the_package_is_loaded_as_ever(strange: Path) -> None:
    with pytest.raises(RuntimeError, match="starts a server"):
        import_module("strange.kernel", "strange")


def test_an_adapter_gets_its_functions_in_order_and_each_class_once(strange: Path) -> None:
    subject = made(attend="q k", Wrapper_plan="indptr", Wrapper_run="q").subject()
    attend, wrapper, inputs = subject.run("inputs")
    assert (attend.__name__, wrapper.__name__, inputs) == ("attend", "Wrapper", "inputs")
    assert subject.name == "strange.attend"
    assert subject.declaration.about == "strange unknown (its adapter is for >=1,<2)"


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ({"attend": "q k window"}, "strange.kernel:attend takes no window"),
        ({"attend": "q"}, "strange.kernel:attend wants k, which is not passed"),
        ({"gone": "q"}, "strange.kernel:gone is not there"),
        ({"Wrapper_gone": "q"}, "strange.kernel:Wrapper.gone is not there"),
        ({"Wrapper_plan": ""}, "strange.kernel:Wrapper.plan wants indptr, which is not passed"),
    ],
)
def test_another_signature_is_an_adapter_out_of_date_and_no_finding(
    calls: dict[str, str], told: str, strange: Path
) -> None:
    with pytest.raises(WrongUse, match="adapter out of date: in strange unknown") as caught:
        made(**calls).subject()
    assert told in str(caught.value)


def test_a_module_that_moved_is_an_adapter_out_of_date(strange: Path) -> None:
    (strange / "kernel.py").unlink()
    with pytest.raises(WrongUse, match=r"adapter out of date: .* there is no module strange.kernel"):
        made(attend="q k").subject()


def test_what_else_is_missing_is_told_as_such(strange: Path) -> None:
    (strange / "kernel.py").write_text("import nowhere_to_be_found")
    with pytest.raises(WrongUse, match=r"strange\.kernel cannot be imported: No module named 'nowhere_to_be_found'"):
        made(attend="q k").subject()


def test_a_project_that_is_not_installed_is_one_line_with_what_to_install() -> None:
    with pytest.raises(WrongUse, match="needs strange, which is not installed here: python -m pip install --no-deps"):
        made(attend="q k").subject()


def test_an_unknown_adapter_names_those_there_are() -> None:
    with pytest.raises(WrongUse, match=r"there is no such adapter; of its project there are .*vllm\.unified_attention"):
        load("vllm.nothing")


@pytest.mark.parametrize("project", PROJECTS)
def test_every_adapter_says_what_it_is_for(project: str) -> None:
    found = adapters(project)
    assert found
    for name, adapter in found.items():
        assert adapter.function.__doc__, name
        assert adapter.project.versions, name
        assert adapter.calls, name


def test_adapters_are_read_without_torch() -> None:
    import subprocess

    read = "import sys; from harness.adapters import PROJECTS, adapters; [adapters(p) for p in PROJECTS]; "
    check = "sys.exit(any(name in sys.modules for name in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", read + check], check=False).returncode == 0


def test_corners_explain_declarations_only() -> None:
    assert list(declare(empty_rows=False, corners={"empty_rows": "NaN"}).notes()) == ["declares empty_rows=False: NaN"]
    with pytest.raises(WrongUse, match="corners explains 'emptyrows', which is no declaration"):
        declare(corners={"emptyrows": "NaN"})


def test_what_no_declaration_can_say_is_declined_with_the_adapters_reason(strange: Path) -> None:
    def limits(case: Case) -> str | None:
        return "odd numbers of heads are not taken" if case.num_q_heads % 2 else None

    adapter = STRANGE.adapter({"strange.kernel:attend": "q k"}, limits=limits)(lambda attend, inputs: None)
    subject = adapter.subject()
    assert subject.declines(Case(num_q_heads=2, num_kv_heads=2)) is None
    assert subject.declines(Case()) == "odd numbers of heads are not taken"
    later = Case(num_q_heads=2, num_kv_heads=2, before=Case())
    assert subject.declines(later) == "the call before it: odd numbers of heads are not taken"
    assert run_case(Case(), subject, "gridsim").declined == "odd numbers of heads are not taken"


def ran(executors: tuple[str, ...] | None) -> Result:
    declaration = declare(op="cache_write", executors=executors)
    return run_case(Case(op="cache_write"), Subject("tests.idle", declaration, lambda inputs: None), "gridsim")


def test_a_kernel_for_a_gpu_alone_is_declined_elsewhere_with_the_reason() -> None:
    assert ran(("gpu",)).declined == "tests.idle runs on gpu only"
    assert not ran(None).declined


def test_the_list_names_kernels_versions_and_what_is_left_out() -> None:
    told = CliRunner().invoke(main, ["vllm"]).stdout
    assert "vllm.unified_attention (extend): vllm.v1.attention.ops.triton_unified_attention:unified_attention" in told
    listed = json.loads(CliRunner().invoke(main, ["vllm", "--json"]).stdout)
    assert listed["vllm.unified_attention"]["declaration"]["op"] == "extend"


def test_an_uninstalled_subject_is_wrong_use_at_the_command(commands: Commands) -> None:
    result = commands("fuzz", "--subject", "vllm.unified_attention", "--max-cases", "1")
    if find_spec("vllm") is None:
        assert result.exit_code == 2
        assert "needs vllm, which is not installed here" in result.stderr
    else:
        assert result.exit_code in (0, 1), result.stderr
