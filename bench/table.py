"""Markdown tables of figures, and verdicts on bounds."""

import statistics
from collections.abc import Sequence


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text and whose other columns are figures."""
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


def median_and_range(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, minimum and maximum, such as `1.20 (1.10–1.40)`."""
    numbers = [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{numbers[0]} ({numbers[1]}–{numbers[2]})"


def ratio(value: float, peer: float) -> str:
    return f"{value / peer:.2f}" if peer else "–"


def print_bound(bound: str, measured: str, is_met: bool) -> None:
    """Print whether a promised bound is met."""
    print(f"\nbound: {bound}: {measured}, {'met' if is_met else 'NOT met'}", flush=True)
