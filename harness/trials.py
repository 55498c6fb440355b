"""Other projects' recipes tried on a mutant: case by case, until one fails that does not fail without the fault."""

import time
from pathlib import Path
from typing import Literal

import msgspec

from harness.case import Record
from harness.mutants import Mutant, plant
from harness.pool import Died, Worker
from harness.recipes import Recipe, recipes

Outcome = Literal["found", "missed", "out of time", "declined", "fails as it is", "no recipe"]

#: Seconds after which a case is killed, and those in which the subject as it is must pass for that to be a hang.
CASE_SECONDS, USUAL_SECONDS = 60.0, 10.0
#: How the message of one that was killed begins.
HANG = "hang: "


class Trial(Record, frozen=True):
    """What became of one recipe on one mutant."""

    recipe: str  # its name; nothing where there is none for the operation
    outcome: Outcome
    seconds: float = 0.0  # from the first case until one failed, or to the end
    cases: int = 0  # run in that time; those that the subject declines are none of them
    message: str = ""  # what failed, or why the case was declined


def trials(worker: Worker, mutant: Mutant, op: str, folder: Path, seconds: float) -> tuple[Trial, ...]:
    """One for each recipe of the operation, in a fresh worker; no case begins after so many seconds of a recipe.

    A dtype that the fault names for our own hunt narrows nothing here, since a suite brings its own.
    """
    if not recipes(op):
        return (Trial(recipe="", outcome="no recipe"),)
    worker.renew()
    subject = plant(msgspec.structs.replace(mutant, dtypes=None), folder)
    worker.describe(subject, op)
    return tuple(_tried(worker, recipe, mutant.subject, subject, seconds) for recipe in recipes(op))


def _tried(worker: Worker, recipe: Recipe, as_it_is: str, subject: str, seconds: float) -> Trial:
    began, cases, declined = time.monotonic(), 0, ""

    def trial(outcome: Outcome, message: str = "") -> Trial:
        taken = round(time.monotonic() - began, 3)
        return Trial(recipe=recipe.name, outcome=outcome, seconds=taken, cases=cases, message=message)

    for number in range(len(recipe.cases)):
        if time.monotonic() - began >= seconds:
            return trial("out of time")
        said = _verdict(worker, recipe, number, subject, CASE_SECONDS)
        declined = declined or said["declined"]
        cases += not said["declined"]
        if said["fails"]:
            return _confirmed(trial("found", said["fails"]), worker, recipe, number, as_it_is)
    return trial("missed") if cases else trial("declined", declined)


def _confirmed(found: Trial, worker: Worker, recipe: Recipe, number: int, as_it_is: str) -> Trial:
    """The same, unless the case fails without the fault as well; one that is slow without it does not hang."""
    hangs = found.message.startswith(HANG)
    said = _verdict(worker, recipe, number, as_it_is, USUAL_SECONDS if hangs else CASE_SECONDS)
    if not said["fails"]:
        return found
    slow = hangs and said["fails"].startswith(HANG)
    return msgspec.structs.replace(found, outcome="out of time" if slow else "fails as it is", message=said["fails"])


def _verdict(worker: Worker, recipe: Recipe, number: int, subject: str, limit: float) -> dict[str, str]:
    """What the suite says of one case; a worker that dies or hangs has failed it."""
    try:
        said: dict[str, str] = worker.call("harness.peers:verdict", recipe.name, number, subject, limit_seconds=limit)
    except Died as death:
        return {"declined": "", "fails": f"{death.finding.kind}: {death.finding.message}"}
    return said
