"""`record`: the call is not disturbed, what is kept is a fair sample, and no file is ever half written."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import recordings
import torch
from recordings import arguments

from harness import record, recording
from harness.case import Case, Seq
from harness.corpus import Corpus
from harness.recorded import counts
from harness.subjects import WrongUse

ROOT = Path(__file__).parent.parent
CASES = [Case(seqs=(Seq(kv_len=kv_len),), extra_columns=1) for kv_len in range(1, 61)]
CALLS = [arguments(case) for case in CASES]


@pytest.fixture
def kept(tmp_path):
    """The entries on disk, by the length of their only sequence."""

    def read():
        return {entry.case.seqs[0].kv_len: entry for _, entry in Corpus(tmp_path).entries()}

    return read


def test_a_call_returns_what_it_did_and_its_case_is_kept(tmp_path, kept):
    watched = record(recordings.decode, into=tmp_path, subject="mine.py:f")
    assert watched(**CALLS[4]) is CALLS[4]["q"]
    (entry,) = kept().values()
    assert entry.case == CASES[4]
    assert (entry.subject, entry.seen, entry.finding) == ("mine.py:f", 1, None)
    assert entry.why == "recorded from recordings.decode: kv_len 5; placement: in_order; 1 spare columns"
    assert (watched.__name__, watched.__doc__) == ("decode", recordings.decode.__doc__)


def test_as_a_decorator_it_takes_options(tmp_path, kept):
    @record(into=tmp_path, kv_lens="how_long")
    def attend(q, k_cache, v_cache, block_tables, how_long):
        return q

    attend(*(CALLS[4][name] for name in ("q", "k_cache", "v_cache", "block_tables", "kv_lens")))
    assert list(kept()) == [5]


def test_a_case_that_comes_again_is_counted_in_its_file(tmp_path, kept):
    watched = record(recordings.decode, into=tmp_path)
    for number in (4, 9, 4, 4):
        watched(**CALLS[number])
    assert {kv_len: entry.seen for kv_len, entry in kept().items()} == {5: 3, 10: 1}


@pytest.mark.parametrize("limit", [1, 10, 1000])
def test_no_more_than_the_limit_is_kept_and_its_counts_add_up(tmp_path, kept, limit):
    watched = record(recordings.decode, into=tmp_path, limit=limit)
    for call in CALLS:
        watched(**call)
    found = watched.recorder.counts()
    assert sum(entry.seen for entry in kept().values()) == found.sample == min(limit, 60)
    assert (found.calls, found.cases) == (60, len(kept()))
    assert found.looked_at < 60 or limit == 1000


def test_the_sample_is_fair_over_all_calls(tmp_path, monkeypatch):
    """Of 3 kept of 12 each call should be kept in a quarter of all runs: 75 of 300, give or take 4 sigma of 7.5."""
    often = dict.fromkeys(range(12), 0)
    digests = {recording.digest(case): number for number, case in enumerate(CASES[:12])}
    for seed in range(300):
        recorder = record(recordings.decode, into=tmp_path, limit=3).recorder
        recorder._random.seed(seed)
        monkeypatch.setattr(recorder, "_look", lambda args, kwargs: recording.Recorded(args[0], (), ()))
        monkeypatch.setattr(recorder, "_write", lambda *_: None)
        monkeypatch.setattr(recorder, "_drop", lambda *_: None)
        for case in CASES[:12]:
            recorder.before((case,), {})
        assert len(recorder._sample) == 3
        for name in recorder._sample:
            often[digests[name]] += 1
    assert all(45 <= count <= 105 for count in often.values()), often


def test_a_call_that_is_not_chosen_is_not_looked_at(tmp_path, monkeypatch):
    watched = record(recordings.decode, into=tmp_path, limit=1)
    watched(**CALLS[0])
    monkeypatch.setattr(watched.recorder._random, "randrange", lambda calls: 1)
    monkeypatch.setattr(recording.calls, "read", lambda values: pytest.fail("looked at"))
    watched(**CALLS[1])
    assert watched.recorder.counts().failed == {}
    assert watched.recorder.counts().looked_at == 1


def raising(error):
    def kernel(q, k_cache, v_cache, block_tables, kv_lens):
        raise error

    return kernel


def given(number):
    return {name: CALLS[number][name] for name in ("q", "k_cache", "v_cache", "block_tables", "kv_lens")}


def test_what_a_call_raises_comes_through_and_its_case_says_so(tmp_path, kept):
    error = RuntimeError("an illegal\nmemory access")
    watched = record(raising(error), into=tmp_path)
    with pytest.raises(RuntimeError) as raised:
        watched(**given(4))
    assert raised.value is error
    assert kept()[5].why.endswith("; raised RuntimeError: an illegal")
    assert watched.recorder.counts().raised == 1


def test_a_call_that_raised_is_kept_beside_the_sample(tmp_path, kept):
    watched = record(raising(KeyError("x")), into=tmp_path, limit=1)
    for number in range(8):
        with pytest.raises(KeyError):
            watched(**given(number))
    assert sorted(kept()) == list(range(1, 9))
    assert all("; raised KeyError" in entry.why for entry in kept().values())


def test_a_case_that_raises_again_and_again_says_so_once(tmp_path, kept, monkeypatch):
    watched = record(raising(KeyError("x")), into=tmp_path, limit=1)
    for _ in range(100):
        with pytest.raises(KeyError):
            watched(**given(4))
    assert kept()[5].why.count("raised") == 1
    looks = watched.recorder.counts().looked_at
    monkeypatch.setattr(watched.recorder._random, "randrange", lambda calls: 1)
    for _ in range(27):
        with pytest.raises(KeyError):
            watched(**given(4))
    assert (watched.recorder.counts().looked_at, watched.recorder.counts().raised) == (looks, 127)


def test_a_case_that_raised_says_so_still_when_it_comes_again_and_does_not(tmp_path, kept):
    results = iter([RuntimeError("once")])

    def attend(q, k_cache, v_cache, block_tables, kv_lens):
        for error in results:
            raise error

    watched = record(attend, into=tmp_path)
    with pytest.raises(RuntimeError):
        watched(**given(4))
    watched(**given(4))
    assert kept()[5].why.endswith("; raised RuntimeError: once")
    assert kept()[5].seen == 2


def test_wrong_arguments_raise_what_they_did(tmp_path):
    watched = record(recordings.decode, into=tmp_path)
    with pytest.raises(TypeError, match=r"decode\(\) missing 4 required positional arguments"):
        watched(1)
    assert watched.recorder.counts().failed == {"TypeError: missing a required argument: 'k_cache'": 2}


def test_a_call_that_no_case_can_hold_is_counted_with_its_reason(tmp_path, kept):
    watched = record(recordings.decode, into=tmp_path)
    for _ in range(3):
        watched(**CALLS[4] | {"causal": torch.ones(2)})
    reason = "causal is a Tensor, but should be True or False for the whole batch"
    assert watched.recorder.counts().inexpressible == {reason: 3}
    assert kept() == {}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"k_cache": None}, "k_cache is None in the call"),
        ({"block_tables": None}, "block_tables is None in the call"),
        ({"kv_lens": None}, "kv_lens and prefix_lens are None in the call"),
        ({"kv_lens": torch.full((1,), 5.0)}, "kv_lens is float32, but should be integers"),
        ({"block_tables": torch.zeros(1, 2)}, "block_tables is float32, but should be integers"),
    ],
)
def test_what_is_not_there_or_no_number_of_tokens_is_a_reason_and_no_fault(tmp_path, kept, changed, reason):
    watched = record(recordings.decode, into=tmp_path)
    watched(**CALLS[4] | changed)
    assert watched.recorder.counts().inexpressible == {reason: 1}
    assert (watched.recorder.counts().failed, kept()) == ({}, {})


def test_an_argument_that_is_not_known_is_told_in_the_notes(tmp_path, kept):
    def attend(q, k_cache, v_cache, block_tables, kv_lens, tree=None):
        return q

    watched = record(attend, into=tmp_path)
    watched(**given(4))
    watched(**given(9), tree="a tree")
    assert [kept()[kv_len].notes for kv_len in (5, 10)] == [(), ("arguments that are not known: tree",)]


def test_reasons_are_counted_by_themselves_up_to_a_number(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "REASONS", 2)
    watched = record(recordings.decode, into=tmp_path)
    for scale in (-1.0, -2.0, -3.0, -4.0, -1.0):
        watched(**CALLS[4] | {"scale": scale})
    told = watched.recorder.counts().inexpressible
    assert list(told.values()) == [2, 1, 2]
    assert list(told)[2] == "other reasons"


def test_a_fault_of_the_recorder_disturbs_nobody_and_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "recorded", lambda *_: 1 // 0)
    watched = record(recordings.decode, into=tmp_path)
    assert watched(**CALLS[4]) is CALLS[4]["q"]
    assert watched.recorder.counts().failed == {"ZeroDivisionError: integer division or modulo by zero": 1}


def test_a_disk_that_takes_nothing_disturbs_nobody(tmp_path):
    watched = record(recordings.decode, into=tmp_path / "file")
    (tmp_path / "file").touch()
    assert watched(**CALLS[4]) is CALLS[4]["q"]
    assert any("file" in reason for reason in watched.recorder.counts().failed)


def test_while_a_graph_is_captured_nothing_is_copied(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(recording, "_is_captured", lambda values: True)
    watched = record(recordings.decode, into=tmp_path)
    watched(**CALLS[4])
    assert (watched.recorder.counts().captured, watched.recorder.counts().looked_at, kept()) == (1, 0, {})


class OnDevice:
    is_cuda = True


@pytest.mark.parametrize("capturing", [True, False])
def test_capture_is_asked_of_torch_where_a_tensor_is_on_a_gpu(monkeypatch, capturing):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    assert recording._is_captured({"q": OnDevice()}) == capturing
    assert not recording._is_captured({"q": torch.zeros(1), "scale": 1.0})


@pytest.mark.gpu
def test_a_call_is_captured_into_a_graph_as_it_was(tmp_path, kept):
    def attend(q, k_cache, v_cache, block_tables, kv_lens):
        return q * 2

    values = {name: value.cuda() for name, value in given(4).items()}
    watched, graph = record(attend, into=tmp_path), torch.cuda.CUDAGraph()
    watched(**values)
    with torch.cuda.graph(graph):
        out = watched(**values)
    graph.replay()
    assert torch.equal(out, values["q"] * 2)
    assert (watched.recorder.counts().captured, watched.recorder.counts().failed) == (1, {})
    assert list(kept()) == [5]


def test_counts_are_on_disk_without_an_end_and_whole(tmp_path):
    watched = record(recordings.decode, into=tmp_path)
    for call in CALLS[:5]:
        watched(**call)
    (on_disk,) = counts(tmp_path)
    assert on_disk.calls == 4  # written when the number is a power of two
    watched.recorder.flush()
    (on_disk,) = counts(tmp_path)
    assert (on_disk.calls, on_disk.function) == (5, "recordings.decode")


def test_a_folder_that_is_gone_by_the_end_does_not_come_back(tmp_path):
    watched = record(recordings.decode, into=tmp_path / "recorded")
    watched(**CALLS[4])
    shutil.rmtree(tmp_path / "recorded")
    watched.recorder.flush()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_goes_elsewhere_records_where_it_was_told(tmp_path, monkeypatch, kept):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    watched = record(recordings.decode, into=".")
    monkeypatch.chdir(tmp_path / "elsewhere")
    watched(**CALLS[4])
    assert list(kept()) == [5]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_threads_may_call_at_once(tmp_path, kept):
    watched = record(recordings.decode, into=tmp_path)
    threads = [threading.Thread(target=lambda: [watched(**call) for call in CALLS[:20]]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.seen for entry in kept().values()} == {4}
    assert watched.recorder.counts().failed == {}


def test_a_thread_that_waits_for_its_gpu_keeps_no_other_waiting(tmp_path):
    """What the first waits for may be launched by the second, as in an all-reduce."""
    second_ran = threading.Event()

    def lens(call):
        if call["seconds"]:
            assert second_ran.wait(call["seconds"])
        return call["how_long"]

    @record(into=tmp_path, kv_lens=lens)
    def attend(q, k_cache, v_cache, block_tables, how_long, seconds):
        return q

    values = [CALLS[4][name] for name in ("q", "k_cache", "v_cache", "block_tables", "kv_lens")]
    first = threading.Thread(target=attend, args=(*values, 20))
    first.start()
    attend(*values, 0)
    second_ran.set()
    first.join()
    assert (attend.recorder.counts().failed, attend.recorder.counts().sample) == ({}, 2)


def test_a_process_that_is_forked_while_a_thread_records_goes_on(tmp_path):
    watched = record(recordings.decode, into=tmp_path)
    with watched.recorder._lock:
        child = os.fork()
        if not child:
            signal.alarm(10)  # a lock that nobody gives back ends here
            watched(**CALLS[4])
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    watched(**CALLS[4])


def test_a_compiled_function_is_compiled_as_it_was(tmp_path):
    watched = record(recordings.decode, into=tmp_path)
    compiled = torch.compile(lambda call: watched(**call) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(CALLS[4]), CALLS[4]["q"] * 2)
    assert (watched.recorder.counts().calls, watched.recorder.counts().failed) == (0, {})


def test_what_is_bound_by_partial_has_the_name_of_its_function(tmp_path):
    watched = record(functools.partial(recordings.decode, scale=1.0), into=tmp_path)
    assert watched.recorder.name == "recordings.decode"


DYING = """
import os, sys
sys.path.insert(0, "tests")
from recordings import arguments, decode
from harness import record
from harness.case import Case
def attend(q, k_cache, v_cache, block_tables, kv_lens):
    os._exit(7)
