"""The textbook decode kernel is right for all that it declares, and refuses the rest by name."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness import ours
from harness.arithmetic import Arithmetic
from harness.bounds import attention_bound, exceeds
from harness.case import Case, Seq, replace
from harness.executors import gridsim
from harness.executors.base import Placement, to_numpy
from harness.executors.cpu import declared
from harness.folders import folder, load, load_file
from harness.inputs import Materials, gathered, materialise
from harness.judge import features
from harness.platforms import platform

paged_decode = load("kernels", "decode").paged_decode
reference = load("references", "float64")
EXAMPLES = folder("kernels").parent / "examples"
HALF_ULP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def lens(*kv_lens: int) -> tuple[Seq, ...]:
    return tuple(Seq(kv_len=kv_len, tag=tag) for tag, kv_len in enumerate(kv_lens))


RAGGED = Case(seqs=lens(1, 15, 16, 17, 40), want_lse=True)
EVERYTHING = replace(
    RAGGED, num_q_heads=4, num_kv_heads=2, window=(18, -1), softcap=2.0, alibi=True, sinks=True, scale=0.7
)


def call(case: Case, subject: Any = ours.decode) -> tuple[Any, Any]:
    """(out, lse) in float64; no read outside the live slots, the used table entries and the lengths."""
    materials = materialise(case)
    placement = Placement(materials, "cpu")
    memory = declared(materials, placement)
    with gridsim.active(memory):
        returned = subject(placement.inputs)
    assert not memory.accesses
    out, lse = returned if case.want_lse else (returned, None)
    return to_numpy(out).astype(np.float64), lse if lse is None else to_numpy(lse).astype(np.float64)


def definition(materials: Materials) -> tuple[Any, Any]:
    """Attention key by key in float64, without a running maximum."""
    case = materials.case
    rows = (len(case.seqs), case.num_q_heads)
    out, lse = np.zeros((*rows, case.value_dim)), np.zeros(rows)
    for seq in range(len(case.seqs)):
        q, k, v = (part.astype(np.float64) for part in gathered(materials, seq))
        for head in range(case.num_q_heads):
            kv_head = head // case.group
            last = len(k) - 1
            logits = {key: logit(materials, q[0, head], k[key, kv_head], head, last - key) for key in range(len(k))}
            seen = {key: math.exp(x) for key, x in logits.items() if x is not None}
            total = sum(seen.values()) + (math.exp(materials.inputs.sinks.view[head]) if case.sinks else 0.0)
            out[seq, head] = sum((w / total * v[key, kv_head] for key, w in seen.items()), np.zeros(case.value_dim))
            lse[seq, head] = math.log(total) if total else -math.inf
    return out, lse


def logit(materials: Materials, q: Any, k: Any, head: int, distance: int) -> float | None:
    """The logit of one key, or None if the window hides it."""
    case = materials.case
    score = float(q @ k) * case.softmax_scale
    if case.softcap:
        score = case.softcap * math.tanh(score / case.softcap)
    if case.alibi:
        score -= float(materials.inputs.alibi_slopes.view[head]) * distance
    return None if 0 <= case.window[0] < distance else score


def assert_right(case: Case, subject: Any = ours.decode) -> None:
    """Within fp32 arithmetic on a few dozen keys of size 1, and one rounding to the type of the output."""
    (out, lse), (want, want_lse) = call(case, subject), definition(materialise(case))
    assert (np.abs(out - want) <= HALF_ULP[case.dtype] * np.abs(want) + 1e-5).all()
    if case.want_lse:
        np.testing.assert_allclose(lse, want_lse, rtol=1e-6, atol=1e-5)


FEATURES: dict[str, dict[str, Any]] = {
    "ragged": {},
    "scale": {"scale": 0.3},
    "window of one key": {"window": (0, -1)},
    "window across blocks": {"window": (16, 3)},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "not causal": {"causal": False, "window": (5, 2)},
    "shared kv heads": {"num_q_heads": 6, "num_kv_heads": 2},
    "no lse": {"want_lse": False},
    "out buffer with gaps": {"out_layout": "padded"},
    "64-bit tables": {"table_dtype": "int64", "table_pad": "huge", "extra_columns": 2},
    "padded keys, dense values": {"layout": "padded", "v_layout": "nhd"},
    "heads before slots, offset": {"layout": "hnd", "v_layout": "offset"},
    "fused q": {"q_layout": "fused_qkv"},
    "head-major q": {"q_layout": "transposed_heads"},
    "shuffled blocks": {"placement": "shuffled", "table_pad": "other", "extra_columns": 1},
    "beyond 2^31 elements": {"placement": "far"},
    "longer values": {"head_dim_v": 40},
    "shorter values, padded": {"head_dim_v": 8, "v_layout": "padded"},
    "one number a value": {"head_dim_v": 1},
    "values a prefix of the keys": {"head_dim": 40, "head_dim_v": 24, "v_is_k_prefix": True, "num_q_heads": 4},
    "out buffer of the values' size": {"head_dim_v": 24, "out_layout": "padded"},
}


@pytest.mark.parametrize("changes", FEATURES.values(), ids=FEATURES)
def test_each_feature_agrees_with_the_definition(changes: dict[str, Any]) -> None:
    assert_right(replace(RAGGED, **changes))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_features_together_agree_in_every_dtype(dtype: Any) -> None:
    assert_right(replace(EVERYTHING, dtype=dtype))


@pytest.mark.parametrize(("block_size", "head_dim"), [(1, 16), (8, 40), (24, 72), (48, 16), (256, 80), (16, 256)])
def test_sizes_need_not_be_powers_of_two(block_size: int, head_dim: int) -> None:
    edges = lens(1, block_size, block_size + 1, 2 * block_size + 3)
    assert_right(replace(EVERYTHING, seqs=edges, block_size=block_size, head_dim=head_dim))


def test_an_empty_row_gives_zero_and_minus_infinity() -> None:
    out, lse = call(replace(RAGGED, seqs=lens(0, 3)))
    assert (out[0] == 0).all()
    assert (lse[0] == -np.inf).all()
    assert np.isfinite(out[1]).all()


def test_an_empty_row_with_a_sink_gives_zero_and_the_sink() -> None:
    case = replace(RAGGED, seqs=lens(0, 3), sinks=True)
    out, lse = call(case)
    assert (out[0] == 0).all()
    assert (lse[0] == materialise(case).inputs.sinks.view).all()


@pytest.mark.parametrize("changes", [{"causal": False}, {"window": (-1, 0)}, {"window": (-1, 7)}, {"window": (40, -1)}])
def test_what_cannot_hide_a_key_changes_no_bit(changes: dict[str, Any]) -> None:
    assert (call(replace(RAGGED, **changes))[0] == call(RAGGED)[0]).all()


def test_graph_padding_rows_give_zero_and_leave_the_others_alone() -> None:
    padded = {"block_tables": torch.tensor([[4, 0], [-1, -1]]), "kv_lens": torch.tensor([3, 0])}
    for window in ((-1, -1), (2, -1)):
        out, lse = attend(**padded, window=window, return_lse=True)
        assert (out[1] == 0).all()
        assert (lse[1] == -math.inf).all()
        assert torch.equal(out[0], attend(window=window)[0])


# --- FP8 caches --------------------------------------------------------------------------------------------------

FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SCALES = {
    "none": (None, None),
    "per tensor": (torch.tensor([0.37]), torch.tensor(2.5)),
    "per head": (torch.tensor([0.37, 3.0]), torch.tensor([2.5, 0.11])),
    "K per head, spread": (torch.tensor([0.37, 9.0, 3.0])[::2], torch.tensor([2.5])),
    "only V": (None, torch.tensor([2.5, 0.11])),
}


def call_on_fp8(case: Case, kernel: Any, fp8: str, k_scale: Any, v_scale: Any, **options: Any) -> Any:
    """out, lse and, for each sequence, what the kernel should have seen of q, K and V."""
    materials = materialise(case)
    placement = Placement(materials, "cpu")
    memory = declared(materials, placement)
    caches = {name: getattr(placement.inputs, name).to(FP8[fp8]) for name in ("k_cache", "v_cache")}
    for name, cache in caches.items():
        memory.declare(cache, name, np.ascontiguousarray(getattr(materials.inputs, name).state).reshape(-1))
    wanted = features(materials) | {name: getattr(placement.inputs, name) for name in ("alibi_slopes", "sinks")}
    tensors = dataclasses.replace(placement.inputs, **caches)
    with gridsim.active(memory):
        out, lse = kernel(
            tensors.q, tensors.k_cache, tensors.v_cache, tensors.block_tables, tensors.kv_lens,
            k_scale=k_scale, v_scale=v_scale, return_lse=True, **wanted, **options,
        )  # fmt: skip
    assert not memory.accesses
    return to_numpy(out), to_numpy(lse), [dequantised(tensors, row, k_scale, v_scale) for row in range(len(case.seqs))]


def dequantised(tensors: Any, row: int, k_scale: Any, v_scale: Any) -> tuple[Any, Any, Any]:
    position = torch.arange(int(tensors.kv_lens[row]))
    block_size = tensors.k_cache.shape[1]
    blocks, offsets = tensors.block_tables[row, position // block_size].long(), position % block_size

    def gather(cache: torch.Tensor, scale: Any) -> Any:
        per_head = torch.ones(1) if scale is None else scale.reshape(-1)
        return (cache.double()[blocks, offsets] * per_head.double()[:, None]).numpy()

    q = to_numpy(tensors.q[row : row + 1])
    return q, gather(tensors.k_cache, k_scale), gather(tensors.v_cache, v_scale)


def assert_within_bound(out: Any, lse: Any, rows: Any, case: Case, arithmetic: Arithmetic, **scales: Any) -> None:
    """Every row against the float64 reference, within the bound derived for gridsim."""
    wanted = features(materialise(case))
    how = {"arithmetic": arithmetic, "platform": platform("gridsim"), "out_dtype": case.dtype}
    for row, (q, k, v) in enumerate(rows):
        truth, truth_lse = reference.attention(q, k, v, **wanted)
        bound = attention_bound(q, k, v, **wanted, **how, **scales)
        assert not exceeds(out[row : row + 1], truth, bound.out, case.dtype).any()
        assert not exceeds(lse[row : row + 1], truth_lse, bound.lse, "float32").any()


@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("fp8", FP8)
def test_an_fp8_cache_is_read_with_its_scales(fp8: str, scales: Any) -> None:
    case = replace(EVERYTHING, head_dim_v=24)
    out, lse, rows = call_on_fp8(case, paged_decode, fp8, *scales)
    assert_within_bound(out, lse, rows, case, Arithmetic(), k_scale=0.5, v_scale=0.5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_fp8_cache_serves_queries_of_every_type(dtype: Any) -> None:
    case = replace(EVERYTHING, dtype=dtype, seqs=lens(0, 5, 33))
    out, lse, rows = call_on_fp8(case, paged_decode, "e4m3", *SCALES["per head"])
    assert_within_bound(out, lse, rows, case, Arithmetic(), k_scale=0.5, v_scale=0.5)


# --- calls without a Case ----------------------------------------------------------------------------------------


def arguments() -> dict[str, Any]:
    """Two sequences of 3 and 5 tokens in blocks of 4."""
    generator = torch.Generator().manual_seed(0)
    return {
        "q": torch.randn(2, 4, 16, generator=generator),
        "k_cache": torch.randn(5, 4, 2, 16, generator=generator),
        "v_cache": torch.randn(5, 4, 2, 16, generator=generator),
        "block_tables": torch.tensor([[4, 0], [2, 1]], dtype=torch.int32),
        "kv_lens": torch.tensor([3, 5], dtype=torch.int32),
    }


def attend(kernel: Any = paged_decode, **changes: Any) -> Any:
    """The same with some arguments changed."""
    with gridsim.active(gridsim.Memory()):
        return kernel(**(arguments() | changes))


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with every stride doubled, the last one too."""
    wide = torch.full([2 * n for n in tensor.shape], 77, dtype=tensor.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


def test_strides_do_not_matter_in_any_dimension_of_any_tensor() -> None:
    dense = {
        "q": torch.randn(2, 4, 16),
        "k_cache": torch.randn(5, 4, 2, 16),
        "v_cache": torch.randn(5, 4, 2, 16),
        "block_tables": torch.tensor([[4, 0], [2, 1]]),
        "kv_lens": torch.tensor([3, 5]),
        "alibi_slopes": torch.rand(4),
        "sinks": torch.rand(4),
    }
    out = spread(torch.zeros(2, 4, 16))
    assert attend(**{name: spread(tensor) for name, tensor in dense.items()}, out=out) is out
    assert torch.equal(out, attend(**dense))


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e6, 1e30])
def test_a_softcap_neither_cancels_near_zero_nor_overflows_far_out(size: float) -> None:
    q, k = torch.zeros(2, 4, 16), torch.zeros(5, 4, 2, 16)
    q[..., 0], k[..., 0] = size, 1.0
    _, lse = attend(q=q, k_cache=k, scale=1.0, softcap=30.0, sinks=torch.full((4,), -1e4), return_lse=True)
    want = 30.0 * math.tanh(size / 30.0) + math.log(3)
    assert torch.allclose(lse[0], torch.full((4,), want), rtol=3e-7, atol=0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"q": torch.zeros(2, 16)}, r"q has shape \[2, 16\], but expected \[num_seqs, num_q_heads, head_dim\]"),
    ({"q": torch.zeros(2, 4, 32)}, r"k_cache has shape \[5, 4, 2, 16\], but expected \[5, 4, 2, 32\]"),
    ({"q": torch.zeros(2, 5, 16)}, "q has 5 heads, but expected a multiple of k_cache's 2"),
    ({"q": torch.zeros(2, 4, 16).double()}, "q has dtype torch.float64, but expected torch.float32 or"),
    ({"k_cache": torch.zeros(5, 4, 16)}, r"k_cache has shape \[5, 4, 16\], but expected \[num_blocks"),
    ({"k_cache": torch.zeros(5, 0, 2, 16), "v_cache": torch.zeros(5, 0, 2, 16)}, "expected at least 1"),
    ({"k_cache": torch.zeros(5, 4, 2, 16).half()}, "k_cache has dtype torch.float16, but expected torch.float32"),
    ({"v_cache": torch.zeros(5, 4, 1, 16)}, r"v_cache has shape \[5, 4, 1, 16\], but expected \[5, 4, 2, 16\]"),
    ({"v_cache": torch.zeros(5, 4, 2)}, r"v_cache has shape \[5, 4, 2\], but expected \[num_blocks"),
    ({"v_cache": torch.zeros(5, 4, 2, 0)}, r"v_cache has shape \[5, 4, 2, 0\], but expected at least 1"),
    ({"v_cache": torch.zeros(5, 4, 2, 16).bfloat16()}, "v_cache has dtype torch.bfloat16"),
    ({"v_cache": torch.zeros(5, 4, 2, 16).to(FP8["e4m3"])}, "v_cache has dtype torch.float8_e4m3fn"),
    ({"k_scale": torch.ones(3)}, r"k_scale has shape \[3\], but expected one number or one for each of 2 KV heads"),
    ({"v_scale": torch.ones(1, 2)}, r"v_scale has shape \[1, 2\], but expected one number"),
    ({"v_scale": torch.ones(2).half()}, "v_scale has dtype torch.float16, but expected torch.float32"),
    ({"block_tables": torch.zeros(3, 2).int()}, r"block_tables has shape \[3, 2\], but expected \[2, 2\]"),
    ({"block_tables": torch.zeros(2, 2)}, "block_tables has dtype torch.float32, but expected torch.int32 or"),
    ({"kv_lens": torch.zeros(2, 1).int()}, r"kv_lens has shape \[2, 1\], but expected \[2\]"),
    ({"kv_lens": torch.zeros(2).short()}, "kv_lens has dtype torch.int16"),
    ({"kv_lens": torch.zeros(2, device="meta").int()}, r"shape \[2\] is on meta, but expected q's cpu"),
    ({"alibi_slopes": torch.zeros(2)}, r"alibi_slopes has shape \[2\], but expected \[4\]"),
    ({"sinks": torch.zeros(4).int()}, "sinks has dtype torch.int32"),
    ({"out": torch.zeros(2, 4, 8)}, r"out has shape \[2, 4, 8\], but expected \[2, 4, 16\]"),
    ({"out": torch.zeros(2, 4, 16).half()}, "out has dtype torch.float16, but expected torch.float32"),
    ({"window": (-2, 0)}, r"window is \(-2, 0\)"),
    ({"softcap": math.nan}, "softcap is nan"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_the_wrapper_refuses_and_names_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(**changes)


def values(kv_lens: list[int], block_tables: list[list[int]], left: int = -1) -> SimpleNamespace:
    """All that `validate` reads: five blocks of four slots."""
    return SimpleNamespace(
        k_cache=torch.zeros(5, 4, 1, 16),
        kv_lens=torch.tensor(kv_lens),
        block_tables=torch.tensor(block_tables),
        window=(left, -1),
    )


@pytest.mark.parametrize(
    ("kv_lens", "block_tables", "message"),
    [
        ([9], [[0, 1]], r"kv_lens\[0\] is 9, but expected 0 to the 8 slots of a table row"),
        ([1, -1], [[0], [0]], r"kv_lens\[1\] is -1"),
        ([1, 5], [[0, 0], [0, 5]], r"block_tables\[1, 1\] is 5, but expected a block from 0 to 4"),
        ([4], [[-1]], r"block_tables\[0, 0\] is -1"),
    ],
)
def test_validate_refuses_what_points_outside(kv_lens: Any, block_tables: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ours.decode.validate(values(kv_lens, block_tables))


def test_validate_does_not_judge_entries_that_nobody_reads() -> None:
    ours.decode.validate(values([4, 0], [[4, 99], [-1, -1]]))
    ours.decode.validate(values([9, 7], [[-1, 99, 0], [-1, 1, -1]], left=0))


@pytest.mark.parametrize(("left", "refused"), [(0, False), (3, False), (4, True), (-1, True)])
def test_validate_judges_a_block_as_soon_as_the_window_reaches_into_it(left: int, refused: bool) -> None:
    if refused:
        with pytest.raises(ValueError, match=r"block_tables\[0, 0\] is -1"):
            ours.decode.validate(values([8], [[-1, 0]], left=left))
    else:
        ours.decode.validate(values([8], [[-1, 0]], left=left))


# --- the examples ------------------------------------------------------------------------------------------------


def example(name: str) -> Any:
    return getattr(load_file(EXAMPLES / f"{name}.py", f"example_{name}"), name)


@pytest.mark.parametrize("name", ["my_decode", "tutorial_decode"])
def test_an_example_is_right_where_it_says_so(name: str) -> None:
    assert_right(replace(RAGGED, want_lse=False, placement="shuffled"), example(name))


def test_the_example_to_copy_groups_heads_and_takes_empty_rows() -> None:
    case = replace(RAGGED, want_lse=False, num_q_heads=4, num_kv_heads=2, seqs=lens(0, 20), dtype="bfloat16")
    assert_right(case, example("my_decode"))


def test_the_tutorial_divides_zero_by_zero_in_an_empty_row() -> None:
    assert np.isnan(call(Case(seqs=lens(0)), example("tutorial_decode"))[0]).all()


def test_the_wrong_twin_differs_in_one_line_of_code_and_is_wrong() -> None:
    right, wrong = ((EXAMPLES / f"{name}.py").read_text().splitlines() for name in ("my_decode", "my_decode_wrong"))
    code = [new for old, new in zip(right, wrong, strict=True) if old != new and '"""' not in new and "def " not in new]
    assert len(code) == 1
    with pytest.raises(AssertionError):
        call(Case(), example("my_decode_wrong"))


@pytest.mark.parametrize(("changes", "given"), [({}, None), ({"head_dim": 40}, None), ({"scale": 0.25}, 0.25)])
def test_a_scale_that_is_the_default_is_left_to_the_wrapper(changes: dict[str, Any], given: float | None) -> None:
    """Else a wrong default would never be seen: 0.25 is one for head_dim 16, and not for 40."""
    inputs = materialise(replace(Case(head_dim=40) if "scale" in changes else Case(), **changes)).inputs
    assert ours._features(inputs)["scale"] == given
