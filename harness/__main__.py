"""`kvetch VERB` and `python -m harness VERB`: the same verbs as `python -m harness.VERB`."""

import importlib

import click

from harness.commands import Verb

#: Each with the module that holds its command.
VERBS = {
    "new": "harness.new",
    "fuzz": "harness.fuzz",
    "replay": "harness.replay",
    "gate": "harness.gate",
    "corpus": "harness.keeping",
    "show": "harness.show",
    "doctor": "harness.doctor",
    "exam": "harness.exam",
    "compiles": "harness.compiles",
    "paired": "harness.paired",
    "bench": "harness.bench",
    "adapters": "harness.adapters.__main__",
    "landscape": "harness.landscape",
    "recorded": "harness.recorded",
    "kvsize": "harness.kvsize",
}


class Verbs(Verb, click.Group):
    """Imports a verb's module only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click asks so)
        """The verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The verb's command, or None for an unknown one."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(VERBS[cmd_name]).main
        return command


@click.command(cls=Verbs)
def main() -> None:
    """Kvetch complains about paged-attention kernels."""


if __name__ == "__main__":
    main()
