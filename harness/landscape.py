"""`python -m harness.landscape`: what kernels do where contracts are silent, measured: the table in docs/landscape.md.

Each question is one small case that asks one thing. It is put to a subject whatever that subject declares of it: a
declaration says what is drawn, and this table says what would come out.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import click
import msgspec

from harness.adapters import PROJECTS, adapters
from harness.case import FAR, NEW_TOKENS, Case, InvalidCase, Seq, Slots, States, Tile, replace
from harness.columns import markdown_table
from harness.commands import Verb, one_line_errors
from harness.corpus import versions
from harness.fixed import fixed_cases, seed_of
from harness.folders import PACKAGE
from harness.pool import Died, Worker
from harness.profiles import whole_profile
from harness.results import SEVERITY, Finding, Result
from harness.subjects import SUBJECTS, Declaration, WrongUse

#: Seconds for one question, and for one drawn case: both may compile.
SECONDS = 60.0
#: Clean cases of each subject, and how many times as many are drawn at most where some are declined.
CASES, MOST_DRAWN = 100, 4
EXECUTOR = "gridsim"

#: Files in which an error says that a kernel has no form for what was asked.
ADAPTERS = {path.name for path in (PACKAGE / "adapters").glob("*.py")}

#: What a finding is in a cell, by its kind; of any other kind, which needs a second call to show, nothing is told here.
WORDS = {
    "crash": "crash",
    "hang": "hang",
    "exception": "declined by an error",
    "overflow write": "writes out of reach",
    "bad write": "writes out of reach",
    "wrote outside": "writes out of reach",
    "overflow read": "reads out of reach",
    "bad read": "reads out of reach",
    "not finite": "NaN",
    "unwritten output": "unwritten",
    "wrong shape": "wrong",
    "inputs changed": "wrong",
    "wrong cache": "wrong",
    "inexact": "wrong",
    "accuracy": "wrong",
    "dead data read": "wrong",
    "uninitialised read": "wrong",
    "race": "race",
}


#: What an adapter does to its kernel's inputs as the project's server would, and what a question puts in its place.
BARE: dict[str, Callable[..., Any]] = {
    "aligned_table": lambda tables, *_: tables,
    "starts_without_padding": lambda inputs: inputs.query_starts,
}


@dataclass(frozen=True)
class Question:
    """What is asked: how the plain case changes, and which declarations and translations are set aside for it."""

    name: str
    changes: Callable[[Case], Case]
    opens: dict[str, Any] = field(default_factory=dict)
    bare: tuple[str, ...] = ()  # names in BARE


def _with(**changes: Any) -> Callable[[Case], Case]:
    return lambda case: replace(case, **changes)


def _empty(case: Case) -> Case:
    return replace(case, seqs=(case.seqs[0], Seq(query_len=1, kv_len=0, tag=7), *case.seqs[1:]))


def _narrow(case: Case) -> Case:
    """The longest sequence comes last, so that what is beyond its row is beyond the table."""
    return replace(case, extra_columns=0, seqs=tuple(sorted(case.seqs, key=lambda seq: seq.kv_len)))


_STRIDES: dict[str, Any] = {"layouts": None, "kv_strides_apart": True}
PLAIN = Question("plain", lambda case: case)
_CACHES = (
    Question("far blocks", _with(placement="far"), {"placements": None}),
    Question("odd strides", _with(layout="padded"), _STRIDES),
    Question("V strided otherwise", _with(layout="nhd", v_layout="padded"), _STRIDES),
)
ATTENDING = (
    PLAIN,
    Question("empty row", _empty, {"empty_rows": True}, bare=("starts_without_padding",)),
    Question(
        "NaN in dead slots",
        _with(k_poison="nan", v_poison="nan", spare_poison="nan"),
        {"finite_dead_slots": False},
    ),
    Question("table as wide as needed", _narrow, bare=("aligned_table",)),
    Question("-1 padding", _with(table_pad="minus_one"), {"padded_table": False}),
    Question("huge padding", _with(table_pad="huge"), {"padded_table": False}),
    *_CACHES,
    Question("sliced q", _with(q_layout="fused_qkv"), {"q_layouts": None}),
    Question("int64 table", _with(table_dtype="int64"), {"table_dtypes": None}),
)
WRITING = (
    PLAIN,
    Question("slot -1", _with(slots=Slots(holes=1))),
    Question("padded tail", _with(slots=Slots(tail_padding=2))),
    *_CACHES,
    Question("sliced K and V", _with(q_layout="fused_qkv"), {"q_layouts": None}),
    Question("int64 slots", _with(table_dtype="int64"), {"table_dtypes": None}),
    Question("int32 slots", _with(table_dtype="int32"), {"table_dtypes": None}),
)
MERGING = (
    PLAIN,
    Question("an empty state", _with(states=States(partition=(3, 5), empty=(0,)))),
    Question("all states empty", _with(states=States(partition=(3, 5), empty=(0, 1)))),
    Question("sliced states", _with(q_layout="fused_qkv"), {"q_layouts": None}),
)
#: Title, operations, questions: a table each.
TABLES = (
    ("Attention", ("decode", "extend", "step", "gather"), ATTENDING),
    ("Writes into the cache", ("cache_write",), WRITING),
    ("Merges of partial states", ("merge",), MERGING),
)


def plain(declared: Declaration) -> Case:
    """A small case in the middle of what is declared: ragged, shuffled, with room in its table and zeros where dead."""
    whole = whole_profile(declared)
    size, longest = whole.block_sizes[0], whole.max_kv_len
    new = 2 if declared.op in NEW_TOKENS else 1
    lens = (min(2 * size + 3, longest), min(size, longest), min(5, longest))
    heads = (4, 2) if (4, 2) in whole.heads else whole.heads[0]
    return Case(
        op=declared.op,  # type: ignore[arg-type]
        seqs=tuple(Seq(query_len=min(new, length), kv_len=length, tag=tag) for tag, length in enumerate(lens)),
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=whole.head_dims[0],
        block_size=size,
        dtype=whole.dtypes[0],
        kv_dtype=whole.kv_dtypes[0],
        new_kv=whole.new_kv[0],
        placement="shuffled" if "shuffled" in whole.placements else whole.placements[0],  # type: ignore[arg-type]
        table_dtype=whole.table_dtypes[0],  # type: ignore[arg-type]
        layout=whole.layouts[0],  # type: ignore[arg-type]
        q_layout=whole.q_layouts[0],  # type: ignore[arg-type]
        tile=Tile(1, size + 2) if declared.op == "gather" else Tile(),
        **dict.fromkeys(("k_poison", "v_poison", "spare_poison", "row_poison", "table_pad"), "zero"),  # type: ignore[arg-type]
        extra_columns=2,
        spare_blocks=1,
    )


def cell(worker: Worker, subject: str, declared: Declaration, question: Question) -> str:
    """What the subject does with it, in a word or two."""
    try:
        case = question.changes(plain(declared))
    except InvalidCase:
        return "–"
    if case.placement in FAR and declared.executors:
        return "not asked"  # its kernels are no Triton kernels, and would read gigabytes for real
    try:
        asked = worker.call(
            "harness.landscape:ask", msgspec.to_builtins(case), subject, question.name, limit_seconds=SECONDS
        )
    except Died as death:
        return WORDS[death.finding.kind]
    return told(msgspec.convert(asked, Result))


def ask(case: dict[str, Any], subject: str, name: str) -> Any:
    """Put the case of a question to the subject, some declarations set aside; to be called in a worker."""
    from harness.pipeline import run_case
    from harness.subjects import Subject, load

    drawn = msgspec.convert(case, Case)
    question = next(one for one in _questions(drawn.op) if one.name == name)
    known = load(subject, drawn.op)
    if question.name != PLAIN.name:  # whatever else it says that it cannot do is set aside as well
        declaration = msgspec.structs.replace(known.declaration, **question.opens)
        known = Subject(known.name, declaration, known.run, known.validate)
    with _bare(known.run, question.bare):
        return msgspec.to_builtins(run_case(drawn, known, EXECUTOR))


def _questions(op: str) -> tuple[Question, ...]:
    return next(questions for _, ops, questions in TABLES if op in ops)


def _bare(run: Callable[..., Any], names: tuple[str, ...]) -> AbstractContextManager[Any]:
    """The names, where the subject's module has them, stand for nothing that helps its kernel."""
    scope = getattr(run, "func", run).__globals__
    return patch.dict(scope, {name: BARE[name] for name in names if name in scope})


