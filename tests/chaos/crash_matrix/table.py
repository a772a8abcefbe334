"""The matrix as a person reads it."""

from collections.abc import Iterable

from tests.chaos.crash_matrix.matrix import WHO, Played, Result
from tests.chaos.crash_matrix.play import NOT_REACHED
from tests.chaos.crash_matrix.steps import AFTER, BEFORE
from tests.selection import EVERYTHING

LEGEND = (
    "seconds from the death until all had converged; r: a retry was counted, g: a GC removed what was left,\n"
    "  -: not reached (what is seen on the way depends on when one looks)"
)
_COLUMNS = [(who, side) for who in WHO for side in (BEFORE, AFTER)]
_WIDTH = 56


def rendered(title: str, played: Played, seconds: float) -> str:
    """Return the table of every death; in `make test` one line that names the chosen ones."""
    return _table(title, played, seconds) if EVERYTHING else _line_of(title, played, seconds)


def _line_of(title: str, played: Played, seconds: float) -> str:
    deaths = "; ".join(result.cell.title for result in played.results)
    return f"\n{title}: {len(played.results)} of {len(played.cells)} deaths, {seconds:.0f} s: {deaths}"


def _table(title: str, played: Played, seconds: float) -> str:
    rows: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for result in played.results:
        for moment in result.cell.moments:
            rows.setdefault((moment.of, moment.step), {})[result.cell.who, moment.side] = _mark(result)
    lines = [
        "",
        _headline(title, played, len(rows), seconds),
        f"  {LEGEND}",
        _line("", [who if side == BEFORE else "" for who, side in _COLUMNS]),
    ]
    lines.append(_line("step", [side for _, side in _COLUMNS]))
    lines += [_line(f"{of}: {step}", [row.get(c, "") for c in _COLUMNS]) for (of, step), row in rows.items()]
    return "\n".join(lines)


def _headline(title: str, played: Played, steps: int, seconds: float) -> str:
    failed = sum(not result.outcome.ok for result in played.results)
    head = f"{title}: {len(played.results)} deaths at {steps} steps, {failed} failed, {seconds:.0f} s"
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(played.left_out.items()))
    return f"{head}; moments left out: {reasons or 'none'}"


def _mark(result: Result) -> str:
    words = result.outcome.words
    if not result.outcome.ok:
        return "FAILED"
    if words == NOT_REACHED:
        return "-"
    return f"{result.outcome.seconds:.2f}" + "r" * ("retry" in words) + "g" * ("GC" in words)


def _line(step: str, marks: Iterable[str]) -> str:
    shown = step if len(step) <= _WIDTH else f"{step[: _WIDTH - 3]}..."
    return f"  {shown:<{_WIDTH}} " + " ".join(f"{mark:>8}" for mark in marks)
