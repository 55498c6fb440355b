"""The decode loop of the examples: recorded, replayed, and a fault found from the recording."""

import os
import subprocess
import sys

import pytest
from invoked import ROOT
from test_replay import verdicts

from harness.corpus import Corpus
from harness.recorded import counts

RIGHT = "examples/my_decode.py:my_decode"
#: A table is taken to be as wide as the longest sequence: right in tests that make it so, wrong in a server.
NARROW = ("inputs.scale, q.shape[1] // k.shape[2], table.shape[1]", "inputs.scale, q.shape[1] // k.shape[2], blocks")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """What a run of the example has recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    command = [sys.executable, "examples/decode_loop.py", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def some(recorded):
    """The first, a middle and the last of the recorded cases."""
    files = sorted(recorded.rglob("*.json"))
    return files[0], files[len(files) // 2], files[-1]


def test_every_step_is_recorded_with_what_its_table_says(recorded):
    (found,) = counts(recorded)
    assert (found.calls, found.sample, found.inexpressible, found.failed) == (12, 12, {}, {})
    cases = [entry.case for _, entry in Corpus(recorded).entries()]
    before = {(38 + step, 38 + step, 91 + step) for step in range(6)}
    after = {(44 + step, 97 + step, 15 + step) for step in range(6)}  # one has left, another has come
    assert {tuple(seq.kv_len for seq in case.seqs) for case in cases} == before | after
    assert {case.layout for case in cases} == {"kv_stacked"}
    assert {entry.subject for _, entry in Corpus(recorded).entries()} == {RIGHT}
    shared = [case for case in cases if any(seq.shared_blocks == 2 for seq in case.seqs)]
    assert len(shared) == 6  # until the sequence leaves whose blocks another starts with
    assert all(case.extra_columns + case.blocks_of(max(case.seqs, key=case.blocks_of)) == 12 for case in cases)


def test_the_right_kernel_passes_on_what_was_recorded(commands, tmp_path, some):
    assert verdicts(commands, tmp_path, *some)[:2] == (["PASSED"] * 3, 0)


def test_a_mask_that_is_off_by_one_is_found_from_the_recording(commands, tmp_path, some):
    arguments = (*some, "--subject", "examples/my_decode_wrong.py:my_decode_wrong")
    names, code, said = verdicts(commands, tmp_path, *arguments)
    assert (names, code) == (["FAILED"] * 3, 1)
    assert any("that is behind the last token" in words for words in said["verdicts"][0]["explains"])


def test_a_fault_that_needs_a_server_s_wide_table_is_found_from_the_recording(commands, tmp_path, some):
    text = (ROOT / "examples" / "my_decode.py").read_text()
    assert NARROW[0] in text
    blocks = "    blocks = -(-int(inputs.kv_lens.max()) // k.shape[1])\n    out = torch.empty("
    wrong = tmp_path / "narrow.py"
    wrong.write_text(text.replace(*NARROW).replace("    out = torch.empty(", blocks))
    assert verdicts(commands, tmp_path, some[0], "--subject", f"{wrong}:my_decode")[0] == ["FAILED"]


def test_drawing_near_the_recording_finds_the_fault_and_makes_it_small(commands, tmp_path, recorded):
    wrong = "examples/my_decode_wrong.py:my_decode_wrong"
    options = ("--minutes", 0.5, "--max-cases", 10, "--seed", 1, "--corpus", tmp_path, "--profile", recorded)
    result = commands("fuzz", "--subject", wrong, *options)
    assert result.exit_code == 1
    assert "smallest case: decode, 1 sequence of kv_len 1;" in result.stdout
