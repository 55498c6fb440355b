"""What a Case means, as a digest of all that is made of it; meanings.jsonl has cases and what they always meant."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.case import Case, from_json
from harness.inputs import Materials, materialise

KEPT = Path(__file__).with_suffix(".jsonl")


def kept() -> list[tuple[str, Case]]:
    """(digest, case) of every line; a line is never written anew: a case in a corpus would then mean something else."""
    lines = map(json.loads, KEPT.read_text().splitlines())
    return [(digest, from_json(json.dumps(case))) for digest, case in lines]


def meaning(case: Case) -> str:
    """A digest of shapes, places, bits and states of every tensor, of the block tables, and of what is to be written.

    Of what lies far apart only the rows in use count: the rest is as the operating system gives it.
    """
    materials, found = materialise(case), hashlib.sha256()
    for part in _parts(materials):
        found.update(part)
    return found.hexdigest()[:16]


def _parts(materials: Materials) -> Iterator[bytes]:
    for name, tensor in materials.inputs.tensors().items():
        yield f"{name} {tensor.storage.dtype} {tensor.offset} {tensor.shape} {tensor.strides}".encode()
        if tensor.storage.sparse:
            rows = materials.rows(tensor)
            yield from (np.ascontiguousarray(part[rows]).tobytes() for part in (tensor.view, tensor.state))
        else:
            yield from (tensor.storage.data.tobytes(), tensor.storage.state.tobytes())
    yield from (table.tobytes() for table in materials.geometry.tables)
    if (stored := materials.stored) is not None:
        yield from (part.tobytes() for part in (stored.blocks, stored.offsets, stored.k, stored.v))
