"""Writes a stand-alone reproduction of a case: torch, triton and the kernel's own file or package are all it needs."""

import base64
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from harness.arithmetic import Arithmetic
from harness.case import Case
from harness.corpus import Entry
from harness.embedding import adapted
from harness.folders import folder
from harness.inputs import SCALAR_NAMES, TENSOR_NAMES, Materials, materialise
from harness.judge import judge
from harness.operations import gathered_tile
from harness.platforms import platform
from harness.pool import Died, Worker
from harness.report import in_words
from harness.subjects import WrongUse, is_adapted, operation
from harness.tensors import OUT_OF_REACH, Array, Storage, Tensor

#: Storage above this many bytes is described, not embedded.
EMBED_BYTES = 2**24

#: What torch calls the types of an FP8 cache.
FP8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}

#: Seconds that the kernel gets to show its IR.
RUN_SECONDS = 30.0

TEMPLATE = '''\
"""{title}

{words}
{finding}
Needs {needs} only. Runs on a GPU.{without} Written by Kvetch.
"""

import base64
import importlib.util
import os
import sys
import types
import zlib

import torch
{kernel}
DEVICE = {cuda}

def storage(dtype, elements, pieces):
    """Flat memory; everything that no piece covers may not be read."""
    flat = torch.empty(elements, dtype=dtype, device=DEVICE)
    for first, text in pieces:
        data = torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(text))), dtype=dtype)
        flat[first : first + len(data)] = data.to(DEVICE)
    return flat


def view(flat, shape, strides, offset):
    return flat.as_strided(shape, strides, offset)


{storages}

inputs = types.SimpleNamespace(
{inputs}
)
EXPECTED = {{
{expected}
}}


def count_wrong(name, got, expected, bound):
    """How many elements are outside the bound; NaN is."""
    got, expected, bound = got.double().cpu(), expected.cpu(), bound.cpu()
    wrong = ~((got == expected) | ((got - expected).abs() <= bound))
    print(f"{{name}}: {{int(wrong.sum())}} of {{wrong.numel()}} elements are outside the bound")
    for at in wrong.nonzero()[:5].tolist():
        i = tuple(at)
        is_, should, within = got[i].item(), expected[i].item(), bound[i].item()
        print(f"  {{name}}{{at}} is {{is_:.6g}}, but should be {{should:.6g}} ± {{within:.2g}}")
    return int(wrong.sum())


{call}
outputs = list(returned) if isinstance(returned, (tuple, list)) else [returned]
if inputs.out is not None:
    outputs[0] = inputs.out
sys.exit(any([count_wrong(name, got, *EXPECTED[name]) for name, got in zip(EXPECTED, outputs)]))
'''

