"""`show`: a case in words, its block table drawn, or a script."""

import pytest
from invoked import one_line

from harness.case import Case, Seq, to_json
from harness.corpus import Corpus, Entry
from harness.results import Finding
from harness.show import table_lines

SHARED = Case(
    seqs=(Seq(kv_len=7), Seq(kv_len=6, tag=1, shares_prefix_with=0, shared_blocks=1), Seq(kv_len=0, tag=2)),
    block_size=4,
    placement="reversed",
    spare_blocks=1,
    extra_columns=1,
)
WRONG = Finding(kind="accuracy", message="out is 1, but should be 0")


def entry(case: Case = SHARED, subject: str = "mine.py:f") -> Entry:
    versions, settings = {"torch": "2.13.0"}, {"TRITON_CACHE_DIR": "/cache"}
    return Entry(
        why="it bit us",
        case=case,
        subject=subject,
        executor="gpu",
        finding=WRONG,
        date="2026-01-02",
        versions=versions,
        settings=settings,
    )


def test_a_case_is_shown_in_words_with_why_it_is_kept_and_what_it_found(commands, tmp_path):
    path = Corpus(tmp_path).add(entry())
    lines = commands("show", path).stdout.splitlines()
    assert lines[:2] == [str(path), "kept because: it bit us"]
    assert lines[2].startswith("decode, 3 sequences of kv_len 7, 6, 0; 1 query and 1 KV heads of dim 16; block size 4")
    assert lines[3].startswith("rung 4 (GQA, odd sizes, strides); beyond the simplest: block size below 16, ")
    assert "with torch 2.13.0, TRITON_CACHE_DIR /cache" in lines
    assert lines[5:7] == ["found: accuracy in mine.py:f on gpu, 2026-01-02", "  out is 1, but should be 0"]
    assert "\n".join(lines).endswith(to_json(SHARED).rstrip())


def test_what_explains_the_finding_is_shown_and_written_into_the_script(commands, tmp_path):
    told = Finding(kind="accuracy", message="out is 1, but should be 0", explains=("token 3 has weight 0",))
    path = Corpus(tmp_path).add(Entry(why="it bit us", case=Case(), subject="ours.decode", finding=told))
    assert "  explained: token 3 has weight 0" in commands("show", path).stdout.splitlines()
    assert "out is 1, but should be 0\ntoken 3 has weight 0\n" in commands("show", path, "--script").stdout


def test_the_block_table_is_drawn_with_owners_fill_padding_and_spares():
    lines = list(table_lines(SHARED))
    assert lines[0] == "block table [3, 3] of int32 (in use | padding)"
    tables = [[int(block) for block in line.split(": ")[1].split("|")[0].split() if block != "nothing"]
              for line in lines[1:4]]  # fmt: skip
    assert [len(table) for table in tables] == [2, 2, 0]
    assert tables[0][0] == tables[1][0]
    assert lines[1].endswith(" | -1")
    assert lines[3].endswith(": nothing | -1 -1 -1")
    marks = lines[6].split()[1:]
    assert marks[tables[0][0]] == "AB"
    assert (marks[tables[0][1]], marks[tables[1][1]]) == ("a", "b")
    assert marks.count(".") == 1


def test_a_far_pool_is_told_block_by_block():
    lines = list(table_lines(Case(seqs=(Seq(kv_len=20),), placement="far")))
    told = [line for line in lines if line.startswith("  block ")]
    assert [line[-3:] for line in sorted(told, key=lambda line: line[-1])] == [": A", ": a"]


def test_a_bare_case_is_shown_as_well(commands, tmp_path):
    path = tmp_path / "case.json"
    path.write_text(to_json(Case()))
    result = commands("show", path)
    assert result.exit_code == 0
    assert "beyond the simplest: partly filled block" in result.stdout


def test_part_of_a_name_is_enough_when_it_fits_one_case(commands, tmp_path):
    path = Corpus(tmp_path).add(entry())
    assert commands("show", path.stem[-6:], "--corpus", tmp_path).stdout.splitlines()[0] == str(path)
    Corpus(tmp_path).add(entry(Case()))
    line = one_line(commands("show", "mine", "--corpus", tmp_path))
    assert line.startswith("kvetch: 'mine' fits 2 cases, but should fit one: mine-py-f-accuracy-")


def test_output_goes_to_a_file_or_nowhere(commands, tmp_path):
    path = Corpus(tmp_path / "corpus").add(entry())
    result = commands("show", path, "--output", tmp_path / "shown.txt")
    assert result.stdout == ""
    assert (tmp_path / "shown.txt").read_text().startswith(str(path))
    line = one_line(commands("show", path, "--output", tmp_path / "none" / "shown.txt"))
    assert "none" in line
    assert "No such file or directory" in line


@pytest.mark.parametrize("name", ["nothing", "/nowhere/x.json"])
def test_a_case_that_is_not_there_is_one_line(commands, tmp_path, name):
    line = one_line(commands("show", name, "--corpus", tmp_path))
    assert line == f"kvetch: {name!r} is neither a file nor part of the name of a case in {tmp_path}\n"


def test_a_file_that_is_no_case_is_one_line(commands, tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"window": [1, 2, 3]}')
    assert one_line(commands("show", path)).startswith(f"kvetch: {path}: ")


def test_a_script_of_an_unknown_subject_is_one_line(commands, tmp_path):
    path = Corpus(tmp_path).add(entry(subject=""))
    assert "give --subject" in one_line(commands("show", path, "--script"))
    told = f"subject is '{tmp_path}/none.py:f', but there is no file {tmp_path}/none.py: give --subject"
    assert told in one_line(commands("show", path, "--script", "--subject", f"{tmp_path}/none.py:f"))


def test_dense_new_tokens_and_padding_rows_are_told():
    case = Case(op="extend", new_kv="dense", seqs=(Seq(query_len=3, kv_len=20),), padding_rows=1)
    lines = list(table_lines(case))
    assert lines[1] == "  sequence 0, kv_len   20, 3 of them dense: 0 1"
    assert lines[2] == "  padding row, kv_len    0, 0 of them dense: nothing | -1 -1"
    assert lines[-1].split()[1:] == ["A", "a"]


LARGE = Case(seqs=tuple(Seq(kv_len=8192, tag=i) for i in range(64)), num_q_heads=32, num_kv_heads=8, head_dim=128)


def test_a_recorded_case_says_what_it_does_not_hold_and_a_large_one_is_not_drawn(commands, tmp_path):
    path = Corpus(tmp_path).add(Entry(why="recorded from f", case=LARGE, notes=("9 blocks are spare",)))
    lines = commands("show", path).stdout.splitlines()
    assert lines[2] == "not held: 9 blocks are spare"
    assert any(line.startswith("its block table is not drawn: the case has 1073741824 elements") for line in lines)
    for option in (("--script",), ("--html", tmp_path / "page.html")):
        assert "the case of" in one_line(commands("show", path, *option))
