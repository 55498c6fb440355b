"""A kernel's arithmetic is read from its IR: what rounds where, so that the bound is the kernel's own."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from harness.arithmetic import Arithmetic
from harness.executors import gridsim
from harness.reading import Reading, read
from harness.subjects import WrongUse


@triton.jit
def dots(
    out, q, k, v, scale, N: tl.constexpr, D: tl.constexpr,
    SCALED_Q: tl.constexpr, CAST_P: tl.constexpr, SUM_CAST: tl.constexpr, CAST_S: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of attention with tl.dot."""
    at = tl.arange(0, 16)[:, None] * D + tl.arange(0, D)[None, :]
    keys = tl.arange(0, N)[:, None] * D + tl.arange(0, D)[None, :]
    query = tl.load(q + at)
    if SCALED_Q == "as K":
        query = query.to(k.dtype.element_ty)
    elif SCALED_Q == "cast":
        query = (query.to(tl.float32) * scale).to(query.dtype)
    elif SCALED_Q == "own":
        query = query * scale.to(query.dtype)
    values = tl.load(v + keys)
    scores = tl.dot(query, tl.trans(tl.load(k + keys)), input_precision=PRECISION)
    if CAST_S:
        scores = scores.to(q.dtype.element_ty).to(tl.float32)
    p = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    l = tl.sum(p, axis=1)
    if CAST_P:
        p = p.to(values.dtype)
        if SUM_CAST:
            l = tl.sum(p.to(tl.float32), axis=1)
    tl.store(out + at, (tl.dot(p, values.to(p.dtype), input_precision=PRECISION) / l[:, None]).to(q.dtype.element_ty))


@triton.jit
def products(out, q, k, v, N: tl.constexpr, D: tl.constexpr, SHAPED: tl.constexpr):
    """One query, products summed in the type that they come in."""
    at, keys = tl.arange(0, D), tl.arange(0, N)[:, None] * D + tl.arange(0, D)[None, :]
    product = tl.load(q + at)[None, :] * tl.load(k + keys)
    if SHAPED:
        product = tl.trans(product)
    scores = tl.sum(product, axis=0 if SHAPED else 1).to(tl.float32)
    p = tl.exp(scores - tl.max(scores, axis=0))
    tl.store(out + at, tl.sum(p[:, None] * tl.load(v + keys).to(tl.float32), axis=0) / tl.sum(p, axis=0))


@triton.jit
def scores_only(out, q, k, N: tl.constexpr, D: tl.constexpr):
    """The first of several launches: scores in the type of q."""
    keys = tl.arange(0, N)[:, None] * D + tl.arange(0, D)[None, :]
    product = tl.load(q + tl.arange(0, D))[None, :].to(tl.float32) * tl.load(k + keys).to(tl.float32)
    tl.store(out + tl.arange(0, N), tl.sum(product, axis=1).to(q.dtype.element_ty))


@triton.jit
def copy(out, q, D: tl.constexpr):
    """A launch that computes nothing."""
    tl.store(out + tl.arange(0, D), tl.load(q + tl.arange(0, D)))


@triton.jit
def merging(out, part, q, k, v, splits, N: tl.constexpr, D: tl.constexpr, BY_NUMBER: tl.constexpr):
    """Programs that store partial outputs, the last of which adds them up; the copied q is no partial output."""
    at, keys = tl.arange(0, D), tl.arange(0, N)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(q + at, tl.load(q + at))
    scores = tl.sum(tl.load(q + at)[None, :].to(tl.float32) * tl.load(k + keys).to(tl.float32), axis=1)
    p = tl.exp(scores - tl.max(scores, axis=0))
    o = tl.sum(p[:, None] * tl.load(v + keys).to(tl.float32), axis=0) / tl.sum(p, axis=0)
    if part is not None:
        tl.store(part + tl.program_id(0) * D + at, o.to(part.dtype.element_ty))
        o = tl.zeros([D], tl.float32)
        next_ptr = part + at
        for split in range(splits):
            if BY_NUMBER:
                next_ptr = part + split * D + at
            o += tl.load(next_ptr).to(tl.float32)
            next_ptr += D
    tl.store(out + at, o.to(out.dtype.element_ty))


