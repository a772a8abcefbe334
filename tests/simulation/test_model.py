"""One workspace, and all interleavings of what may happen to it, explored exhaustively within its budgets."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.model.scenarios import SCENARIOS, Report, explored

AT_LEAST = 1_000_000
DEPTH = 100
"""Steps of the longest shortest history: several operations, one after the other."""
PROCESSES = 2


# Alone on two cores it takes about two minutes; beside other work several times as long.
@pytest.mark.timeout(900)
def test_every_reachable_state_keeps_the_contracts() -> None:
    """Distinct states are counted without what is left to spend, and once for all scenarios together."""
    context = multiprocessing.get_context("spawn")
    worlds: set[int] = set()
    reports: list[Report] = []
    with ProcessPoolExecutor(PROCESSES, mp_context=context, max_tasks_per_child=1) as pool:
        for report in pool.map(explored, SCENARIOS):
            print(report.told())
            worlds.update(report.digests)
            reports.append(report)
    broken = [report.broken for report in reports if report.broken is not None]
    assert not broken, "\n\n".join(broken)
    assert all(report.complete for report in reports)
    print(f"{len(worlds):,} distinct states, {sum(report.states for report in reports):,} with their budgets")
    assert len(worlds) >= AT_LEAST
    assert max(report.depth for report in reports) >= DEPTH
