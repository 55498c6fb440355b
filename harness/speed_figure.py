"""A bench as a figure: for each operation a row of bars by workload, as shares of the ceiling of the same run."""

from pathlib import Path
from typing import Any

from harness.commands import check_file
from harness.speed_table import of_ceiling
from harness.speeds import Bench, Size
from harness.subjects import WrongUse

#: Inches of a bar, of the margins of one part, and of the whole width.
BAR, MARGIN, WIDTH = 0.16, 1.2, 10.0


def check(file: Path | None) -> None:
    """Raise WrongUse, before anything is measured, where a figure is asked for and cannot be drawn."""
    if file is None:
        return
    check_file("--plot", file)
    formats = sorted(_library().Figure().canvas.get_supported_filetypes())
    if file.suffix[1:].lower() not in formats:
        raise WrongUse(f"--plot is {str(file)!r}, but should end in one of {', '.join(formats)}")


def _library() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise WrongUse("--plot needs matplotlib, which is not installed here: pip install 'kvetch[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(bench: Bench, file: Path) -> None:
    """Write the figure, in the format of the file's ending; raises WrongUse where there is nothing to draw."""
    pyplot, parts = _library(), _parts(bench)
    if not parts:
        raise WrongUse("--plot has nothing to draw: no subject was timed beside a ceiling")
    heights = [MARGIN + BAR * sum(len(bars) + 1 for bars in part.values()) for part in parts.values()]
    figure, axes = pyplot.subplots(
        len(parts), 1, figsize=(WIDTH, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axis, (op, part) in zip(axes[:, 0], parts.items(), strict=True):
        colours = _colours(pyplot, part)
        _bars(axis, op, part, colours)
        handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
        axis.legend(handles, colours, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize="small")
    figure.supxlabel(f"{bench.device}, {bench.date}; subjects that are wrong are left out", fontsize="small")
    figure.savefig(file)
    pyplot.close(figure)


def _parts(bench: Bench) -> dict[str, dict[str, dict[str, float]]]:
    """By operation, workload and subject, the share of the ceiling of what is right."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for size in bench.sizes:
        if bars := _shares(bench, size):
            found.setdefault(size.op, {})[size.name] = bars
    return found


def _shares(bench: Bench, size: Size) -> dict[str, float]:
    right = (speed for speed in bench.of(size.name) if speed.repeats and speed.state == "right")
    shares = {speed.subject: of_ceiling(bench, size, speed) for speed in right}
    return {name: share for name, share in shares.items() if share is not None}


def _colours(pyplot: Any, part: dict[str, dict[str, float]]) -> dict[str, Any]:
    """A colour for each subject of a part."""
    names, wheel = sorted({name for bars in part.values() for name in bars}), pyplot.get_cmap("tab20").colors
    return {name: wheel[number % len(wheel)] for number, name in enumerate(names)}


def _bars(axis: Any, op: str, part: dict[str, dict[str, float]], colours: dict[str, str]) -> None:
    place, middles = 0, []
    for bars in part.values():
        middles.append(place + (len(bars) - 1) / 2)
        for name, share in bars.items():
            axis.barh(place, 100 * share, color=colours[name], height=0.9)
            place += 1
        place += 1
    axis.set_yticks(middles, list(part), fontsize="small")
    axis.invert_yaxis()
    axis.axvline(100, color="grey", linewidth=0.8)
    axis.set_title(op, loc="left")
    axis.set_xlabel(f"per cent of {'matmul' if op == 'extend' else 'copy'}")
