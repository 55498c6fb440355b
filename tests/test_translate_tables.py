"""Block tables, freed blocks and padding rows, as adapters translate them, by hand."""

import pytest
import three_tokens
import torch

from harness.adapters.translate import aligned_table, freed_blocks, generation, starts_without_padding

TABLE = torch.tensor([[3, 1, -1], [2, 5, 4]], dtype=torch.int32)


def test_a_table_is_widened_to_a_multiple_of_tokens_and_names_block_0_there() -> None:
    wide = aligned_table(TABLE, block_size=16, tokens=128)
    assert wide.shape == (2, 8)
    assert wide.dtype == torch.int32
    assert wide[:, :3].equal(TABLE)
    assert not wide[:, 3:].any()


@pytest.mark.parametrize(("block_size", "columns"), [(128, 3), (256, 3), (1, 128), (24, 16)])
def test_it_holds_whole_blocks_and_whole_tiles(block_size: int, columns: int) -> None:
    assert aligned_table(TABLE, block_size, 128).shape[1] == columns


def test_a_table_that_is_wide_enough_is_not_copied() -> None:
    assert aligned_table(TABLE, 128, 128) is TABLE


def test_blocks_before_the_window_of_all_queries_are_named_as_the_first_that_is_left() -> None:
    # The queries of sequence 0 stand at 18 and 19 and see from 14 on: a block of 10 tokens is gone.
    lens = {"kv_lens": torch.tensor([20, 5]), "query_starts": torch.tensor([0, 2, 7])}
    inputs = three_tokens.given(**lens, window=(4, -1))
    assert freed_blocks(TABLE, 10, inputs).tolist() == [[1, 1, -1], [2, 5, 4]]
    assert freed_blocks(TABLE, 14, inputs).tolist() == [[1, 1, -1], [2, 5, 4]]
    assert freed_blocks(TABLE, 15, inputs).tolist() == TABLE.tolist()


def test_without_a_window_no_block_is_gone() -> None:
    assert freed_blocks(TABLE, 10, three_tokens.given(window=(-1, 3))) is TABLE


def test_padding_rows_have_no_query() -> None:
    lens = {"kv_lens": torch.tensor([20, 5, 0, 0]), "query_starts": torch.tensor([0, 2, 7, 8, 9], dtype=torch.int32)}
    starts = starts_without_padding(three_tokens.given(**lens))
    assert starts.dtype == torch.int32
    assert starts.tolist() == [0, 2, 7, 7, 7]


def test_a_wrapper_is_told_of_a_gpu_where_there_is_none() -> None:
    with generation(torch.empty(0), (9, 0)):
        assert torch.cuda.get_device_capability("cpu") == (9, 0)
