"""Landmarks: the lines of a kernel where each step of attention stands, read from its IR, and how sentences end."""

import re
from collections.abc import Iterable, Iterator

from harness.executors.gridsim import Op
from harness.reading import Kernel, kernel_of

#: Step to its lines, "decode.py:54".
Landmarks = dict[str, tuple[str, ...]]

#: What is said of each.
WORDS = {
    "table": "the block table is read at {}",
    "K": "K is read at {}",
    "V": "V is read at {}",
    "scores": "scores are summed at {}",
    "normaliser": "the normaliser is summed at {}",
    "output": "the output is summed at {}",
}
#: More lines of one step than these lead nowhere.
MOST = 3
_MARK = re.compile("\x00(\\w+)\x00")


def at(*names: str) -> str:
    """The end of a sentence whose fault is in these steps; `told` says where they are."""
    return "".join(f"\x00{name}\x00" for name in names)


def told(sentence: str, known: Landmarks) -> str:
    """The sentence with the lines of the steps that it ends with, as far as they are known."""

    def line(mark: re.Match[str]) -> str:
        lines = known.get(mark[1], ())
        return f"; {WORDS[mark[1]].format(' and '.join(lines))}" if 0 < len(lines) <= MOST else ""

    return _MARK.sub(line, sentence)


def landmarks(ttir: Iterable[str]) -> Landmarks:
    """Those of the kernels that were launched."""
    found: dict[str, dict[str, None]] = {name: {} for name in WORDS}
    for text in dict.fromkeys(ttir):
        for name, ops in _steps(kernel_of(text)):
            found[name] |= dict.fromkeys(str(op.line) for op in ops)
    return {name: tuple(lines) for name, lines in found.items()}


def _steps(kernel: Kernel) -> Iterator[tuple[str, list[Op]]]:
    """Each step with the operations that are it; one that a loop carries is where the loop's next value is made."""
    score_sums, output_sums, normalisers = kernel.sorted_sums()
    score_dots, output_dots = kernel.sorted_dots()
    scores, outputs = score_sums + score_dots, output_sums + output_dots
    if not outputs:  # no exponential is in it
        outputs = _fed_by(kernel, scores)
        scores = [op for op in scores if op not in outputs]
    keys, values = ([op for op in _loads(kernel, sums) if _is_paged(kernel, op)] for sums in (scores, outputs))
    values = [op for op in values if op not in keys]
    tables = [op for load in keys + values for op in _loads(kernel, [load], behind=False)]
    # A length may decide which tile is read, but is not looked up again for each.
    yield "table", [op for op in tables if op.results[0] in kernel.repeated] or tables
    yield "K", keys
    yield "V", values
    yield "scores", scores
    yield "normaliser", _carried(kernel, normalisers)
    yield "output", _carried(kernel, outputs)


def _fed_by(kernel: Kernel, sums: list[Op]) -> list[Op]:
    """Those that are made of others of them."""
    names = {op.results[0] for op in sums}
    return [op for op in sums if names & {name for operand in op.operands for name in kernel.ancestors(operand)}]


def _loads(kernel: Kernel, ops: list[Op], behind: bool = True) -> list[Op]:
    """Loads that the operations take their numbers from; of a load itself, those that its address is made of."""
    names = [name for op in ops for name in (op.operands if behind else op.operands[:1])]
    found = (kernel.defined.get(value) for name in names for value in kernel.ancestors(name))
    return list({op.results[0]: op for op in found if op is not None and op.name in LOADS}.values())


#: Loads by pointer and by descriptor.
LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather")


def _is_paged(kernel: Kernel, load: Op) -> bool:
    """Whether it is K or V and not q or the table: numbers, loaded again in each turn of a loop."""
    return load.results[0] in kernel.repeated and not load.result_types[0].element.startswith("i")


def _carried(kernel: Kernel, sums: list[Op]) -> list[Op]:
    """Where the loop's next value is made of the sums; the sums themselves where no loop carries them."""
    names = {op.results[0] for op in sums}
    carried = [name for op in kernel.ops if op.name == "scf.yield" for name in op.operands]
    found = [kernel.defined[name] for name in carried if name in kernel.defined and names & set(kernel.ancestors(name))]
    return found or sums