N, D = 32, 16


def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    """out, q, k, v."""
    torch.manual_seed(0)
    return [torch.randn(max(N, 16), D).to(dtype) for _ in range(4)]


def reading(trace: Any, dtype: str = "float16", declared: Any = None) -> Reading:
    return read(tuple(launch.ttir for launch in trace.launches), declared, dtype, block_size=64)


def of_dots(dtype: torch.dtype, **options: Any) -> Reading:
    chosen = {"SCALED_Q": "", "CAST_P": False, "SUM_CAST": False, "CAST_S": False, "PRECISION": None} | options
    with gridsim.active() as trace:
        dots[(1,)](*tensors(dtype), 0.25, N, D, **chosen)
    return reading(trace)


def of_products(dtype: torch.dtype, shaped: bool = False) -> Reading:
    with gridsim.active() as trace:
        products[(1,)](*tensors(dtype), N, D, shaped)
    return reading(trace)


def test_a_float32_dot_is_tf32_unless_the_kernel_says_otherwise() -> None:
    plain, exact = of_dots(torch.float32), of_dots(torch.float32, PRECISION="ieee")
    assert (plain.arithmetic.dot, exact.arithmetic.dot) == ("tf32", "ieee")
    assert plain.arithmetic.tensor_core
    assert "TF32" in plain.notes[0]
    assert "input_precision='ieee'" in plain.notes[0]
    assert exact.notes == ()


def test_a_dot_of_16_bits_is_not_taken_for_tf32() -> None:
    assert of_dots(torch.float16, CAST_P=True).arithmetic.dot == "ieee"


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "float16"), (torch.bfloat16, "bfloat16")])
def test_a_sum_in_16_bits_is_read_and_named_with_its_line(dtype: torch.dtype, name: str, shaped: bool) -> None:
    found = of_products(dtype, shaped)
    assert found.arithmetic.qk_accumulator == name
    assert found.arithmetic.qk_product == name
    assert (found.arithmetic.pv_accumulator, found.arithmetic.p_dtype) == ("float32", "float32")
    assert f"q*k is summed in {name} at test_reading.py:" in found.notes[0]


def test_a_sum_in_float32_costs_nothing_and_is_not_mentioned() -> None:
    found = of_products(torch.float32)
    assert found.arithmetic == Arithmetic(tile_kv=N)
    assert found.notes == ()


@pytest.mark.parametrize(("sum_cast", "normaliser"), [(False, "uncast"), (True, "cast")])
def test_a_cast_p_is_read_and_which_p_the_normaliser_sums(sum_cast: bool, normaliser: str) -> None:
    found = of_dots(torch.bfloat16, CAST_P=True, SUM_CAST=sum_cast).arithmetic
    assert (found.p_dtype, found.normaliser) == ("bfloat16", normaliser)


@pytest.mark.parametrize("how", ["own", "cast"])
def test_a_q_that_is_scaled_in_16_bits_or_cast_afterwards_is_read(how: str) -> None:
    assert of_dots(torch.float16, SCALED_Q=how).arithmetic.scaled_q_dtype == "float16"
    assert of_dots(torch.float32, SCALED_Q=how).arithmetic.scaled_q_dtype == "float32"
    assert of_dots(torch.float16).arithmetic.scaled_q_dtype == "float32"