#: How the function of a file is found.
FROM_FILE = '''
KERNEL = {file!r}
FUNCTION = {function!r}


def load(path=KERNEL, function=FUNCTION):
    """The kernel's function; a file that declares itself to Kvetch loads without it too."""
    if "harness" not in sys.modules and importlib.util.find_spec("harness") is None:
        shim = types.ModuleType("harness")
        shim.subject = lambda **declared: lambda function: function
        shim.check = shim.replay = lambda *arguments, **options: None
        sys.modules["harness"] = shim
    sys.path.insert(0, os.path.dirname(path))  # a kernel may import what lies beside it
    spec = importlib.util.spec_from_file_location("kernel_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)

'''
ATTENTION = """\
returned = load()(
    inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, {lens}
    scale=inputs.scale, window=inputs.window, causal=inputs.causal, softcap=inputs.softcap,
    alibi_slopes=inputs.alibi_slopes, sinks=inputs.sinks, k_scale=inputs.k_scale, v_scale=inputs.v_scale,
    out=inputs.out, return_lse=inputs.want_lse,
)"""
LENS = "inputs.query_starts, inputs.kv_lens, max_query_len=inputs.max_query_len,"
CONFIG = '**load(function="CONFIGS")[inputs.hints.config],'
SPLITS = "num_splits=inputs.hints.num_splits or None,"
WRITE = """\
whole = inputs.v_cache.data_ptr() != inputs.k_cache.data_ptr()  # else V is a prefix of K
load(os.path.join(os.path.dirname(KERNEL), "cache_write.py"), "paged_cache_write")(
    inputs.k_new, inputs.v_new if whole else None, inputs.k_cache, inputs.v_cache if whole else None,
    inputs.slot_mapping, k_scale=inputs.k_scale, v_scale=inputs.v_scale if whole else None,
)
"""
#: Our own subjects: the kernel's file, its function, and how it is called.
OURS = {
    "ours.decode": ("decode.py", "paged_decode", ATTENTION.format(lens="inputs.kv_lens,")),
    "ours.split_decode": (
        "split_decode.py",
        "paged_split_decode",
        ATTENTION.format(lens=f"inputs.kv_lens, num_splits=inputs.hints.num_splits or 4, {CONFIG}"),
    ),
    "ours.extend": (
        "extend.py",
        "paged_extend",
        ATTENTION.format(lens=f"{LENS} k_new=inputs.k_new, v_new=inputs.v_new, {SPLITS} {CONFIG}"),
    ),
    "ours.step": ("extend.py", "paged_extend", WRITE + ATTENTION.format(lens=f"{LENS} {SPLITS} {CONFIG}")),
    "ours.gather": (
        "gather.py",
        "paged_gather",
        "returned = load()(inputs.k_cache, inputs.block_tables, inputs.kv_lens, inputs.tile_start, inputs.tile_end)",
    ),
    "ours.merge": (
        "merge.py",
        "merge_states",
        "returned = load()(inputs.state_outs, inputs.state_lses, out=inputs.out)",
    ),
}


def script(entry: Entry, subject: str | None) -> str:
    """The text of the reproduction; raises WrongUse where no subject is known."""
    name = subject or entry.subject
    if entry.case.op == "cache_write":
        raise WrongUse("a script judges an output, but cache_write has none: use python -m harness.replay")
    if entry.case.before is not None:
        raise WrongUse("a script makes one call, but this case has one before it: use python -m harness.replay")
    kernel, call, needs = adapted(name, entry.case.op) if is_adapted(name) else _in_file(name, entry.case.op)
    materials = materialise(entry.case)
    writer = _Writer(materials)
    arithmetic, anywhere = _shown(entry.case, name)
    expected = _expected(materials, arithmetic)
    constants = [
        f'    "{name}": (view({writer.constant(truth)}), view({writer.constant(within)})),'
        for name, (truth, within) in expected.items()
    ]
    return TEMPLATE.format(
        title=entry.why,
        words=in_words(entry.case),
        finding="\n".join((entry.finding.message, *entry.finding.explains)) if entry.finding else "",
        needs=needs,
        without=" Without one it runs on a CPU." if anywhere else "",
        cuda='"cuda" if torch.cuda.is_available() else "cpu"' if anywhere else '"cuda"',
        kernel=kernel,
        call=call,
        inputs=writer.inputs(),
        expected="\n".join(constants),
        storages="\n".join(writer.lines),
    )


def _expected(materials: Materials, arithmetic: Arithmetic) -> dict[str, tuple[Array, Array]]:
    """What should come out, and how far from it each element may be; a gather is exact."""
    case = materials.case
    if case.op == "gather":
        tile = gathered_tile(materials).astype(np.float64)
        return {"out": (tile, np.zeros(tile.shape))}
    bound = judge(materials, arithmetic, platform("sm90"))
    outputs = {"out": (bound.truth, bound.out)}
    return outputs | ({"lse": (bound.truth_lse, bound.lse)} if case.want_lse else {})


def _in_file(name: str, op: str) -> tuple[str, str, str]:
    """The same of a kernel in a file."""
    file, function, call = _file(name, op)
    return FROM_FILE.format(file=file, function=function), call, "torch and triton"


