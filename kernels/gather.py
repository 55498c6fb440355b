"""The loader of extend as an operation: a range of each sequence's tokens out of the paged cache, bit by bit."""

import torch
import triton
import triton.language as tl
from decode import INDEX_DTYPES, check_block_ids, check_dtype, check_lens, check_rank, check_shape, strides
from paged_tile import load_paged_tile

#: What is copied has no type: integers keep the payload of a NaN on every machine.
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# --- the kernel --------------------------------------------------------------------------------------------------

# These numbers are used once per program: not worth a compilation each time one of them is 1 or a multiple of 16.
UNSPECIALISED = (
    "start", "end", "block_size", "head_dim",
    "stride_out_seq", "stride_out_token", "stride_out_head",
    "stride_table_seq", "stride_table_column", "stride_lens_seq",
)  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def paged_gather_kernel(
    # Outputs
    out_ptr,           # [num_seqs, end - start, num_kv_heads, head_dim]
    # Inputs
    cache_ptr,         # [num_blocks, block_size, num_kv_heads, head_dim]
    block_tables_ptr,  # [num_seqs, columns]
    kv_lens_ptr,       # [num_seqs]
    # Numbers
    start,             # the rows of out are the tokens from start up to end
    end,
    block_size,
    head_dim,
    # Strides, in elements
    stride_out_seq, stride_out_token, stride_out_head, stride_out_dim,
    stride_cache_block, stride_cache_slot, stride_cache_head, stride_cache_dim,
    stride_table_seq, stride_table_column,
    stride_lens_seq,
    # Tiles
    TILE_KV: tl.constexpr,
    TILE_D: tl.constexpr,
):  # fmt: skip
    first_row = tl.program_id(0).to(tl.int64) * TILE_KV
    head = tl.program_id(1).to(tl.int64)
    seq = tl.program_id(2).to(tl.int64)
    row = first_row + tl.arange(0, TILE_KV)  # [TILE_KV]
    dim = tl.arange(0, TILE_D).to(tl.int64)  # [TILE_D]

    kv_len = tl.load(kv_lens_ptr + seq * stride_lens_seq).to(tl.int64)
    tile = load_paged_tile(
        cache_ptr + head * stride_cache_head,
        block_tables_ptr + seq * stride_table_seq,
        start + first_row,
        tl.minimum(kv_len, end),
        block_size,
        head_dim,
        stride_cache_block, stride_cache_slot, stride_cache_dim,
        stride_table_column,
        TILE_KV,
        TILE_D,
    )  # fmt: skip

    # [TILE_KV, TILE_D]; rows beyond the sequence are stored too: the loader made them 0
    out_offset = seq * stride_out_seq + head * stride_out_head
    out_offset += row[:, None] * stride_out_token + dim[None, :] * stride_out_dim
    tl.store(out_ptr + out_offset, tile, mask=(row < end - start)[:, None] & (dim < head_dim)[None, :])


# --- the wrapper -------------------------------------------------------------------------------------------------


def paged_gather(cache, block_tables, kv_lens, start, end, *, out=None, tile_kv=32):
    """Tokens [start, end) of every sequence, [num_seqs, end - start, num_kv_heads, head_dim]; 0 beyond its kv_len."""
    check_cache(cache)
    check_tables(block_tables, kv_lens)
    check_range(start, end, tile_kv)
    _, block_size, num_kv_heads, head_dim = cache.shape
    shape = (len(kv_lens), end - start, num_kv_heads, head_dim)
    check_out(out, shape, cache)
    check_devices(cache, block_tables, kv_lens, out)

    out = cache.new_empty(shape) if out is None else out
    bits = BITS[cache.element_size()]
    paged_gather_kernel[(triton.cdiv(end - start, tile_kv), num_kv_heads, len(kv_lens))](
        out_ptr=out.view(bits),
        cache_ptr=cache.view(bits),
        block_tables_ptr=block_tables,
        kv_lens_ptr=kv_lens,
        start=start,
        end=end,
        block_size=block_size,
        head_dim=head_dim,
        **strides("out", out, "seq token head dim"),
        **strides("cache", cache, "block slot head dim"),
        **strides("table", block_tables, "seq column"),
        **strides("lens", kv_lens, "seq"),
        TILE_KV=tile_kv,
        TILE_D=triton.next_power_of_2(head_dim),
    )
    return out


# --- what the wrapper refuses ------------------------------------------------------------------------------------


def check_cache(cache):
    check_rank("cache", cache, "[num_blocks, block_size, num_kv_heads, head_dim]")
    if min(cache.shape[1:]) < 1:
        raise ValueError(f"cache has shape {list(cache.shape)}, but expected at least 1 in all but num_blocks")
    if cache.element_size() not in BITS:
        raise ValueError(f"cache has dtype {cache.dtype}, but expected elements of 1, 2, 4 or 8 bytes")


def check_tables(block_tables, kv_lens):
    check_rank("block_tables", block_tables, "[num_seqs, columns]")
    check_dtype("block_tables", block_tables, INDEX_DTYPES)
    check_shape("kv_lens", kv_lens, block_tables.shape[:1], "to have a length per row of block_tables")
    check_dtype("kv_lens", kv_lens, INDEX_DTYPES)


def check_range(start, end, tile_kv):
    if not 0 <= start <= end:
        raise ValueError(f"start and end are {start} and {end}, but expected 0 <= start <= end")
    if tile_kv < 1 or tile_kv & (tile_kv - 1):
        raise ValueError(f"tile_kv is {tile_kv}, but expected a power of two")


def check_out(out, shape, cache):
    if out is not None:
        check_shape("out", out, shape, "to have a row for each token from start to end")
        check_dtype("out", out, (cache.dtype,))


def check_devices(cache, *others):
    for other in others:
        if other is not None and other.device != cache.device:
            shape = list(other.shape)
            raise ValueError(f"a tensor of shape {shape} is on {other.device}, but expected cache's {cache.device}")


# --- what only the values tell -----------------------------------------------------------------------------------


def validate(inputs):
    """Refuse lengths and block ids that point outside; reads the values, so a GPU has to be waited for."""
    num_blocks, block_size = inputs.k_cache.shape[:2]
    check_lens(inputs.kv_lens, inputs.block_tables.shape[1] * block_size)
    first_keys = torch.zeros_like(inputs.kv_lens)
    check_block_ids(inputs.block_tables, inputs.kv_lens, block_size, num_blocks, first_keys)
