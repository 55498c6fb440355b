"""One process of an exam: it hunts the mutants that it is given, one after the other, each in a fresh worker."""

import os
import queue
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import msgspec

from harness.campaign import Campaign, Plan
from harness.case import Record
from harness.mutants import Mutant, plant
from harness.pool import HarnessFault, Worker
from harness.subjects import WrongUse
from harness.summary import Summary
from harness.trials import Trial, trials
from harness.verdicts import Verdict, faulty, verdict

#: Seconds that making a case smaller may take, whenever it was found.
GRACE = 60.0


class Job(Record, frozen=True):
    """One hunt: of a mutant, planted in a folder of its own within `folder`."""

    mutant: Mutant
    op: str
    seconds: float
    seed: int
    folder: str
    systematic: bool = False
    as_it_is: bool = False  # hunt the subject without the fault
    cases: int | None = None  # at most so many; None: as many as there is time for
    others: bool = False  # try other projects' recipes as well


def main(executor: str, device: int | None) -> None:
    """Answer each job on standard input by a verdict on standard output, a line each, until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    jobs: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    with Worker(executor, device) as worker:
        while True:
            answer = examine(worker, msgspec.json.decode(jobs.get(), type=Job))
            print(msgspec.json.encode(answer).decode(), file=answers, flush=True)


def _read(jobs: queue.Queue[bytes]) -> None:
    """The end of the input is the end of the exam, even in the midst of a hunt."""
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(0)


def examine(worker: Worker, job: Job) -> Verdict:
    """Hunt the mutant; what goes wrong with the harness is told in the verdict."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(dir=job.folder) as folder:
            worker.renew()
            summary = _hunt(worker, job, job.mutant.subject if job.as_it_is else plant(job.mutant, Path(folder)))
            found = verdict(job.mutant, summary, time.monotonic() - began, job.systematic)
        return msgspec.structs.replace(found, others=_others(worker, job))
    except (WrongUse, HarnessFault) as error:
        return faulty(job.mutant, str(error), job.systematic)
    except Exception:
        return faulty(job.mutant, traceback.format_exc(), job.systematic)


def _others(worker: Worker, job: Job) -> tuple[Trial, ...]:
    """What other projects' recipes say of it; none can see a fault of the judge, and no systematic mutant is shown."""
    if not job.others or job.systematic or job.as_it_is or job.mutant.is_of_judge:
        return ()
    with tempfile.TemporaryDirectory(dir=job.folder) as folder:
        return trials(worker, job.mutant, job.op, Path(folder), job.seconds)


def _hunt(worker: Worker, job: Job, subject: str) -> Summary:
    """Draw until something is found; systematic mutants are too many to be made small."""
    plan = Plan(
        subjects={subject: worker.describe(subject, job.op)},
        executor=worker.executor,
        seconds=job.seconds,
        seed=job.seed,
        max_cases=job.cases,
        stop_at_first=True,
        shrinks=not job.systematic,
        grace=GRACE,
    )
    return Campaign(plan, worker).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
