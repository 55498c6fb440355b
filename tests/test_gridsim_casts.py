"""Casts under gridsim give the bits that torch gives, and in FP8 those that NVIDIA's conversions give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from casting import converted, to_numpy, to_torch
from patterns import SMALL, codes, every, hostile

from harness.executors import gridsim
from harness.executors.gridsim.codecs import CODECS

HALVES = ("float16", "bfloat16")
EIGHTHS = ("float8_e4m3fn", "float8_e5m2")
NAMES = {"float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2"}


@pytest.fixture(scope="module")
def numbers():
    return hostile()


def by_torch(values, kind):
    """Torch's own cast; FP8 saturates on an H200, where torch overflows, so its input is clamped first."""
    wide = to_torch(values, "cpu").float()
    top = torch.finfo(getattr(torch, kind)).max
    return to_numpy((wide.clamp(-top, top) if kind in EIGHTHS else wide).to(getattr(torch, kind)))


@pytest.mark.parametrize("kind", SMALL)
def test_casts_from_float32_give_torchs_bits(kind, numbers):
    with gridsim.active():
        found = converted(numbers, kind)
    np.testing.assert_array_equal(codes(found), codes(by_torch(numbers, kind)))


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("source", HALVES)
def test_casts_from_all_sixteen_bit_floats_give_torchs_bits(source, kind):
    given = every(source)
    with gridsim.active():
        found = converted(given, kind)
    np.testing.assert_array_equal(codes(found), codes(by_torch(given, kind)))


@pytest.mark.parametrize("source", EIGHTHS)
@pytest.mark.parametrize("kind", ["float32", *HALVES])
def test_every_fp8_code_is_decoded_as_torch_does(source, kind):
    given = every(source)
    with gridsim.active():
        found = converted(given, kind)
    want = to_numpy(to_torch(given, "cpu").to(getattr(torch, kind)))
    torchs = np.isfinite(want.astype(np.float32)) if (source, kind) == ("float8_e5m2", "bfloat16") else slice(None)
    np.testing.assert_array_equal(codes(found)[torchs], codes(want)[torchs])


def test_infinity_and_nan_of_e5m2_become_numbers_in_bf16_as_on_an_h200():
    given = np.array([0x7C, 0x7D, 0x7E, 0x7F, 0xFC, 0xFF], np.uint8).view(SMALL["float8_e5m2"])
    with gridsim.active():
        found = converted(given, "bfloat16")
    assert [hex(code) for code in codes(found)] == ["0x4780", "0x47a0", "0x47c0", "0x47e0", "0xc780", "0xc7e0"]


def test_a_nan_that_is_cut_to_bf16_stays_one():
    given = np.array([0x7F802000, 0xFF80C000], np.uint32).view(np.float32)
    with gridsim.active():
        found = converted(given, "bfloat16", rounding="rtz")
    assert found.view(np.uint16).tolist() == [0x7FFF] * 2


@pytest.mark.parametrize("kind", SMALL)
def test_a_copy_keeps_every_bit_even_of_a_nan(kind):
    given = every(kind)
    with gridsim.active():
        found = converted(given, kind)
    unsigned = f"u{given.dtype.itemsize}"
    np.testing.assert_array_equal(found.view(unsigned), given.view(unsigned))


@pytest.mark.parametrize(
    ("kind", "nan"), [("float16", 0x7FFF), ("bfloat16", 0x7FFF), ("float8_e4m3fn", 0x7F), ("float8_e5m2", 0x7F)]
)
def test_a_cast_makes_one_nan_of_all(kind, nan):
    given = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    with gridsim.active():
        found = converted(given, kind)
    assert found.view(f"u{found.dtype.itemsize}").tolist() == [nan] * 4


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        ("float8_e4m3fn", 448.0, 0x7E),
        ("float8_e4m3fn", 464.0, 0x7E),  # torch gives NaN from here on
        ("float8_e4m3fn", -np.inf, 0xFE),
        ("float8_e4m3fn", 2.0**-10, 0x00),  # halfway to the smallest subnormal: to even
        ("float8_e4m3fn", 2.0**-10 * 1.5, 0x01),
        ("float8_e4m3fn", 3 * 2.0**-10, 0x02),
        ("float8_e4m3fn", 2.0**-6 - 2.0**-11, 0x08),  # the largest subnormal carries into the first normal
        ("float8_e5m2", 57344.0, 0x7B),
        ("float8_e5m2", 1e9, 0x7B),  # torch gives infinity
        ("float8_e5m2", np.inf, 0x7B),
        ("float8_e5m2", -0.0, 0x80),
        ("float8_e5m2", 2.0**-17, 0x00),
    ],
)
def test_fp8_codes_are_those_of_an_h200(kind, value, code):
    with gridsim.active():
        found = converted(np.array([value], np.float32), kind)
    assert hex(found.view(np.uint8)[0]) == hex(code)


