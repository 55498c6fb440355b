"""PyTorch's own paged attention: FlexAttention's page table, and variable-length attention with block tables."""

from collections.abc import Callable
from typing import Any

from harness.adapters.adapter import Project
from harness.adapters.translate import flat, lengths, spread, token_places

TORCH = Project("torch", "torch", "torch", ">=2.13,<2.14", "https://github.com/pytorch/pytorch")

_PAGED = "torch.nn.attention.experimental._paged_attention:PagedAttention"
_FLEX = "torch.nn.attention.flex_attention"
_ATTENDING = {
    _PAGED: "n_pages page_size max_batch_size device",
    f"{_PAGED}.reserve": "batch_idx seq_len",
    f"{_PAGED}.convert_logical_block_mask": "block_mask kv_len",
    f"{_PAGED}.get_score_mod": "score_mod kv_len",
    f"{_FLEX}:flex_attention": "query key value score_mod block_mask scale enable_gqa return_aux",
    f"{_FLEX}:create_block_mask": "mask_mod B H Q_LEN KV_LEN device BLOCK_SIZE",
    f"{_FLEX}:AuxRequest": "lse",
}
_NOT_DRAWN = (
    "the kernels that torch.compile makes (some 20 s for each shape on a CPU)",
    "a table that sequences have left (erase)",
    "FP8 caches",
)
_DECLARED: dict[str, Any] = {
    "window": True,
    "softcap": True,
    "alibi": True,
    "lse": True,
    "non_causal": True,
    "head_dim_v": True,
    "mla": True,
    "padding_rows": True,
    "layouts": ("nhd", "offset", "kv_stacked"),
    "q_layouts": ("contiguous",),
    "placements": ("in_order", "reversed", "shuffled", "interleaved"),
    "executors": ("gridsim", "gpu"),  # eager mode runs on either device
    "finite_dead_slots": True,
    "deterministic": False,
    #: One softmax over the whole pool in float32, its weights cast to the type of q.
    "arithmetic": {"dot": "ieee", "normaliser": "uncast", "max_splits": 1, "divisions": 1},
    "corners": {
        "finite_dead_slots": (
            "eager mode multiplies the weights, 0 for what is masked, with V of the whole pool, so NaN in any slot of "
            "any page reaches every row; nothing says what a slot that was never assigned may hold "
            "(https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_higher_order_ops/flex_attention.py)"
        ),
        "deterministic": (
            "it sums in the order of the pool, so the last bits depend on where pages lie; see also "
            "https://github.com/pytorch/pytorch/issues/182593"
        ),
        "layouts": "the cache is one row of slots, [1, heads, slots, dim], so pages must lie side by side",
        "placements": "eager mode has a score for every slot of the pool",
    },
}


@TORCH.adapter(_ATTENDING, op="extend", not_drawn=_NOT_DRAWN, **_DECLARED)
def paged_attention(pages: Any, flex: Any, create_mask: Any, aux: Any, inputs: Any) -> Any:
    """FlexAttention over a `PagedAttention` whose free list we set, so that it reserves the pages of our table."""
    return _attended(_reserved(pages, inputs), flex, create_mask, aux, inputs)


@TORCH.adapter(
    _ATTENDING | {f"{_PAGED}.assign": "batch_idx input_pos k_val v_val k_cache v_cache"},
    op="step",
    not_drawn=_NOT_DRAWN,
    **_DECLARED | {"mla": False},
)
def paged_step(pages: Any, flex: Any, create_mask: Any, aux: Any, inputs: Any) -> Any:
    """The same, after `assign` has written the new tokens, a sequence at a time."""
    table = _reserved(pages, inputs)
    _assign(table, inputs)
    return _attended(table, flex, create_mask, aux, inputs)