def told(result: Result) -> str:
    """The words for a result, the worst first."""
    if result.harness_fault:
        return "fault of the harness"
    if result.declined:
        return f"not asked: {result.declined}"
    found = sorted(result.findings, key=lambda finding: SEVERITY.index(finding.kind))
    words = dict.fromkeys(_word(finding) for finding in found if finding.kind in WORDS)
    output = [word for word in words if word in ("NaN", "unwritten", "wrong")]
    return ", ".join(word for word in words if word not in output[1:]) or "right"


def _word(finding: Finding) -> str:
    if finding.kind != "exception" or not finding.detail:
        return WORDS[finding.kind]
    error, _, place = finding.detail.partition(" ")
    if place.partition(":")[0] in ADAPTERS:
        return "cannot be passed"
    return f"{WORDS['exception']}: {error}"


@dataclass(frozen=True)
class Margins:
    """What drawn cases of a subject say of its numbers."""

    clean: int
    failing: int
    declined: int
    worst: float
    term: str


def margins(worker: Worker, subject: str, declared: Declaration, count: int) -> Margins:
    """The largest error of so many clean cases, in units of its bound; more are drawn where some are declined."""
    results: list[Result] = []
    for case in fixed_cases(declared, seed_of("landscape", subject), MOST_DRAWN * count):
        if sum(map(_clean, results)) == count:
            break
        results.append(worker.run(case, subject, SECONDS))
    clean = [result for result in results if _clean(result)]
    worst = max(clean, key=lambda result: result.margin, default=None)
    failing = sum(bool(result.findings) for result in results)
    declined = len(results) - len(clean) - failing
    return Margins(len(clean), failing, declined, worst.margin if worst else 0.0, worst.margin_term if worst else "")


