"""gridsim agrees with Triton's interpreter wherever that is right, and every difference is one of its known faults."""

from __future__ import annotations

import numpy as np
import pytest
from against_interpreter import cast_by_both, errors, interpreting
from patterns import codes


@pytest.fixture(scope="module")
def there():
    with interpreting() as aside:
        yield aside


@pytest.mark.parametrize(
    ("source", "kind"),
    [("float32", "float32"), ("float32", "float16"), ("float16", "float32"), ("float16", "float16"),
     ("bfloat16", "float16"), ("bfloat16", "bfloat16"), ("float8_e5m2", "float8_e5m2")],
)  # fmt: skip
def test_casts_that_the_interpreter_gets_right_are_the_same(there, source, kind):
    _, theirs, ours = cast_by_both(there, source, kind)
    np.testing.assert_array_equal(codes(theirs), codes(ours))


def test_the_interpreter_cuts_to_bfloat16_and_gridsim_rounds(there):
    values, theirs, ours = cast_by_both(there, "float32", "bfloat16")
    finite = np.isfinite(values)
    cut = (values.view(np.uint32) >> 16).astype(np.uint16)
    normal = finite & (np.abs(values) >= 2.0**-126)
    np.testing.assert_array_equal(theirs.view(np.uint16)[normal], cut[normal])
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
        nearer = np.abs(ours.astype(np.float64) - wide) <= np.abs(theirs.astype(np.float64) - wide)
    assert nearer[normal & np.isfinite(ours.astype(np.float32))].all()


@pytest.mark.parametrize(("kind", "top"), [("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)])
def test_the_interpreters_fp8_loses_carries_and_overflows_where_gridsim_saturates(there, kind, top):
    values, theirs, ours = cast_by_both(there, "float32", kind)
    beyond = np.abs(values) > 2 * top
    assert (np.abs(ours[beyond].astype(np.float32)) == top).all()
    assert (np.abs(theirs[beyond].astype(np.float32)) != top).any()
    inside = np.isfinite(values) & (np.abs(values) <= top)
    off = [np.abs(one[inside].astype(np.float64) - values[inside]).max() for one in (theirs, ours)]
    assert off[0] > off[1]


def test_the_interpreter_decodes_fp8_nans_as_numbers(there):
    _, theirs, ours = cast_by_both(there, "float8_e4m3fn", "float32")
    differ = np.flatnonzero(codes(theirs) != codes(ours))
    assert differ.tolist() == [0x7F, 0xFF]
    assert np.isnan(ours[differ]).all()
    assert np.abs(theirs[differ]).tolist() == [480, 480]


def test_products_differ_where_the_interpreter_has_no_tf32_and_multiplies_bit_patterns(there):
    for kind in ("float32", "float16", "float8_e4m3fn"):
        interpreter, ours = errors(there, kind, "ieee")
        assert max(interpreter, ours) < 1e-4
    interpreter, ours = errors(there, "float32", "tf32")
    assert interpreter < 1e-4 < ours
    interpreter, ours = errors(there, "bfloat16", "ieee")
    assert ours < 1e-4
    assert interpreter > 1e6
