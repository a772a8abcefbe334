"""A coordinator that loses the database gives up leadership, reconnects and campaigns again."""

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from structlog.testing import CapturingLogger

from codehub.coordinator import leadership_loop
from codehub.domain.states import DesiredState, Phase
from tests.integration.coordinator.conftest import new_stack
from tests.selection import EVERYTHING
from tests.services import Services
from tests.waiting import PATIENCE, until


@pytest.fixture
def own_services() -> Iterator[Services]:
    with Services.running() as running:
        yield running


async def test_a_database_that_dies_ends_only_the_leadership_term(
    own_services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await own_services.migrated_database()
    async with new_stack(url, own_services.redis.url) as stack:
        await stack.start()
        workspace_id = await stack.create()
        before = await stack.until_phase(workspace_id, Phase.RUNNING)
        for _ in range(2 if EVERYTHING else 1):
            async with stack.engine.connect() as conn:
                await conn.execute(text("CHECKPOINT"))  # the tests' server does not write through
            assert own_services.postgres.process is not None
            logger = CapturingLogger()
            monkeypatch.setattr(leadership_loop, "logger", logger)
            own_services.postgres.process.kill()
            own_services.postgres.process.wait()
            await until(
                lambda: any(call.args[0] == "leadership is given up" for call in logger.calls),  # noqa: B023
                "the leadership to be given up",
            )
            await own_services.postgres.start()
            await stack.engine.dispose()
            await stack.reach(workspace_id, DesiredState.STANDBY)
            await stack.reach(workspace_id, DesiredState.RUNNING)
        assert (await stack.get(workspace_id)).home_ctx == before.home_ctx
        async with asyncio.timeout(PATIENCE):
            await stack.stop()
