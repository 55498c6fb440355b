"""The project's own function inside an adapter: what is repeated is that call alone, with the arguments it had."""

import pytest
from clocks import DECODE, EXTEND, WRITE, Told
from test_adapters import STRANGE, strange  # noqa: F401  (a fixture)

from harness.adapters import PROJECTS, adapters
from harness.adapters.core import called, core_of
from harness.executors import gridsim
from harness.measuring import measured
from harness.subjects import load


def test_the_only_function_is_repeated_with_its_arguments_and_without_the_adapter(strange):  # noqa: F811
    prepared = []

    @STRANGE.adapter({"strange.kernel:attend": "q k"})
    def attend(kernel, inputs):
        prepared.append(inputs)
        return kernel(q=inputs, k=6) + 100

    returned, core = called(attend, attend.subject(), 2)
    assert (core_of(attend), returned) == ("strange.kernel:attend", 104)
    assert (core(), core(), prepared) == (4, 4, [2])


def test_the_plan_of_a_wrapper_is_made_once_and_its_run_is_repeated(strange):  # noqa: F811
    @STRANGE.adapter({f"strange.kernel:Wrapper{name}": takes for name, takes in {
        "": "", ".plan": "indptr", ".run": "q"}.items()})  # fmt: skip
    def attend(wrapper, inputs):
        made = wrapper()
        made.plan(indptr=inputs)
        return made.run(q=1)

    subject = attend.subject()
    (wrapper,), run = subject.run.args, subject.run.args[0].run
    returned, core = called(attend, subject, 5)
    assert (core_of(attend), returned, core()) == ("strange.kernel:Wrapper.run", 6, 6)
    assert wrapper.run is run, "the class is as it was"


def test_where_several_functions_do_the_work_the_whole_subject_is_repeated(strange):  # noqa: F811
    @STRANGE.adapter({"strange.kernel:attend": "q k", "strange.kernel:half": "x"})
    def attend(kernel, half, inputs):
        return kernel(q=half(inputs), k=2)

    assert core_of(attend) == ""
    assert called(attend, attend.subject(), 4) == (2, None)


@pytest.mark.parametrize("project", PROJECTS)
def test_the_core_of_an_adapter_is_one_of_its_calls(project):
    for adapter in adapters(project).values():
        assert core_of(adapter) in (*adapter.calls, "")
        assert core_of(adapter) or project == "torch", f"{adapter.name} is timed with all that its adapter does"


@pytest.mark.thirdparty
@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("vllm.decode_attention_fwd", DECODE),
        ("vllm.unified_attention", DECODE),
        ("vllm.unified_attention_split", DECODE),
        ("vllm.unified_attention", EXTEND),
        ("vllm.context_attention_fwd", EXTEND),
        ("sglang.decode_attention", DECODE),
        ("sglang.extend_attention", EXTEND),
        ("sglang.extend_attention_unified", EXTEND),
        ("sglang.reshape_and_cache", WRITE),
    ],
)
def test_a_project_s_own_function_gives_the_right_output_when_it_is_repeated_alone(name, workload):
    with gridsim.active():
        found = measured(load(name), workload, Told(), 1, "cpu")
    assert (found.state, found.says) == ("right", "")
    assert found.core
