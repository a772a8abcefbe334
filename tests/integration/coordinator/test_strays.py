"""Containers without a row on a real runtime: ours are removed after their grace."""

import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from codehub.coordinator.gc_runner import GcRunner
from codehub.coordinator.main import make_runtime
from codehub.domain.gc import GcRules
from codehub.domain.states import Phase
from codehub.runtimes.base import Runtime, WorkloadSpec
from tests.integration.coordinator.conftest import UID_BASE, CoordinatorStack
from tests.services import short_temp_dir

GRACE = timedelta(hours=2)
MOMENT = timedelta(minutes=5)
"""Longer than a cycle, which does not count towards the grace."""
RULES = GcRules(orphan_grace=GRACE, retention=12 * GRACE)
STRAY = "stray"
STRAYS_UID = UID_BASE + 9_000 if os.geteuid() == 0 else None


@dataclass(frozen=True)
class StrayFixture:
    """A container without a row on our runtime, and one of the same name on another installation's."""

    stack: CoordinatorStack
    elsewhere: Runtime

    async def start_stray(self, runtime: Runtime, home: Path) -> None:
        home.mkdir(mode=0o700)
        if STRAYS_UID is not None:
            os.chown(home, STRAYS_UID, STRAYS_UID)
        image = self.stack.providers.images["tiny"]
        await runtime.start(WorkloadSpec(STRAY, image, home, "op-0", STRAYS_UID))

    async def runner(self) -> GcRunner:
        """Return a GC runner in a new leadership term."""
        epoch = await self.stack.take_leadership()
        return GcRunner(
            self.stack.leader_database(epoch, RULES.retention), self.stack.providers, RULES, epoch
        )


@pytest.fixture
async def fixture(stack: CoordinatorStack) -> AsyncIterator[StrayFixture]:
    directory = short_temp_dir()
    elsewhere = make_runtime(stack.with_settings(data_dir=directory), "another-installation")
    strays = StrayFixture(stack, elsewhere)
    await strays.start_stray(stack.providers.runtime, directory / "home")
    await strays.start_stray(elsewhere, directory / "home-elsewhere")
    yield strays
    await elsewhere.delete(STRAY)
    shutil.rmtree(directory)


async def running(runtime: Runtime) -> set[str]:
    return {name for name in await runtime.observe() if (await runtime.status(name)).running}


async def test_only_our_container_without_a_row_is_removed_after_its_grace(fixture: StrayFixture) -> None:
    stack, ours = fixture.stack, fixture.stack.providers.runtime
    await stack.start()
    known = await stack.create()
    await stack.until_phase(known, Phase.RUNNING)
    runner = await fixture.runner()
    first_seen = datetime.now(UTC)
    for later in (timedelta(0), GRACE - MOMENT):
        await runner.tick(first_seen + later)
        assert await running(ours) == {known, STRAY}, f"{later} after it was first seen"
    await runner.tick(first_seen + GRACE + MOMENT)
    assert await running(ours) == {known}
    assert STRAY not in await ours.observe()
    await runner.tick(first_seen + 10 * GRACE)
    assert await running(ours) == {known}
    assert await running(fixture.elsewhere) == {STRAY}


async def test_the_grace_restarts_for_a_container_that_was_gone_meanwhile(fixture: StrayFixture) -> None:
    ours, home = fixture.stack.providers.runtime, fixture.stack.settings.data_dir.with_suffix(".home")
    runner = await fixture.runner()
    first_seen = datetime.now(UTC)
    await runner.tick(first_seen)
    await ours.delete(STRAY)
    await runner.tick(first_seen + GRACE / 2)
    await fixture.start_stray(ours, home)
    await runner.tick(first_seen + GRACE)
    await runner.tick(first_seen + 2 * GRACE - MOMENT)
    assert await running(ours) == {STRAY}
    await runner.tick(first_seen + 2 * GRACE + MOMENT)
    assert await running(ours) == set()
    home.rmdir()
