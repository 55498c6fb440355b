"""`recorded`: what was recorded in words, a profile of it, and cases small enough to replay."""

import pytest
from click.testing import CliRunner

from harness.case import Case, Seq, replace, to_json
from harness.corpus import Corpus, Entry, read
from harness.mix import read as read_mix
from harness.recorded import made_smaller, main
from harness.scaling import too_large

LARGE = Case(seqs=tuple(Seq(kv_len=8192, tag=i) for i in range(64)), num_q_heads=32, num_kv_heads=8, head_dim=128)
SMALL = Case(
    seqs=(Seq(kv_len=5), Seq(kv_len=40, tag=1)), layout="hnd", v_layout="nhd", dtype="float16", kv_dtype="e4m3"
)
COUNTS = (
    '{"function": "f", "calls": 9, "looked_at": 8, "sample": 5, "cases": 2, "raised": 1, "captured": 1, '
    '"inexpressible": {"causal is a Tensor": 2}, "failed": {"OSError: full": 1}}\n'
)


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "recorded"
    corpus = Corpus(found)
    corpus.add(Entry(why="recorded from f: x", case=LARGE, seen=2, notes=("90 blocks are spare",)))
    corpus.add(Entry(why="recorded from f: x; raised KeyError: 3", case=SMALL, seen=3))
    (found / "7-ab.counts").write_text(COUNTS)
    return found


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_cases_are_told_most_frequent_first_with_what_is_lost_and_what_was_counted(folder):
    result = invoke(folder)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines == [
        "seen op seqs kv_len new heads dim block type layout placement",
        "3 decode 2 5-40 1 1/1 16 16 float16, cache e4m3 hnd/nhd in_order raised",
        "2 decode 64 8192 1 32/8 128 16 float32 nhd in_order too large to replay",
        "not held by the cases:",
        "1 of 2: 90 blocks are spare",
        "f: 9 calls, 8 looked at, 5 kept in 2 cases; 1 raised, 1 while a graph was captured",
        "no Case can hold 2: causal is a Tensor",
        "recording failed for 1: OSError: full",
    ]


def test_a_profile_is_written_that_fuzz_reads(folder, tmp_path):
    assert invoke(folder, "--profile", tmp_path / "p.json").exit_code == 0
    assert [(share.seen, share.case) for share in read_mix(tmp_path / "p.json").calls] == [(3, SMALL), (2, LARGE)]


def test_smaller_cases_are_written_and_say_what_became_of_them(folder, tmp_path):
    result = invoke(folder, "--smaller", tmp_path / "small")
    assert result.stdout.endswith(f"smaller: 2 cases in {tmp_path / 'small'}\n")
    entries = {entry.seen: entry for _, entry in Corpus(tmp_path / "small").entries()}
    assert entries[3].case == SMALL
    assert too_large(entries[2].case) is None
    assert entries[2].notes == (
        "90 blocks are spare", "made smaller: 8 of 64 sequences, the longest has 256 of 8192 tokens"
    )  # fmt: skip


def test_what_is_small_stays_as_it_is():
    entry = Entry(why="w", case=SMALL)
    assert made_smaller(entry) == entry


def test_many_cases_are_counted_rather_than_listed(tmp_path):
    for kv_len in range(1, 31):
        Corpus(tmp_path).add(Entry(why="w", case=Case(seqs=(Seq(kv_len=kv_len),)), notes=(f"note {kv_len}",)))
    lines = invoke(tmp_path).stdout.splitlines()
    assert "and 10 cases more" in lines
    assert "  and 10 things more, told by `harness.show` of each case" in lines


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("x.json", "{", "x.json: Input data was truncated"),
        (
            "x.json",
            to_json(Entry(why="w", case=SMALL)).replace('"seqs"', '"lens"'),
            "unknown field `lens` - at `$.case`",
        ),
        ("x.counts", '{"function": 3}', "x.counts: Expected `str`, got `int` - at `$.function`"),
    ],
)
def test_a_spoilt_file_is_one_line_and_2(folder, name, text, told):
    (folder / name).write_text(text)
    result = invoke(folder)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert told in result.stderr


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    result = invoke(tmp_path / "none")
    assert (result.exit_code, result.stderr) == (
        2,
        f"kvetch: folder is '{tmp_path}/none', but there is no such folder\n",
    )


@pytest.mark.parametrize("option", [(), ("--profile", "p.json"), ("--smaller", "small")])
def test_a_folder_without_a_recording_is_refused_and_nothing_is_written(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    result = invoke("empty", *option)
    assert (result.exit_code, result.stderr) == (2, "kvetch: folder is 'empty', but nothing was recorded into it\n")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_calls_of_which_no_case_came_are_told_but_make_no_profile(tmp_path):
    (tmp_path / "7-ab.counts").write_text(COUNTS)
    assert invoke(tmp_path).stdout.startswith("f: 9 calls")
    result = invoke(tmp_path, "--profile", tmp_path / "p.json")
    assert (result.exit_code, "there is no recorded case in it for" in result.stderr) == (2, True)
    assert not (tmp_path / "p.json").exists()


def test_smaller_cases_go_nowhere_where_one_cannot_be_made(folder, tmp_path):
    earlier = replace(LARGE, before=replace(LARGE, num_q_heads=32))
    Corpus(folder).add(Entry(why="with a call before it", case=earlier))
    result = invoke(folder, "--smaller", tmp_path / "small", "--profile", tmp_path / "p.json")
    assert (result.exit_code, "even when made smaller" in result.stderr) == (2, True)
    assert not (tmp_path / "small").exists()
    assert not (tmp_path / "p.json").exists()


def test_smaller_cases_are_not_mixed_with_the_recording(folder):
    result = invoke(folder, "--smaller", folder)
    assert (result.exit_code, "expected another folder than the recording's" in result.stderr) == (2, True)


def test_a_profile_may_lie_in_a_new_folder(folder, tmp_path):
    assert invoke(folder, "--profile", tmp_path / "new" / "p.json").exit_code == 0
    assert read_mix(tmp_path / "new" / "p.json").calls


def test_notes_of_an_entry_are_read_back(folder):
    path = Corpus(folder).add(Entry(why="w", case=Case(), notes=("a", "b")))
    assert read(path).notes == ("a", "b")