values, names = arguments(Case()), ("q", "k_cache", "v_cache", "block_tables", "kv_lens")
record(attend, into=sys.argv[1], limit=None)(*(values[name] for name in names))
"""


def test_the_call_that_takes_the_process_down_is_on_disk(tmp_path, kept):
    ran = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], cwd=ROOT, check=False)
    assert ran.returncode == 7
    assert list(kept()) == [1]


def test_no_file_is_ever_seen_half_written(tmp_path):
    """A reader that looks while calls are recorded reads whole files only."""
    watched, stop, seen = record(recordings.decode, into=tmp_path, limit=4), threading.Event(), []

    def look():
        while not stop.is_set():
            for path in tmp_path.rglob("*.json"):
                try:
                    text = path.read_text()
                except FileNotFoundError:
                    continue
                seen.append(json.loads(text)["case"]["schema"])

    reader = threading.Thread(target=look)
    reader.start()
    for call in CALLS:
        watched(**call)
    stop.set()
    reader.join()
    assert seen
    assert list(tmp_path.rglob("*.tmp")) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"limit": 0}, "limit is 0, but should be a number from 1, or None for every call"),
        ({"limit": "3"}, "limit is '3', but should be a number from 1, or None for every call"),
        ({"into": __file__}, "into is '.*test_recording.py', but .*test_recording.py is no folder"),
        ({"op": "merge"}, "op is 'merge', but should be decode, extend, step, cache_write, or None"),
        ({"lens": "kv_lens"}, "'lens' is no role"),
    ],
)
def test_wrong_use_is_told_before_any_call(options, told):
    with pytest.raises(WrongUse, match=told):
        record(recordings.decode, **options)


def test_the_function_record_is_not_hidden_by_anything():
    import harness
    import harness.recorded

    assert harness.record is recording.record
    assert callable(harness.recorded.main)