def _file(name: str, op: str) -> tuple[str, str, str]:
    if name in OURS:
        if op != operation(name):
            raise WrongUse(f"subject is {name!r}, but the case is for {op}: give --subject")
        file, called, call = OURS[name]
        return str(folder("kernels") / file), called, call
    path, colon, function = name.rpartition(":")
    if not colon:
        raise WrongUse(
            f"subject is {name!r}, but a script needs one of ours, of an adapter or FILE.py:FUNCTION: give --subject"
        )
    if not Path(path).is_file():
        raise WrongUse(f"subject is {name!r}, but there is no file {path}: give --subject")
    return str(Path(path).resolve()), function, "returned = load()(inputs)"


def _shown(case: Case, subject: str) -> tuple[Arithmetic, bool]:
    """As the kernel's IR shows it, so that the bound is the finding's own; the widest where it cannot run here.

    With it, whether the call runs on a CPU as it is.
    """
    with Worker("gridsim") as worker:
        try:
            fields, anywhere = worker.call(
                "harness.pipeline:shown", msgspec.to_builtins(case), subject, limit_seconds=RUN_SECONDS
            )
        except (Died, WrongUse):
            return Arithmetic.widest(case.dtype), False
    return Arithmetic(**fields), anywhere


class _Writer:
    """Writes storages once each, and the views into them."""

    def __init__(self, materials: Materials) -> None:
        self.materials = materials
        self.lines: list[str] = []
        self._names: dict[int, str] = {}

    def inputs(self) -> str:
        """The arguments of the namespace."""
        tensors = self.materials.inputs.tensors()
        rows = [f"    {name}={self._view(tensors[name]) if name in tensors else None}," for name in TENSOR_NAMES]
        rows += [f"    {name}={_plain(getattr(self.materials.inputs, name))}," for name in SCALAR_NAMES]
        return "\n".join(rows)

    def constant(self, array: Array) -> str:
        """Arguments of `view` for a float64 array."""
        name = self._add("torch.float64", array.size, [(0, np.ascontiguousarray(array))])
        strides = tuple(stride // 8 for stride in np.ascontiguousarray(array).strides)
        return f"{name}, {array.shape}, {strides}, 0"

    def _view(self, tensor: Tensor) -> str:
        key = id(tensor.storage)
        if key not in self._names:
            self._names[key] = self._storage(tensor.storage)
        return f"view({self._names[key]}, {tensor.shape}, {tensor.strides}, {tensor.offset})"

    def _storage(self, storage: Storage) -> str:
        dtype = f"torch.{FP8.get(storage.dtype, storage.dtype)}"
        if not storage.sparse:
            return self._add(dtype, len(storage.data), [(0, storage.data)])
        return self._add(dtype, len(storage.data), list(self._used_pieces(storage)))

    def _used_pieces(self, storage: Storage) -> Iterator[tuple[int, Any]]:
        """The runs of elements that hold anything, found round the blocks or rows in use only."""
        for tensor in self.materials.inputs.tensors().values():
            if tensor.storage is not storage:
                continue
            for row in self.materials.rows(tensor).tolist():
                first = tensor.offset + row * tensor.strides[0]
                last = first + sum((n - 1) * s for n, s in zip(tensor.shape[1:], tensor.strides[1:], strict=True)) + 1
                if (storage.state[first:last] != OUT_OF_REACH).any():
                    yield first, storage.data[first:last]

    def _add(self, dtype: str, elements: int, pieces: list[tuple[int, Any]]) -> str:
        if sum(piece.nbytes for _, piece in pieces) > EMBED_BYTES:
            raise WrongUse(
                f"the case holds more than {EMBED_BYTES // 2**20} MiB of data, too much for a script: shrink it"
            )
        name = f"s{len(self.lines)}"
        texts = [(first, base64.b85encode(zlib.compress(piece.tobytes())).decode()) for first, piece in pieces]
        self.lines.append(f"{name} = storage({dtype}, {elements}, {texts!r})")
        return name


def _plain(value: Any) -> str:
    if isinstance(value, (int, float, bool, tuple)):
        return repr(value)
    fields = ", ".join(f"{name}={getattr(value, name)!r}" for name in value.__struct_fields__)
    return f"types.SimpleNamespace({fields})"
