"""gridsim and a GPU agree: drawn cases within their bounds, exact ones, casts and TF32 operands to the bit.

KVETCH_AGREEMENT_CASES says how many cases of each operation are drawn (100), KVETCH_AGREEMENT_JSON where the table of
what differs is written, KVETCH_AGREEMENT_FIRST names the executor in the GPU's place (for a rehearsal: gridsim). It has
processes of its own, so `-n` is of no use to it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from agreement import SUBJECTS, Aside, cast_on, multiplied_on, plain, table
from multiplying import bound
from patterns import SMALL, codes, every, hostile

pytestmark = pytest.mark.gpu

FIRST = os.environ.get("KVETCH_AGREEMENT_FIRST", "gpu")
CASES = int(os.environ.get("KVETCH_AGREEMENT_CASES", "100"))
CORES = os.cpu_count() or 2
REPORT = {"casts": {}, "nans": {}, "integers": {}, "dots": {}, "cases": []}


@pytest.fixture(scope="module", autouse=True)
def report():
    """What was seen, written down however the tests end."""
    yield REPORT
    if path := os.environ.get("KVETCH_AGREEMENT_JSON"):
        Path(path).write_text(json.dumps(REPORT, indent=1))


@pytest.fixture(scope="module")
def aside():
    there = Aside()
    yield there
    there.close()


@pytest.fixture(scope="module")
def numbers():
    return hostile()


def both(aside, function, *given):
    """What each executor gives; a test that gets words instead of arrays shows them."""
    found = [aside.ask(function, FIRST, *given), function("gridsim", *given)]
    assert not isinstance(found[0], str), found[0]
    return found


def noted(name, given, one, other):
    """Write down how often two casts differ, with examples; give the words for a failure, or none."""
    differ = np.flatnonzero(codes(one) != codes(other))
    examples = [example(given[at], one[at], other[at]) for at in differ[:: max(1, len(differ) // 6)][:8]]
    REPORT["casts"][name] = {"values": len(given), "differ": len(differ), "examples": examples}
    return "; ".join(examples)


def example(given, one, other):
    return f"{given} ({hexed(given)}) is {one} ({hexed(one)}) and {other} ({hexed(other)})"


def hexed(number):
    return number.tobytes()[::-1].hex()


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("source", ["float32", *SMALL])
def test_casts_give_the_same_bits(aside, numbers, source, kind):
    if source != kind and source.startswith("float8") and kind.startswith("float8"):
        pytest.skip("Triton converts no FP8 type into the other")
    given = numbers if source == "float32" else every(source)
    one, other = both(aside, cast_on, given, kind)
    wrong = noted(f"{source} to {kind}", given, one, other)
    nan = np.isnan(other.astype(np.float32))
    bits = f"u{other.dtype.itemsize}"
    raw = one[nan].view(bits)
    REPORT["nans"][f"{source} to {kind}"] = {
        "differ in bits": int((raw != other[nan].view(bits)).sum()), "codes": sorted({hex(c) for c in raw})[:8]
    }  # fmt: skip
    assert not wrong


@pytest.mark.parametrize("source", SMALL)
def test_widening_gives_the_same_bits(aside, source):
    given = every(source)
    one, other = both(aside, cast_on, given, "float32")
    assert not noted(f"{source} to float32", given, one, other)


@pytest.mark.parametrize(
    ("source", "kind", "rounding"),
    [("float32", "float16", "rtz"), ("float32", "bfloat16", "rtz"), ("float16", "float8_e5m2", "rtz"),
     ("float8_e4m3fn", "float8_e5m2", "")],
)  # fmt: skip
def test_unusual_casts_give_the_same_bits_where_the_compiler_has_them(aside, numbers, source, kind, rounding):
    given = numbers if source == "float32" else every(source)
    one = aside.ask(cast_on, FIRST, given, kind, rounding)
    other = cast_on("gridsim", given, kind, rounding)
    name = f"{source} to {kind} {rounding}"
    if isinstance(one, str):
        REPORT["casts"][name] = one
        pytest.skip(one)
    assert not noted(name, given, one, other)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "int64", "uint32"])
def test_floats_within_range_become_the_same_integers(aside, numbers, kind):
    one, other = both(aside, cast_on, numbers, kind)
    info = np.iinfo(kind)
    with np.errstate(invalid="ignore"):
        whole = np.trunc(numbers.astype(np.float64))
    inside = (whole >= info.min) & (whole < float(info.max) + 1)
    outside = {"differ": int((one != other)[~inside].sum()), "values": int((~inside).sum())}
    for name, special in (("nan", np.isnan(numbers)), ("inf", numbers == np.inf), ("-inf", numbers == -np.inf)):
        outside[name] = [int(one[special][0]), int(other[special][0])]
    differ = np.flatnonzero(one != other)
    outside["examples"] = [example(numbers[at], one[at], other[at]) for at in differ[:: max(1, len(differ) // 6)][:8]]
    REPORT["integers"][kind] = {"beyond the range": outside}
    assert (one == other)[inside].all()


def operands(kind, m, k, n):
    random = np.random.default_rng(7)
    a, b = random.normal(size=(m, k)) * 2, random.normal(size=(k, n))
    of = SMALL.get(kind, kind)
    return a.astype(of), b.astype(of), random.normal(size=(m, n)).astype(np.float32)


def most(error, limit):
    return float((error / limit).max())


@pytest.mark.parametrize("m", [16, 64])
@pytest.mark.parametrize(
    ("kind", "precision"),
    [("float32", "ieee"), ("float32", "tf32"), ("float32", "tf32x3"), ("float16", "ieee"), ("bfloat16", "ieee"),
     ("float8_e4m3fn", "ieee"), ("float8_e5m2", "ieee")],
)  # fmt: skip
def test_products_lie_within_their_bounds(aside, kind, precision, m):
    a, b, c = operands(kind, m, 64, 32)
    one, other = both(aside, multiplied_on, a, b, c, precision)
    truth = a.astype(np.float64) @ b.astype(np.float64) + c
    gpu, sim = (
        bound(a, b, c, precision, 2.0**-13 if "float8" in kind else 2.0**-23),
        bound(a, b, c, precision, 2.0**-24),
    )
    apart, off = np.abs(one.astype(np.float64) - other), np.abs(one - truth)
    REPORT["dots"][f"{kind} {precision} M={m}"] = {
        "elements": one.size, "differ": int((one != other).sum()), "apart, of both bounds": most(apart, gpu + sim),
        "from float64, of its bound": most(off, gpu), "gridsim's": most(np.abs(other - truth), sim),
    }  # fmt: skip
    assert (off <= gpu).all()
    assert (np.abs(other - truth) <= sim).all()
    assert (apart <= gpu + sim).all()


@pytest.mark.parametrize("m", [16, 64])
@pytest.mark.parametrize("side", ["left", "right"])
def test_tf32_cuts_its_operands_to_the_bit(aside, numbers, side, m):
    size = np.abs(numbers)
    normal = np.unique(numbers[(size >= 2.0**-100) & (size < 2.0**100)])
    random = np.random.default_rng(3)
    given = random.choice(normal, (m, 32) if side == "left" else (32, 64)).astype(np.float32)
    a, b = (given, np.eye(32, dtype=np.float32)) if side == "left" else (np.eye(m, 32, dtype=np.float32), given)
    c = np.zeros((a.shape[0], b.shape[1]), np.float32)
    one, other = both(aside, multiplied_on, a, b, c, "tf32")
    cut = (given.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    want = cut if side == "left" else np.concatenate([cut, np.zeros((max(0, m - 32), 64), np.float32)])[:m]
    REPORT["dots"][f"tf32 of the {side} operand, M={m}"] = {
        "values": int(given.size), "not cut": int((one != want).sum()), "gridsim differs": int((one != other).sum())
    }  # fmt: skip
    assert (other == want).all()
    assert (one == want).all()


@pytest.fixture(scope="module")
def rows():
    found = table(CASES, FIRST, "gridsim", workers=max(1, CORES // 2))
    REPORT["cases"] = plain(found)
    return found


@pytest.mark.parametrize("subject", SUBJECTS)
def test_drawn_cases_agree_within_their_bounds_and_exact_ones_to_the_bit(rows, subject):
    own = [row for row in rows if row.subject == subject]
    assert sum(row.cases - row.declined for row in own) > 0.5 * CASES
    assert all(row.right for row in own), [row for row in own if not row.right]


def test_exact_elements_were_among_them(rows):
    assert sum(row.exact for row in rows if row.subject != "gather") > 0 or CASES < 50
