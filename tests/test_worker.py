"""Workers: they may crash, hang, print and hoard children; the supervisor gets an answer or a finding each time."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.case import Case
from harness.pool import Died, HarnessFault, Worker
from harness.results import RETIRE_NOTE, Finding, Result
from harness.subjects import WrongUse
from harness.worker import keep_freed_memory, set_environment

TESTS = str(Path(__file__).parent)
CASE = Case(num_q_heads=2)


# What the workers are asked to call: they import this module by name.


def segfault() -> None:
    ctypes.string_at(0)


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def say(text: str) -> int:
    sys.stdout.write(text)
    os.write(2, b"raw\n")
    return len(text)


def say_and_abort(text: str) -> None:
    say(text)
    os.abort()


def fail() -> None:
    raise KeyError("no such thing \udcff")


def leave_a_child(how: str) -> int:
    child = subprocess.Popen(["sleep", "1000"]).pid
    if how == "forked":
        child = os.fork()
        if not child:
            time.sleep(1000)
    sys.stderr.write(f"child {child}\n")
    segfault()
    return child


def die_later(seconds: float) -> None:
    if not os.fork():
        time.sleep(seconds)
        os.kill(os.getppid(), signal.SIGKILL)


def pretend(behaviour: str) -> None:
    """Put a pipeline in the place of the real one, in this worker only."""

    def run_case(case, subject, executor_name, loud=False):
        print("running", subject.name)  # noqa: T201
        if behaviour == "segfault":
            segfault()
        if behaviour == "fault":
            fail()
        if behaviour == "hang":
            spin(60)
        if behaviour == "slow":
            time.sleep(1)
        notes = (RETIRE_NOTE,) if behaviour == "retire" else ()
        return Result(case=case, subject=subject.name, executor=executor_name, notes=notes, runs=7 if loud else 1)

    module = types.ModuleType("harness.pipeline")
    module.run_case = run_case  # type: ignore[attr-defined]
    sys.modules["harness.pipeline"] = module


@contextlib.contextmanager
def worker_that_sees_the_tests(executor: str) -> Iterator[Worker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", TESTS)
        started = Worker(executor)
    with started:
        yield started


@pytest.fixture(scope="module")
def worker():
    with worker_that_sees_the_tests("gridsim") as started:
        yield started


@pytest.fixture
def subject(tmp_path):
    (tmp_path / "k.py").write_text("from harness import subjects\n@subjects.subject(window=True)\ndef f(i): ...\n")
    return f"{tmp_path}/k.py:f"


def finding(worker: Worker, target: str, *arguments: object, limit: float = 20.0) -> Finding:
    with pytest.raises(Died) as death:
        worker.call(target, *arguments, limit_seconds=limit)
    return death.value.finding


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_gone(pids: list[int], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(is_alive, pids))


def workers_of(forkserver: int) -> set[int]:
    """The worker and its spare, which is forked while the worker is already in use."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        pids = Path(f"/proc/{forkserver}/task/{forkserver}/children").read_text().split()
        if len(pids) == 2:
            return set(map(int, pids))
    raise AssertionError(f"the forkserver has the children {pids}, but should have two")


def test_the_supervisor_never_imports_torch():
    code = "import sys, harness.pool, harness.journal; print({'torch', 'triton', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(TESTS).parent)
    assert done.stdout.strip() == "set()", done.stderr


def test_a_call_returns_its_value_from_another_process(worker):
    assert worker.call("operator:add", [1], ["zwei"]) == [1, "zwei"]
    assert worker.call("os:getpid") == worker.pid != os.getpid()


def test_torch_is_loaded_before_the_fork_with_one_thread_and_without_cuda(worker):
    assert worker.call("torch:get_num_threads") == 1
    assert worker.call("torch.cuda:is_initialized") is False
    assert len(list(Path(f"/proc/{worker.call('os:getppid')}/task").iterdir())) == 1


def test_an_answer_of_many_megabytes_arrives_whole(worker):
    assert worker.call("operator:mul", "ä", 3_000_000) == "ä" * 3_000_000
    assert worker.call("builtins:len", "x" * 3_000_000) == 3_000_000


def test_what_a_subject_prints_goes_to_the_log_and_not_between_the_answers(worker):
    assert worker.call("test_worker:say", '{"value": 3}\n') == 13
    assert worker.log == '{"value": 3}\nraw\n'
    worker.call("operator:add", 1, 1)
    assert worker.log == ""


def test_a_crash_is_a_finding_that_names_the_signal_and_the_place(worker):
    found = finding(worker, "test_worker:segfault")
    assert (found.kind, found.detail) == ("crash", "SIGSEGV")
    assert "in segfault at " in found.message
    assert "test_worker.py:" in found.message


