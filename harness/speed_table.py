"""A bench as tables for a terminal: one for each operation, subjects side by side on each workload."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.speeds import COPY, MATMUL, NOTHING, ONE_BY_ONE, READ, Bench, Size, Speed, wrong_lines

#: What a table is told by, under its name.
BASES = {
    "decode": "GB/s of K and V of all tokens, q and the output, each counted once, and per cent of copy",
    "extend": "TFLOP/s of 4 x head dim x query heads x pairs of a query and a key that it sees, and per cent of matmul",
    "cache_write": "GB/s of the new K and V, read and written, and per cent of copy",
}
#: Columns of the output where it goes to no terminal.
WIDTH = 160


def show(bench: Bench, console: Console | None = None) -> None:
    """Print everything that a bench has to say."""
    console = console or _console()
    for line in head(bench):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for op in BASES:
        if sizes := [size for size in bench.sizes if size.op == op and bench.of(size.name)]:
            console.print(_table(bench, op, sizes))
    for line in (*_legend(bench), *wrong_lines(bench)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def head(bench: Bench) -> Iterator[str]:
    """What was run where, and the ceilings."""
    versions = ", ".join(f"{name} {version}" for name, version in bench.versions.items())
    yield f"{bench.date}, {bench.device or bench.executor}; {versions}"
    yield f"{bench.command}"
    if bench.ceilings:
        yield f"ceilings of this run: {', '.join(ceilings(bench))}"
    if bench.scale > 1:
        yield f"workloads made {bench.scale} times smaller: right or wrong here, not timed"


def ceilings(bench: Bench) -> Iterator[str]:
    """Each in words."""
    for ceiling in bench.ceilings:
        if ceiling.name in (COPY, READ):
            yield f"{ceiling.name} {ceiling.rate / 1e9:.0f} GB/s"
        elif ceiling.name == MATMUL:
            yield f"bf16 matmul {ceiling.rate / 1e12:.0f} TFLOP/s"
        elif ceiling.name == NOTHING:
            yield f"{NOTHING} {1e3 * ceiling.milliseconds:.1f} us"


def _table(bench: Bench, op: str, sizes: list[Size]) -> Table:
    timed = any(speed.repeats for size in sizes for speed in bench.of(size.name))
    unit = "TFLOP/s" if op == "extend" else "GB/s"
    of = "% of matmul" if op == "extend" else "% of copy"
    measured = ("ms", "spread", unit, of, "x best peer") if timed else ("error / bound",)
    table = Table(title=f"{op}: {BASES[op]}" if timed else op, title_justify="left")
    table.add_column("workload", overflow="fold")
    table.add_column("subject", overflow="fold")
    for name in measured:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for size in sizes:
        for number, speed in enumerate(bench.of(size.name)):
            cells = numbers(bench, size, speed) if timed else (_margin(speed),)
            style = "strike" if speed.state == "wrong" else ""
            name = size.name if number == 0 else ""
            table.add_row(name, speed.subject, *(Text(cell, style) for cell in cells), _note(speed, timed))
        table.add_section()
    return table


def numbers(bench: Bench, size: Size, speed: Speed) -> tuple[str, str, str, str, str]:
    """Milliseconds, spread, rate, share of the ceiling, ratio to the best peer; empty where there is none."""
    if not speed.repeats:
        return ("", "", "", "", "")
    reached, peer = rate(size, speed), bench.best_peer(size.name)
    share = of_ceiling(bench, size, speed)
    return (
        f"{speed.milliseconds:.4f}",
        f"{speed.spread:.1%}",
        f"{reached / (1e12 if size.op == 'extend' else 1e9):.0f}",
        "" if share is None else f"{share:.0%}",
        "" if peer is None or speed.state == "wrong" else f"{peer.milliseconds / speed.milliseconds:.2f}",
    )


def rate(size: Size, speed: Speed) -> float:
    """Bytes in a second, or of an extend operations."""
    return (size.flops if size.op == "extend" else size.bytes_moved) / (speed.milliseconds * 1e-3)


def of_ceiling(bench: Bench, size: Size, speed: Speed) -> float | None:
    """The rate as a share of the ceiling that it is held against, None where that was not measured."""
    ceiling = bench.ceiling(MATMUL if size.op == "extend" else COPY)
    return None if ceiling is None else rate(size, speed) / ceiling.rate


def _margin(speed: Speed) -> str:
    return f"{speed.margin:.2f}" if speed.state == "right" else ""


def _note(speed: Speed, timed: bool) -> Text:
    if speed.state == "wrong":
        return Text("WRONG", "bold red")
    if speed.state in ("declined", "failed"):
        return Text(f"{speed.state}: {speed.says}", "dim" if speed.state == "declined" else "yellow")
    if not timed:
        return Text("right here, not timed")
    notes = [f"{speed.core.rpartition(':')[2]} alone"] if speed.core else []
    return Text(", ".join([*notes, *([speed.how] if speed.how == ONE_BY_ONE else [])]))


def _legend(bench: Bench) -> Iterator[str]:
    speeds = [speed for speed in bench.speeds if speed.repeats]
    if any(speed.core for speed in speeds):
        yield "FUNCTION alone: the project's function with the indices, or the plan, that its adapter made before."
    if any(speed.how == ONE_BY_ONE for speed in speeds):
        yield f"{ONE_BY_ONE}: it could not be captured as a CUDA graph, so that work of the host is in its time."
    if any(speed.is_peer for speed in speeds):
        yield "x best peer: how many times as fast as the fastest right subject of another project."
    yield from (f"{name}: {words}" for name, words in bench.about.items())
