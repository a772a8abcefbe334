"""Killed before and after every step of every operation: all converges, and the home is the same.

The steps are written down nowhere: a first run of each operation tells them. The coordinator is killed at its
steps; the job at its own, alone and together with the coordinator.
"""

import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.chaos.crash_matrix.installation import Site, open_site
from tests.chaos.crash_matrix.matrix import run
from tests.chaos.crash_matrix.scenarios import SCENARIOS, Scenario
from tests.chaos.crash_matrix.table import LEGEND, rendered
from tests.services import Services


@pytest.fixture(scope="module")
def site(services: Services) -> Iterator[Site]:
    with open_site(services) as site:
        yield site


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_killed_at_every_step(
    site: Site, scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = time.monotonic()
    async with AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(lane.connected()) for lane in site.lanes]
        results = await run(lanes, scenario, site.hashes)
    with capsys.disabled():
        print(rendered(f"{scenario.name} on a local directory", results, time.monotonic() - begun))
        print(f"  {LEGEND}")
    failed = [result for result in results if not result.outcome.ok]
    told = [f"{result.cell.replay(scenario, 'local')}\n{result.outcome.words}" for result in failed]
    assert not failed, "\n\n".join(told)
    assert results
