"""`kvsize`: bytes of a cache, held against sums by hand."""

import pytest
from click.testing import CliRunner

from harness.case import Case, Seq
from harness.corpus import Corpus, Entry
from harness.kvsize import BLOCK_SIZES, Token, expected, in_units, lines, main

QWEN = ("--layers", "28", "--kv-heads", "8", "--head-dim", "128")


def told(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def test_a_token_of_28_layers_and_8_heads_of_128_takes_112_kib():
    found = told(*QWEN, "--dtype", "bf16", "--tokens", 40960)
    assert found[0] == "a token takes 114688 bytes (112 KiB): 28 layers x 8 KV heads x 2 x 128 x 2 bytes"
    assert found[1] == "40960 tokens: 4.375 GiB"  # 114688 * 40960 / 2**30


@pytest.mark.parametrize(("dtype", "size"), [("fp8", 57344), ("e5m2", 57344), ("fp16", 114688), ("float32", 229376)])
def test_the_type_counts(dtype, size):
    assert told(*QWEN, "--dtype", dtype, "--tokens", 1)[0].startswith(f"a token takes {size} bytes")


def test_mla_keeps_one_vector_a_token_and_v_may_have_another_dim():
    assert told("--layers", 61, "--mla", 576, "--tokens", 1)[0].startswith("a token takes 70272 bytes")
    assert Token(2, 4, 192, 128, 2).bytes == 2 * 4 * (192 + 128) * 2


def cells(line):
    return [cell for cell in line.split("  ") if cell]


def test_what_is_left_unused_is_counted_for_given_lengths():
    """Lengths 1, 16 and 17: of blocks of 16 they take 1, 1 and 2, so 64 slots for 34 tokens."""
    found = told(
        "--layers", 1, "--kv-heads", 1, "--head-dim", 8, "--dtype", "fp16", "--lengths", "1,16,17", "--max-len", 100
    )
    rows = {cells(line)[0]: [cell.strip() for cell in cells(line)[1:]] for line in found[4:-1]}
    assert rows["preallocated for 100"][:5] == ["300", "9.375 KiB", "266", "8.312 KiB", "88.7%"]
    assert rows["blocks of 16"] == ["64", "2 KiB", "30", "960 bytes", "46.9%", "720 bytes"]
    assert rows["blocks of 1"][:3] == ["34", "1.062 KiB", "0"]


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_the_expected_waste_is_the_mean_over_all_remainders(size):
    """Lengths 1 to size have each remainder once, so their waste is exactly what is expected of so many."""
    token = Token(1, 1, 1, 1, 1)
    lens = tuple(range(1, size + 1))
    row = next(line for line in lines(token, lens, size) if line.startswith(f"blocks of {size} "))
    assert float(row.split()[6]) == expected(size, len(lens))


def test_lengths_may_come_from_what_was_recorded(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.add(Entry(why="w", case=Case(seqs=(Seq(kv_len=9),))))
    corpus.add(Entry(why="w", case=Case(seqs=(Seq(kv_len=9), Seq(kv_len=8, tag=1)))))
    assert told(*QWEN, "--recorded", tmp_path)[1].startswith("2 sequences of 8 to 9 tokens: 1.859 MiB for 17 tokens")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*QWEN,), "got no length, but expected one of --tokens, --lengths, --recorded"),
        ((*QWEN, "--tokens", 5, "--lengths", "3"), "got --tokens and --lengths, but expected one of"),
        ((*QWEN, "--lengths", "3,x"), "'x' in '3,x' is no length, which is a number from 0"),
        ((*QWEN, "--lengths", "²"), "is no length, which is a number from 0"),
        ((*QWEN, "--lengths", "9" * 5000), "is no length, which is a number from 0"),
        ((*QWEN, "--tokens", 50, "--max-len", 40), "--max-len is 40, but a sequence has 50 tokens"),
        ((*QWEN, "--tokens", 0), "Invalid value for '--tokens'"),
        ((*QWEN, "--tokens", 1, "--mla", 576), "--mla is 576, but MLA keeps one vector for all heads"),
        (("--layers", 2, "--tokens", 1), "--kv-heads is None and --head-dim None, but both are needed, or --mla"),
        ((*QWEN, "--tokens", 1, "--dtype", "int3"), "'int3' is not one of"),
        ((*QWEN, "--recorded", "/none"), "profile is '/none', but it cannot be read"),
    ],
)
def test_wrong_use_is_one_line_with_the_value(arguments, message):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert message in result.stderr


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (3 * 2**40, "3 TiB"), (2**60, "1.049e+06 TiB")],
)
def test_sizes_are_told_in_the_largest_unit_of_which_there_is_one(size, words):
    assert in_units(size) == words
