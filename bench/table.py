"""Figures as a Markdown table, ready to be kept."""

import statistics
from collections.abc import Sequence


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table whose first column is text and whose others are figures."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    print(f"\n### {title}\n")
    for line in (lines[0], rule, *lines[1:]):
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def middle(values: Sequence[float], digits: int = 2) -> str:
    """The median with the range it came from."""
    words = [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{words[0]} ({words[1]}–{words[2]})"


def ratio(value: float, peer: float) -> str:
    return f"{value / peer:.2f}" if peer else "–"


def bound(what: str, found: str, is_met: bool) -> None:
    """The verdict on what was promised, in a line of its own."""
    print(f"\nbound: {what}: {found}, {'met' if is_met else 'NOT met'}", flush=True)
