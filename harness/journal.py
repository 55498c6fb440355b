"""The case in flight, on disk while it runs: what took a whole supervisor down is reported by the next run."""

import os
import time
from pathlib import Path

import msgspec

from harness.case import SCHEMA, Case, Record, decode
from harness.files import write_atomically


class Entry(Record, frozen=True):
    """One case that was launched and not answered, and the process that waited for the answer."""

    case: Case
    subject: str
    executor: str
    time: float  # seconds since the epoch
    pid: int
    born: str  # tells the process from a later one that was given the same pid
    file: str  # the entry's name in the journal's folder


class Journal:
    """Keeps one file in the folder while a case is in flight."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._pid = os.getpid()
        self._born = _born(self._pid)
        self._path = folder / f"journal-{self._pid}-{os.urandom(4).hex()}.json"

    def begin(self, case: Case, subject: str, executor: str) -> None:
        """Call before the case is launched; the text is on its way to disk when this returns."""
        entry = Entry(
            case=case,
            subject=subject,
            executor=executor,
            time=time.time(),
            pid=self._pid,
            born=self._born,
            file=self._path.name,
        )
        fields = msgspec.to_builtins(entry)
        fields["case"] = {"schema": SCHEMA} | fields["case"]  # left out as a default, but the next run may be newer
        write_atomically(self._path, msgspec.json.encode(fields).decode())

    def end(self) -> None:
        """Call after the answer, whatever it was."""
        self._path.unlink(missing_ok=True)


def leftovers(folder: Path) -> list[Entry]:
    """The cases in flight of supervisors that no longer live, oldest first; `discard` each once it is dealt with."""
    found = [entry for path in sorted(folder.glob("journal-*.json")) if (entry := _read(path))]
    return sorted(found, key=lambda entry: entry.time)


def discard(folder: Path, entry: Entry) -> None:
    """Forget a leftover."""
    (folder / entry.file).unlink(missing_ok=True)


class _Owner(msgspec.Struct):
    """Of an entry, what tells whether its supervisor lives; another version's may have fields that we do not know."""

    pid: int = 0
    born: str = "?"


def _read(path: Path) -> Entry | None:
    """The entry, None while its supervisor lives."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:  # its supervisor has just had the answer
        return None
    return None if _lives(text) else decode(text, Entry, str(path))


def _lives(text: bytes) -> bool:
    try:
        owner = msgspec.json.decode(text, type=_Owner)
    except msgspec.MsgspecError:  # for `decode` to complain about
        return False
    return _born(owner.pid) == owner.born


def _born(pid: int) -> str:
    """Boot and clock tick at which the process started; empty when there is none, or only its remains."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name in parentheses may hold spaces and parentheses; state is the 3rd field, start time the 22nd.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else f"{boot} {fields[19]}"