@pytest.mark.parametrize(("dtype", "name"), [(torch.float8_e4m3fn, "e4m3"), (torch.float8_e5m2, "e5m2")])
def test_a_q_that_is_cast_to_the_fp8_of_the_cache_is_read_and_named_with_its_line(
    dtype: torch.dtype, name: str
) -> None:
    out, q, k, v = (torch.zeros(N, N, dtype=torch.float16) for _ in range(4))
    with gridsim.active() as trace:
        dots[(1,)](out, q, k.to(dtype), v, 0.25, N, N, "as K", True, False, False, None)
    found = reading(trace)
    assert found.arithmetic.scaled_q_dtype == name
    (note,) = found.notes
    assert note.startswith(f"q is rounded to {name}, the type of the cache, at test_reading.py:")
    assert of_dots(torch.float16, SCALED_Q="as K").arithmetic.scaled_q_dtype == "float32", "a cast that changes nothing"


def test_scores_that_are_rounded_before_the_exponential_are_read() -> None:
    assert of_dots(torch.float16, CAST_S=True).arithmetic.score_dtype == "float16"
    assert of_dots(torch.float16).arithmetic.score_dtype == "float32"


def test_the_output_cast_is_not_taken_for_a_cast_of_p() -> None:
    assert of_dots(torch.float16, CAST_P=False).arithmetic.p_dtype == "float32"


def test_the_tile_is_the_smaller_of_the_sums_length_and_the_block() -> None:
    with gridsim.active() as trace:
        products[(1,)](*tensors(torch.float32), N, D, False)
    texts = tuple(launch.ttir for launch in trace.launches)
    assert [read(texts, None, "float32", block).arithmetic.tile_kv for block in (8, 64)] == [8, N]


def test_two_launches_are_as_precise_as_the_worse_of_them() -> None:
    out, q, k, v = tensors(torch.float32)
    with gridsim.active() as trace:
        copy[(1,)](out, q, D)
        dots[(1,)](out, q, k, v, 0.25, N, D, "", False, False, False, None)
    found = reading(trace).arithmetic
    assert (found.dot, found.tensor_core) == ("tf32", True)
    assert (found.max_splits, found.divisions, found.partial_dtype) == (128, 2, "float32")


def test_scores_handed_from_launch_to_launch_in_16_bits_are_allowed_for() -> None:
    out, q, k, v = tensors(torch.bfloat16)
    with gridsim.active() as trace:
        scores_only[(1,)](torch.empty(N, dtype=torch.bfloat16), q, k, N, D)
        products[(1,)](out, q, k, v, N, D, False)
    found = reading(trace).arithmetic
    assert (found.score_dtype, found.p_dtype, found.partial_dtype) == ("bfloat16",) * 3


def of_merging(partial: torch.dtype | None, by_number: bool = False, declared: Any = None) -> Reading:
    out, q, k, v = tensors(torch.bfloat16)
    part = None if partial is None else torch.zeros(2, D, dtype=partial)
    with gridsim.active() as trace:
        merging[(2,)](out, part, q, k, v, 2, N, D, by_number)
    return reading(trace, "bfloat16", declared)


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")])
def test_partial_outputs_that_a_kernel_merges_itself_are_allowed_for(
    dtype: torch.dtype, name: str, by_number: bool
) -> None:
    found = of_merging(dtype, by_number)
    assert (found.arithmetic.max_splits, found.arithmetic.divisions) == (128, 2)
    assert found.arithmetic.partial_dtype == name
    assert bool(of_merging(dtype, by_number, {"partial_dtype": "float32"}).broken) == (name != "float32")


def test_a_kernel_that_writes_what_it_copied_and_reads_it_again_merges_nothing() -> None:
    found = of_merging(None).arithmetic
    assert (found.max_splits, found.divisions, found.partial_dtype) == (1, 1, "float32")


def test_where_no_kernel_weighs_v_the_widest_is_allowed_and_said_so() -> None:
    _, q, k, _ = tensors(torch.float16)
    with gridsim.active() as trace:
        scores_only[(1,)](torch.empty(N, dtype=torch.float16), q, k, N, D)
    found = reading(trace)
    assert (found.arithmetic.p_dtype, found.arithmetic.normaliser, found.arithmetic.divisions) == (
        "float16",
        "unknown",
        2,
    )
    assert found.notes == (
        "no kernel is seen to multiply softmax weights by v, so the widest arithmetic is allowed for",
    )


