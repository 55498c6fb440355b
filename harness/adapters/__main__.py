"""`python -m harness.adapters`: which kernels of other projects there are adapters for, and what each leaves out."""

import json
from collections.abc import Iterator

import click
import msgspec

from harness.adapters import PROJECTS, Adapter, adapters
from harness.commands import Verb, one_line_errors


@click.command(cls=Verb)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@click.argument("projects", nargs=-1, type=click.Choice(PROJECTS))
@one_line_errors
def main(projects: tuple[str, ...], as_json: bool) -> int:
    """List the adapters of PROJECTS (default: all), what is installed of them, and what each does not draw.

    Exit code: 0; 2 wrong use.
    """
    found = [adapter for project in projects or PROJECTS for adapter in adapters(project).values()]
    if as_json:
        click.echo(json.dumps({adapter.name: _plain(adapter) for adapter in found}))
        return 0
    for adapter in found:
        for line in _lines(adapter):
            click.echo(line)
    return 0


def _plain(adapter: Adapter) -> dict[str, object]:
    project = adapter.project
    return {
        "distribution": project.distribution,
        "versions": project.versions,
        "installed": project.installed,
        "calls": list(adapter.calls),
        "declaration": msgspec.to_builtins(adapter.declaration),
    }


def _lines(adapter: Adapter) -> Iterator[str]:
    project = adapter.project
    here = f"{project.installed} is installed" if project.installed else "not installed"
    yield f"{adapter.name} ({adapter.declaration.op}): {', '.join(adapter.calls)}"
    yield f"  for {project.distribution} {project.versions}; {here}"
    yield from (f"  {note}" for note in adapter.declaration.notes())


if __name__ == "__main__":
    main()
