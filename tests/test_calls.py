"""What is kept of a call: metadata whole, of large tensors only their shape."""

import numpy as np
import pytest
import torch
from recordings import arguments

from harness.calls import BEYOND, Inexpressible, read, view
from harness.case import Case, Seq

BASE = Case(seqs=(Seq(kv_len=5), Seq(kv_len=20, tag=1)), extra_columns=30)


def test_no_value_of_q_k_or_v_is_kept():
    values = {role: value for role, value in arguments(BASE).items() if value is not None}
    call = read(values)
    assert set(call.arrays) == {"kv_lens", "block_tables"}
    assert not any(isinstance(value, torch.Tensor) for value in (*call.scalars.values(), *call.arrays.values()))
    other = read(values | {name: values[name] + 1 for name in ("q", "k_cache", "v_cache")})
    assert (call.views, call.scalars, call.v_from_k) == (other.views, other.scalars, other.v_from_k)


def test_the_table_is_read_as_far_as_it_is_used_and_a_little_further():
    values = arguments(BASE)
    call = read({role: values[role] for role in ("q", "k_cache", "v_cache", "block_tables", "kv_lens")})
    assert call.arrays["block_tables"].shape == (2, 2 + BEYOND)
    assert call.views["block_tables"].shape == (2, 32)


def test_what_is_copied_stays_as_it_was():
    lens = torch.tensor([5, 20], dtype=torch.int32)
    call = read({"kv_lens": lens})
    lens += 1
    assert call.arrays["kv_lens"].tolist() == [5, 20]


def test_scales_of_any_float_are_copied():
    assert read({"k_scale": torch.tensor([0.5], dtype=torch.bfloat16)}).arrays["k_scale"].tolist() == [0.5]


def test_a_view_has_strides_in_elements_and_our_names_of_types():
    tensor = torch.zeros(4, 6, dtype=torch.bfloat16)[:, ::2]
    assert (view(tensor).shape, view(tensor).strides, view(tensor).dtype) == ((4, 3), (6, 2), "bfloat16")
    assert view(torch.zeros(1).to(torch.float8_e4m3fn)).dtype == "e4m3"


def test_k_and_v_of_one_storage_are_told_by_their_distance():
    both = torch.zeros(2, 3, 16, 1, 8)
    apart = {"k_cache": torch.zeros(3, 16, 1, 8), "v_cache": torch.zeros(3, 16, 1, 8)}
    assert read({"k_cache": both[0], "v_cache": both[1]}).v_from_k == 3 * 16 * 8
    assert read(apart).v_from_k is None


def test_memory_off_the_boundary_of_16_bytes_is_noticed():
    flat = torch.zeros(16 * 8 + 3)
    shape = (1, 16, 1, 8)
    call = read({"k_cache": flat[3:].view(shape), "v_cache": flat[: 16 * 8].view(shape)})
    assert call.misaligned == ("k_cache",)


def test_what_is_no_tensor_is_told():
    with pytest.raises(Inexpressible, match="a list came where a tensor should be"):
        read({"q": [1, 2]})


def test_numbers_are_kept_as_they_are_and_anything_else_by_its_type():
    call = read(
        {"scale": 0.5, "window": [3, 0], "softcap": np.float64(2.0), "causal": torch.ones(2), "sinks": torch.ones(1)}
    )
    assert call.scalars == {
        "scale": 0.5, "window": (3, 0), "softcap": 2.0, "causal": "a Tensor", "sinks": "a Tensor"
    }  # fmt: skip
