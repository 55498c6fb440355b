"""vLLM 0.33.0: what some kernels do where their contracts say nothing.

python vllm_corners.py    needs a GPU
"""

import torch
from vllm.v1.attention.ops.prefix_prefill import context_attention_fwd
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd
from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = {"dtype": torch.float16, "device": DEVICE}
DIM = 64


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def empty_state() -> None:
    """An empty prefix (lse -inf) whose output is NaN, as decode_attention_fwd leaves it."""
    full, nan = torch.ones(1, 1, DIM, **HALF), torch.full((1, 1, DIM), torch.nan, **HALF)
    out, zero = torch.empty_like(full), torch.zeros(1, 1, device=DEVICE)
    merge_attn_states(out, nan, zero - torch.inf, full, zero)
    print("merge with an empty state that holds NaN:", out[0, 0, 0].item())


def few_rope_dims() -> None:
    """MLA whose K has 8 dims beyond V."""
    cache, q = torch.zeros(1, 16, 1, 40, **HALF), torch.zeros(1, 4, 40, **HALF)
    out, lse, scratch = torch.empty(1, 4, 32, **HALF), q.new_empty(1, 4).float(), q.new_empty(1, 4, 1, 33).float()
    try:
        decode_attention_fwd(
            q, cache, cache[..., :32], out, lse, ints(0)[None], ints(3), scratch, 1, 1.0, 16, is_mla=True
        )
    except Exception as error:
        print("MLA with 8 dims beyond V:", str(error).strip().splitlines()[-1])


def window_with_alibi() -> None:
    """context_attention_fwd with a window, with and without ALiBi slopes of almost 0."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(20, 1, DIM, **HALF) for _ in "qkv")
    cache, one = torch.zeros(1, 16, 1, DIM, **HALF), torch.ones(1, device=DEVICE)

    def call(window: int, slopes: torch.Tensor | None) -> torch.Tensor:
        out = torch.empty_like(q)
        context_attention_fwd(
            q=q, k=k, v=v, o=out, kv_cache_dtype="auto", k_cache=cache.unflatten(3, (-1, 8)).permute(0, 2, 3, 1, 4),
            v_cache=cache.permute(0, 2, 3, 1), b_loc=torch.zeros(1, 8, dtype=torch.int32, device=DEVICE),
            b_start_loc=ints(0, 20), b_seq_len=ints(20), max_seq_len=20, max_input_len=20, k_scale=one, v_scale=one,
            sliding_window=window, alibi_slopes=slopes,
        )  # fmt: skip
        return out

    flat, windowed, whole = torch.full((1,), 1e-6, device=DEVICE), call(4, None), call(0, None)
    both = call(4, flat)
    print("window 4 and ALiBi: from window 4", f"{(both - windowed).abs().max():.2g},", end=" ")
    print("from no window", f"{(both - whole).abs().max():.2g}")


def unified(lens: tuple[int, int], segments: int | None) -> torch.Tensor:
    """Output of one sequence of (queries, tokens), filled with 7 beforehand."""
    torch.manual_seed(0)
    q, cache = torch.randn(lens[0], 1, DIM, **HALF), torch.randn(1, 16, 1, DIM, **HALF)
    out, split = torch.full_like(q, 7.0), {}
    if segments:
        shape = (lens[0], 1, segments)
        names = ("softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum")
        shapes = ((*shape, DIM), shape, shape)
        split = {name: torch.empty(size, device=DEVICE) for name, size in zip(names, shapes, strict=True)}
        split |= {"seq_threshold_3D": 64, "num_par_softmax_segments": segments}
    unified_attention(
        q=q, k=cache, v=cache, out=out, cu_seqlens_q=ints(0, lens[0]), max_seqlen_q=lens[0], seqused_k=ints(lens[1]),
        max_seqlen_k=16, softmax_scale=1.0, causal=True, window_size=(-1, -1), softcap=0.0, q_descale=None,
        block_table=torch.zeros(1, 8, dtype=torch.int32, device=DEVICE), k_descale=None, v_descale=None, **split,
    )  # fmt: skip
    return out


empty_state()
few_rope_dims()
window_with_alibi()
print("no tokens, unsplit:", unified((1, 0), None)[0, 0, 0].item(), "split:", unified((1, 0), 16)[0, 0, 0].item())
print("4 queries over 1 token, unsplit:", unified((4, 1), None)[0, 0, 0].item(), end=" ")
print("split:", unified((4, 1), 16)[0, 0, 0].item())
