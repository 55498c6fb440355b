"""The planted faults: each is one text replacement in a kernel file, and what the harness must make of it."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import ours
from harness.campaign import Campaign, Plan
from harness.folders import folder as shipped
from harness.pool import Worker
from harness.summary import Summary

DECODE = "decode.py"
#: What finding and shrinking one fault may take.
SECONDS = 120.0


@dataclass(frozen=True)
class Planted:
    """One fault: replace `old` by `new` in `kernels/<file>`; the finding it must give and what its least case has."""

    name: str
    file: str
    old: str
    new: str
    story: str
    expects: str  # the family of the finding: wrong output, wrong write, exception, crash or hang
    minimal: Mapping[str, Any] = field(default_factory=dict)  # fields of Case
    dtypes: tuple[str, ...] | None = None  # where the fault has to be found, when not everywhere
    subject: str = "decode"  # the function in harness/ours.py that is hunted
    sequences: int = 1  # how many the fault needs


def kernels() -> Path:
    """Where our kernels lie."""
    return shipped("kernels")


def mutated(planted: Planted) -> str:
    """The kernel file with the fault in it."""
    source = (kernels() / planted.file).read_text()
    if source.count(planted.old) != 1:
        raise ValueError(f"{planted.name}: {planted.old!r} occurs {source.count(planted.old)} times, expected once")
    return source.replace(planted.old, planted.new)


def plant(planted: Planted, folder: Path) -> str:
    """Write the faulty kernel and a subject that declares what ours declares; returns the subject's name."""
    for kernel in kernels().glob("*.py"):
        shutil.copy(kernel, folder)
    (folder / planted.file).write_text(mutated(planted))
    subject = folder / f"subject_{planted.name.replace('-', '_')}.py"
    subject.write_text(_subject_source(planted))
    return f"{subject}:{planted.subject}"


def hunted(planted: Planted, folder: Path) -> tuple[Summary, float]:
    """Draw until the fault is found and shrunk; what the campaign says and how many seconds it took."""
    name = plant(planted, folder)
    with Worker("gridsim") as worker:
        declared = {name: worker.describe(name, getattr(ours, planted.subject).__kvetch__.op)}
        began = time.monotonic()
        plan = Plan(declared, "gridsim", SECONDS, seed=len(planted.name), stop_at_first=True)
        return Campaign(plan, worker).run(), time.monotonic() - began


def marked(faults: tuple[Planted, ...], in_ci: set[str]) -> list[Any]:
    """A parameter per fault; those that CI leaves out run nightly."""
    nightly = {planted.name: () if planted.name in in_ci else (pytest.mark.nightly,) for planted in faults}
    return [pytest.param(planted, id=planted.name, marks=nightly[planted.name]) for planted in faults]


def _subject_source(planted: Planted) -> str:
    """Our own subjects, loading the kernels that lie beside them."""
    source = Path(ours.__file__).read_text()
    if source.count(LOADS_OURS) != 1:
        raise ValueError(f"harness/ours.py should name its kernels once, by {LOADS_OURS}")
    imports = "\nfrom pathlib import Path\n\nimport msgspec\n\nfrom harness.folders import load_file\n"
    narrowed = f"\ndecode.__kvetch__ = msgspec.structs.replace(decode.__kvetch__, dtypes={planted.dtypes!r})\n"
    return imports + source.replace(LOADS_OURS, LOADS_MUTANT) + (narrowed if planted.dtypes else "")


LOADS_OURS = '_kernels = partial(load, "kernels")\n'
LOADS_MUTANT = """\
def _kernels(name):
    return load_file(Path(__file__).with_name(f"{name}.py"), f"{__name__}_{name}")


"""

#: What a case shrinks to when the fault needs nothing special.
PLAIN: Mapping[str, Any] = {
    "num_q_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 16,
    "causal": True,
    "window": (-1, -1),
    "softcap": 0.0,
    "alibi": False,
    "sinks": False,
    "scale": None,
    "want_lse": False,
    "placement": "in_order",
    "extra_columns": 0,
    "spare_blocks": 0,
    "layout": "nhd",
    "v_layout": "same",
    "q_layout": "contiguous",
    "out_layout": "allocated",
}


def without(*names: str) -> dict[str, Any]:
    """PLAIN less the fields that the fault needs, or that are one of two equally small ways to show it."""
    return {name: value for name, value in PLAIN.items() if name not in names}


BEFORE_LAUNCH = "    block_size, num_kv_heads = k_cache.shape[1:3]\n"

