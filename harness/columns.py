"""Rows of cells as aligned text for a terminal, and as a table for Markdown; the first row is the head."""

from collections.abc import Iterator, Sequence

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows) -> Iterator[str]:
    """A line for each row, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def markdown_table(rows: Rows) -> str:
    """The table, without a line behind it."""
    head, *rest = rows
    return "\n".join(f"| {' | '.join(map(_escaped, cells))} |" for cells in (head, ["---"] * len(head), *rest))


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")