def test_without_any_launch_the_widest_arithmetic_is_taken() -> None:
    assert read((), None, "bfloat16", 16) == Reading(Arithmetic.widest("bfloat16"))


def test_a_declared_field_wins_over_what_is_read() -> None:
    with gridsim.active() as trace:
        products[(1,)](*tensors(torch.float16), N, D, False)
    assert reading(trace, declared={"qk_accumulator": "float32"}).arithmetic.qk_accumulator == "float32"
    assert read((), {"p_dtype": "float32"}, "float16", 16).arithmetic.p_dtype == "float32"


def test_a_promise_that_the_kernel_breaks_is_told_with_its_line() -> None:
    with gridsim.active() as trace:
        products[(1,)](*tensors(torch.float16), N, D, False)
    (told,) = reading(trace, declared={"qk_accumulator": "float32", "pv_accumulator": "float32"}).broken
    assert told.startswith("the sums of q*k: declared float32, but float16 at test_reading.py:")
    with gridsim.active() as trace:
        dots[(1,)](*tensors(torch.float32), 0.25, N, D, "", True, False, False, None)
    (told,) = reading(trace, "float32", {"dot": "ieee", "p_dtype": "float32"}).broken
    assert told.startswith("products of float32: declared ieee, but tf32 at test_reading.py:")


def test_what_is_handed_on_in_16_bits_breaks_the_promise_of_float32() -> None:
    out, q, k, v = tensors(torch.bfloat16)
    with gridsim.active() as trace:
        scores_only[(1,)](torch.empty(N, dtype=torch.bfloat16), q, k, N, D)
        products[(1,)](out, q, k, v, N, D, False)
    (told,) = reading(trace, "bfloat16", {"partial_dtype": "float32"}).broken
    assert told.startswith("what one program hands to the next: declared float32, but bfloat16 at test_reading.py:")


def test_a_type_may_be_promised_to_be_that_of_the_queries() -> None:
    promise = {"p_dtype": "query"}
    for dtype in ("float32", "float16", "bfloat16"):
        assert read((), promise, dtype, 16).arithmetic.p_dtype == dtype
    out, q, k, v = tensors(torch.float32)
    with gridsim.active() as trace:
        dots[(1,)](out, q, k, v, 0.25, N, D, "", True, False, False, "ieee")
    assert reading(trace, "float32", promise).broken == ()
    with gridsim.active() as trace:
        dots[(1,)](out, q, k, v.half(), 0.25, N, D, "", True, False, False, "ieee")
    found = reading(trace, "float32", promise)
    assert found.arithmetic.p_dtype == "float32"
    (told,) = found.broken
    assert told.startswith("the softmax weights: declared float32, but float16 at test_reading.py:")


def test_a_promise_that_is_kept_or_not_made_is_not_mentioned() -> None:
    with gridsim.active() as trace:
        products[(1,)](*tensors(torch.float16), N, D, False)
    kept = {"pv_accumulator": "float32", "p_dtype": "float32", "partial_dtype": "float32", "qk_accumulator": "float16"}
    assert reading(trace, declared=kept).broken == ()
    assert reading(trace).broken == ()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"accumulator": "float32"}, "arithmetic has no 'accumulator'; there are: dot, "),
        ({"dot": "tf16"}, "arithmetic has dot='tf16', but it should be one of tf32, tf32x3, ieee"),
        ({"p_dtype": "half"}, "arithmetic has p_dtype='half', but it should be one of float64, float32, float16"),
        ({"dot": "query"}, "arithmetic has dot='float16', but it should be one of tf32, tf32x3, ieee"),
        ({"normaliser": "both"}, "normaliser='both', but it should be one of cast, uncast, unknown"),
    ],
)
def test_a_declaration_of_nonsense_is_wrong_use(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongUse) as caught:
        read((), declared, "float16", 16)
    assert message in str(caught.value)