def test_an_abort_quotes_what_tells_most_of_the_log(worker):
    found = finding(worker, "test_worker:say_and_abort", "CUDA error: an illegal memory access\nthen chatter\n")
    assert (found.kind, found.detail) == ("crash", "SIGABRT")
    assert found.message.endswith("It had written: CUDA error: an illegal memory access")


def test_a_subject_that_exits_is_a_crash_with_its_status(worker):
    assert finding(worker, "sys:exit", 3).detail == "exit 3"
    assert finding(worker, "sys:exit").detail == "exit 0"
    assert finding(worker, "os:_exit", 4).detail == "exit 4"


def test_a_kill_from_outside_is_told_as_such(worker):
    found = finding(worker, "signal:raise_signal", int(signal.SIGKILL))
    assert (found.kind, found.detail) == ("crash", "SIGKILL")
    assert "killed from outside" in found.message


def test_a_hang_is_killed_at_its_limit_and_says_where_it_was(worker):
    began = time.monotonic()
    found = finding(worker, "test_worker:spin", 60.0, limit=0.3)
    assert time.monotonic() - began < 3
    assert found.kind == "hang"
    assert "No answer for 0.3 s; the limit was 0.3 s. It was in spin at " in found.message


def test_the_next_request_after_a_death_is_answered_by_the_spare(worker):
    before, restarts = worker.pid, worker.restarts
    (spare,) = workers_of(worker.call("os:getppid")) - {before}
    finding(worker, "os:abort")
    assert worker.call("os:getpid") == spare
    assert worker.restarts == restarts + 1


def test_a_renewed_worker_has_nothing_left_of_the_subjects_before(worker, subject):
    worker.describe(subject, "decode")
    used = worker.pid
    worker.renew()
    fresh = worker.pid
    worker.renew()  # it has loaded nothing yet
    assert used != fresh == worker.pid
    assert all_gone([used])
    assert worker.describe(subject, "decode").op == "decode"


def test_a_worker_that_died_between_two_requests_is_not_the_next_ones_finding(worker):
    before = worker.pid
    os.kill(before, signal.SIGKILL)
    assert all_gone([before])
    assert worker.call("os:getpid") != before


def test_the_children_of_a_crashed_worker_die_with_it_and_do_not_hide_its_death(worker):
    for how, limit in (("started", 20.0), ("forked", 0.3)):
        found = finding(worker, "test_worker:leave_a_child", how, limit=limit)
        assert (found.kind, found.detail) == ("crash", "SIGSEGV")
        child = int(found.message.rpartition("child ")[2])
        assert all_gone([child])


def test_an_exception_of_the_harness_itself_arrives_with_its_traceback(worker):
    before = worker.pid
    with pytest.raises(HarnessFault, match=r"in fail[\s\S]*KeyError"):
        worker.call("test_worker:fail")
    with pytest.raises(HarnessFault, match="object"):
        worker.call("builtins:object")  # no JSON
    assert worker.pid == before


def test_ctrl_c_reaches_no_worker(worker):
    before = worker.pid
    os.kill(before, signal.SIGINT)
    assert os.getsid(before) == before
    assert worker.call("os:getpid") == before


def test_an_interrupted_request_does_not_leave_its_answer_to_the_next(worker):
    worker.pid  # noqa: B018  # started
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(KeyboardInterrupt):
        worker.call("operator:mul", worker.call("time:sleep", 0.5), 1)
    assert worker.call("operator:add", 20, 3) == 23


def test_a_result_that_nobody_waited_for_is_not_the_next_requests(worker, subject):
    worker.call("test_worker:pretend", "clean")
    before, restarts = worker.pid, worker.restarts
    worker.begin(CASE, subject, 20.0)
    time.sleep(0.2)  # the answer is there
    assert worker.call("operator:add", 20, 3) == 23
    assert (worker.pid != before, worker.restarts) == (True, restarts)


def test_a_case_that_was_begun_runs_while_something_else_is_done(worker, subject):
    worker.call("test_worker:pretend", "slow")
    began = time.monotonic()
    result = worker.begin(CASE, subject, 20.0)
    assert time.monotonic() - began < 0.5
    time.sleep(1)
    assert result().findings == ()
    assert time.monotonic() - began < 1.6


def test_one_that_kills_the_worker_or_hangs_in_the_meantime_is_told_when_asked_for(worker, subject):
    worker.call("test_worker:pretend", "segfault")
    result = worker.begin(CASE, subject, 20.0)
    time.sleep(0.2)
    assert [found.detail for found in result().findings] == ["SIGSEGV"]
    worker.call("test_worker:pretend", "hang")
    result = worker.begin(CASE, subject, 0.2)
    time.sleep(0.4)
    assert [found.kind for found in result().findings] == ["hang"]


def test_describe_returns_what_the_subject_declares(worker, subject):
    assert worker.describe(subject, "decode").window is True


