"""Mutants: kernels with one planted fault, each one text replacement told in `mutants/*.toml`."""

import ast
import difflib
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from harness.case import Float, Record
from harness.folders import PACKAGE, folder
from harness.results import SEVERITY, Finding
from harness.subjects import SUBJECTS, WrongUse

#: What goes wrong in paged attention, by kind; a class sheet of each stands behind these names.
CLASSES = {
    "ORACLE": "the reference is wrong, or a test that cannot fail",
    "STALEMETA": "metadata planned for another shape, or a maximum taken for the true length",
    "TABLE": "entries of the block table behind the last used one are read or believed",
    "COMPILER": "the source is right, the code made of it is wrong",
    "PAGETILE": "a block size that the compute tile does not fit",
    "INT32PAGE": "block number times stride, or the number itself, in too few bits",
    "SWABOUND": "a window that begins or ends in the wrong place, or that a loop bound forgets",
    "CAUSAL": "queries are misaligned with the keys that are there already",
    "SPLITIDX": "the parts of a split are counted, sized or indexed wrongly",
    "CONTRACT": "metadata of a wrong type or length is taken in silence",
    "KVSTRIDE": "the cache is taken to be dense, or in another layout",
    "GQA": "a query head meets the wrong KV head, or group sizes that are not handled",
    "EMPTYROW": "a row without visible keys gives something else than 0 and -inf",
    "GRAPHPAD": "rows that pad a CUDA graph are computed with, or written",
    "HEADDIM": "head dims that are no power of two, large, or unlike for K and V",
    "SHARED": "a block of two sequences is changed by one of them",
    "TAIL": "what lies in the last block behind the last token reaches the arithmetic",
    "SILENTARG": "an argument is taken and ignored",
    "SLOTMAP": "new tokens are written to wrong slots, or not at all",
    "UNITS": "blocks are taken for tokens, or one kind of block for another",
    "MERGE": "partial states are merged wrongly, empty ones above all",
    "FP8SCALE": "the scale or the format of a quantised cache is lost or doubled",
    "QOSTRIDE": "views of q, of new K and V or of the output are taken to be dense",
    "UNEVEN": "one sequence's number is used for all",
    "LAUNCH": "the grid is too large or too small, an error is swallowed, output stays unwritten",
    "PHYSORDER": "blocks are taken to lie in order, or side by side",
    "RACE": "the result depends on timing, or never comes",
    "EMPTYSPLIT": "a split without keys is merged as if it had some",
    "TILEMASK": "the last tile is not masked on one path",
    "INT32OTHER": "an offset into q, output or scratch in too few bits",
    "TRITONRT": "what Triton leaves undefined, or does while it tunes",
    "GATHER": "a copy of blocks takes wrong rows",
    "FEATORDER": "a feature applied twice, in the wrong order, or on one path only",
    "EXTREME": "scores so large or small that an exponential overflows",
    "SWASTALE": "blocks before the window are loaded, whatever is in them by now",
    "DRIFT": "precision lost, or a result that depends on its neighbours",
    "FP8RANGE": "values that FP8 saturates, flushes or cannot hold",
    "ZEROQ": "sequences without queries, or exact multiples of a block",
    "MASKLOAD": "a masked load without `other`, whose undefined lanes are used",
}
#: No call with a planted fault has to show these.
BEYOND_A_CALL: frozenset[str] = frozenset()


class Edit(Record, frozen=True):
    """One replacement: `old` occurs exactly once in the file, whose path is relative to the folder of `kernels/`."""

    file: str
    old: str
    new: str


class Mutant(Record, frozen=True):
    """A fault, where it is planted, and what the harness must make of it. docs/exam.md tells each field."""

    name: str
    file: str
    old: str
    new: str
    story: str
    bug_class: str = msgspec.field(default="", name="class")
    after: tuple[str, ...] = ()
    subject: str = ""
    finds: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    dtypes: tuple[Float, ...] | None = None
    strongest: bool = False
    also: tuple[Edit, ...] = ()
    unfound: str = ""

    @property
    def edits(self) -> tuple[Edit, ...]:
        """All replacements, in their order."""
        return (Edit(file=self.file, old=self.old, new=self.new), *self.also)

    @property
    def is_ours(self) -> bool:
        """Whether one of our own subjects is changed."""
        return self.subject in SUBJECTS

    @property
    def is_of_judge(self) -> bool:
        """Whether it is no kernel that is changed, but the judge or a witness; its subject is right."""
        return self.bug_class == "ORACLE"

    def means(self, finding: Finding) -> bool:
        """Whether this is what is to be found first."""
        return not {finding.kind, finding.family}.isdisjoint(self.finds)


