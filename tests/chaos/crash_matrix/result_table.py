"""Table of a matrix run, for the terminal."""

from collections.abc import Iterable

from tests.chaos.crash_matrix.crash_run import NOT_REACHED
from tests.chaos.crash_matrix.matrix import VICTIMS, MatrixRun, Result
from tests.chaos.crash_matrix.steps import AFTER, BEFORE
from tests.selection import EVERYTHING

LEGEND = (
    "seconds from the crash to convergence; r: a retry was counted, g: GC removed leftovers,\n"
    "  -: not reached (the step depends on when the coordinator observes)"
)
_COLUMNS = [(target, side) for target in VICTIMS for side in (BEFORE, AFTER)]
_WIDTH = 56


def render_table(title: str, matrix_run: MatrixRun, seconds: float) -> str:
    """Return a table of every crash; in `make test`, one line that names the chosen ones."""
    return _table(title, matrix_run, seconds) if EVERYTHING else _line_of(title, matrix_run, seconds)


def _line_of(title: str, matrix_run: MatrixRun, seconds: float) -> str:
    crashes = "; ".join(result.cell.title for result in matrix_run.results)
    return (
        f"\n{title}: {len(matrix_run.results)} of {len(matrix_run.cells)} crashes, {seconds:.0f} s: {crashes}"
    )


def _table(title: str, matrix_run: MatrixRun, seconds: float) -> str:
    rows: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for result in matrix_run.results:
        for point in result.cell.points:
            rows.setdefault((point.process, point.step), {})[result.cell.target, point.side] = _mark(result)
    lines = [
        "",
        _headline(title, matrix_run, len(rows), seconds),
        f"  {LEGEND}",
        _line("", [target if side == BEFORE else "" for target, side in _COLUMNS]),
    ]
    lines.append(_line("step", [side for _, side in _COLUMNS]))
    lines += [_line(f"{of}: {step}", [row.get(c, "") for c in _COLUMNS]) for (of, step), row in rows.items()]
    return "\n".join(lines)


def _headline(title: str, matrix_run: MatrixRun, steps: int, seconds: float) -> str:
    failed = sum(not result.outcome.ok for result in matrix_run.results)
    head = f"{title}: {len(matrix_run.results)} crashes at {steps} steps, {failed} failed, {seconds:.0f} s"
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(matrix_run.skipped.items()))
    return f"{head}; points left out: {reasons or 'none'}"


def _mark(result: Result) -> str:
    summary = result.outcome.summary
    if not result.outcome.ok:
        return "FAILED"
    if summary == NOT_REACHED:
        return "-"
    return f"{result.outcome.seconds:.2f}" + "r" * ("retry" in summary) + "g" * ("GC" in summary)


def _line(step: str, marks: Iterable[str]) -> str:
    shown = step if len(step) <= _WIDTH else f"{step[: _WIDTH - 3]}..."
    return f"  {shown:<{_WIDTH}} " + " ".join(f"{mark:>8}" for mark in marks)
