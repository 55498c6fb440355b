"""The kernels of a subject compiled on both sides of a gate, for GPUs that are not here: what a change made worse."""

from collections.abc import Mapping
from typing import Any

from harness.builds import TARGETS, compare, counts
from harness.case import Case
from harness.compiles import Compiled, compile_subject
from harness.outcome import Rebuilt
from harness.pool import Died, HarnessFault
from harness.sides import Side
from harness.subjects import Declaration

TARGET_NAMES = tuple(TARGETS)


def rebuilt(
    subject: str, declared: Declaration, cases: Mapping[int, Case], from_seed: int, change: Side, base: Side | None
) -> Rebuilt:
    """What became of the builds; `cases` are numbered as drawn from the seed, the sides' workers are gridsim's.

    Where the base's cases kill its worker there is nothing to compare with. Where the change's do, nothing is known of
    its kernels: that is no loss, and not green either.
    """
    if not cases:  # another part of the gate has them
        return Rebuilt(targets=TARGET_NAMES, seed=from_seed, notes=("no case of this part is compiled",))
    now = _compiled(subject, declared, cases, change)
    was = None if base is None else _compiled(subject, declared, cases, base)
    worse = () if was and was.died else tuple(compare(was.builds if was else (), now.builds))
    return Rebuilt(
        targets=TARGET_NAMES,
        seed=from_seed,
        counts=counts(now.builds),
        worse=worse,
        notes=_notes(now, was),
        missing=f"not compiled: {now.died}" if now.died else "",
    )


def _compiled(subject: str, declared: Declaration, cases: Mapping[int, Case], side: Side) -> Compiled:
    options: dict[str, Any] = {}
    try:
        name = side.place.own_name(subject)
        return compile_subject(side.worker, name, declared, cases, TARGET_NAMES, lambda _: None, options)
    except (Died, HarnessFault) as fault:  # another Triton on a side may lack what this harness asks of it
        return Compiled(subject, died=(str(fault).strip().splitlines() or [""])[-1])


def _notes(now: Compiled, was: Compiled | None) -> tuple[str, ...]:
    unseen = "what it would have launched after that was not compiled"
    notes = [f"{line}: {unseen}" for line in now.raised]
    if was:
        notes += [f"on the base, {line}: {unseen}" for line in was.raised]
        notes += [f"not compared, for the base was not compiled: {was.died}"] if was.died else []
    return tuple(notes)