def test_a_subject_that_cannot_be_imported_is_wrong_use(worker, tmp_path):
    (tmp_path / "bad.py").write_text("import ctypes\nctypes.string_at(0)\ndef f(i): ...\n")
    with pytest.raises(WrongUse, match="there is no file"):
        worker.describe(f"{tmp_path}/none.py:f", "decode")
    with pytest.raises(WrongUse, match=r"cannot be imported: .*SIGSEGV"):
        worker.describe(f"{tmp_path}/bad.py:f", "decode")


def test_run_returns_the_result_and_passes_the_options_on(worker, subject):
    worker.call("test_worker:pretend", "clean")
    expected = Result(case=CASE, subject=subject, executor="gridsim", runs=7)
    assert worker.run(CASE, subject, 20.0, loud=True) == expected
    assert worker.log == f"running {subject}\n"


def test_a_case_that_kills_the_worker_has_a_result_all_the_same(worker, subject):
    worker.call("test_worker:pretend", "segfault")
    result = worker.run(CASE, subject, 20.0)
    assert (result.case, result.subject, result.executor) == (CASE, subject, "gridsim")
    assert [found.detail for found in result.findings] == ["SIGSEGV"]
    worker.call("test_worker:pretend", "hang")
    result = worker.run(CASE, subject, 0.2)
    assert [found.kind for found in result.findings] == ["hang"]
    assert 0.2 <= result.seconds < 3


def test_a_fault_of_the_pipeline_is_no_finding(worker, subject):
    worker.call("test_worker:pretend", "fault")
    result = worker.run(CASE, subject, 20.0)
    assert result.findings == ()
    assert "KeyError" in result.harness_fault


def test_a_worker_whose_context_is_beyond_use_retires_after_its_result(worker, subject):
    before = worker.pid
    worker.call("test_worker:pretend", "retire")
    assert worker.run(CASE, subject, 20.0).notes == (RETIRE_NOTE,)
    assert worker.pid != before
    assert all_gone([before])


def test_a_new_worker_imports_the_subject_outside_the_cases_limit(worker, tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.6)\ndef f(i): ...\n")
    worker.call("test_worker:pretend", "clean")
    assert worker.run(CASE, f"{tmp_path}/slow.py:f", 0.3).findings == ()


def test_a_round_trip_takes_under_a_millisecond_and_a_replacement_under_fifty(worker):
    def seconds() -> float:
        began = time.perf_counter()
        with contextlib.suppress(Died):
            worker.call("os:getpid") if fast else worker.call("os:_exit", 1)
        return time.perf_counter() - began

    fast = True
    assert min(seconds() for _ in range(200)) < 1e-3
    fast = False
    assert min(seconds() for _ in range(5)) < 0.05


def test_no_process_survives_a_killed_supervisor():
    code = (
        "import time; from harness.pool import Worker; w = Worker('gridsim')\n"
        "print(w.pid, w.call('os:getppid'), flush=True); time.sleep(1000)"
    )
    root = Path(TESTS).parent
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root) as supervisor:
        pid, forkserver = map(int, supervisor.stdout.readline().split())
        try:
            workers = workers_of(forkserver)
        finally:
            supervisor.kill()
    assert pid in workers
    assert all_gone([forkserver, *workers])


def test_a_dead_forkserver_takes_its_workers_along_and_is_started_anew():
    with worker_that_sees_the_tests("interpreter") as worker:
        assert worker.call("os:getenv", "TRITON_INTERPRET") == "1"
        pid, forkserver = worker.pid, worker.call("os:getppid")
        os.kill(forkserver, signal.SIGKILL)
        assert all_gone([pid])
        with pytest.raises(HarnessFault, match="forkserver for interpreter ended with SIGKILL"):
            worker.call("os:getpid")
        assert worker.call("os:getpid") != pid
    assert all_gone([worker._child.pid])


def test_a_device_is_chosen_among_those_that_the_user_left_visible():
    def chosen(device: int | None, **environ: str) -> str | None:
        set_environment("gpu", device, environ)
        return environ.get("CUDA_VISIBLE_DEVICES")

    assert chosen(None) is None
    assert chosen(1) == "1"
    assert chosen(1, CUDA_VISIBLE_DEVICES="4, GPU-ab") == "GPU-ab"
    assert chosen(None, CUDA_VISIBLE_DEVICES="4,6") == "4,6"
    with pytest.raises(WrongUse, match="device is 2, but CUDA_VISIBLE_DEVICES='4,6' leaves 2"):
        chosen(2, CUDA_VISIBLE_DEVICES="4,6")


def test_a_device_that_is_not_there_is_wrong_use_in_one_line(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with Worker("gpu", device=7) as worker, pytest.raises(WrongUse, match=r"^device is 7, but CUDA_VISIBLE_DEVICES"):
        worker.call("os:getpid")


def test_the_c_library_agrees_to_keep_freed_memory() -> None:
    assert keep_freed_memory()