class _File(Record, frozen=True):
    mutant: tuple[Mutant, ...] = ()


#: What `finds` may hold: families and kinds. Those of the last two may add a detail, such as a signal.
FINDABLE = frozenset({*SEVERITY, "wrong output", "wrong write"})
#: What is found of a fault in the judge itself, of class ORACLE: witnesses disagree, exit code 3.
JUDGE = "oracle"
#: Where the judge and its witnesses are.
JUDGES = ("harness", "references")
_WITH_DETAIL = ("exception ", "crash ")
#: Written by hand beside the faults: mutants that change nothing.
NO_FAULTS = "equivalent.toml"


def read(path: Path, subject: str = "") -> list[Mutant]:
    """The faults of one TOML file, or of all in a folder; raises WrongUse naming file, fault and field.

    Those that name no subject are planted in the one that is given.
    """
    if not path.exists():
        raise WrongUse(f"mutants are to be read from {path}, but there is no such file or folder")
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    found = [(file, mutant) for file in files if file.name != NO_FAULTS for mutant in _read_file(file, subject)]
    counts = Counter(mutant.name for _, mutant in found)
    for file, mutant in found:
        if counts[mutant.name] > 1:
            raise WrongUse(f"{file}: the name {mutant.name!r} is there {counts[mutant.name]} times, expected once")
    return [mutant for _, mutant in found]


def _read_file(file: Path, subject: str) -> Iterator[Mutant]:
    try:
        mutants = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _File).mutant
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise WrongUse(f"{file}: {error}") from None
    for mutant in mutants:
        named = msgspec.structs.replace(mutant, subject=mutant.subject or subject)
        for complaint in _complaints(named):
            raise WrongUse(f"{file}: mutant {mutant.name!r}: {complaint}")
        yield named


def _complaints(mutant: Mutant) -> Iterator[str]:
    """What is wrong with its fields; that of its texts is told when it is planted."""
    if not mutant.name.replace("-", "").isalnum() or mutant.name != mutant.name.lower():
        yield "name should be a slug of small letters, digits and hyphens"
    if mutant.bug_class not in CLASSES:
        yield f"class is {mutant.bug_class!r}, expected one of {', '.join(CLASSES)}"
    if not mutant.is_ours and ".py:" not in mutant.subject:
        yield f"subject is {mutant.subject!r}, expected FILE.py:FUNCTION or one of {', '.join(SUBJECTS)}"
    if not mutant.finds:
        yield "finds is empty, expected families or kinds of findings"
    for name in mutant.finds:
        if mutant.is_of_judge != (name == JUDGE):
            yield f"finds holds {name!r}, expected {JUDGE!r} of a fault of class ORACLE, and of no other"
        elif name not in (*FINDABLE, JUDGE) and not name.startswith(_WITH_DETAIL):
            yield f"finds holds {name!r}, expected some of {', '.join(sorted(FINDABLE))}"
    for edit in mutant.edits:
        folders = JUDGES if mutant.is_of_judge else ("kernels",) if mutant.is_ours else (".",)
        if str(Path(edit.file).parent) not in folders:
            places = (str(Path(folder) / "NAME.py") for folder in folders)
            yield f"file is {edit.file!r}, expected {' or '.join(places)}"


# --- planting ----------------------------------------------------------------------------------------------------


def home(mutant: Mutant) -> Path:
    """Where the `file` of its edits is looked up: beside `kernels/`, or in the folder of a user's subject."""
    return folder("kernels").parent if mutant.is_ours else Path(mutant.subject.rpartition(":")[0]).parent


