"""`python -m harness.doctor`: what this machine can run, and whether its arithmetic is as the error bound assumes."""

import contextlib
import datetime
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec

from harness.commands import (
    FAULT,
    NOTHING_RAN,
    Verb,
    check_writable,
    chosen_executor,
    device_option,
    one_line_errors,
)
from harness.corpus import triton_settings, versions
from harness.folders import folder
from harness.machine import Fact, host
from harness.platforms import PLATFORMS, Platform
from harness.pool import Died, HarnessFault, Worker
from harness.tables import Measured, Table, save, tell

#: Seconds that one probe may take; a GPU may have to compile first.
PROBE_SECONDS = 120.0


@click.command(cls=Verb)
@click.option(
    "--executor",
    type=click.Choice(["gridsim", "gpu"]),
    default=None,
    help="Where the probes run. Default: gpu where there is one, else gridsim.",
)
@device_option
@click.option(
    "--save",
    "table_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write what was measured to a file that can be sent in; see docs/platforms.md.",
)
@click.option(
    "--corpus",
    type=click.Path(file_okay=False, path_type=Path),
    default=folder("corpus"),
    help="Default: the one that comes with the harness.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@one_line_errors
def main(executor: str | None, device: int | None, table_file: Path | None, corpus: Path, as_json: bool) -> int:
    """Say what this machine can run, and try to falsify every constant that the error bound takes from its platform.

    Exit code: 0 every constant holds; 1 one fails; 2 wrong use; 3 the harness is at fault; 5 nothing could be probed.
    """
    chosen = chosen_executor(executor)
    if table_file:
        check_writable("--save", table_file.absolute().parent)
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(Worker(chosen, device))
        # What gridsim changes in Triton while it runs must not reach the probes of a GPU.
        simulator = worker if chosen == "gridsim" else stack.enter_context(Worker("gridsim"))
        facts = tuple(_facts(worker, simulator, corpus, quiet=as_json))
        table = _probed(worker, chosen, quiet=as_json)
    if table_file:
        table_file.absolute().parent.mkdir(parents=True, exist_ok=True)
        save(table, table_file)
    if as_json:
        plain = {"facts": msgspec.to_builtins(facts), "table": _plain(table), "exit_code": exit_code(table)}
        click.echo(json.dumps(plain))
    else:
        click.echo("\n".join(conclusion(table, table_file)))
    return exit_code(table)


def _facts(worker: Worker, simulator: Worker, corpus: Path, quiet: bool) -> Iterator[Fact]:
    """What there is, told as it is found."""

    def told(fact: Fact) -> Fact:
        if not quiet:
            click.echo(fact_line(fact))
        return fact

    yield from (told(fact) for fact in host(corpus))
    yield from (told(msgspec.convert(fact, Fact)) for fact in worker.call("harness.machine:software"))
    yield told(msgspec.convert(simulator.call("harness.machine:simulator"), Fact))


def fact_line(fact: Fact) -> str:
    """One fact; where something is missing, what to do."""
    remedy = f" ({fact.remedy})" if fact.remedy else ""
    return f"{'missing' if fact.missing else 'ok':<8}{fact.what:<20}{fact.says}{remedy}"


def _probed(worker: Worker, executor: str, quiet: bool) -> Table:
    """Every probe, told as it ends, against the constants as they are without any table."""
    where = worker.call("harness.executors:platform_of", executor)
    known = PLATFORMS.get(where, Platform(where))
    if not quiet:
        unknown = "" if where in PLATFORMS else ", which is not known: its constants are taken to be those of an sm90"
        click.echo(f"probing the platform {where}{unknown}")
    probes = []
    for name in worker.call("harness.probes.calls:names"):
        probes.append(_probe(worker, name, executor, known))
        if not quiet:
            click.echo(f"{probes[-1].verdict:<8}{tell(probes[-1])}")
    return Table(
        platform=where,
        executor=executor,
        hardware=worker.call("harness.machine:hardware"),
        versions=versions(),
        settings=triton_settings(),
        date=datetime.date.today().isoformat(),
        command=f"python -m harness.doctor --executor {executor}",
        probes=tuple(probes),
    )


def _probe(worker: Worker, name: str, executor: str, known: Platform) -> Measured:
    """One probe; one that kills the worker leaves the others theirs."""
    try:
        found = worker.call(
            "harness.probes.calls:run_probe", name, executor, asdict(known), limit_seconds=PROBE_SECONDS
        )
        return msgspec.convert(found, Measured)
    except (Died, HarnessFault) as fault:
        reason = (str(fault).splitlines() or [""])[-1]
        return Measured(probe=name, constant="", verdict="could not be probed", reason=reason)


def exit_code(table: Table) -> int:
    """1 where a constant fails, 5 where none could be probed."""
    verdicts = {found.verdict for found in table.probes}
    if "FAILS" in verdicts:
        return 1
    return 0 if "holds" in verdicts else NOTHING_RAN if verdicts else FAULT


def conclusion(table: Table, file: Path | None) -> Iterator[str]:
    """How many held, and what to do where one did not."""
    counts = Counter(found.verdict for found in table.probes)
    yield ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    if counts["FAILS"]:
        yield f"{table.platform} is not as the error bound assumes: see the lines that begin with FAILS"
        if file is None:
            yield "  --save FILE keeps what was measured; docs/platforms.md says how it is used"
    if file is not None:
        yield f"saved: {file}"


def _plain(table: Table) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(table)
    return plain


if __name__ == "__main__":
    main()
