"""Every operation of Triton's IR is either run or refused with a reason, and the list in docs/ says which."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir

from harness.executors import gridsim
from harness.executors.gridsim.listing import listing, supported
from harness.executors.gridsim.operations import OPERATIONS, REFUSED

DOCUMENT = Path(__file__).parents[1] / "docs" / "gridsim-operations.md"
NAMES = [re.compile(rb"%s\.[a-z_0-9]+(?:\.[a-z_]+)*\0" % head) for head in (b"tt", b"arith", b"math", b"scf", b"cf")]


def test_every_operation_is_run_or_refused_and_none_is_both():
    assert set(OPERATIONS) == supported() | set(REFUSED)
    assert not supported() & set(REFUSED)
    assert all(REFUSED.values())


def registered(names):
    """Those of the names that the installed Triton knows: its parser says of others that they are not registered."""
    context = ir.context()
    ir.load_dialects(context)
    return {name for name in names if "unregistered" not in complaint(name, context)}


def complaint(name, context):
    """What Triton's parser says, on the process's own stderr, of an operation without operands."""
    with tempfile.NamedTemporaryFile("w+") as file, tempfile.TemporaryFile() as said:
        file.write(f'"{name}"() : () -> ()\n')
        file.flush()
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            ir.parse_mlir_module(file.name, context)
        except RuntimeError:
            pass
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        said.seek(0)
        return said.read().decode()


def test_no_operation_of_the_installed_triton_is_missing():
    library = Path(triton.__file__).parent / "_C" / "libtriton.so"
    text = library.read_bytes()
    named = {name[:-1].decode() for pattern in NAMES for name in pattern.findall(text)}
    found = registered(named)
    assert len(found) > 100
    assert found <= set(OPERATIONS)


def test_an_invented_operation_is_not_registered():
    assert registered(["tt.load", "tt.invented"]) == {"tt.load"}


def test_the_document_is_up_to_date():
    command = [sys.executable, "-m", "harness.executors.gridsim.listing"]
    written = subprocess.run(command, capture_output=True, text=True, check=True, cwd=DOCUMENT.parents[1]).stdout
    assert written == listing()
    assert DOCUMENT.read_text() == written, f"write it with: {' '.join(command[1:])} > docs/{DOCUMENT.name}"


@triton.jit
def machine(x):
    tl.store(x, tl.inline_asm_elementwise("shl.b32 $0, $1, 3;", "=r,r", [tl.load(x)], tl.int32, is_pure=True, pack=1))


@pytest.mark.parametrize("again", [False, True])
def test_a_refusal_names_the_operation_the_reason_and_the_line(again):
    line = machine.starting_line_number + 1
    with gridsim.active(), pytest.raises(gridsim.Unsupported) as raised:
        machine[(1,)](torch.zeros(1, dtype=torch.int32))
    said = str(raised.value)
    assert said.startswith("tt.elementwise_inline_asm")
    assert REFUSED["tt.elementwise_inline_asm"] in said
    assert said.endswith((f"({__file__}:{line})", f"({__file__}:{line + 1})"))
