"""A kernel as tutorials write it: the run says on which rungs it is right, names each limit, blames nothing else."""

import pytest

from harness.campaign import Campaign, Plan
from harness.pool import Worker
from harness.report import ladder_lines

SUBJECT = "examples/tutorial_decode.py:tutorial_decode"

#: What its limits need, each at least; nothing else may be found.
LIMITS = ({"GQA"}, {"empty row"}, {"strided q"}, {"strides of V unlike K's"})


@pytest.mark.nightly
def test_the_limits_of_a_tutorial_kernel_are_named_and_nothing_else_is_blamed():
    with Worker("gridsim") as worker:
        plan = Plan({SUBJECT: worker.describe(SUBJECT, "decode")}, "gridsim", 240.0, seed=1)
        summary = Campaign(plan, worker).run()
    assert not summary.harness_faults
    for found in summary.findings:
        assert any(limit <= set(found.needs) for limit in LIMITS), found.needs
    for limit in LIMITS:
        assert any(limit <= set(found.needs) for found in summary.findings), limit
    text = "\n".join(ladder_lines(summary, SUBJECT))
    assert "right on rungs 1" in text
    assert "NOTE: q*k is summed in float16 at tutorial_decode.py" in text
    for argument in ("groups=(1,)", "empty_rows=False", 'q_layouts=("contiguous",)', "kv_strides_apart=False"):
        assert argument in text
