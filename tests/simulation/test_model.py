"""Exhaustive exploration of one workspace, within a budget of events (ADR 0008)."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.selection import EVERYTHING, sample
from tests.simulation.model.scenarios import SCENARIOS, Report, explore_scenario

SMALL = 8
"""The last scenarios take a few seconds each. `make test` explores these and one of the others."""
CHOSEN = [*sample(SCENARIOS[:-SMALL], 1, "models"), *SCENARIOS[-SMALL:]]
AT_LEAST = 1_000_000
DEPTH = 100
"""Length of the longest shortest history: several operations, one after the other."""
PROCESSES = 2 if EVERYTHING else 1
"""`make test` leaves the other cores to other layers."""


# On two idle cores this takes about two minutes; on busy ones several times as long.
@pytest.mark.timeout(1800)
def test_every_reachable_state_keeps_the_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    """Distinct states are counted without their budgets, and once for all scenarios together."""
    context = multiprocessing.get_context("spawn")
    distinct: set[int] = set()
    reports: list[Report] = []
    with ProcessPoolExecutor(PROCESSES, mp_context=context, max_tasks_per_child=1) as pool:
        for report in pool.map(explore_scenario, CHOSEN):
            distinct.update(report.digests)
            reports.append(report)
    states = sum(report.states for report in reports)
    lines = ["", *(report.report() for report in reports)]
    lines.append(f"{len(distinct):,} distinct states, {states:,} with their budgets")
    with capsys.disabled():
        print(*lines, sep="\n", file=sys.stderr)
    broken = [report.broken for report in reports if report.broken is not None]
    assert not broken, "\n\n".join(broken)
    assert all(report.complete for report in reports)
    if EVERYTHING:
        assert len(distinct) >= AT_LEAST
    assert max(report.depth for report in reports) >= DEPTH
