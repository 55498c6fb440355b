"""SGLang 0.5.23: what its kernels do with what their contracts leave undefined.

python sglang_corners.py    needs 5 GiB on a GPU; sglang from a wheel
"""

import torch
from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
from sglang.kernels.ops.attention.merge_state import merge_state_triton
from sglang.kernels.ops.kvcache.cache_ops import launch_reshape_and_cache_flash

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM = 64
torch.manual_seed(0)


def rows(count: int, dim: int = DIM) -> torch.Tensor:
    return torch.randn(count, 1, dim, dtype=torch.float16, device=DEVICE)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def empty_sequence() -> None:
    q, k, out = rows(1), rows(4), rows(1)
    partial, lses = torch.empty(1, 1, 1, DIM, device=DEVICE), torch.empty(1, 1, 1, device=DEVICE)
    decode_attention_fwd(
        q, k, k, out, ints(0, 0), torch.arange(4, device=DEVICE), partial, lses, ints(1), 1, 0.125, 1.0, 1.0
    )
    print(f"decode of a sequence without a token: {out[0, 0, 0].item()}, where 0 is usual")


def extended(scale: float, window: int) -> torch.Tensor:
    torch.manual_seed(1)
    q, k, v = rows(3), rows(3), rows(3)
    out = torch.empty_like(q)
    slots = torch.empty(0, dtype=torch.int64, device=DEVICE)
    extend_attention_fwd(
        q, k, v, out, k, v, ints(0, 3), ints(0, 0), slots, None, True, None, 3, 1.0, 1.0, scale,
        sliding_window_size=window,
    )  # fmt: skip
    return out


def scale_of_nothing() -> None:
    same = torch.equal(extended(0.0, -1), extended(DIM**-0.5, -1))
    print(f"extend with sm_scale 0.0 is extend with 1 / sqrt(64): {same}")


def window_of_nothing() -> None:
    same = torch.equal(extended(0.125, 0), extended(0.125, -1))
    print(f"extend with sliding_window_size 0, a token alone, is extend without a window: {same}")


def merged_states() -> None:
    lse = torch.zeros(1, 1, device=DEVICE)
    none = torch.full_like(lse, float("-inf"))
    nan = torch.full_like(rows(1), float("nan"))
    out, _ = merge_state_triton(nan, none, rows(1), lse)
    both, lse_both = merge_state_triton(torch.zeros_like(nan), none, torch.zeros_like(nan), none)
    print(f"merge with an empty state whose output is nan: {out[0, 0, 0].item()}")
    print(f"merge of two empty states: {both[0, 0, 0].item()}, lse {lse_both.item()}")


def v_of_another_dim() -> None:
    k_cache, v_cache = (torch.zeros(1, 16, 1, dim, dtype=torch.float16, device=DEVICE) for dim in (DIM, 2 * DIM))
    launch_reshape_and_cache_flash(rows(1), rows(1, 2 * DIM), k_cache, v_cache, torch.tensor([0], device=DEVICE))
    print(f"of a V of 128 beside a K of 64 the cache is given {int(v_cache[0, 0].count_nonzero())} numbers")


def slots_of_32_bits() -> None:
    blocks = 2**31 // (16 * DIM) + 1
    cache = torch.zeros(blocks, 16, 1, DIM, dtype=torch.float16, device=DEVICE)
    for dtype in (torch.int64, torch.int32):
        new = rows(1)
        slot = torch.tensor([(blocks - 1) * 16], dtype=dtype, device=DEVICE)
        launch_reshape_and_cache_flash(new, new, cache, cache, slot)
        print(f"a slot of {dtype} 2**31 elements from the first is written: {torch.equal(cache[-1, 0], new[0])}")


empty_sequence()
scale_of_nothing()
window_of_nothing()
merged_states()
v_of_another_dim()
slots_of_32_bits()  # the last one: on a GPU the write of int32 is an illegal access