PLANTED = (
    Planted(
        name="last-token-dropped",
        file=DECODE,
        old="kv_len = tl.load(kv_lens_ptr + seq * stride_lens_seq).to(tl.int64)",
        new="kv_len = tl.load(kv_lens_ptr + seq * stride_lens_seq).to(tl.int64) - 1",
        story="kv_len is taken for the length without the new token",
        expects="wrong output",
        minimal=PLAIN,
    ),
    Planted(
        name="window-off-by-one",
        file=DECODE,
        old="tl.maximum(query_position - window_left, 0)",
        new="tl.maximum(query_position - window_left - 1, 0)",
        story="the window begins one key too early",
        expects="wrong output",
        minimal=without("window") | {"window": (0, -1)},
    ),
    Planted(
        name="group-by-modulo",
        file=DECODE,
        old="kv_head = head // group",
        new="kv_head = head % (tl.num_programs(1) // group)",
        story="neighbouring query heads read different KV heads instead of the same one",
        expects="wrong output",
        minimal=without("num_q_heads", "num_kv_heads") | {"num_q_heads": 4, "num_kv_heads": 2},
    ),
    Planted(
        name="k-strides-for-v",
        file=DECODE,
        old='**strides("v", v_cache, "block slot head dim")',
        new='**strides("v", k_cache, "block slot head dim")',
        story="V is read with the strides of K, which is right until the two are laid out differently",
        expects="wrong output",
        minimal=without("layout", "v_layout"),
    ),
    Planted(
        name="l-not-rescaled",
        file=DECODE,
        old="l = l * rescale + tl.sum(p, axis=0)",
        new="l = l + tl.sum(p, axis=0)",
        story="the sum keeps its old scale when the maximum moves",
        expects="wrong output",
        minimal=without("sinks"),  # two tiles show it, or a sink and one tile
    ),
    Planted(
        name="offset-in-32-bits",
        file=DECODE,
        old="block * stride_table_column).to(tl.int64)",
        new="block * stride_table_column)",
        story="block_id * stride wraps beyond 2^31 elements: both are 32 bits wide",
        expects="wrong output",
        minimal=without("placement") | {"placement": "far", "table_dtype": "int32"},
    ),
    Planted(
        name="table-padding-used",
        file=DECODE,
        old="""\
    for block in range(first_key // block_size, tl.cdiv(kv_len, block_size)):
        block_id = tl.load(block_tables_ptr + seq * stride_table_seq + block * stride_table_column).to(tl.int64)
        position = block * block_size + slot  # [TILE_KV]
        visible = (slot < block_size) & (position >= first_key) & (position < kv_len)  # [TILE_KV]
""",
        new="""\
    for block in range(first_key // block_size, tl.cdiv(kv_len, block_size) + 1):
        block_id = tl.load(block_tables_ptr + seq * stride_table_seq + block * stride_table_column).to(tl.int64)
        position = block * block_size + slot  # [TILE_KV]
        beyond = block * block_size >= kv_len
        visible = (slot < block_size) & (position >= first_key) & ((position < kv_len) | beyond)  # [TILE_KV]
""",
        story="the loop takes one table entry beyond the last used one, and the mask lets its block through",
        expects="wrong output",
        minimal=PLAIN,
    ),
    Planted(
        name="stale-v-times-zero",
        file=DECODE,
        old="v = tl.load(v_cache_ptr + v_offset, mask=in_tile, other=0.0)",
        new="in_block = (slot < block_size)[:, None] & in_head_v[None, :]\n"
        "        v = tl.load(v_cache_ptr + v_offset, mask=in_block, other=0.0)",
        story="the score of a dead slot is masked, but its V is multiplied by the weight 0: NaN stays NaN",
        expects="wrong output",
        minimal=PLAIN,
    ),
    Planted(
        name="empty-row-nan",
        file=DECODE,
        old="    l = tl.where(l == 0.0, 1.0, l)\n",
        new="",
        story="a sequence without keys divides 0 by 0",
        expects="wrong output",
        minimal=PLAIN,
    ),
    Planted(
        name="scale-off-by-one-per-cent",
        file=DECODE,
        old="scale=1.0 / math.sqrt(head_dim) if scale is None else float(scale),",
        new="scale=1.01 * (1.0 / math.sqrt(head_dim) if scale is None else float(scale)),",
        story="the scale is 1 % too large, well inside the usual tolerances for fp16",
        expects="wrong output",
        minimal=PLAIN | {"dtype": "float16"},
        dtypes=("float16",),
    ),
    Planted(
        name="one-scale-for-all-rows",
        file=DECODE,
        old=BEFORE_LAUNCH,
        new=BEFORE_LAUNCH
        + """\
    largest = torch.exp2(torch.floor(torch.log2(q.abs().max().float()))).item()
    q, scale = q / largest, largest * (1.0 / math.sqrt(head_dim) if scale is None else scale)
""",
        story="q is scaled by its largest element, a graph's padding rows included, so that their NaN is everybody's",
        expects="wrong output",
        minimal=PLAIN | {"padding_rows": 1},
    ),
    Planted(
        name="raises",
        file=DECODE,
        old=BEFORE_LAUNCH,
        new=BEFORE_LAUNCH
        + """\
    if block_size == 24:
        raise KeyError(f"no tile for block_size {block_size}")
""",
        story="a table of tuned tiles has no entry for one block size",
        expects="exception",
        minimal=PLAIN | {"block_size": 24},
    ),
    Planted(
        name="dies",
        file=DECODE,
        old=BEFORE_LAUNCH,
        new=BEFORE_LAUNCH
        + """\
    if int(kv_lens.max()) > 40:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGSEGV)
""",
        story="a sequence of more than 40 tokens takes the whole process down",
        expects="crash",
        minimal=PLAIN,
    ),
    Planted(
        name="hangs",
        file=DECODE,
        old=BEFORE_LAUNCH,
        new=BEFORE_LAUNCH
        + """\
    while sinks is not None:
        import time

        time.sleep(1)
""",
        story="a call with sinks never comes back",
        expects="hang",
        minimal=without("sinks") | {"sinks": True},
    ),
)
