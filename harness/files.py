"""Files that are whole or not there: a reader never sees half of one, whenever the writer dies."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace the file in one step; the temporary file lies beside it because a rename cannot cross file systems."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
