"""`python -m harness.new`: a kernel to start from, or a function of yours as a subject."""

import ast
import sys
from pathlib import Path

import click

from harness.commands import DEFAULT_OP, Verb, check_file, one_line_errors, op_option
from harness.fields import FIELDS
from harness.files import write_atomically
from harness.source import Function, Source
from harness.subjects import WrongUse
from harness.wrapping import Doubt, Wrapped

STARTERS = Path(__file__).parent / "starters"
#: What is left of a kernel, and of the function that launches it, where the kernel is to be written.
NO_KERNEL = "pass  # yours"
NO_LAUNCH = 'raise NotImplementedError("the launch is still to be written")'


@click.command(cls=Verb)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@op_option
@click.option("--empty", is_flag=True, help="Leave the kernel's body out: a run says `not written yet`.")
@click.option("--wrap", metavar="FILE.py:FUNCTION", help="Make a function of yours a subject.")
@click.option(
    "--map",
    "said",
    multiple=True,
    metavar="NAME=FIELD",
    help="What a parameter is: a field, or a Python literal; may be given several times.",
)
@one_line_errors
def main(file: Path | None, op: str | None, empty: bool, wrap: str | None, said: tuple[str, ...]) -> int:
    """Write FILE: a naive kernel, right and short, to be replaced by yours; or with --wrap, what makes yours a subject.

    Exit code: 0 written; 2 wrong use, such as a file that is there already, or a parameter that could be two things.
    """
    if wrap is not None:
        return _wrap(file, wrap, op, said, empty)
    if file is None:
        raise WrongUse("FILE is missing: expected the name of the file to write, my_kernel.py for example")
    if said:
        raise WrongUse(f"--map is {said[0]!r}, but expected --wrap beside it")
    name = op or DEFAULT_OP
    source = Source.read(STARTERS / f"{name}.py")
    _write(file, emptied(source) if empty else source.text)
    what = f"a {name} kernel, still to be written" if empty else f"a naive {name} kernel, to be replaced by yours"
    return _next(file, name, what)


def _next(file: Path, function: str, what: str) -> int:
    click.echo(f"{file}: {what}")
    click.echo(f"next: python -m harness.fuzz --minutes 1 --subject {file}:{function}")
    return 0


def _write(file: Path, text: str) -> None:
    if file.suffix != ".py":
        raise WrongUse(f"FILE is {str(file)!r}, but expected a name that ends in .py")
    if file.exists():
        raise WrongUse(f"{file} is there already, and is not overwritten")
    check_file("FILE", file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)


def emptied(source: Source) -> str:
    """The text with the bodies of its kernels, and of what launches them, left to be written."""
    kernels, text = source.kernels(), source.text
    functions = [node for node in source.tree.body if isinstance(node, Function)]
    for function in sorted(functions, key=lambda node: -node.lineno):
        body = function.body[1:]  # behind the docstring
        first, last = source.start(body[0]), source.end(body[-1])
        rest = text[last:].partition("\n")[2]
        text = f"{text[:first]}{NO_KERNEL if function in kernels else NO_LAUNCH}\n{rest}"
    ast.parse(text)
    return text


# --- a function of somebody's ------------------------------------------------------------------------------------


def _wrap(file: Path | None, target: str, op: str | None, said: tuple[str, ...], empty: bool) -> int:
    if empty:
        raise WrongUse("--empty leaves the body of a new kernel out, but --wrap is given")
    wrapped = Wrapped.of(target, op, _pairs(said))
    while wrapped.doubts:
        wrapped = _asked(wrapped, target)
    file = file or wrapped.path.with_name(f"{wrapped.path.stem}_wrapped.py")
    if file.absolute().parent != wrapped.path.absolute().parent:
        raise WrongUse(f"FILE is {str(file)!r}, but expected a place beside {wrapped.path}, which it imports")
    _write(file, wrapped.text())
    for name, choices in wrapped.left.items():
        hint = f"; --map {name}={choices[0]} would say what it is" if choices else ""
        click.echo(f"{name} keeps its default{hint}")
    return _next(file, wrapped.function, f"{target} as a subject for {wrapped.op}: read it before you trust it")


def _pairs(said: tuple[str, ...]) -> dict[str, str]:
    """Name to meaning; raises WrongUse where one name is given two."""
    found: dict[str, str] = {}
    for words in said:
        name, meaning = _pair(words)
        if found.setdefault(name, meaning) != meaning:
            raise WrongUse(f"--map {name} is {found[name]!r} and {meaning!r}, but expected one meaning")
    return found


def _pair(words: str) -> tuple[str, str]:
    name, equals, meaning = words.partition("=")
    if not equals or not name.isidentifier() or not meaning:
        raise WrongUse(f"--map is {words!r}, but expected NAME=FIELD")
    return name, meaning


def is_asked() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _asked(wrapped: Wrapped, target: str) -> Wrapped:
    """With what was not clear said at the terminal; raises WrongUse that lists it all where nobody is asked."""
    if not is_asked():
        doubts = "; ".join(str(doubt) for doubt in wrapped.doubts)
        example = " ".join(f"--map {d.name}={next(iter(d.choices), 'FIELD')}" for d in wrapped.doubts)
        fields = (
            ""
            if all(len(d.choices) > 1 for d in wrapped.doubts)
            else f"; FIELD is one of {', '.join(_fields(wrapped.op))}"
        )
        raise WrongUse(f"{target}: {doubts}: say which with {example}, or with a Python literal{fields}")
    said = {doubt.name: _answer(doubt, wrapped.op) for doubt in wrapped.doubts[:1]}  # one answer may settle others
    return Wrapped.of(target, wrapped.op, wrapped.said | said)


def _answer(doubt: Doubt, op: str) -> str:
    choices = doubt.choices if len(doubt.choices) > 1 else _fields(op)
    for choice in choices:
        click.echo(f"  {choice:<16} {FIELDS[choice].words}")
    answer: str = click.prompt(f"{doubt.name} is", type=click.Choice(choices), show_choices=False)
    return answer


def _fields(op: str) -> tuple[str, ...]:
    """What a parameter of such a call may be."""
    return tuple(name for name, field in FIELDS.items() if field.is_of(op))


if __name__ == "__main__":
    main()
