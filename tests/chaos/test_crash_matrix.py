"""Killed before and after every step of every operation: all converges, and the home is the same.

The steps are written down nowhere: a first run of each operation tells them. The coordinator is killed at its
steps; the job at its own, alone and together with the coordinator; and the coordinator at the job's, which
lives on. What a recording does not have cannot be died at: each scenario names steps that it must have.

`make test` plays one scenario of each kind and some deaths in it, which the commit chooses. `make test-all`
dies at every moment of every scenario. A failure says how to play its death again.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.chaos.crash_matrix.installation import Site, open_site
from tests.chaos.crash_matrix.matrix import Cell, run
from tests.chaos.crash_matrix.plants import PLANTS
from tests.chaos.crash_matrix.play import play
from tests.chaos.crash_matrix.scenario import Scenario
from tests.chaos.crash_matrix.scenarios import ON_S3, SCENARIOS, chosen
from tests.chaos.crash_matrix.table import rendered
from tests.s3 import S3Server
from tests.services import Services

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def site(services: Services) -> Iterator[Site]:
    with open_site(services) as opened:
        yield opened


@pytest.fixture
def s3_site(site: Site, s3_server: S3Server) -> Iterator[Site]:
    with site.on_s3(s3_server):
        yield site


async def check_all(site: Site, scenario: Scenario, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    async with AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(lane.connected()) for lane in site.lanes]
        played = await run(lanes, scenario, store, site.hashes)
    with capsys.disabled():
        title = f"{scenario.name} ({store})"
        print(rendered(title, played, time.monotonic() - begun), file=sys.stderr)
    failed = [result for result in played.results if not result.outcome.ok]
    told = [f"{result.cell.replay(scenario, store)}\n{result.outcome.words}" for result in failed]
    assert not failed, "\n\n".join(told)
    assert played.steps >= scenario.must, f"nobody died at {scenario.must - played.steps}"


def _id(scenario: Scenario) -> str:
    """Without a space, at which some reports would cut it off."""
    return scenario.name.replace(" ", "-")


@pytest.mark.parametrize("scenario", chosen(), ids=_id)
async def test_killed_at_every_step(
    site: Site, scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    await check_all(site, scenario, "local", capsys)


@pytest.mark.parametrize("scenario", ON_S3, ids=_id)
async def test_killed_at_every_step_on_s3(
    s3_site: Site, scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    await check_all(s3_site, scenario, "s3", capsys)


@pytest.mark.parametrize("bug", PLANTS)
async def test_a_planted_bug_is_seen(site: Site, bug: str) -> None:
    """Each by one death, which a coordinator and a job without the bug survive."""
    plant = PLANTS[bug]
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == plant.scenario]
    cell = Cell(plant.who, (plant.moment,))
    async with site.lanes[0].connected() as lane:
        lane.plant = bug
        try:
            outcome = await play(lane, scenario, cell.death, site.hashes)
        finally:
            lane.plant = ""
    assert not outcome.ok
    assert plant.seen in outcome.words