def mutated(mutant: Mutant) -> dict[str, str]:
    """Each changed file with its new text; raises WrongUse where an old text is not there once, or it is no Python."""
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        text = texts[edit.file] if edit.file in texts else _source(mutant, edit.file)
        if not edit.old or text.count(edit.old) != 1:
            times = f"occurs {text.count(edit.old)} times" if edit.old else "is empty"
            raise WrongUse(f"mutant {mutant.name!r}: old {times} in {edit.file}, expected once: {edit.old!r}")
        texts[edit.file] = text.replace(edit.old, edit.new)
    for file, text in texts.items():
        _check_syntax(mutant, file, text)
    return texts


def _check_syntax(mutant: Mutant, file: str, text: str) -> None:
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise WrongUse(f"mutant {mutant.name!r}: {file}:{error.lineno} is no Python any more: {error.msg}") from None


def diff(mutant: Mutant) -> str:
    """What is changed, as a unified diff."""
    lines: list[str] = []
    for file, text in mutated(mutant).items():
        before = _source(mutant, file).splitlines(keepends=True)
        lines += difflib.unified_diff(before, text.splitlines(keepends=True), f"a/{file}", f"b/{file}", n=2)
    return "".join(lines)


def _source(mutant: Mutant, file: str) -> str:
    path = PACKAGE.parent / file if file.startswith("harness/") else home(mutant) / file
    if not path.is_file():
        raise WrongUse(f"mutant {mutant.name!r}: file is {file!r}, but there is no {path}")
    return path.read_text(encoding="utf-8")


def plant(mutant: Mutant, where: Path) -> str:
    """Write the faulty kernel and a subject that declares what the right one declares; returns its name."""
    texts = mutated(mutant)
    _copy(folder("kernels") if mutant.is_ours else home(mutant), where)
    for file, text in texts.items():
        (where / Path(file).name).write_text(text, encoding="utf-8")
    path, _, function = mutant.subject.rpartition(":")
    if mutant.is_ours:
        function = mutant.subject.removeprefix("ours.")
        path = f"subject_{re.sub(r'[^a-z0-9]+', '_', mutant.name.lower())}.py"
        (where / path).write_text(_ours_loading_siblings(), encoding="utf-8")
    subject = where / Path(path).name
    _narrow(subject, function, mutant.dtypes)
    if mutant.is_of_judge:
        _spoiling(subject, function, texts)
    return f"{subject}:{function}"


def _copy(source: Path, where: Path) -> None:
    for file in source.glob("*.py"):
        shutil.copy(file, where)


def _narrow(subject: Path, function: str, dtypes: Iterable[str] | None) -> None:
    """Let the subject declare some dtypes only."""
    if dtypes is not None:
        declared = f"{function}.__kvetch__"
        with subject.open("a", encoding="utf-8") as file:
            file.write(f"\n\nimport msgspec\n\n{declared} = msgspec.structs.replace({declared}, dtypes={dtypes!r})\n")


def _spoiling(subject: Path, function: str, files: Iterable[str]) -> None:
    """Let the first call of the subject change the judge of the process that calls it."""
    changed = ", ".join(f'"{file}": Path(__file__).with_name("{Path(file).name}")' for file in files)
    with subject.open("a", encoding="utf-8") as text:
        text.write(f"\n\nfrom harness.spoiling import spoiling\n\n{function} = spoiling({function}, {{{changed}}})\n")


def _ours_loading_siblings() -> str:
    """Our own subjects, loading the kernels that lie beside them."""
    source = (PACKAGE / "ours.py").read_text(encoding="utf-8")
    if source.count(_LOADS_OURS) != 1:
        raise ValueError(f"harness/ours.py should name its kernels once, by {_LOADS_OURS}")
    return _IMPORTS + source.replace(_LOADS_OURS, _LOADS_SIBLINGS)


_LOADS_OURS = '_kernels = partial(load, "kernels")\n'
_IMPORTS = "\nfrom pathlib import Path\n\nfrom harness.folders import load_file\n"
_LOADS_SIBLINGS = """\
def _kernels(name):
    return load_file(Path(__file__).with_name(f"{name}.py"), f"{__name__}_{name}")


"""
