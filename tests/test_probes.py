"""Every probe holds on gridsim, fails where results are wrong, and fails where the constant is set too small."""

from dataclasses import asdict, replace

import msgspec
import numpy as np
import pytest

from harness.platforms import Platform, platform
from harness.probes import calls, kernels
from harness.probes.arguments import between, spread
from harness.probes.device import Device
from harness.probes.probe import PROBES, Probe, Worst, tried
from harness.tables import Measured

GRIDSIM = platform("gridsim")
DEVICE = Device("gridsim")


def plant(found: np.ndarray, seed: int) -> np.ndarray:
    """Every third value is 30 % larger, or 0 where it was so small that this may not show."""
    wrong = found.copy()
    flat = wrong.reshape(-1)
    with np.errstate(over="ignore"):
        large = (flat[seed::3].astype(np.float64) * 1.3).astype(found.dtype)
    flat[seed::3] = np.where(np.abs(flat[seed::3].astype(np.float64)) < 2.0**-120, np.float32(1e-30), large)
    return wrong


class Wrong(Device):
    """A device whose results are wrong."""

    def elementwise(self, *arguments, **options):
        return plant(super().elementwise(*arguments, **options), 0)

    def dot(self, *arguments, **options):
        return plant(super().dot(*arguments, **options), 0)

    def weights(self, *arguments, **options):
        numerator, alone = super().weights(*arguments, **options)
        return plant(numerator, 0), plant(alone, 1)


class Flushing(Device):
    """A device that takes subnormal results and operands for 0."""

    def elementwise(self, function, *arguments, **options):
        arguments = [flushed(x) for x in arguments]
        return flushed(super().elementwise(function, *arguments, **options))


class Truncating(Device):
    """A device whose matrix units keep 24 bits of each product, aligned to the largest, and drop the rest."""

    def dot(self, a, b, precision="ieee"):
        products = a[:, :, :, None].astype(np.float64) * b[:, None, :, :].astype(np.float64)
        last = 2.0 ** (np.floor(np.log2(np.abs(products).max(axis=2, keepdims=True))) - 23)
        return (np.trunc(products / last) * last).sum(axis=2).astype(np.float32)


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.float32(0), x)


@pytest.fixture(scope="module")
def found():
    """Every probe's result on gridsim."""
    return {name: tried(probe, DEVICE, GRIDSIM) for name, probe in PROBES.items()}


@pytest.mark.parametrize("name", calls.names())
def test_a_probe_holds_on_gridsim(found, name):
    assert (found[name].verdict, found[name].reason) == ("holds", "")
    assert found[name].shows


@pytest.mark.parametrize("name", calls.names())
def test_a_wrong_result_fails_a_probe_and_shows_where(name):
    wrong = tried(PROBES[name], Wrong("gridsim"), GRIDSIM)
    assert wrong.verdict == "FAILS", wrong
    assert wrong.shows


def test_a_constant_set_too_small_fails_its_probe(found):
    """Where gridsim errs at all; the test above fails the others by wrong results."""
    erring = [
        m for m in found.values() if isinstance(m.measured, float) and m.measured and hasattr(GRIDSIM, m.constant)
    ]
    assert {m.constant for m in erring} >= {"eps_exp", "eps_log", "eps_div", "eps_tanh", "unit", "dot_unit", "u_tf32"}
    for m in erring:
        each = replace(PROBES[m.probe], assumed=lambda _, m=m: m.measured / 2)
        assert tried(each, DEVICE, GRIDSIM).verdict == "FAILS", m.probe


def test_a_device_that_flushes_is_told_from_one_that_does_not():
    names = [name for name, probe in PROBES.items() if probe.constant == "eta" and "dot" not in name]
    assert len(names) == 3
    for name in names:
        assert tried(PROBES[name], Flushing("gridsim"), GRIDSIM).verdict == "FAILS"
        assert tried(PROBES[name], Flushing("gridsim"), platform("sm90")).verdict == "holds"


def test_a_device_that_flushes_is_no_device_whose_tanh_is_wrong():
    """tanh(-1.4e-45) is -0 on an H200."""
    tanh = PROBES["tanh of the library, relative"]
    assert tried(tanh, Flushing("gridsim"), platform("sm90")).verdict == "holds"
    assert tried(tanh, Flushing("gridsim"), GRIDSIM).verdict == "FAILS"


@pytest.mark.parametrize("shape", ["16 rows and 32", "64 rows and 128"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_accumulator_that_truncates_holds_by_the_constant_of_a_gpu_and_by_none_much_smaller(dtype, shape):
    (name,) = [name for name in PROBES if name.startswith(f"dot of {dtype}, {shape}")]
    sm90 = platform("sm90")
    seen = tried(PROBES[name], Truncating("gridsim"), sm90)
    assert seen.verdict == "holds"
    assert seen.measured > sm90.dot_unit / 8
    assert tried(PROBES[name], Truncating("gridsim"), replace(sm90, dot_unit=sm90.dot_unit / 8)).verdict == "FAILS"


def test_the_probes_of_a_gpu_hold_on_gridsim_too_since_its_constants_are_wider():
    for name, probe in PROBES.items():
        assert tried(probe, DEVICE, platform("sm90")).verdict == "holds", name


def test_every_constant_that_can_be_measured_has_a_probe():
    probed = {probe.constant for probe in PROBES.values()}
    not_probed = {"name", "dot_block", "trusted", "notes"}
    assert set(Platform.__dataclass_fields__) - not_probed <= probed


def test_a_probe_that_raises_is_told_and_is_no_verdict():
    def raising(device, platform):
        raise TypeError("no such type\nand more")

    found = tried(Probe("p", "eps_exp", raising, lambda _: 1.0), DEVICE, GRIDSIM)
    assert (found.verdict, found.reason) == ("could not be probed", "TypeError: no such type")


def test_a_result_that_is_no_number_fails():
    found = tried(Probe("p", "eps_exp", lambda *_: Worst(float("inf"), "x"), lambda _: 1.0), DEVICE, GRIDSIM)
    assert (found.verdict, found.measured) == ("FAILS", None)


def test_what_a_worker_answers_is_plain():
    answer = calls.run_probe("1 / y, relative", "gridsim", asdict(GRIDSIM))
    assert answer["constant"] == "eps_div"
    assert msgspec.convert(answer, Measured).verdict == "holds"
    assert calls.failing("gridsim") == []


def test_arguments_are_the_same_every_time_and_hard():
    first, again = between(-126, 126, "s"), between(-126, 126, "s")
    assert np.array_equal(first, again)
    assert {-126.0, 0.0, 126.0} <= set(first.tolist())
    mantissas, _ = np.frexp(spread(-5, 5, "s").astype(np.float64))
    assert 0.5 in np.abs(mantissas)
    assert np.abs(mantissas).max() > 1 - 2.0**-23


def test_the_kernels_give_what_their_names_say():
    x, y, z = (np.array([value], np.float32) for value in (0.5, 0.25, 2.0))
    expected = {
        kernels.exp2: 2**0.5, kernels.exp: np.exp(0.5), kernels.log2: -1.0, kernels.log: np.log(0.5),
        kernels.divide: 2.0, kernels.divide_rn: 2.0, kernels.tanh: np.tanh(0.5), kernels.add: 0.75,
        kernels.tanh_by_sigmoid: np.tanh(0.5), kernels.multiply: 0.125, kernels.multiply_add: 2.125,
        kernels.identity: 0.5,
    }  # fmt: skip
    for function, value in expected.items():
        assert DEVICE.elementwise(function, x, y, z)[0] == pytest.approx(value, rel=1e-6), function