def exactly(values, kind):
    """The largest number of a type, towards zero, by a search among all of them."""
    with np.errstate(all="ignore"):
        finite = np.sort(every(kind).astype(np.float64))
    finite = finite[(finite >= 0) & np.isfinite(finite)]
    place = np.searchsorted(finite, np.abs(values.astype(np.float64)), side="right") - 1
    return np.copysign(finite[place], values)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e5m2"])
def test_a_cast_towards_zero_cuts(kind, numbers):
    given = numbers[np.isfinite(numbers)]
    if kind == "float8_e5m2":
        with np.errstate(all="ignore"):
            given = given.astype(np.float16)
        given = given[np.isfinite(given)]
    with gridsim.active():
        found = converted(given, kind, rounding="rtz")
    want = exactly(given, kind).astype(SMALL[kind])
    np.testing.assert_array_equal(codes(found), codes(want))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SMALL)
def test_all_float32_are_cast_as_torch_casts_them(kind):
    codec, step = CODECS[NAMES[kind]], 1 << 24
    for start in range(0, 1 << 32, step):
        given = np.arange(start, start + step, dtype=np.uint64).astype(np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            found = codec.pack(codec.round(given)).view(SMALL[kind])
        np.testing.assert_array_equal(codes(found), codes(by_torch(given, kind)), err_msg=hex(start))


@pytest.mark.parametrize("kind", SMALL)
def test_the_comparison_sees_one_wrong_bit(kind, numbers):
    wrong = by_torch(numbers, kind).copy()
    wrong.view(f"u{wrong.dtype.itemsize}")[1000] ^= 1
    with gridsim.active():
        found = converted(numbers, kind)
    assert (codes(found) != codes(wrong)).sum() == 1


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_a_float_becomes_the_integer_towards_zero_and_saturates(source, kind):
    given = np.array([0.0, -0.0, 0.99, -0.99, 1.5, -1.5, 2.5, 100.7, -100.7, 127.0], np.float32)
    given = given if source == "float32" else given.astype(SMALL[source])
    if kind.startswith("u"):
        given = np.abs(given)
    beyond = np.array([np.inf, -np.inf, np.nan], np.float32).astype(given.dtype)
    with gridsim.active():
        found = converted(given, kind)
        strange = converted(beyond, kind)
    assert found.tolist() == np.trunc(given.astype(np.float64)).astype(kind).tolist()
    info = np.iinfo(kind)
    nan = (-(2**63) if kind == "int64" else 2**63) if info.bits == 64 else 0
    ends = [(-1, 0), (255, 0)][kind == "uint8"] if info.bits == 8 else (info.max, info.min)  # cut from 16 bits
    assert strange.tolist() == [*ends, nan]


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_an_integer_becomes_the_nearest_float(source, kind):
    info = np.iinfo(source)
    given = [
        0,
        1,
        3,
        100,
        127,
        info.max,
        info.min,
        info.max - 1,
        info.min + 1,
        2**24 + 1,
        2**24 + 3,
        65519,
        65520,
        2049,
    ]
    given = np.array([n for n in given if info.min <= n <= info.max], source)
    with gridsim.active():
        found = converted(given, kind)
    with np.errstate(all="ignore"):
        wide = given.astype(np.float32)  # Triton converts to bfloat16 by way of float32
        want = given.astype(kind) if kind != "bfloat16" else wide.astype(SMALL[kind])
    np.testing.assert_array_equal(codes(found), codes(want))


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_are_cut_and_stretched_as_in_c(source):
    info = np.iinfo(source)
    given = np.array([0, 1, 100, info.max, info.min, info.max - 1, info.max // 2], source)
    with gridsim.active():
        for kind in INTEGERS:
            assert converted(given, kind).tolist() == given.astype(kind).tolist(), kind
