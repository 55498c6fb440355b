"""Which layout of a Case is most like the strides of a real tensor, and what of them it does not hold."""

from harness.calls import Part, View
from harness.tensors import contiguous

#: Offsets from here on do not fit in 32 bits with a sign.
FAR = 2**31


def cache_layouts(k: View, v: View, v_from_k: int | None, misaligned: tuple[str, ...]) -> Part:
    """Layouts of K and V as [blocks, slots, heads, dim]."""
    if v_from_k == 0 and k.shape[2] == 1 and v.shape[3] <= k.shape[3]:
        layout, lost = _alone("K", k, "k_cache" in misaligned)
        return Part({"layout": layout, "v_is_k_prefix": True, "head_dim_v": v.shape[3]}, lost)
    fields = {"head_dim_v": v.shape[3]} if v.shape[3] != k.shape[3] else {}
    joint = _joint(k, v, v_from_k)
    if joint:
        return Part({"layout": joint.fields["layout"]}, joint.lost)
    k_layout, k_lost = _alone("K", k, "k_cache" in misaligned)
    v_layout, v_lost = _alone("V", v, "v_cache" in misaligned)
    apart = {"v_layout": v_layout} if v_layout != k_layout else {}
    return Part(fields | {"layout": k_layout} | apart, (*k_lost, *v_lost))


def _joint(k: View, v: View, v_from_k: int | None) -> Part | None:
    """K and V of one buffer: one behind the other as a whole, or block by block."""
    if v_from_k is None or k.shape != v.shape or k.strides != v.strides or not _same(k, contiguous(k.shape), first=1):
        return None
    block = contiguous(k.shape)[0]
    if v_from_k == block * k.shape[0] and _same(k, contiguous(k.shape)):
        return Part({"layout": "kv_stacked"})
    if v_from_k != block or (k.strides[0] < 2 * block and k.shape[0] > 1):
        return None
    exact = _same(k, (2 * block, *contiguous(k.shape)[1:]))
    return Part({"layout": "kv_interleaved"}, () if exact else _told("K", k, "kv_interleaved"))


def _alone(name: str, cache: View, misaligned: bool) -> tuple[str, tuple[str, ...]]:
    slots, heads, dim = cache.shape[1:]
    if _same(cache, contiguous(cache.shape)):
        return ("offset" if misaligned else "nhd"), ()
    if _same(cache, (heads * slots * dim, dim, slots * dim, 1)):
        return "hnd", ()
    layout = "hnd" if slots > 1 and heads > 1 and cache.strides[2] > cache.strides[1] else "padded"
    return layout, _told(name, cache, layout)


def is_dense(tensor: View) -> bool:
    """Whether it is contiguous."""
    return _same(tensor, contiguous(tensor.shape))


def _same(tensor: View, strides: tuple[int, ...], first: int = 0) -> bool:
    """Whether the strides are these, where a dimension has more than one index."""
    dims = list(zip(tensor.shape, tensor.strides, strides, strict=True))[first:]
    return all(real == wanted for size, real, wanted in dims if size > 1)


def _told(name: str, tensor: View, layout: str) -> tuple[str, ...]:
    return (f"strides of {name} are {list(tensor.strides)}: the case has layout {layout!r} with strides of its own",)


def q_layout(q: View, heads_of_all: int) -> Part:
    """Layout of q as [tokens, heads, dim]; `heads_of_all` are those of q, K and V together."""
    tokens, heads, dim = q.shape
    if tokens > 1 and (tokens - 1) * q.strides[0] >= FAR:
        return Part({"q_layout": "far"})
    if _same(q, contiguous(q.shape)):
        return Part({})
    if _same(q, (dim, tokens * dim, 1)):
        return Part({"q_layout": "transposed_heads"})
    transposed = heads > 1 and tokens > 1 and q.strides[1] > q.strides[0]
    layout = "transposed_heads" if transposed else "fused_qkv"
    exact = _same(q, (heads_of_all * dim, dim, 1)) and not transposed
    return Part({"q_layout": layout}, () if exact else _told("q", q, layout))


def out_layout(out: View | None) -> Part:
    """Layout of an output that was given, as [tokens, heads, dim]."""
    if out is None:
        return Part({})
    if out.shape[0] > 1 and (out.shape[0] - 1) * out.strides[0] >= FAR:
        return Part({"out_layout": "far"})
    if _same(out, contiguous(out.shape)):
        return Part({"out_layout": "given"})
    return Part({"out_layout": "padded"}, _told("out", out, "padded"))
