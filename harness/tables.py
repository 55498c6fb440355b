"""Tables of what `doctor` measured on a machine: one readable file each, shipped in `harness/measured/`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from harness.case import Record, decode
from harness.files import write_atomically

#: The tables that come with the harness.
FOLDER = Path(__file__).resolve().parent / "measured"

Value = float | bool | str | None


class Measured(Record, frozen=True):
    """What one probe found of one constant of a platform."""

    probe: str
    constant: str  # a field of Platform, or a property that no constant describes
    assumed: Value = None
    measured: Value = None  # the worst seen; None: not a number, or nothing was seen
    shows: str = ""  # the inputs that show the worst
    verdict: Literal["holds", "FAILS", "could not be probed"] = "holds"
    reason: str = ""  # why it could not be probed
    seconds: float = 0.0


class Table(Record, frozen=True):
    """Everything that `doctor` measured on one machine."""

    platform: str
    executor: str
    hardware: str = ""
    versions: dict[str, str] = {}
    settings: dict[str, str] = {}
    date: str = ""
    command: str = ""
    probes: tuple[Measured, ...] = ()
    schema: int = 1


def save(table: Table, path: Path) -> None:
    """Write the table; a reader never sees half of it."""
    plain = {"schema": table.schema} | msgspec.to_builtins(table)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(plain), indent=1).decode() + "\n")


def read(path: Path) -> Table:
    """One table; raises InvalidCase naming file, value and what was expected."""
    return decode(path.read_bytes(), Table, str(path))


def tables(platform: str, folder: Path = FOLDER) -> Iterator[tuple[str, Table]]:
    """The tables of that platform with their names, in the order of names."""
    for path in sorted(folder.glob("*.json")):
        table = read(path)
        if table.platform == platform:
            yield path.stem, table


def tell(found: Measured) -> str:
    """A probe's result in one line."""
    if found.verdict == "could not be probed":
        return f"{found.constant}: {found.probe}: {found.reason}"
    values = f"assumed {told(found.assumed)}, measured {told(found.measured)}"
    return f"{found.constant}: {found.probe}: {values}; {found.shows}"


def told(value: Value) -> str:
    """A value in words."""
    if value is None:
        return "no number"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
