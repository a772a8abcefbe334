"""Killed before and after every step of every operation: all converges, and the home is the same.

The steps are written down nowhere: a first run of each operation tells them. The coordinator is killed at its
steps; the job at its own, alone and together with the coordinator; and the coordinator at the job's, which
lives on. Moments with no effect on the world between them share one death; CRASH_MATRIX_FULL=1 takes the time
to die at each. What a recording does not have cannot be died at: each scenario names steps that it must have.
"""

import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.chaos.crash_matrix.installation import BULK, Site, open_site
from tests.chaos.crash_matrix.matrix import Cell, run
from tests.chaos.crash_matrix.plants import PLANTS
from tests.chaos.crash_matrix.play import play
from tests.chaos.crash_matrix.scenario import Scenario
from tests.chaos.crash_matrix.scenarios import ON_S3, SCENARIOS
from tests.chaos.crash_matrix.table import rendered
from tests.s3 import S3Server
from tests.services import Services


@pytest.fixture(scope="module")
def local_site(services: Services) -> Iterator[Site]:
    with open_site(services) as site:
        yield site


@pytest.fixture(scope="module")
def s3_site(services: Services) -> Iterator[Site]:
    with S3Server.running() as server, open_site(services, bulk=BULK["s3"]) as site:
        site.move_to(server)
        yield site


async def check_all(site: Site, scenario: Scenario, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    async with AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(lane.connected()) for lane in site.lanes]
        played = await run(lanes, scenario, site.hashes)
    with capsys.disabled():
        print(rendered(f"{scenario.name} ({store})", played, time.monotonic() - begun))
    failed = [result for result in played.results if not result.outcome.ok]
    told = [f"{result.cell.replay(scenario, store)}\n{result.outcome.words}" for result in failed]
    assert not failed, "\n\n".join(told)
    assert played.steps >= scenario.must, f"nobody died at {scenario.must - played.steps}"


def _id(scenario: Scenario) -> str:
    """Without a space, at which some reports would cut it off."""
    return scenario.name.replace(" ", "-")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=_id)
async def test_killed_at_every_step(
    local_site: Site, scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    await check_all(local_site, scenario, "local", capsys)


@pytest.mark.parametrize("scenario", ON_S3, ids=_id)
async def test_killed_at_every_step_on_s3(
    s3_site: Site, scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    await check_all(s3_site, scenario, "s3", capsys)


@pytest.mark.parametrize("bug", PLANTS)
async def test_a_planted_bug_is_seen(local_site: Site, bug: str) -> None:
    """Each by one death, which a coordinator and a job without the bug survive."""
    plant = PLANTS[bug]
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == plant.scenario]
    cell = Cell(plant.who, (plant.moment,))
    async with local_site.lanes[0].connected() as lane:
        lane.plant = bug
        try:
            outcome = await play(lane, scenario, cell.death, local_site.hashes)
        finally:
            lane.plant = ""
    assert not outcome.ok
    assert plant.seen in outcome.words
