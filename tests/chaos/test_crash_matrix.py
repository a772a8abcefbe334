"""Crash matrix: kill -9 at every step of every operation; it converges and keeps the home.

A first run of each scenario records its steps. The coordinator is killed at its own steps, and at
those of a job that survives it. The job is killed at its steps, alone and together with the
coordinator. Each scenario names steps that its recording must contain.

`make test` runs one scenario of each kind with some crashes, which the commit selects.
`make test-all` runs every crash of every scenario. A failure prints the command that repeats its
cell.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.chaos.crash_matrix.crash_run import run_with_crash
from tests.chaos.crash_matrix.installation_pool import InstallationPool, open_installation_pool
from tests.chaos.crash_matrix.matrix import Cell, run
from tests.chaos.crash_matrix.planted_bugs import PLANTED_BUGS
from tests.chaos.crash_matrix.result_table import render_table
from tests.chaos.crash_matrix.scenario import Scenario
from tests.chaos.crash_matrix.scenarios import ON_S3, SCENARIOS, chosen
from tests.s3 import S3Server
from tests.services import Services

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def pool(services: Services) -> Iterator[InstallationPool]:
    with open_installation_pool(services) as opened:
        yield opened


@pytest.fixture
def s3_pool(pool: InstallationPool, s3_server: S3Server) -> Iterator[InstallationPool]:
    with pool.on_s3(s3_server):
        yield pool


async def check_all(
    pool: InstallationPool, scenario: Scenario, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        installations = [
            await stack.enter_async_context(installation.connected()) for installation in pool.installations
        ]
        matrix_run = await run(installations, scenario, store, pool.hashes)
    with capsys.disabled():
        title = f"{scenario.name} ({store})"
        print(render_table(title, matrix_run, time.monotonic() - started), file=sys.stderr)
    failed = [result for result in matrix_run.results if not result.outcome.ok]
    messages = [f"{result.cell.replay(scenario, store)}\n{result.outcome.summary}" for result in failed]
    assert not failed, "\n\n".join(messages)
    missing = scenario.required_steps - matrix_run.steps
    assert not missing, f"no crash point at {missing}"


def _id(scenario: Scenario) -> str:
    """Return the scenario's name without spaces, at which some reports cut it off."""
    return scenario.name.replace(" ", "-")


@pytest.mark.parametrize("scenario", chosen(), ids=_id)
async def test_every_scenario_converges_after_a_kill_at_any_step(
    pool: InstallationPool, scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    await check_all(pool, scenario, "local", capsys)


@pytest.mark.parametrize("scenario", ON_S3, ids=_id)
async def test_every_scenario_converges_after_a_kill_at_any_step_on_s3(
    s3_pool: InstallationPool, scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    await check_all(s3_pool, scenario, "s3", capsys)


@pytest.mark.parametrize("bug", PLANTED_BUGS)
async def test_a_planted_bug_fails_its_cell(pool: InstallationPool, bug: str) -> None:
    """The same cell passes without the bug."""
    planted_bug = PLANTED_BUGS[bug]
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == planted_bug.scenario]
    cell = Cell(planted_bug.target, (planted_bug.point,))
    async with pool.installations[0].connected() as installation:
        installation.planted_bug = bug
        try:
            outcome = await run_with_crash(installation, scenario, cell.crash, pool.hashes)
        finally:
            installation.planted_bug = ""
    assert not outcome.ok
    assert planted_bug.expected_text in outcome.summary