def _reserved(pages: Any, inputs: Any) -> Any:
    """Their page table with our pages: `reserve` takes from the end of the free list.

    It is a fresh one, since `erase` leaves a sequence's pages marked as its own (docs/findings/torch.md).
    """
    import torch

    blocks, size = inputs.k_cache.shape[:2]
    device = inputs.q.device
    table = pages(n_pages=blocks, page_size=size, max_batch_size=len(inputs.kv_lens), device=device)
    for row, length in enumerate(inputs.kv_lens.tolist()):
        table.empty_pages = inputs.block_tables[row, : -(-length // size)].tolist()
        batch = torch.tensor([row], device=device)
        table.reserve(batch_idx=batch, seq_len=torch.tensor([length], device=device))
    return table


def _slots(cache: Any) -> Any:
    """Their view of a cache, [1, heads, slots, dim]."""
    return flat(cache).transpose(0, 1)[None]


def _assign(table: Any, inputs: Any) -> None:
    import torch

    size, device = inputs.k_cache.shape[1], inputs.q.device
    rows = {slot: row for row, slot in enumerate(inputs.slot_mapping.tolist())}
    new = lengths(inputs.query_starts).tolist()
    for seq, (count, length) in enumerate(zip(new, inputs.kv_lens.tolist(), strict=True)):
        positions = list(range(max(length - count, 0), length))
        blocks = inputs.block_tables[seq].tolist()
        theirs = [rows[blocks[position // size] * size + position % size] for position in positions]
        table.assign(
            batch_idx=torch.tensor([seq], device=device),
            input_pos=torch.tensor([positions], dtype=torch.int64, device=device),
            k_val=inputs.k_new[theirs].transpose(0, 1)[None],
            v_val=inputs.v_new[theirs].transpose(0, 1)[None],
            k_cache=_slots(inputs.k_cache),
            v_cache=_slots(inputs.v_cache),
        )


def _attended(table: Any, flex: Any, create_mask: Any, aux: Any, inputs: Any) -> Any:
    device, size = inputs.q.device, inputs.k_cache.shape[1]
    longest = max(int(lengths(inputs.query_starts).max()), 1)
    columns = max(-(-int(inputs.kv_lens.max()) // size), 1)
    first = (inputs.kv_lens - lengths(inputs.query_starts)).long()
    logical = create_mask(
        mask_mod=_mask(inputs, first),
        B=len(first),
        H=None,
        Q_LEN=longest,
        KV_LEN=columns * size,
        device=device,
        BLOCK_SIZE=(128, size),
    )
    lens = inputs.kv_lens.long()
    physical = table.convert_logical_block_mask(block_mask=logical, kv_len=lens)
    out, more = flex(
        query=spread(inputs.q, inputs.query_starts, longest).transpose(1, 2),
        key=_slots(inputs.k_cache),
        value=_slots(inputs.v_cache),
        score_mod=table.get_score_mod(score_mod=_score(inputs, first), kv_len=lens),
        block_mask=_as_listed(physical, size),
        scale=inputs.scale,
        enable_gqa=inputs.q.shape[1] != inputs.k_cache.shape[2],
        return_aux=aux(lse=True),
    )
    owners, places = token_places(inputs.query_starts)
    packed = out[owners, :, places].contiguous()
    return (packed, more.lse[owners, :, places].contiguous()) if inputs.want_lse else packed


def _as_listed(physical: Any, size: int) -> Any:
    """The converted mask without the pages that it does not list: eager mode asks its function only, not its list."""
    visible, listed, rows = physical.mask_mod, physical.to_dense().bool(), physical.BLOCK_SIZE[0]

    def seen(batch: Any, head: Any, query: Any, token: Any) -> Any:
        return visible(batch, head, query, token) & listed[batch, 0, query // rows, token // size]

    physical.mask_mod = seen
    return physical


def _mask(inputs: Any, first: Any) -> Callable[..., Any]:
    """Which tokens a query sees, by logical places; that there are no more than kv_len of them is theirs to say."""
    left, right = inputs.window
    right = 0 if inputs.causal else right

    def seen(batch: Any, head: Any, query: Any, token: Any) -> Any:  # noqa: ARG001  (the signature is theirs)
        ahead = token - (first[batch] + query)
        visible = token >= 0
        if left >= 0:
            visible = visible & (ahead >= -left)
        if right >= 0:
            visible = visible & (ahead <= right)
        return visible

    return seen


def _score(inputs: Any, first: Any) -> Callable[..., Any]:
    """Softcap, then ALiBi, by logical places."""
    import torch

    def score(value: Any, batch: Any, head: Any, query: Any, token: Any) -> Any:
        if inputs.softcap > 0:
            value = inputs.softcap * torch.tanh(value / inputs.softcap)
        if inputs.alibi_slopes is not None:
            value = value - inputs.alibi_slopes[head] * (first[batch] + query - token).abs()
        return value

    return score


@TORCH.adapter(
    {
        "torch.nn.attention.varlen:varlen_attn": (
            "query key value cu_seq_q cu_seq_k max_q max_k return_aux scale window_size enable_gqa seqused_k "
            "block_table num_splits"
        ),
        "torch.nn.attention.varlen:AuxRequest": "lse",
    },
    op="extend",
    not_drawn=("varlen_attn_out", "dense K and V"),
    window=True,
    lse=True,
    non_causal=True,
    padding_rows=True,
    dtypes=("float16", "bfloat16"),
    head_dims=(16, 64, 80, 96, 128, 256),
    block_sizes=(256,),
    table_dtypes=("int32",),
    executors=("gpu",),
    corners={
        "block_sizes": "pages are those of FlashAttention 2, which takes multiples of 256",
        "executors": "it needs CUDA; this adapter has not been run on a GPU yet",
    },
)
def varlen_attn(varlen: Any, aux: Any, inputs: Any) -> Any:
    """Variable-length attention over a block table, lse [heads, tokens] whatever its docstring says; never run here."""
    left, right = inputs.window
    out, lse = varlen(
        query=inputs.q,
        key=inputs.k_cache,
        value=inputs.v_cache,
        cu_seq_q=inputs.query_starts,
        cu_seq_k=None,
        max_q=inputs.max_query_len,
        max_k=inputs.block_tables.shape[1] * inputs.k_cache.shape[1],
        return_aux=aux(lse=True),
        scale=inputs.scale,
        window_size=(left, 0 if inputs.causal else right),
        enable_gqa=inputs.q.shape[1] != inputs.k_cache.shape[2],
        seqused_k=inputs.kv_lens,
        block_table=inputs.block_tables,
        num_splits=inputs.hints.num_splits or None,
    )
    return (out, lse.T.contiguous()) if inputs.want_lse else out