def _clean(result: Result) -> bool:
    return not (result.findings or result.declined or result.harness_fault)


HEAD = """\
# Landscape

What kernels do where their contracts are silent, and how near their errors come to the derived bound. Everything here
was measured on gridsim, which runs Triton's IR on a CPU. Written by

    python -m harness.landscape > docs/landscape.md

with {versions}.

A question is one small case that changes one thing of a plain one. The plain case lies within what a subject declares,
the question is put to it whatever it declares of that. *right*: the output is within its bound, and nothing was read or
written out of reach. *declined by an error*: the call raised what is named. *NaN*: a number that should be finite is
not. *wrong*: beyond the bound, or dependent on what is dead. *unwritten*: no program wrote it. *reads out of reach*:
beyond a tensor, or at an address that wrapped round; the output may be right all the same. *cannot be passed*: the
kernel has no form for it, as a cache of slots has no odd strides. Where several hold, the worst comes first.

A kernel that does badly here has not promised otherwise: what each adapter declares, and why, is told by
`python -m harness.adapters`. A kernel that takes a list of slots or pages never sees the padding of a table, since its
adapter makes that list. Where an adapter widens a table or leaves out an empty row, as its project's server does, the
question takes that away.
"""
MARGINS = """\
## Errors

The worst error in {count} clean cases of each subject, as a part of the derived bound of its element, and what is
largest in that bound. Cases are drawn within what the subject declares, and more of them where an adapter's limits or
gridsim decline some. What has findings here is told in docs/findings. A write or a copy is compared bit by bit, and has
no error.
"""


def page(subjects: list[str], count: int, tell: Callable[[str], None] = lambda _: None) -> str:
    """The whole page for these subjects."""
    answers: dict[str, tuple[Declaration, list[str]]] = {}
    measured: dict[str, Margins] = {}
    with Worker(EXECUTOR) as worker:
        for subject in subjects:
            declared = worker.describe(subject, "decode")
            questions = _questions(declared.op)
            tell(f"{subject}: {len(questions)} questions, {count} cases")
            answers[subject] = declared, [cell(worker, subject, declared, question) for question in questions]
            measured[subject] = margins(worker, subject, declared, count)
            worker.renew()
    told_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    return "\n".join([HEAD.format(versions=told_with), *_tables(answers), *_errors(measured, count)])


def _tables(answers: dict[str, tuple[Declaration, list[str]]]) -> Iterator[str]:
    for title, ops, questions in TABLES:
        rows = [
            [subject, declared.about.partition(" (")[0] or "ours", *cells]
            for subject, (declared, cells) in answers.items()
            if declared.op in ops
        ]
        if rows:
            head = ["kernel", "of", *(question.name for question in questions)]
            yield f"## {title}\n\n{markdown_table([head, *rows])}\n"


def _errors(measured: dict[str, Margins], count: int) -> Iterator[str]:
    yield MARGINS.format(count=count)
    head = ["kernel", "clean", "with findings", "declined", "worst of the bound", "largest in the bound"]
    yield markdown_table([head, *(_error(name, found) for name, found in measured.items())]) + "\n"


def _error(name: str, found: Margins) -> list[str]:
    worst = f"{found.worst:.2f}" if found.term else "exact"
    counts = (found.clean, found.failing, found.declined)
    return [name, *map(str, counts), worst, found.term.removeprefix("which is ")]


def installed() -> list[str]:
    """Our own subjects, and every kernel that is installed here and that gridsim runs."""
    others = [
        name
        for project in PROJECTS
        for name, adapter in adapters(project).items()
        if adapter.project.installed and EXECUTOR in (adapter.declaration.executors or (EXECUTOR,))
    ]
    return [*SUBJECTS, *others]


@click.command(cls=Verb)
@click.option("--subject", "subjects", multiple=True, help="Ask this one only (default: ours, and all installed ones).")
@click.option("--cases", type=click.IntRange(1), default=CASES, show_default=True, help="Clean cases of each.")
@one_line_errors
def main(subjects: tuple[str, ...], cases: int) -> int:
    """Print what kernels do where contracts are silent, as Markdown."""
    if not (subjects or installed()):
        raise WrongUse("no kernel is installed here")
    click.echo(page(list(subjects) or installed(), cases, lambda line: click.echo(line, err=True)), nl=False)
    return 0


if __name__ == "__main__":
    main()
